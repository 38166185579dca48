//! Bounds for text that a gate sent: its account chooses every byte of it.

/// A word or a sentence in an error, a log or an answer to a user.
pub(super) const SENTENCE: usize = 300;
/// What a program of Slurm's wrote to its standard error.
pub(super) const COMPLAINTS: usize = 4000;
/// A list of nodes as Slurm writes it.
pub(super) const NODE_LIST: usize = 8000;

/// The beginning of a text, on one line and without control characters.
pub(super) fn excerpt(text: &str, limit: usize) -> String {
    let plain = |letter: char| if letter.is_control() { ' ' } else { letter };
    text.chars().take(limit).map(plain).collect()
}

/// Cuts a text to so many bytes, or to a few less where a character would be cut in two.
pub(super) fn truncate(text: &mut String, limit: usize) {
    text.truncate(text.floor_char_boundary(limit));
    text.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_gate_is_cut_between_characters_and_cannot_steer_a_terminal() {
        assert_eq!(excerpt("a\u{1b}[31m\nb and more", 8), "a [31m b");
        assert_eq!(excerpt(&"ä".repeat(1000), 300).chars().count(), 300);
        let mut text = "ä".repeat(10);
        truncate(&mut text, 5);
        assert_eq!(text, "ää");
    }
}
