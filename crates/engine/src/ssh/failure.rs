//! What the OpenSSH client's complaints mean, in words that somebody can act on.
//!
//! The client has no other way of saying it than its text and the status 255, so its text is read. A complaint that is not
//! known here is passed on as it is.

use std::path::Path;

use crate::{Class, Error, Machine};

/// How a login ended that brought nothing.
#[derive(Debug, Default)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    pub(super) said: String,
}

/// The status that the client has for its own failures.
const OWN_FAILURE: i32 = 255;

impl Ended {
    /// The words for it.
    pub(super) fn explain(&self, machine: &Machine) -> Error {
        let (said, destination) = (&self.said, &machine.destination);
        let explained = if self.code == Some(OWN_FAILURE) || self.code.is_none() {
            ABOUT_KEYS.iter().chain(ABOUT_WAYS).find(|known| said.contains(known.text))
        } else {
            ABOUT_MACHINES.iter().find(|known| said.contains(known.text))
        };
        if said.contains("REMOTE HOST IDENTIFICATION HAS CHANGED") {
            return Error::terminal(changed_key(destination, said));
        }
        let last = last_line(said);
        match explained {
            Some(known) => Error {
                what: format!("{destination}: {} ({})", (known.words)(machine), line_with(said, known.text)),
                class: known.class,
                source: None,
            },
            None if last.is_empty() => {
                let code = self.code.map_or_else(|| "a signal".to_owned(), |code| format!("status {code}"));
                retryable(format!("{destination}: the login ended with {code} and said nothing"))
            }
            None => retryable(format!("{destination}: {last}")),
        }
    }
}

struct Known {
    text: &'static str,
    class: Class,
    words: fn(&Machine) -> String,
}

const ABOUT_KEYS: &[Known] = &[
    Known {
        text: "UNPROTECTED PRIVATE KEY FILE",
        class: Class::Terminal,
        words: |machine| format!("others may read {}; chmod 600 it", key(machine)),
    },
    Known {
        text: "Too many authentication failures",
        class: Class::Terminal,
        words: |_| "the ssh agent offers too many keys; name the right one with --key".into(),
    },
    Known {
        text: "Host key verification failed",
        class: Class::Terminal,
        words: |_| "its host key cannot be verified; log in once by hand and look at what ssh says".into(),
    },
    Known {
        text: "Permission denied (",
        class: Class::Terminal,
        words: |machine| {
            format!(
                "it does not let us in with {}; put the public key into its ~/.ssh/authorized_keys, or name another with \
                 --key (one with a passphrase must be in the ssh agent)",
                key(machine)
            )
        },
    },
];

const ABOUT_WAYS: &[Known] = &[
    Known {
        text: "Could not resolve hostname",
        class: Class::Retryable,
        words: |_| "there is no host of that name; check its spelling or add it to ~/.ssh/config".into(),
    },
    Known {
        text: "Connection refused",
        class: Class::Retryable,
        words: |_| "no sshd listens there; start it, or name its port with --port".into(),
    },
    Known { text: "No route to host", class: Class::Retryable, words: unreachable },
    Known { text: "Network is unreachable", class: Class::Retryable, words: unreachable },
    Known { text: "timed out", class: Class::Retryable, words: unreachable },
    Known { text: "not responding", class: Class::Retryable, words: unreachable },
    Known {
        text: "kex_exchange_identification",
        class: Class::Retryable,
        words: |_| {
            "its sshd hung up at once; it has too many logins at a time, or does not take this address".into()
        },
    },
    Known {
        text: "Bad owner or permissions",
        class: Class::Terminal,
        words: |_| "the ssh configuration is not usable".into(),
    },
    Known {
        text: "Bad configuration option",
        class: Class::Terminal,
        words: |_| "the ssh configuration is not usable".into(),
    },
];

/// Of those who got in.
const ABOUT_MACHINES: &[Known] = &[
    Known {
        text: "No space left on device",
        class: Class::Retryable,
        words: |_| "its disk is full; make room in the home directory".into(),
    },
    Known {
        text: "Disk quota exceeded",
        class: Class::Retryable,
        words: |_| "the account's quota is used up; make room in the home directory".into(),
    },
    Known { text: "GLIBC_", class: Class::Terminal, words: too_old },
    Known { text: "GLIBCXX_", class: Class::Terminal, words: too_old },
    Known {
        text: "Exec format error",
        class: Class::Terminal,
        words: |_| "the muster binary is for another kind of machine".into(),
    },
    Known {
        text: "not available",
        class: Class::Terminal,
        words: |_| "the account has no shell to log in with".into(),
    },
];

