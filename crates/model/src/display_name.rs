//! Display names: what people call a job, a user or a workspace, in any script, beside its identifier.
//!
//! The one rule for them is here. Other people see a display name in tables, so it has no character that a terminal
//! executes, draws nothing for, or reorders its line by. It is never an identifier: not a path, a host name, a label
//! or the name of a variable on any engine. Identifiers are what is typed, compared and recorded.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::printable;
use crate::spec::{FieldCode, FieldError};

/// The most characters a display name has: a line of a table, not a description.
pub const MAX_CHARACTERS: usize = 100;
/// The most bytes it has in UTF-8.
pub const MAX_BYTES: usize = 4 * MAX_CHARACTERS;
/// The most combining marks in a row: more than any script writes on one letter, and too few to reach the lines around.
const MAX_MARKS: usize = 4;
/// As much of a wrong text is shown.
const SHOWN: usize = 60;

/// Characters that choose how the one before is drawn, as keyboards add them to symbols: a name is the same without them.
const SELECTORS: RangeInclusive<char> = '\u{fe00}'..='\u{fe0f}';

/// Characters that change the direction of the text around them.
const DIRECTIONS: &[RangeInclusive<char>] =
    &['\u{61c}'..='\u{61c}', '\u{200e}'..='\u{200f}', '\u{202a}'..='\u{202e}', '\u{2066}'..='\u{2069}'];

/// Characters that are drawn as nothing, beside those of [`printable`].
const BLANK: &[RangeInclusive<char>] = &[
    '\u{34f}'..='\u{34f}',     // combining grapheme joiner
    '\u{17b4}'..='\u{17b5}',   // Khmer inherent vowels
    '\u{2800}'..='\u{2800}',   // blank Braille pattern
    '\u{ffa0}'..='\u{ffa0}',   // halfwidth Hangul filler
    '\u{fff0}'..='\u{fff8}',   // unassigned, ignored by default
    '\u{1bca0}'..='\u{1bca3}', // shorthand controls
    '\u{1d173}'..='\u{1d17a}', // musical controls
    '\u{e0080}'..='\u{e0fff}', // variation selectors, and unassigned ones that are ignored by default
];

/// Characters that look different on every machine, or like nothing.
const PRIVATE: &[RangeInclusive<char>] =
    &['\u{e000}'..='\u{f8ff}', '\u{f0000}'..='\u{ffffd}', '\u{100000}'..='\u{10fffd}'];

/// The form in which display names are kept and compared: NFC, without variation selectors.
pub fn normalized(text: &str) -> String {
    text.chars().filter(|letter| !SELECTORS.contains(letter)).nfc().collect()
}

/// A display name in the form in which it is kept, or what is wrong with it.
pub fn check(field: &str, text: &str) -> Result<String, FieldError> {
    let wrong = |code, message: String| Err(FieldError::new(field, code, message));
    // Before anything is done with it that takes time.
    if text.len() > 4 * MAX_BYTES {
        return wrong(FieldCode::OutOfRange, too_long(text, text.chars().count()));
    }
    let name = normalized(text);
    let length = name.chars().count();
    if length == 0 {
        return wrong(FieldCode::InvalidValue, "must not be empty; leave it out for none".into());
    }
    if length > MAX_CHARACTERS || name.len() > MAX_BYTES {
        return wrong(FieldCode::OutOfRange, too_long(text, length));
    }
    match problem(&name) {
        None => Ok(name),
        Some(problem) => {
            wrong(FieldCode::InvalidValue, format!("must not {problem}, as `{}` does", shown(text)))
        }
    }
}

/// What a display name is after a request: absent leaves it as it was, an empty text takes it away.
pub fn change(
    field: &str,
    asked: Option<&str>,
    before: Option<String>,
) -> Result<Option<String>, FieldError> {
    match asked {
        None => Ok(before),
        Some("") => Ok(None),
        Some(text) => check(field, text).map(Some),
    }
}

