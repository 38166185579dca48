//! Signs of progress on a terminal; nothing at all anywhere else.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use muster_api::model::printable;

use crate::terminal;

/// What is over sooner needs no bar.
const BAR_AFTER: Duration = Duration::from_secs(1);
/// How often a spinner turns.
const TURN: Duration = Duration::from_millis(120);

/// A bar that counts bytes, once it has taken long enough to be worth showing.
pub(crate) struct Bar {
    what: &'static str,
    total: u64,
    done: u64,
    began: Instant,
    shown: Option<ProgressBar>,
    is_wanted: bool,
}

impl Bar {
    pub fn new(what: &'static str, total: u64) -> Self {
        Self {
            what,
            total,
            done: 0,
            began: Instant::now(),
            shown: None,
            is_wanted: terminal::stderr_can_move(),
        }
    }

    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if !self.is_wanted || self.began.elapsed() < BAR_AFTER {
            return;
        }
        let bar = self.shown.get_or_insert_with(|| {
            let bar = ProgressBar::new(self.total).with_message(self.what);
            match ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {eta}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        bar.set_position(self.done);
    }

    /// So much more is to come.
    pub fn grow(&mut self, bytes: u64) {
        self.total += bytes;
        if let Some(bar) = &self.shown {
            bar.set_length(self.total);
        }
    }

    /// All is to be counted anew.
    pub fn restart(&mut self) {
        (self.done, self.total) = (0, 0);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// A line that counts bytes of which nobody knows how many come, once it has taken long enough to be worth showing.
pub(crate) struct Counter {
    what: &'static str,
    done: u64,
    began: Instant,
    shown: Option<ProgressBar>,
    is_wanted: bool,
}

impl Counter {
    pub fn new(what: &'static str) -> Self {
        let is_wanted = terminal::stderr_is_terminal();
        Self { what, done: 0, began: Instant::now(), shown: None, is_wanted }
    }

    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if !self.is_wanted || self.began.elapsed() < BAR_AFTER {
            return;
        }
        let bar = self.shown.get_or_insert_with(|| {
            let bar = ProgressBar::new_spinner().with_message(self.what).with_elapsed(self.began.elapsed());
            match ProgressStyle::with_template("{spinner} {msg} {bytes} ({bytes_per_sec})") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        bar.set_position(self.done);
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Some(bar) = &self.shown {
            bar.finish_and_clear();
        }
    }
}

/// A line that says what is waited for.
#[derive(Default)]
pub(crate) struct Spinner {
    shown: Option<ProgressBar>,
}

impl Spinner {
    /// Shows the line, or changes its words.
    pub fn show(&mut self, text: &str) {
        if !terminal::stderr_can_move() {
            return;
        }
        let spinner = self.shown.get_or_insert_with(|| {
            let spinner = ProgressBar::new_spinner();
            spinner.enable_steady_tick(TURN);
            spinner
        });
        spinner.set_message(printable::one_line(text));
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if let Some(spinner) = self.shown.take() {
            spinner.finish_and_clear();
        }
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A bar that counts what is done of many things.
pub(crate) struct Tally {
    shown: Option<ProgressBar>,
    is_wanted: bool,
}

impl Tally {
    pub fn new() -> Self {
        Self { shown: None, is_wanted: terminal::stderr_can_move() }
    }

    /// Whether anybody would see it.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    pub fn show(&mut self, done: u64, total: u64, words: &str) {
        let bar = self.shown.get_or_insert_with(|| {
            let bar = ProgressBar::new(total);
            match ProgressStyle::with_template("{wide_bar} {pos}/{len}  {msg}") {
                Ok(style) => bar.with_style(style),
                Err(_) => bar,
            }
        });
        bar.set_message(printable::one_line(words));
        bar.set_position(done);
    }

    /// Takes the line away, until it is shown again.
    pub fn clear(&mut self) {
        if let Some(bar) = self.shown.take() {
            bar.finish_and_clear();
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.clear();
    }
}
