//! Text from other people made safe to print: control characters and invisible characters become visible escapes.
//!
//! The client, the server's log and the Python SDK (`_printable.py`) follow this one rule. A terminal executes control
//! characters: an escape sequence in a job's name could retitle the window, write the clipboard or answer a query as
//! if typed. Bidirectional overrides and zero-width characters make one text look like another. Nothing here knows
//! where the text goes.

use std::borrow::Cow;
use std::fmt::Write;

/// Characters that a terminal draws nothing for, or that change how their neighbours are drawn.
const INVISIBLE: &[std::ops::RangeInclusive<char>] = &[
    '\u{ad}'..='\u{ad}',       // soft hyphen
    '\u{61c}'..='\u{61c}',     // Arabic letter mark
    '\u{115f}'..='\u{1160}',   // Hangul fillers
    '\u{180b}'..='\u{180f}',   // Mongolian selectors and separator
    '\u{200b}'..='\u{200f}',   // zero-width space and joiners, direction marks
    '\u{2028}'..='\u{202e}',   // line and paragraph separators, embeddings and overrides
    '\u{2060}'..='\u{206f}',   // word joiner, isolates, deprecated format characters
    '\u{3164}'..='\u{3164}',   // Hangul filler
    '\u{feff}'..='\u{feff}',   // byte order mark
    '\u{fdd0}'..='\u{fdef}',   // noncharacters
    '\u{fff9}'..='\u{fffb}',   // interlinear annotations
    '\u{e0000}'..='\u{e007f}', // tags
];

/// Whether a terminal draws the character in its place and does nothing else.
pub fn is_printable(letter: char) -> bool {
    if letter.is_ascii() {
        return !letter.is_ascii_control();
    }
    !letter.is_control() && !INVISIBLE.iter().any(|range| range.contains(&letter))
}

/// The text for a place of one line: line breaks and tabs become visible, too.
pub fn inline(text: &str) -> Cow<'_, str> {
    escaped(text, is_printable, push_escape)
}

/// The text in one line for reading along: line breaks and tabs become spaces, as scripts are full of them.
pub fn one_line(text: &str) -> String {
    inline(&text.replace(['\n', '\t'], " ")).into_owned()
}

/// The text for a place of several lines: line breaks and tabs stay.
pub fn block(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| is_printable(letter) || matches!(letter, '\n' | '\t'), push_escape)
}

/// The same document, in which every character of a string is printable. In JSON such characters stand in strings
/// only, so that an escape means the same.
pub fn json(document: &str) -> Cow<'_, str> {
    escaped(
        document,
        |letter| is_printable(letter) || matches!(letter, '\n' | '\t'),
        |letter, text| {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                // Writing to a String cannot fail.
                let _ = write!(text, "\\u{unit:04x}");
            }
        },
    )
}

/// Appends a character as it is written in the source of many languages: `\n`, `\x1b`, `\u{202e}`.
pub fn push_escape(letter: char, text: &mut String) {
    // Writing to a String cannot fail.
    let _ = match letter {
        '\n' => text.write_str("\\n"),
        '\r' => text.write_str("\\r"),
        '\t' => text.write_str("\\t"),
        _ if letter.is_ascii() => write!(text, "\\x{:02x}", u32::from(letter)),
        _ => write!(text, "\\u{{{:x}}}", u32::from(letter)),
    };
}

fn escaped(text: &str, stays: impl Fn(char) -> bool, escape: impl Fn(char, &mut String)) -> Cow<'_, str> {
    let Some(first) = text.find(|letter| !stays(letter)) else { return Cow::Borrowed(text) };
    let mut shown = String::with_capacity(text.len() + 16);
    shown.push_str(&text[..first]);
    for letter in text[first..].chars() {
        if stays(letter) { shown.push(letter) } else { escape(letter, &mut shown) }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_of_any_script_stays_as_it_is() {
        for text in ["train-7", "größe 训练 обучение 🚀 é e\u{301}", r"C:\x1b", ""] {
            assert!(matches!(inline(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(block("a\n\tb"), "a\n\tb");
    }

    #[test]
    fn control_characters_are_shown_and_never_executed() {
        assert_eq!(inline("a\x1b]0;x\x07b"), r"a\x1b]0;x\x07b");
        assert_eq!(inline("a\nb\tc\rd\0"), r"a\nb\tc\rd\x00");
        assert_eq!(one_line("a\nb\tc\rd"), r"a b c\rd");
        assert_eq!(block("a\nb\tc\rd\x7f"), "a\nb\tc\\rd\\x7f");
        assert_eq!(inline("\u{9b}31m"), r"\u{9b}31m");
    }

    #[test]
    fn characters_that_make_text_look_like_other_text_are_shown() {
        for letter in
            ['\u{202e}', '\u{2066}', '\u{200b}', '\u{200d}', '\u{2028}', '\u{feff}', '\u{fdd0}', '\u{e0041}']
        {
            let text = format!("a{letter}b");
            assert_eq!(inline(&text), format!("a\\u{{{:x}}}b", u32::from(letter)));
            assert_eq!(block(&text), inline(&text));
        }
    }

    #[test]
    fn an_escaped_json_document_means_the_same() {
        let value = "a\u{202e}\u{9b}\u{7f}\u{e0041}\n\"\\";
        let document = format!("{{\n  \"a\": {}\n}}", serde_json::to_string(value).unwrap());
        let shown = json(&document);
        assert!(shown.chars().all(|letter| is_printable(letter) || letter == '\n'), "{shown}");
        let read: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(read["a"], value);
    }
}