fn too_long(text: &str, length: usize) -> String {
    format!("must have at most {MAX_CHARACTERS} characters; `{}` has {length}", shown(text))
}

fn shown(text: &str) -> Cow<'_, str> {
    let end = text.char_indices().nth(SHOWN);
    let cut = end.map_or(Cow::Borrowed(text), |(end, _)| Cow::Owned(format!("{}…", &text[..end])));
    Cow::Owned(printable::inline(&cut).into_owned())
}

/// What a text has that no display name may have, in words that follow "must not".
fn problem(name: &str) -> Option<String> {
    let is_space = |letter: char| matches!(letter, ' ' | '\u{3000}');
    if name.starts_with(is_space) || name.ends_with(is_space) {
        return Some("begin or end with white space".into());
    }
    let (mut marks, mut spaces) = (0, 0);
    for (place, letter) in name.chars().enumerate() {
        if let Some(kind) = refused(letter) {
            return Some(format!("contain {kind} (U+{:04X})", u32::from(letter)));
        }
        marks = if is_combining_mark(letter) { marks + 1 } else { 0 };
        spaces = if is_space(letter) { spaces + 1 } else { 0 };
        if marks > 0 && place == 0 {
            return Some("begin with a combining mark".into());
        }
        if marks > MAX_MARKS {
            return Some(format!("have more than {MAX_MARKS} combining marks in a row"));
        }
        // Tables have several between columns: a name must not look like two cells.
        if spaces > 1 {
            return Some("have more than one space in a row".into());
        }
    }
    None
}

