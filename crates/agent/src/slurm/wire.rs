//! What `srun` and a node say to each other, over the input and the output of `muster-step`.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// A frame is a kind, the rank it is about, a length, and so many bytes.
const HEAD: usize = 9;
/// The longest: what is moved at once, and the environment of a large step.
const LONGEST: usize = 64 << 20;

/// What is to be done on a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Begin {
    pub argv: Vec<String>,
    /// The directory that `srun` was called in, or was told.
    pub cwd: String,
    /// The directory of the task that `srun` is in: what names it there names the node's own here.
    pub from: String,
    /// Variables that the script has set or changed, and those that it has taken away.
    pub set: BTreeMap<String, String>,
    pub unset: Vec<String>,
    /// The step's own, for all of its processes.
    pub step: BTreeMap<String, String>,
    pub ranks: Vec<Rank>,
    /// Who gets the input.
    pub input: Input,
}

/// A process of the node's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rank {
    pub rank: u32,
    pub local: u32,
    /// Which of the task's devices it sees, counted from the first; none: all of them.
    pub devices: Option<Vec<u32>>,
}

/// Who gets what `srun` reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Input {
    Nobody,
    All,
    One(u32),
}

impl Input {
    pub fn is_for(self, rank: u32) -> bool {
        match self {
            Input::Nobody => false,
            Input::All => true,
            Input::One(one) => one == rank,
        }
    }
}

/// What is said to a node, and by it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Begin(Box<Begin>),
    /// For the processes' input; answered with [`Frame::Taken`] when they have it.
    Input(Vec<u8>),
    EndOfInput,
    Signal(i32),
    /// End everything now.
    Kill,
    Taken,
    Output {
        rank: u32,
        is_error: bool,
        bytes: Vec<u8>,
    },
    /// A process has ended: with a code, or by a signal.
    Exited {
        rank: u32,
        code: i32,
    },
    Signaled {
        rank: u32,
        signal: i32,
    },
    /// A process could not be started.
    Failed {
        rank: u32,
        message: String,
    },
}

impl Frame {
    pub fn bytes(&self) -> io::Result<Vec<u8>> {
        let number = |number: i32| number.to_le_bytes().to_vec();
        let (kind, rank, payload) = match self {
            Frame::Begin(begin) => (b'B', 0, serde_json::to_vec(begin)?),
            Frame::Input(bytes) => (b'I', 0, bytes.clone()),
            Frame::EndOfInput => (b'E', 0, Vec::new()),
            Frame::Signal(signal) => (b'S', 0, number(*signal)),
            Frame::Kill => (b'K', 0, Vec::new()),
            Frame::Taken => (b'T', 0, Vec::new()),
            Frame::Output { rank, is_error, bytes } => {
                (if *is_error { b'R' } else { b'O' }, *rank, bytes.clone())
            }
            Frame::Exited { rank, code } => (b'X', *rank, number(*code)),
            Frame::Signaled { rank, signal } => (b'Y', *rank, number(*signal)),
            Frame::Failed { rank, message } => (b'F', *rank, message.as_bytes().to_vec()),
        };
        let mut bytes = Vec::with_capacity(HEAD + payload.len());
        bytes.push(kind);
        bytes.extend(rank.to_le_bytes());
        bytes.extend((payload.len() as u32).to_le_bytes());
        bytes.extend(payload);
        Ok(bytes)
    }

    pub fn write(&self, mut to: impl Write) -> io::Result<()> {
        to.write_all(&self.bytes()?)
    }
}

/// Frames out of bytes that come in any pieces.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    pub fn add(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Reads what there is, once. False at the end.
    pub fn fill(&mut self, mut from: impl Read) -> io::Result<bool> {
        let mut buffer = vec![0; 64 << 10];
        let count = from.read(&mut buffer)?;
        self.add(&buffer[..count]);
        Ok(count > 0)
    }

    /// The next whole one.
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        let Some((head, rest)) = self.bytes.split_first_chunk::<HEAD>() else { return Ok(None) };
        let [kind, r0, r1, r2, r3, l0, l1, l2, l3] = *head;
        let (rank, length) =
            (u32::from_le_bytes([r0, r1, r2, r3]), u32::from_le_bytes([l0, l1, l2, l3]) as usize);
        if length > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        let frame = read(kind, rank, payload)?;
        self.bytes.drain(..HEAD + length);
        Ok(Some(frame))
    }
}

fn read(kind: u8, rank: u32, payload: &[u8]) -> io::Result<Frame> {
    let number = || {
        payload.try_into().map(i32::from_le_bytes).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    Ok(match kind {
        b'B' => Frame::Begin(serde_json::from_slice(payload)?),
        b'I' => Frame::Input(payload.to_vec()),
        b'E' => Frame::EndOfInput,
        b'S' => Frame::Signal(number()?),
        b'K' => Frame::Kill,
        b'T' => Frame::Taken,
        b'O' | b'R' => Frame::Output { rank, is_error: kind == b'R', bytes: payload.to_vec() },
        b'X' => Frame::Exited { rank, code: number()? },
        b'Y' => Frame::Signaled { rank, signal: number()? },
        b'F' => Frame::Failed { rank, message: String::from_utf8_lossy(payload).into_owned() },
        _ => return Err(io::ErrorKind::InvalidData.into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_whole_however_they_come() {
        let begin = Begin {
            argv: vec!["hostname".into()],
            cwd: "/w".into(),
            from: "/t".into(),
            set: [("A".to_owned(), "b".to_owned())].into(),
            unset: vec!["C".into()],
            step: BTreeMap::new(),
            ranks: vec![Rank { rank: 3, local: 1, devices: Some(vec![1]) }],
            input: Input::One(3),
        };
        let frames = [
            Frame::Begin(Box::new(begin)),
            Frame::Input(b"x\0y".to_vec()),
            Frame::EndOfInput,
            Frame::Signal(10),
            Frame::Kill,
            Frame::Taken,
            Frame::Output { rank: 7, is_error: true, bytes: vec![] },
            Frame::Exited { rank: 1, code: -1 },
            Frame::Signaled { rank: 1, signal: 9 },
            Frame::Failed { rank: 0, message: "no".into() },
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes().unwrap()).collect();
        for piece in [1, 7, 1000] {
            let (mut reader, mut found) = (Frames::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                reader.add(piece);
                while let Some(frame) = reader.next().unwrap() {
                    found.push(frame);
                }
            }
            assert_eq!(found, frames);
        }
        let mut wrong = Frames::default();
        wrong.add(&[b'Z'; 200]);
        assert!(wrong.next().is_err());
    }
}