fn unreachable(_: &Machine) -> String {
    "it cannot be reached; is it up, and is there a way to it?".into()
}

fn too_old(_: &Machine) -> String {
    "its system is too old for the muster binary, which needs glibc 2.17; use a release build of muster"
        .into()
}

fn key(machine: &Machine) -> String {
    let named = |key: &std::path::PathBuf| format!("the key {}", Path::new(key).display());
    machine.key.as_ref().map_or_else(|| "any key of this account".into(), named)
}

/// Somebody may be in the way, or the machine was installed anew; only a person can tell.
fn changed_key(destination: &str, said: &str) -> String {
    let place = said.lines().find_map(|line| {
        let place = line.trim().strip_prefix("Offending ")?.split_once(" key in ")?.1;
        place.rsplit_once(':').map(|(file, number)| (file.to_owned(), number.to_owned()))
    });
    let remedy = match place {
        Some((file, number)) => format!("remove line {number} of {file}"),
        None => "remove it from the known hosts".into(),
    };
    format!(
        "{destination}: it shows another host key than at first, and is not trusted; if it was really installed anew, {remedy}"
    )
}

fn retryable(what: String) -> Error {
    Error { what, class: Class::Retryable, source: None }
}

/// The line that has these words: behind a jump host it is that host's client that says them, and ours says only that
/// nothing came after.
fn line_with<'a>(said: &'a str, words: &str) -> &'a str {
    let found = said.lines().rfind(|line| line.contains(words)).unwrap_or_else(|| last_line(said));
    // Its loudest warnings stand in boxes.
    found.trim_matches(|c: char| c == '@' || c.is_whitespace())
}

/// The line that says most: the client puts its verdict last.
fn last_line(said: &str) -> &str {
    let is_worth = |line: &&str| !line.is_empty() && !line.starts_with("Warning: Permanently added");
    said.lines().map(str::trim).rfind(is_worth).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let node = "node_gpu.h1".parse().unwrap();
        let key = Some("/k/id".into());
        Machine { node, destination: "ann@h1".into(), port: None, key, address: None }
    }

    fn explained(code: i32, said: &str) -> (String, Class) {
        let error = Ended { code: Some(code), said: said.into() }.explain(&machine());
        (error.to_string(), error.class)
    }

    #[test]
    fn every_complaint_has_its_remedy() {
        for (code, said, words, class) in [
            (255, "ann@h1: Permission denied (publickey).\r\n", "the key /k/id", Class::Terminal),
            (
                255,
                "ssh: Could not resolve hostname h1: Name or service not known",
                "~/.ssh/config",
                Class::Retryable,
            ),
            (255, "ssh: connect to host h1 port 22: Connection refused", "--port", Class::Retryable),
            (
                255,
                "ssh: connect to host h1 port 22: Connection timed out",
                "cannot be reached",
                Class::Retryable,
            ),
            (
                255,
                "ssh: connect to host door port 22: No route to host\nConnection closed by UNKNOWN port 65535",
                "(ssh: connect to host door port 22: No route to host)",
                Class::Retryable,
            ),
            (1, "cat: write error: No space left on device\nsomething else", "make room", Class::Retryable),
            (1, "muster: version `GLIBC_2.39' not found", "too old", Class::Terminal),
            (3, "sh: 1: something new", "something new", Class::Retryable),
            (3, "", "status 3 and said nothing", Class::Retryable),
        ] {
            let (told, of_class) = explained(code, said);
            assert!(told.starts_with("ann@h1: ") && told.contains(words), "{told}");
            assert_eq!(of_class, class, "{told}");
        }
    }

    #[test]
    fn a_changed_host_key_is_named_with_its_place() {
        let said = "@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n@@@\n\
                    Offending ED25519 key in /home/ann/ssh/known_hosts:3\nHost key verification failed.";
        let (told, class) = explained(255, said);
        assert!(told.contains("remove line 3 of /home/ann/ssh/known_hosts"), "{told}");
        assert_eq!(class, Class::Terminal);
    }
}
