//! Colours of the client's own. Everything else that looks like a colour in a printed text is shown, not executed.
//!
//! A text for people is put together from our words and those of others, and printed as a whole. To tell our colours
//! from an escape sequence in a job's name, `paint` writes marks that hold a number drawn at the start of the process;
//! nobody else can write such a mark. `render` turns them into escape sequences when the text is printed.

use std::borrow::Cow;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

use muster_api::model::printable;

use super::Colour;

/// Noncharacters, which no text uses; `printable` shows those that are not part of a mark.
const MARK_START: char = '\u{fdd0}';
const MARK_END: char = '\u{fdd1}';

const RESET: &str = "0";

/// The text in a colour, where colours are wanted; to be printed by this module's parent.
pub(crate) fn paint(text: &str, colour: Colour, colours: bool) -> String {
    if colours { format!("{}{text}{}", mark(colour.code()), mark(RESET)) } else { text.to_owned() }
}

/// The text as it is printed: marks as escape sequences, everything else printable.
pub(crate) fn render(text: &str) -> Cow<'_, str> {
    if !text.contains(MARK_START) {
        return printable::block(text);
    }
    let secret = secret();
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(MARK_START) {
        shown.push_str(&printable::block(&rest[..at]));
        let after = &rest[at + MARK_START.len_utf8()..];
        let code = after.strip_prefix(secret).and_then(|code| code.split_once(MARK_END));
        match code {
            Some((code, behind)) => {
                shown.push_str(&format!("\x1b[{code}m"));
                rest = behind;
            }
            None => {
                printable::push_escape(MARK_START, &mut shown);
                rest = after;
            }
        }
    }
    shown.push_str(&printable::block(rest));
    Cow::Owned(shown)
}

fn mark(code: &str) -> String {
    format!("{MARK_START}{}{code}{MARK_END}", secret())
}

/// Unknown to everybody outside this process, and never printed.
fn secret() -> &'static str {
    static SECRET: OnceLock<String> = OnceLock::new();
    SECRET.get_or_init(|| format!("{:016x}:", RandomState::new().build_hasher().finish()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_colours_are_escape_sequences_and_those_of_others_are_text() {
        let text = format!("{} \x1b[32mb\x1b[0m", paint("a\x1b[8m", Colour::Red, true));
        assert_eq!(render(&text), "\x1b[31ma\\x1b[8m\x1b[0m \\x1b[32mb\\x1b[0m");
        assert_eq!(paint("a", Colour::Red, false), "a");
    }

    #[test]
    fn a_mark_cannot_be_forged() {
        for forged in ["\u{fdd0}31\u{fdd1}x", "\u{fdd0}0123456789abcdef:31\u{fdd1}x", "\u{fdd0}"] {
            let shown = render(forged);
            assert!(shown.starts_with("\\u{fdd0}") && !shown.contains('\x1b'), "{shown}");
        }
    }
}
