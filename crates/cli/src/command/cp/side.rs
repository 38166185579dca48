//! Which side of a copy a word names: a path here, or one of a task.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::error::{Code, Error};
use crate::target::Target;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Side {
    Local(OsString),
    Remote(Remote),
}

/// `JOB[/TASK]:PATH`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Remote {
    pub target: Target,
    /// As the task means it, in the bytes of its file system.
    pub path: Vec<u8>,
}

impl Side {
    pub fn read(text: &OsStr) -> Result<Side, Error> {
        let local = || Ok(Side::Local(text.to_owned()));
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(Error::new(Code::Usage, "a path is empty"));
        }
        let colon = bytes.iter().position(|byte| *byte == b':');
        let Some(colon) = colon.filter(|_| !matches!(bytes[0], b'/' | b'.')) else { return local() };
        let Ok(name) = std::str::from_utf8(&bytes[..colon]) else { return local() };
        // `a/b:c` is a path, unless what is before the colon can only be a task.
        let is_task = |rank: &str| !rank.is_empty() && rank.bytes().all(|digit| digit.is_ascii_digit());
        match name.rsplit_once('/') {
            Some((job, rank)) if job.contains('/') || !is_task(rank) => return local(),
            _ => {}
        }
        let target = name.parse().map_err(|reason: String| {
            Error::new(Code::Usage, format!("`{}`: {reason}", text.display()))
                .hint("write a local name with a colon as ./NAME")
        })?;
        Ok(Side::Remote(Remote { target, path: bytes[colon + 1..].to_vec() }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(text: &str) -> Side {
        Side::read(OsStr::new(text)).unwrap()
    }

    #[test]
    fn what_is_before_a_colon_is_a_job_or_a_task() {
        let remote = |job: &str, task, path: &str| {
            let target = Target { job: job.into(), task };
            Side::Remote(Remote { target, path: path.into() })
        };
        assert_eq!(side("bert:"), remote("bert", None, ""));
        assert_eq!(side("bert/3:a/b c"), remote("bert", Some(3), "a/b c"));
        assert_eq!(side("bert:/tmp/a:b"), remote("bert", None, "/tmp/a:b"));
        assert_eq!(side("last:~/x"), remote("last", None, "~/x"));
    }

    #[test]
    fn everything_else_is_a_path_here() {
        for path in ["a", "./a:b", "../a:b", "/a:b", "a/b:c", "a/b/0:c", "~/x", "a/:b"] {
            assert_eq!(side(path), Side::Local(path.into()), "{path}");
        }
        assert!(Side::read(OsStr::new(":a")).is_err());
        assert!(Side::read(OsStr::new("")).is_err());
    }
}
