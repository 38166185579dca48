//! Words for a shell that is to see them as they are.

/// Nothing of these means anything to any shell.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_./,:@%+=".contains(&byte)
}

/// Words as one line. The shells of people are not all alike: in `fish`, a backslash in single quotes means something.
/// So `'` and `\` go into double quotes, where they mean the same to all of them.
pub(crate) fn line<W: AsRef<[u8]>>(words: impl IntoIterator<Item = W>) -> Vec<u8> {
    let mut line = Vec::new();
    for (i, word) in words.into_iter().enumerate() {
        if i > 0 {
            line.push(b' ');
        }
        quote(word.as_ref(), &mut line);
    }
    line
}

fn quote(word: &[u8], line: &mut Vec<u8>) {
    // An `=` at the front would make a variable of the first word, and zsh looks a command up for `=word`.
    if !word.is_empty() && word.iter().all(|byte| is_plain(*byte)) && !word.contains(&b'=') {
        line.extend_from_slice(word);
        return;
    }
    line.push(b'\'');
    for byte in word {
        match byte {
            b'\'' => line.extend_from_slice(br#"'"'"'"#),
            b'\\' => line.extend_from_slice(br#"'"\\"'"#),
            other => line.push(*other),
        }
    }
    line.push(b'\'');
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn text(words: &[&str]) -> String {
        String::from_utf8(line(words)).unwrap()
    }

    #[test]
    fn plain_words_stay_plain() {
        assert_eq!(text(&["ls", "-la", "a/b.txt", "x:1"]), "ls -la a/b.txt x:1");
        assert_eq!(text(&["", "a b", "it's", r"a\b"]), r#"'' 'a b' 'it'"'"'s' 'a'"\\"'b'"#);
        assert_eq!(text(&["A=b", "c"]), "'A=b' c");
    }

    #[test]
    fn every_shell_sees_the_words_as_they_are() {
        let mut every = String::new();
        every.extend((1..=127u8).map(char::from));
        let words = [
            "",
            " ",
            "*",
            "~",
            "$HOME",
            "`id`",
            "a'b\"c",
            r"\",
            r"\\",
            r"\n",
            "größe 训练",
            "#x",
            "!x",
            "a\nb\n",
            &every,
            "-n",
            "=ls",
            "{a,b}",
            "%x",
        ];
        for shell in ["sh", "bash", "dash", "zsh", "fish"] {
            let mut script = line(["printf", r"%s\0"].iter().chain(&words));
            script.push(b'\n');
            let done = Command::new(shell).arg("-c").arg(String::from_utf8(script).unwrap()).output();
            // Which of them a machine has is its own affair; `sh` is everywhere.
            let Ok(done) = done else { continue };
            let expected: String = words.iter().map(|word| format!("{word}\0")).collect();
            assert_eq!(String::from_utf8_lossy(&done.stdout), expected, "{shell}: {done:?}");
        }
    }
}
