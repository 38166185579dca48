//! Whether a pattern of `outputs` can be one: what can be seen without matching anything. The node that matches it
//! reads it in full.

/// Longer ones are a mistake; matching them would only be slow.
const MAX_PATTERN: usize = 1024;

/// A pattern below the task's directories, or why it is none.
pub(super) fn check(pattern: &str) -> Result<(), String> {
    if pattern.trim().is_empty() {
        return Err("must not be empty; write for example `*.pt` or `results/**`".into());
    }
    if pattern.len() > MAX_PATTERN {
        return Err(format!("has a pattern of {} bytes; {MAX_PATTERN} are allowed", pattern.len()));
    }
    let why = |why: &str| Err(format!("`{pattern}` {why}"));
    if pattern.starts_with('/') {
        return why("begins with `/`; patterns are relative to the task's working directory");
    }
    if pattern.split('/').any(|part| part == "..") {
        return why("leads out of the task's directory with `..`");
    }
    match unbalanced(pattern) {
        Some(character) => why(&format!(
            "has a `{character}` that nothing ends; write `\\{character}` for the character itself"
        )),
        None => Ok(()),
    }
}

/// The bracket, brace or backslash that has no other side.
fn unbalanced(pattern: &str) -> Option<char> {
    let mut braces = 0_u32;
    let mut characters = pattern.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' if characters.next().is_none() => return Some('\\'),
            '[' if !ends_class(&mut characters) => return Some('['),
            '{' => braces += 1,
            '}' if braces == 0 => return Some('}'),
            '}' => braces -= 1,
            _ => {}
        }
    }
    (braces > 0).then_some('{')
}

/// Reads to the end of a class; a `]` right at its beginning is one of its characters.
fn ends_class(characters: &mut std::str::Chars) -> bool {
    let mut rest = characters.as_str().trim_start_matches(['!', '^']).chars();
    let first = rest.next();
    let ended = first.is_some() && rest.any(|character| character == ']');
    *characters = rest;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_can_match_are_taken() {
        for good in [
            "*.pt",
            "results/**",
            "$MUSTER_OUTPUT_DIR/*",
            "a[!]]b",
            "[]x]",
            "{a,b}.txt",
            r"odd\[name",
            "a..b/c",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
    }

    #[test]
    fn others_are_refused_with_what_is_wrong() {
        for (bad, part) in [
            (" ", "empty"),
            ("/etc/passwd", "relative"),
            ("../secret", ".."),
            ("a/../../b", ".."),
            ("a[b", "`[`"),
            ("a[]", "`[`"),
            ("{a,b", "`{`"),
            ("a}", "`}`"),
            (r"a\", r"`\`"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.contains(part), "{bad}: {error}");
        }
        assert!(check(&"a".repeat(2000)).is_err());
    }
}
