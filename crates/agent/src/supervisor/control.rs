//! Orders from the agent, through a named pipe.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::file::{CONTROL, Order};

/// The supervisor's end of the pipe.
pub(super) struct Control {
    pipe: File,
    line: Vec<u8>,
}

impl Control {
    // An order is shorter than what the kernel writes to a pipe in one piece. A longer line is not an order.
    const LONGEST: usize = 4096;

    pub(super) fn open(dir: &Path) -> io::Result<Control> {
        // For writing too, so that the pipe never ends when the last agent that opened it goes away.
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
        Ok(Control { pipe: options.open(dir.join(CONTROL))?, line: Vec::new() })
    }

    /// What was ordered since the last call. What is not understood is from a newer agent, and passed over.
    pub(super) fn orders(&mut self) -> Vec<Order> {
        let mut orders = Vec::new();
        let mut buffer = [0; 512];
        while let Ok(count @ 1..) = self.pipe.read(&mut buffer) {
            for byte in &buffer[..count] {
                if *byte == b'\n' {
                    orders.extend(serde_json::from_slice::<Order>(&self.line).ok());
                    self.line.clear();
                } else if self.line.len() < Control::LONGEST {
                    self.line.push(*byte);
                }
            }
        }
        orders
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::super::file::StopAsked;
    use super::*;

    #[test]
    fn orders_are_read_line_by_line_and_nonsense_is_passed_over() {
        let home = tempfile::tempdir().unwrap();
        mkfifoat(CWD, home.path().join(CONTROL), Mode::from_raw_mode(0o600)).unwrap();
        let mut control = Control::open(home.path()).unwrap();
        assert_eq!(control.orders(), []);
        let mut agent = OpenOptions::new().write(true).open(home.path().join(CONTROL)).unwrap();
        agent.write_all(b"{\"stop\":{\"grace_ms\":5}}\n{\"dance\":{}}\n\n\xff\xff\n").unwrap();
        agent.write_all(&[b'x'; 9000]).unwrap();
        agent.write_all(b"\n{\"stop\":").unwrap();
        assert_eq!(control.orders(), [Order::Stop(StopAsked { grace_ms: 5, reason: String::new() })]);
        agent.write_all(b"{\"grace_ms\":0,\"new\":1}}\n").unwrap();
        assert_eq!(control.orders(), [Order::Stop(StopAsked { grace_ms: 0, reason: String::new() })]);
    }
}
