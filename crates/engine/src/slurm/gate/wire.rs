//! What the engine asks its gate, and what that answers: one of each on a stream of its own, a JSON object a line.

use std::io;

use muster_link::control::{Received, receive, send};
use muster_link::session::Stream;
use muster_model::{AttemptId, JobId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::io::{AsyncWriteExt, BufReader};

use super::super::excerpt::{COMPLAINTS, SENTENCE, excerpt, truncate};
use super::super::job::is_id;

/// No path of Linux is longer.
const LONGEST_PATH: usize = 4096;

/// What the engine asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(in super::super) enum Ask {
    /// Who and where the gate is.
    Who,
    /// Run one of Slurm's programs.
    Run { argv: Vec<String> },
    /// Hand a gang over.
    Submit(Box<Submit>),
    /// What is written down of attempts.
    Look { attempts: Vec<AttemptId> },
    /// Write down which job an attempt has.
    Adopt { attempt: AttemptId, job: String },
    /// Write down that an attempt is over: agents that still come end themselves.
    Close { attempt: AttemptId },
    /// Remove what attempts have left that are long over.
    Sweep { live: Vec<AttemptId>, kept_s: u64 },
    /// Remove what the attempts of a job have left, which is over and forgotten.
    Remove { job: JobId },
    /// Start agents that tell what is left to tell.
    Salvage { attempt: AttemptId },
}

/// A gang to hand over.
#[derive(Debug, Serialize, Deserialize)]
pub(in super::super) struct Submit {
    pub(in super::super) attempt: AttemptId,
    /// What its agents need to know, by rank. It has their tokens.
    pub(in super::super) seats: Value,
    pub(in super::super) script: String,
    /// `sbatch` and its options.
    pub(in super::super) argv: Vec<String>,
    /// An earlier try has certainly not led to a job.
    pub(in super::super) is_settled: bool,
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(in super::super) enum Answer {
    Who(Who),
    Ran(Ran),
    Submission(Submission),
    Found { attempts: Vec<Found> },
    Done,
    Failed { message: String },
}

impl Answer {
    /// What kind of answer it is, for errors: its content may be megabytes of anything.
    pub(in super::super) fn kind(&self) -> &'static str {
        match self {
            Self::Who(_) => "who",
            Self::Ran(_) => "ran",
            Self::Submission(_) => "submission",
            Self::Found { .. } => "found",
            Self::Done => "done",
            Self::Failed { .. } => "failed",
        }
    }

    /// The same with its texts cut to what the server needs of them; an error if it has what no gate of ours sends. The output
    /// of programs is left for its parsers.
    pub(in super::super) fn check(mut self) -> io::Result<Self> {
        let is_sound = match &mut self {
            Self::Who(who) => who.dir.len() <= LONGEST_PATH && who.binary.len() <= LONGEST_PATH,
            Self::Ran(ran) => {
                truncate(&mut ran.stderr, COMPLAINTS);
                true
            }
            Self::Submission(Submission::Job { id }) => is_id(id),
            Self::Submission(
                Submission::Refused { complaints }
                | Submission::Later { complaints }
                | Submission::Doubtful { complaints },
            ) => {
                truncate(complaints, COMPLAINTS);
                true
            }
            Self::Submission(Submission::Busy | Submission::Closed) | Self::Done => true,
            Self::Found { attempts } => attempts.iter().all(|found| found.job.as_deref().is_none_or(is_id)),
            Self::Failed { message } => {
                *message = excerpt(message, SENTENCE);
                true
            }
        };
        let nonsense = || format!("an answer that makes no sense (`{}`)", self.kind());
        if is_sound { Ok(self) } else { Err(io::Error::new(io::ErrorKind::InvalidData, nonsense())) }
    }
}

/// Who and where the gate is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Who {
    pub(in super::super) uid: u32,
    /// The directory of this server's attempts.
    pub(in super::super) dir: String,
    /// The binary that the gate is.
    pub(in super::super) binary: String,
}

/// How a program ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Ran {
    /// None if it was killed, or never ran.
    pub(in super::super) code: Option<i32>,
    pub(in super::super) stdout: String,
    pub(in super::super) stderr: String,
}

/// What became of a submission.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in super::super) enum Submission {
    /// It is this job, now or from before.
    Job { id: String },
    /// Slurm does not take it.
    Refused { complaints: String },
    /// Nothing has happened, and may later.
    Later { complaints: String },
    /// Another try is still under way.
    Busy,
    /// An earlier try may have led to a job.
    Doubtful { complaints: String },
    /// It is over.
    Closed,
}

/// What is written down of an attempt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Found {
    pub(in super::super) job: Option<String>,
    /// It was tried to hand it over, and that may have worked.
    pub(in super::super) is_tried: bool,
    pub(in super::super) is_closed: bool,
    /// An agent has begun to work for it.
    pub(in super::super) is_claimed: bool,
}

/// Sends one message and nothing more.
pub(in super::super) async fn say<T: Serialize>(stream: &mut Stream, message: &T) -> io::Result<()> {
    send(stream, message).await?;
    stream.flush().await
}

/// The one message that comes.
pub(in super::super) async fn hear<T: for<'de> Deserialize<'de>>(stream: &mut Stream) -> io::Result<T> {
    match receive(&mut BufReader::new(stream)).await? {
        Some(Received::Message(message)) => Ok(message),
        Some(Received::Unknown { kind }) => {
            Err(io::Error::new(io::ErrorKind::Unsupported, format!("`{kind}` means nothing here")))
        }
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_bounded_and_its_job_ids_are_numbers() {
        let job = |id: &str| Answer::Submission(Submission::Job { id: id.into() });
        let found = |id: &str| {
            let job = Some(id.to_owned());
            Answer::Found { attempts: vec![Found::default(), Found { job, ..Found::default() }] }
        };
        for id in ["", "17;lab", "--help", "1234567890123", "17\n18"] {
            for answer in [job(id), found(id)] {
                let error = answer.check().unwrap_err().to_string();
                assert!(error.len() < 100 && error.contains("no sense"), "{error}");
            }
        }
        job("17").check().unwrap();
        found("17").check().unwrap();

        let Answer::Failed { message } = Answer::Failed { message: "x".repeat(1 << 20) }.check().unwrap()
        else {
            panic!("it is the same answer")
        };
        assert_eq!(message.len(), SENTENCE);
        let ran = Ran { code: Some(1), stdout: "y".repeat(1 << 20), stderr: "x".repeat(1 << 20) };
        let Answer::Ran(ran) = Answer::Ran(ran).check().unwrap() else { panic!("it is the same answer") };
        assert_eq!((ran.stdout.len(), ran.stderr.len()), (1 << 20, COMPLAINTS));
        let who = Who { uid: 1000, dir: "/".repeat(5000), binary: String::new() };
        assert!(Answer::Who(who).check().is_err());
    }
}