/// Which kind of character it is, if none of the kind may be in a display name.
fn refused(letter: char) -> Option<&'static str> {
    let is_of = |ranges: &[RangeInclusive<char>]| ranges.iter().any(|range| range.contains(&letter));
    if letter.is_control() {
        Some("a control character")
    } else if is_of(DIRECTIONS) {
        Some("a character that changes the direction of text")
    } else if !printable::is_printable(letter) || is_of(BLANK) || u32::from(letter) & 0xfffe == 0xfffe {
        Some("an invisible character")
    } else if is_of(PRIVATE) {
        Some("a private-use character")
    } else if letter.is_whitespace() && !matches!(letter, ' ' | '\u{3000}') {
        Some("white space other than a plain space")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(text: &str) -> String {
        let error = check("display_name", text).unwrap_err();
        assert_eq!(error.field, "display_name");
        error.message
    }

    #[test]
    fn names_of_any_script_are_kept_as_they_are() {
        let longest = "训".repeat(MAX_CHARACTERS);
        for name in [
            "训练任务",
            "größe 2",
            "обучение №7",
            "प्रशिक्षण कार्य",
            "การฝึกสอนที่",
            "تدريب النموذج",
            "学习率 0.1（第二轮）",
            "東京　実験",
            "🚀 liftoff",
            "a/b: c?",
            "bert",
            "王",
            &longest,
        ] {
            assert_eq!(check("display_name", name).as_deref(), Ok(name), "{name}");
        }
    }

    #[test]
    fn two_spellings_of_a_text_are_one_name() {
        assert_eq!(check("display_name", "gro\u{308}ße").unwrap(), "größe");
        assert_eq!(check("display_name", "\u{1112}\u{1161}\u{11ab}").unwrap(), "한");
        assert_eq!(check("display_name", "⚡\u{fe0f} fast").unwrap(), "⚡ fast");
        assert_eq!(normalized("⚡\u{fe0f} fast"), normalized("⚡ fast"));
    }

    #[test]
    fn what_is_wrong_is_named_with_the_text_and_the_remedy() {
        for (text, expected) in [
            ("", "must not be empty; leave it out for none"),
            ("\u{fe0f}", "must not be empty; leave it out for none"),
            (" a", "must not begin or end with white space, as ` a` does"),
            ("训练\u{3000}", "must not begin or end with white space, as `训练\u{3000}` does"),
            ("a\x1b]0;x\x07", r"must not contain a control character (U+001B), as `a\x1b]0;x\x07` does"),
            ("a\nb", r"must not contain a control character (U+000A), as `a\nb` does"),
            ("a\u{85}b", r"must not contain a control character (U+0085), as `a\u{85}b` does"),
            (
                "ada\u{202e}bob",
                r"must not contain a character that changes the direction of text (U+202E), as `ada\u{202e}bob` does",
            ),
            ("a\u{200b}b", r"must not contain an invisible character (U+200B), as `a\u{200b}b` does"),
            ("a\u{200d}b", r"must not contain an invisible character (U+200D), as `a\u{200d}b` does"),
            ("a\u{e0041}", r"must not contain an invisible character (U+E0041), as `a\u{e0041}` does"),
            ("\u{e000}", "must not contain a private-use character (U+E000), as `\u{e000}` does"),
            (
                "a\u{a0}b",
                "must not contain white space other than a plain space (U+00A0), as `a\u{a0}b` does",
            ),
            ("\u{301}a", "must not begin with a combining mark, as `\u{301}a` does"),
            ("a   running", "must not have more than one space in a row, as `a   running` does"),
        ] {
            assert_eq!(message(text), expected, "{text:?}");
        }
        let tower = format!("z{}", "\u{335}".repeat(MAX_MARKS + 1));
        assert!(message(&tower).starts_with("must not have more than 4 combining marks in a row"));
        for letters in [MAX_CHARACTERS + 1, 1_000_000] {
            let error = check("name", &"训".repeat(letters)).unwrap_err();
            assert_eq!(error.code, FieldCode::OutOfRange);
            assert!(error.message.len() < 300 && error.message.ends_with(&format!("has {letters}")));
        }
    }

    #[test]
    fn isolates_marks_and_blanks_are_refused_wherever_they_stand() {
        let letters = "\u{61c}\u{200e}\u{200f}\u{202a}\u{202b}\u{202c}\u{202d}\u{202e}\u{2066}\u{2067}\u{2068}\u{2069}\
                       \u{ad}\u{34f}\u{115f}\u{1160}\u{17b4}\u{180e}\u{200b}\u{200c}\u{200d}\u{2028}\u{2029}\u{2060}\
                       \u{2800}\u{3164}\u{feff}\u{ffa0}\u{fffe}\u{e0001}\u{e0100}\u{f0000}\u{10ffff}";
        for letter in letters.chars() {
            for text in [format!("{letter}a"), format!("a{letter}b"), format!("a{letter}")] {
                assert!(check("display_name", &text).is_err(), "{text:?}");
            }
        }
    }

    #[test]
    fn an_absent_name_stays_and_an_empty_one_takes_it_away() {
        let before = || Some("王芳".to_owned());
        assert_eq!(change("display_name", None, before()), Ok(before()));
        assert_eq!(change("display_name", Some(""), before()), Ok(None));
        assert_eq!(change("display_name", Some("Ada"), before()), Ok(Some("Ada".into())));
        assert!(change("display_name", Some(" "), before()).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_is_kept_is_printable_bounded_and_kept_again_as_it_is(text in "\\PC{0,120}|.{0,120}|[a-z \u{300}-\u{310}\u{fe0f}]{0,20}") {
            if let Ok(name) = check("display_name", &text) {
                prop_assert!(!name.is_empty() && name.len() <= MAX_BYTES);
                prop_assert!(name.chars().count() <= MAX_CHARACTERS);
                prop_assert_eq!(printable::inline(&name), name.as_str());
                prop_assert_eq!(printable::one_line(&name), name.as_str());
                prop_assert_eq!(name.trim(), name.as_str());
                prop_assert_eq!(&normalized(&name), &name);
                prop_assert_eq!(check("display_name", &name), Ok(name.clone()));
                prop_assert_eq!(normalized(&text), name);
            }
        }

        #[test]
        fn no_text_is_answered_with_what_a_terminal_executes(text in ".{0,200}") {
            if let Err(error) = check("display_name", &text) {
                prop_assert_eq!(printable::inline(&error.message), error.message.as_str());
            }
        }
    }
}
