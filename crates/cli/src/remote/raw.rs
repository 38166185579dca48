//! Our terminal as somebody else's: every key goes through, and comes back only as what the other side makes of it.

use std::io;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::error::{Code, Error};

/// The terminal is raw until this is dropped, also by a panic.
pub(crate) struct Raw {
    before: Termios,
}

impl Raw {
    pub fn enter() -> Result<Self, Error> {
        let failed = |error: rustix::io::Errno| {
            Error::io(Code::SystemFailed, "use the terminal", &io::Error::from(error))
        };
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // What was shown last is shown as it was meant. A terminal that is gone needs nothing.
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}
