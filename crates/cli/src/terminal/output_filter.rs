//! Output of another person's task on its way to a terminal: text and colours pass, everything else becomes visible.
//!
//! A task may write any bytes. Colours and redrawn progress bars are what people want of them; titles, the clipboard,
//! cursor moves and queries that the terminal answers as if typed are what an attacker wants. Pieces end anywhere, so
//! that an unfinished character or sequence is kept until the next piece.

use muster_api::model::printable;

/// A longer colour sequence is none.
const MAX_SEQUENCE: usize = 64;

/// Filters one stream of bytes.
#[derive(Debug, Default)]
pub(crate) struct OutputFilter {
    /// The beginning of a character or of a sequence.
    pending: Vec<u8>,
    /// A colour was set and not reset.
    is_coloured: bool,
}

impl OutputFilter {
    /// Appends what of a piece may be printed.
    pub fn push(&mut self, piece: &[u8], shown: &mut Vec<u8>) {
        let mut bytes = std::mem::take(&mut self.pending);
        bytes.extend_from_slice(piece);
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match self.step(rest, shown) {
                0 => break,
                taken => rest = &rest[taken..],
            }
        }
        self.pending = rest.to_vec();
    }

    /// Appends what was kept, and a reset if a colour is still set.
    pub fn finish(&mut self, shown: &mut Vec<u8>) {
        for byte in std::mem::take(&mut self.pending) {
            match byte {
                b' '..=b'~' => shown.push(byte),
                _ => drop(push_byte(byte, shown)),
            }
        }
        if std::mem::take(&mut self.is_coloured) {
            shown.extend_from_slice(b"\x1b[0m");
        }
    }

    /// Appends one line that is whole.
    pub fn line(&mut self, line: &[u8], shown: &mut Vec<u8>) {
        self.push(line, shown);
        self.finish(shown);
    }

    /// Takes the next run of text, character or sequence; returns its length, 0 if it is unfinished.
    fn step(&mut self, bytes: &[u8], shown: &mut Vec<u8>) -> usize {
        let plain = bytes.iter().take_while(|byte| is_plain(**byte)).count();
        if plain > 0 {
            shown.extend_from_slice(&bytes[..plain]);
            return plain;
        }
        match bytes[0] {
            0x1b => self.sequence(bytes, shown),
            control if control.is_ascii() => push_byte(control, shown),
            _ => letter(bytes, shown),
        }
    }

    fn sequence(&mut self, bytes: &[u8], shown: &mut Vec<u8>) -> usize {
        match bytes.get(1) {
            None => return 0,
            Some(b'[') => {}
            Some(_) => return push_byte(0x1b, shown),
        }
        let is_parameter = |byte: &u8| byte.is_ascii_digit() || b";:".contains(byte);
        let length = 2 + bytes[2..].iter().take_while(|byte| is_parameter(byte)).count();
        match bytes.get(length) {
            Some(b'm') if length < MAX_SEQUENCE => {
                shown.extend_from_slice(&bytes[..=length]);
                self.is_coloured = !matches!(&bytes[2..length], b"" | b"0");
                length + 1
            }
            None if length < MAX_SEQUENCE => 0,
            _ => push_byte(0x1b, shown),
        }
    }
}

/// Bytes that pass without a look at their neighbours. A return goes to the start of a line that is the task's anyway.
fn is_plain(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\n' | b'\t' | b'\r')
}

/// Takes a character that is not ASCII, or a byte that is of none.
fn letter(bytes: &[u8], shown: &mut Vec<u8>) -> usize {
    let length = match bytes[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return push_byte(bytes[0], shown),
    };
    let known = &bytes[..bytes.len().min(length)];
    match std::str::from_utf8(known) {
        Ok(text) => {
            for letter in text.chars() {
                if printable::is_printable(letter) {
                    shown.extend_from_slice(text.as_bytes());
                } else {
                    let mut escape = String::new();
                    printable::push_escape(letter, &mut escape);
                    shown.extend_from_slice(escape.as_bytes());
                }
            }
            length
        }
        // Nothing is wrong with what is there; the rest comes with the next piece.
        Err(error) if error.error_len().is_none() => 0,
        Err(_) => push_byte(bytes[0], shown),
    }
}

/// Shows a byte that must not be printed; it is one byte long.
fn push_byte(byte: u8, shown: &mut Vec<u8>) -> usize {
    shown.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
    1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(pieces: &[&[u8]]) -> String {
        let (mut filter, mut shown) = (OutputFilter::default(), Vec::new());
        pieces.iter().for_each(|piece| filter.push(piece, &mut shown));
        filter.finish(&mut shown);
        String::from_utf8(shown).unwrap()
    }

    #[test]
    fn text_colours_and_progress_bars_pass() {
        let text = "größe 训练\t1%\r2%\r\n\x1b[1;38;5;9mred\x1b[0m \x1b[4:3mcurly\x1b[m\n";
        assert_eq!(filtered(&[text.as_bytes()]), text);
    }

    #[test]
    fn sequences_that_do_more_than_colour_are_shown() {
        for (written, shown) in [
            ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
            ("\x1b]52;c;cm0=\x1b\\", r"\x1b]52;c;cm0=\x1b\"),
            ("\x1b[2J\x1b[1;1H", r"\x1b[2J\x1b[1;1H"),
            ("\x1b[c\x1b[6n", r"\x1b[c\x1b[6n"),
            ("\x1bc", r"\x1bc"),
            ("\x1b[>4;2m", r"\x1b[>4;2m"),
            ("\u{9b}2J", r"\u{9b}2J"),
            ("a\u{202e}b\x08\x7f", r"a\u{202e}b\x08\x7f"),
        ] {
            assert_eq!(filtered(&[written.as_bytes()]), shown);
        }
        assert_eq!(filtered(&[b"\x9b2J\xff\xc3("]), r"\x9b2J\xff\xc3(");
    }

    #[test]
    fn pieces_may_end_anywhere() {
        let text = "a训\x1b[31mb\x1b[0m\x1b]0;x\x07\u{202e}é\n".as_bytes();
        let whole = filtered(&[text]);
        for cut in 0..=text.len() {
            assert_eq!(filtered(&[&text[..cut], &text[cut..]]), whole, "{cut}");
        }
        let bytes: Vec<&[u8]> = text.chunks(1).collect();
        assert_eq!(filtered(&bytes), whole);
    }

    #[test]
    fn an_unfinished_sequence_is_bounded_and_shown_at_the_end() {
        let endless = [b"\x1b[".as_slice(), &[b'1'; 1000]].concat();
        let (mut filter, mut shown) = (OutputFilter::default(), Vec::new());
        filter.push(&endless, &mut shown);
        assert!(filter.pending.is_empty() && shown.starts_with(br"\x1b[1"));
        assert_eq!(filtered(&[b"a\x1b"]), r"a\x1b");
        assert_eq!(filtered(&[b"\x1b[31"]), r"\x1b[31");
        assert_eq!(filtered(&["é".as_bytes().split_at(1).0]), r"\xc3");
    }

    #[test]
    fn a_colour_left_open_ends_with_the_output() {
        assert_eq!(filtered(&[b"\x1b[31mred\n"]), "\x1b[31mred\n\x1b[0m");
    }
}
