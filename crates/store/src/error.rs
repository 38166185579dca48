//! What can go wrong with the database, and what it means for whoever asked.

use std::io;
use std::path::PathBuf;

use muster_model::JobId;
use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// What came of an operation of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What kind of failure it is; retry policy reads this, never the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The same again may work.
    Retryable,
    /// The same again fails again.
    Terminal,
    /// What it speaks of is not there.
    NotFound,
    /// The operating system does not permit it.
    Denied,
    /// It contradicts what is stored.
    Conflict,
    /// Someone gave up on it.
    Cancelled,
}

/// Why the store did not do what it was asked. After any of these nothing of the batch is stored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The write was based on an older state of the job.
    #[error("{job} has changed since this write was decided")]
    Stale {
        /// The job.
        job: JobId,
    },
    /// There is no such job.
    #[error("there is no {job}")]
    NoJob {
        /// The job.
        job: JobId,
    },
    /// A newer muster has changed the database in ways this one does not know.
    #[error(
        "the database is at migration {found}, this muster knows {known}: it belongs to a newer version; use that one"
    )]
    Newer {
        /// The newest migration applied to the database.
        found: u32,
        /// The newest this binary has.
        known: u32,
    },
    /// A migration differs from what was applied under its number.
    #[error("migration {number} ({name}) is not the one this database was made with; use a released muster")]
    Edited {
        /// Its number.
        number: u32,
        /// Its name.
        name: String,
    },
    /// The file's pages contradict each other.
    #[error("the database is damaged: {found}")]
    Damaged {
        /// SQLite's own words.
        found: String,
    },
    /// There is a mark of commits, and no database.
    #[error("the database {} is missing or empty", path.display())]
    Missing {
        /// Where it was.
        path: PathBuf,
    },
    /// Commits that were acknowledged are not there.
    #[error(
        "the database lacks its last {commits} changes: its log (muster.db-wal) is damaged or gone, or the database is an older copy"
    )]
    Lost {
        /// How many, by the mark.
        commits: u32,
    },
    /// The database file could not be made or its rights set.
    #[error("cannot prepare {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// SQLite did not do it.
    #[error("cannot {doing}: {}", problem(source))]
    Sqlite {
        /// What was tried.
        doing: &'static str,
        /// SQLite's own words.
        #[source]
        source: rusqlite::Error,
    },
}

impl Error {
    /// Whether there was no room for it.
    pub fn is_disk_full(&self) -> bool {
        match self {
            Self::File { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            Self::Sqlite { source, .. } => match source.sqlite_error() {
                Some(error) => {
                    error.code == ErrorCode::DiskFull || error.extended_code == SQLITE_IOERR_SHMSIZE
                }
                None => false,
            },
            Self::Stale { .. }
            | Self::NoJob { .. }
            | Self::Newer { .. }
            | Self::Edited { .. }
            | Self::Missing { .. }
            | Self::Lost { .. }
            | Self::Damaged { .. } => false,
        }
    }

    /// What kind of failure it is.
    pub fn class(&self) -> Class {
        match self {
            Self::Stale { .. } => Class::Conflict,
            Self::NoJob { .. } => Class::NotFound,
            Self::Newer { .. }
            | Self::Edited { .. }
            | Self::Missing { .. }
            | Self::Lost { .. }
            | Self::Damaged { .. } => Class::Terminal,
            Self::File { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => Class::Denied,
                io::ErrorKind::NotFound => Class::NotFound,
                _ => Class::Retryable,
            },
            Self::Sqlite { source, .. } => explain(source).0,
        }
    }
}

/// For `map_err`: what was tried when SQLite failed.
pub(crate) fn doing(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> Error {
    move |source| Error::Sqlite { doing, source }
}

fn problem(source: &rusqlite::Error) -> &'static str {
    explain(source).1
}

fn explain(source: &rusqlite::Error) -> (Class, &'static str) {
    // SQLite adds codes over time, hence the last arm: an unknown failure is not worth repeating.
    match source.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Class::Retryable, "the disk that holds the database is full"),
        Some(ErrorCode::SystemIoFailure) => {
            (Class::Retryable, "the disk that holds the database does not work")
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Class::Retryable, "another process holds the database")
        }
        Some(ErrorCode::OutOfMemory) => (Class::Retryable, "out of memory"),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            (Class::Denied, "no access to the database file or its directory")
        }
        Some(ErrorCode::OperationInterrupted | ErrorCode::OperationAborted) => {
            (Class::Cancelled, "interrupted")
        }
        Some(ErrorCode::ConstraintViolation) => (Class::Conflict, "it contradicts what is stored"),
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (Class::Terminal, "the database is damaged")
        }
        Some(_) => (Class::Terminal, "SQLite refused"),
        None => (Class::Terminal, "what is stored is not what this version writes"),
    }
}
