//! A terminal for a command: its size, its modes, and how it ends.
//!
//! The peer describes its own terminal (RFC 4254, 6.2 and 8) and the command gets one that behaves alike. It is the controlling
//! terminal of a session of the command's own: when the peer leaves, the last descriptor here is closed and the kernel
//! tells the session (SIGHUP), as it does when a window is closed.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use pty_process::{Pts, Pty, Size};
use russh::Pty as Code;
use rustix::termios::{
    InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios, tcgetattr, tcsetattr,
    tcsetwinsize,
};

/// Names of terminals are short words.
const MAX_TERM: usize = 128;
/// What RFC 4254 has for a key that does nothing, and what the kernel has.
const DISABLED: (u32, u8) = (255, 0);

/// A terminal that no command has yet.
pub(super) struct Terminal {
    pub pty: Pty,
    pub pts: Pts,
    /// What the peer calls its terminal; the task's own word stands if that is nothing.
    pub term: Option<String>,
    /// Its path in `/dev`.
    pub path: CString,
}

impl Terminal {
    pub fn open(term: &str, size: Size, modes: &[(Code, u32)]) -> io::Result<Terminal> {
        let (pty, pts) = pty_process::open().map_err(plain)?;
        pty.resize(size).map_err(plain)?;
        let mut termios = tcgetattr(&pts)?;
        // Everything is UTF-8 unless the peer says otherwise: not every client knows this mode.
        termios.input_modes.insert(InputModes::IUTF8);
        for (code, value) in modes {
            apply(&mut termios, *code, *value);
        }
        tcsetattr(&pts, OptionalActions::Now, &termios)?;
        let path = rustix::pty::ptsname(&pty, Vec::new())?;
        let is_name = !term.is_empty() && term.len() <= MAX_TERM && !term.contains('\0');
        Ok(Terminal { pty, pts, term: is_name.then(|| term.to_owned()), path })
    }
}

/// The error without its wrapping.
pub(super) fn plain(error: pty_process::Error) -> io::Error {
    match error {
        pty_process::Error::Io(error) => error,
        pty_process::Error::Rustix(error) => error.into(),
        other => io::Error::other(other),
    }
}

/// Sizes beyond what the kernel can hold are no sizes of terminals.
pub(super) fn size(columns: u32, rows: u32, width: u32, height: u32) -> Size {
    let fit = |value: u32| u16::try_from(value).unwrap_or(u16::MAX);
    Size::new_with_pixel(fit(rows), fit(columns), fit(width), fit(height))
}

/// The kernel tells those on the terminal.
pub(super) fn resize(master: &OwnedFd, size: Size) {
    // One that is gone has no size.
    let _ = tcsetwinsize(master, size.into());
}

/// What to type so that whoever reads the terminal sees the end of its input. A line that was begun has to be
/// ended first, hence twice.
pub(super) fn end_of_input(master: impl AsFd, last: Option<u8>) -> Vec<u8> {
    let Ok(termios) = tcgetattr(master) else { return Vec::new() };
    let is_line_begun = last.is_some_and(|byte| byte != b'\n' && byte != b'\r');
    let times = 1 + usize::from(is_line_begun && termios.local_modes.contains(LocalModes::ICANON));
    match termios.special_codes[SpecialCodeIndex::VEOF] {
        key if key == DISABLED.1 => Vec::new(),
        key => vec![key; times],
    }
}

/// Codes that are missing here mean nothing on Linux (`VDSUSP`), or nothing on a terminal without a wire (`CS7`, speeds).
fn apply(termios: &mut Termios, code: Code, value: u32) {
    let is_on = value != 0;
    if let Some(index) = special(code) {
        let key = u8::try_from(value).unwrap_or(DISABLED.1);
        termios.special_codes[index] = if value == DISABLED.0 { DISABLED.1 } else { key };
    } else if let Some(mode) = input(code) {
        termios.input_modes.set(mode, is_on);
    } else if let Some(mode) = local(code) {
        termios.local_modes.set(mode, is_on);
    } else if let Some(mode) = output(code) {
        termios.output_modes.set(mode, is_on);
    }
}

fn special(code: Code) -> Option<SpecialCodeIndex> {
    Some(match code {
        Code::VINTR => SpecialCodeIndex::VINTR,
        Code::VQUIT => SpecialCodeIndex::VQUIT,
        Code::VERASE => SpecialCodeIndex::VERASE,
        Code::VKILL => SpecialCodeIndex::VKILL,
        Code::VEOF => SpecialCodeIndex::VEOF,
        Code::VEOL => SpecialCodeIndex::VEOL,
        Code::VEOL2 => SpecialCodeIndex::VEOL2,
        Code::VSTART => SpecialCodeIndex::VSTART,
        Code::VSTOP => SpecialCodeIndex::VSTOP,
        Code::VSUSP => SpecialCodeIndex::VSUSP,
        Code::VREPRINT => SpecialCodeIndex::VREPRINT,
        Code::VWERASE => SpecialCodeIndex::VWERASE,
        Code::VLNEXT => SpecialCodeIndex::VLNEXT,
        Code::VDISCARD => SpecialCodeIndex::VDISCARD,
        _ => return None,
    })
}

fn input(code: Code) -> Option<InputModes> {
    Some(match code {
        Code::IGNPAR => InputModes::IGNPAR,
        Code::PARMRK => InputModes::PARMRK,
        Code::INPCK => InputModes::INPCK,
        Code::ISTRIP => InputModes::ISTRIP,
        Code::INLCR => InputModes::INLCR,
        Code::IGNCR => InputModes::IGNCR,
        Code::ICRNL => InputModes::ICRNL,
        Code::IUCLC => InputModes::IUCLC,
        Code::IXON => InputModes::IXON,
        Code::IXANY => InputModes::IXANY,
        Code::IXOFF => InputModes::IXOFF,
        Code::IMAXBEL => InputModes::IMAXBEL,
        Code::IUTF8 => InputModes::IUTF8,
        _ => return None,
    })
}

fn local(code: Code) -> Option<LocalModes> {
    Some(match code {
        Code::ISIG => LocalModes::ISIG,
        Code::ICANON => LocalModes::ICANON,
        Code::XCASE => LocalModes::XCASE,
        Code::ECHO => LocalModes::ECHO,
        Code::ECHOE => LocalModes::ECHOE,
        Code::ECHOK => LocalModes::ECHOK,
        Code::ECHONL => LocalModes::ECHONL,
        Code::NOFLSH => LocalModes::NOFLSH,
        Code::TOSTOP => LocalModes::TOSTOP,
        Code::IEXTEN => LocalModes::IEXTEN,
        Code::ECHOCTL => LocalModes::ECHOCTL,
        Code::ECHOKE => LocalModes::ECHOKE,
        Code::PENDIN => LocalModes::PENDIN,
        _ => return None,
    })
}

fn output(code: Code) -> Option<OutputModes> {
    Some(match code {
        Code::OPOST => OutputModes::OPOST,
        Code::OLCUC => OutputModes::OLCUC,
        Code::ONLCR => OutputModes::ONLCR,
        Code::OCRNL => OutputModes::OCRNL,
        Code::ONOCR => OutputModes::ONOCR,
        Code::ONLRET => OutputModes::ONLRET,
        _ => return None,
    })
}
