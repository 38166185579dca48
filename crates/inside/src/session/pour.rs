//! `muster pour DIR N`: shows what a command writes on the terminal of its session, for people who sit there.
//!
//! The command writes into a file, which is what counts; this only reads along, and nothing depends on it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// More than this at once is left out: nobody reads it, and the terminal would be busy for minutes.
const TOO_MUCH: u64 = 1 << 20;
/// What is shown of it.
const TAIL: u64 = 64 << 10;
/// How often to look for more, at first and at rest.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// Reads along until the command has ended, or the terminal is gone.
pub fn run(dir: &Path, number: &str) -> ExitCode {
    // The shell's signals are not ours. It fails only where they are not anyway.
    let _ = rustix::process::setsid();
    let shown = pour(dir, number);
    let _ = fs::remove_file(dir.join(format!("{number}.live")));
    if shown.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn pour(dir: &Path, number: &str) -> io::Result<()> {
    let path = |ending: &str| dir.join(format!("{number}.{ending}"));
    let mut terminal = io::stdout().lock();
    let text = fs::read(path("command"))?;
    let text = &text[..text.len().min(TAIL as usize)];
    writeln!(terminal, "[{number}] {}", String::from_utf8_lossy(text).trim_end())?;
    let mut file = File::open(path("out"))?;
    let mut pause = PAUSES[0];
    loop {
        let has_ended = path("status").exists();
        let shown = show(&mut file, &mut terminal)?;
        if has_ended {
            return Ok(());
        }
        pause = if shown > 0 { PAUSES[0] } else { (pause * 2).min(PAUSES[1]) };
        let mut gone = [PollFd::new(&terminal, PollFlags::empty())];
        if poll(&mut gone, Timespec::try_from(pause).ok().as_ref()).is_ok_and(|count| count > 0) {
            return Ok(());
        }
    }
}

/// Shows what is new.
fn show(file: &mut File, terminal: &mut impl Write) -> io::Result<u64> {
    let (at, end) = (file.stream_position()?, file.metadata()?.len());
    if end.saturating_sub(at) > TOO_MUCH {
        let from = end - TAIL;
        writeln!(terminal, "\n[{} bytes are not shown here]", from - at)?;
        file.seek(SeekFrom::Start(from))?;
    }
    let count = io::copy(&mut file.take(TOO_MUCH), terminal)?;
    terminal.flush()?;
    Ok(count)
}
