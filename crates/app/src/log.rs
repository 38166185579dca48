//! The log of the server and of the agent on standard error: one line for each event, whatever is in its fields.
//!
//! Fields hold texts of other people: names, paths, reasons of tasks. A line break in one must not make a line that
//! looks like another event, and whoever watches the log on a terminal must not execute an escape sequence.

use std::io::{self, Write};

use muster_model::printable;
use tracing_subscriber::EnvFilter;

/// Starts the log; `MUSTER_LOG` chooses how much.
pub(crate) fn start() {
    let filter =
        EnvFilter::try_from_env("MUSTER_LOG").unwrap_or_else(|_| EnvFilter::new("info,kube_client=off"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lines(io::stderr()))
        .with_ansi(false);
    // On a full disk a line is lost, and nothing else: a complaint about it on standard error, which is that same disk,
    // would be a panic.
    log.log_internal_errors(false).init();
}

/// Takes whole events, each in one call.
struct Lines<W>(W);

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = printable::inline(text.strip_suffix('\n').unwrap_or(&text));
        self.0.write_all(format!("{line}\n").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no writer panics").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_and_executes_nothing() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt()
            .with_writer(move || Lines(writer.clone()))
            .with_ansi(false)
            .without_time()
            .finish();
        tracing::subscriber::with_default(log, || {
            let (name, path) = ("x\x1b]0;pwned\x07\n INFO forged", "\u{202e}\u{9b}2J");
            tracing::info!(name, %path, message = %name);
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(text.trim_end().chars().all(printable::is_printable), "{text:?}");
        assert!(text.contains(r"\u{202e}") && text.contains("forged"), "{text}");
    }
}
