//! `[LOCAL:]REMOTE`.

use std::str::FromStr;

/// A port of a task, and the one here at which it is reached: 0 for any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Port {
    pub local: u16,
    pub remote: u16,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |what: &str, text: &str| {
            text.parse::<u16>()
                .map_err(|_| format!("`{text}` is not {what}; ports are 1 to 65535, as in 8080:80"))
        };
        let (local, remote) = match text.split_once(':') {
            Some(("", remote)) => (0, number("a port of the task", remote)?),
            Some((local, remote)) => (number("a port here", local)?, number("a port of the task", remote)?),
            None => {
                let remote = number("a port", text)?;
                (remote, remote)
            }
        };
        if remote == 0 {
            return Err("no program listens on port 0 of a task; write the port that it listens on".into());
        }
        Ok(Self { local, remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_the_same_here_unless_another_is_named() {
        for (text, local, remote) in [("80", 80, 80), ("8080:80", 8080, 80), (":80", 0, 80), ("0:80", 0, 80)]
        {
            assert_eq!(text.parse(), Ok(Port { local, remote }), "{text}");
        }
        for wrong in ["", "0", "80:", "x:80", "80:0", "70000", "-1", "1:2:3"] {
            assert!(wrong.parse::<Port>().is_err(), "{wrong}");
        }
    }
}
