//! A session's directory: what outlives everyone but the task.
//!
//! | file | says |
//! | --- | --- |
//! | `session.json` | which shell it is, and whether it is over |
//! | `N.command` | what to run |
//! | `N.key` | under which key it was given |
//! | `N.run` | how the shell runs it, see `script` |
//! | `N.begun` | that it has begun, and what the kernel said of its shell then |
//! | `N.out` | what it has written, both outputs together |
//! | `N.status` | its exit status. Then `N.out` is complete |
//! | `N.status.S` | that this is its exit status, where a full disk took no content for `N.status` |
//! | `N.live` | that its output is being shown on the terminal |

use std::fs::{self, DirBuilder, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use muster_model::Timestamp;
use muster_model::session::{CommandState, SessionCommand, Terminal};
use serde::{Deserialize, Serialize};

use super::process::Look;
use super::script;

/// How much of a command's text is shown.
const EXCERPT: u64 = 400;

/// What `session.json` says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    pub terminal: Terminal,
    pub shell: String,
    /// The shell's process.
    pub pid: i32,
    /// Its place in tmux.
    #[serde(default)]
    pub pane: String,
    pub opened_at: Timestamp,
    /// The first command that was given to this shell; those before were given to others of the session's name.
    pub first: u32,
    #[serde(default)]
    pub over: Option<Over>,
}

/// How a session ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Over {
    pub reason: String,
    /// The shell's exit status, where it is known.
    pub status: Option<i32>,
    pub at: Timestamp,
}

#[derive(Debug, Clone)]
pub(super) struct Store {
    dir: PathBuf,
}

impl Store {
    pub(super) fn new(sessions: &Path, name: &str) -> Store {
        Store { dir: sessions.join(name) }
    }

    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(super) fn create(&self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)
    }

    pub(super) fn record(&self) -> io::Result<Option<Record>> {
        match fs::read(self.dir.join("session.json")) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn write_record(&self, record: &Record) -> io::Result<()> {
        self.put("session.json", &serde_json::to_vec(record)?)
    }

    /// The number of the last command; 0 if there is none.
    pub(super) fn last(&self) -> io::Result<u32> {
        let mut last = 0;
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(".command")?.parse().ok());
            last = last.max(number.unwrap_or(0));
        }
        Ok(last)
    }

    /// Writes a command down: from here on it is in the queue.
    pub(super) fn add(&self, number: u32, text: &str, key: Option<&str>, muster: &Path) -> io::Result<()> {
        let at = self.path(number, "");
        let at = at.to_string_lossy();
        let at = at.trim_end_matches('.');
        let run = script::run(at, muster, &self.dir.to_string_lossy(), number);
        self.put(&format!("{number}.run"), run.as_bytes())?;
        self.put(&format!("{number}.out"), b"")?;
        if let Some(key) = key {
            self.put(&format!("{number}.key"), key.as_bytes())?;
        }
        // The last line may be a comment or end in a backslash.
        self.put(&format!("{number}.command"), format!("{text}\n").as_bytes())
    }

    /// The key under which a command was given.
    pub(super) fn key(&self, number: u32) -> Option<String> {
        fs::read_to_string(self.path(number, "key")).ok()
    }

    pub(super) fn path(&self, number: u32, ending: &str) -> PathBuf {
        self.dir.join(format!("{number}.{ending}"))
    }

    pub(super) fn has_begun(&self, number: u32) -> bool {
        self.path(number, "begun").exists()
    }

    /// The shell as it was when a command began.
    pub(super) fn beginner(&self, number: u32) -> Option<Look> {
        Look::parse(&fs::read_to_string(self.path(number, "begun")).ok()?)
    }

    /// The exit status of a command; none while it has not ended by itself.
    pub(super) fn status(&self, number: u32) -> Option<i32> {
        let text = fs::read_to_string(self.path(number, "status")).ok()?;
        match text.strip_suffix('\n') {
            Some(status) => status.trim().parse().ok(),
            // It is still being written, or a full disk has taken no more than its name.
            None => (0..=255).find(|status| self.path(number, &format!("status.{status}")).exists()),
        }
    }

    /// How a command is; none if there is no such command.
    pub(super) fn command(&self, record: &Record, number: u32) -> io::Result<Option<SessionCommand>> {
        let Some(given) = self.found(number, "command")? else { return Ok(None) };
        let begun = self.found(number, "begun")?;
        let status = self.status(number);
        let mut command = SessionCommand {
            number,
            state: if begun.is_some() { CommandState::Running } else { CommandState::Queued },
            exit_status: status,
            reason: None,
            text: self.excerpt(number)?,
            output_bytes: self.found(number, "out")?.map_or(0, |file| file.len()),
            queued_at: written_at(&given)?,
            started_at: begun.as_ref().map(written_at).transpose()?,
            ended_at: None,
        };
        if status.is_some() {
            command.state = CommandState::Done;
            command.ended_at = self.found(number, "status")?.as_ref().map(written_at).transpose()?;
        } else if number < record.first {
            command.state = CommandState::Lost;
            command.reason = Some("its session was opened anew before it had ended".into());
            command.ended_at = Some(record.opened_at);
        } else if let Some(over) = &record.over {
            command.state = CommandState::Lost;
            command.reason = Some(over.reason.clone());
            command.exit_status = over.status.filter(|_| begun.is_some());
            command.ended_at = Some(over.at);
        }
        Ok(Some(command))
    }

    fn excerpt(&self, number: u32) -> io::Result<String> {
        let mut text = Vec::new();
        fs::File::open(self.path(number, "command"))?.take(EXCERPT).read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).trim_end().trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned())
    }

    fn found(&self, number: u32, ending: &str) -> io::Result<Option<Metadata>> {
        match fs::metadata(self.path(number, ending)) {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A file that appears whole, for its owner alone.
    fn put(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let unfinished = self.dir.join(format!(".{name}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        options.open(&unfinished)?.write_all(content)?;
        fs::rename(&unfinished, self.dir.join(name))
    }
}

fn written_at(file: &Metadata) -> io::Result<Timestamp> {
    Timestamp::try_from(file.modified()?).map_err(io::Error::other)
}
