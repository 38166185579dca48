//! `~.` at the beginning of a line: the way out of a connection that does not answer any more, as in `ssh`.

/// Where in a line the keys are.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Place {
    #[default]
    LineStart,
    /// After a `~` that began a line, which is held back.
    Tilde,
    Within,
}

/// Looks at the keys that go to a terminal.
#[derive(Debug, Default)]
pub(super) struct Escape {
    place: Place,
}

impl Escape {
    /// What of the keys is the command's, and whether they say to leave. `~~` is one `~`.
    pub fn filter(&mut self, keys: &[u8]) -> (Vec<u8>, bool) {
        let mut passed = Vec::with_capacity(keys.len());
        for key in keys {
            match (self.place, key) {
                (Place::LineStart, b'~') => {
                    self.place = Place::Tilde;
                    continue;
                }
                (Place::Tilde, b'.') => return (passed, true),
                (Place::Tilde, b'~') => {}
                (Place::Tilde, _) => passed.push(b'~'),
                (Place::LineStart | Place::Within, _) => {}
            }
            passed.push(*key);
            self.place = if matches!(key, b'\r' | b'\n') { Place::LineStart } else { Place::Within };
        }
        (passed, false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(pieces: &[&str]) -> (String, bool) {
        let (mut escape, mut passed) = (Escape::default(), Vec::new());
        for piece in pieces {
            let (keys, leaves) = escape.filter(piece.as_bytes());
            passed.extend(keys);
            if leaves {
                return (String::from_utf8(passed).unwrap(), true);
            }
        }
        (String::from_utf8(passed).unwrap(), false)
    }

    #[test]
    fn only_at_the_beginning_of_a_line_it_means_to_leave() {
        assert_eq!(typed(&["~."]), (String::new(), true));
        assert_eq!(typed(&["ls\r", "~", "."]), ("ls\r".into(), true));
        assert_eq!(typed(&["cd ~.\r"]), ("cd ~.\r".into(), false));
        assert_eq!(typed(&["~/bin/x\r"]), ("~/bin/x\r".into(), false));
        assert_eq!(typed(&["~~.\r"]), ("~.\r".into(), false));
    }
}
