//! Options as Slurm's programs take them: `--name=value`, `--name value`, `-n 4`, `-n4`, and any beginning of a long name
//! that only one option has.

use crate::spec::nearest;

/// Whether an option has a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// Never.
    Nothing,
    /// Always, in the same word or the next.
    Value,
    /// In the same word alone: `--exclusive=user`.
    Maybe,
}

/// An option that a program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Known<T: 'static> {
    /// Its long name, without dashes.
    pub long: &'static str,
    /// Its letter.
    pub short: Option<char>,
    /// Whether it has a value.
    pub takes: Takes,
    /// What the program does with it.
    pub meaning: T,
}

/// An option that was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Given<T: 'static> {
    /// Which.
    pub long: &'static str,
    /// As it was written: `--nodes`, `-N`.
    pub written: String,
    /// Its value.
    pub value: Option<String>,
    /// What the program does with it.
    pub meaning: T,
}

/// Why words are not options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wrong {
    /// As it was written.
    pub written: String,
    /// What is wrong with it, and what to do.
    pub message: String,
}

/// Reads options up to the first word that is none, and gives the place of that.
pub fn read<T: Copy>(words: &[String], known: &[Known<T>]) -> Result<(Vec<Given<T>>, usize), Wrong> {
    let mut given = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        if word == "--" {
            return Ok((given, at + 1));
        }
        let next = words.get(at + 1).map(String::as_str);
        let used = if let Some(long) = word.strip_prefix("--") {
            read_long(long, next, known, &mut given)?
        } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
            read_short(letters, next, known, &mut given)?
        } else {
            break;
        };
        at += used;
    }
    Ok((given, at))
}

fn read_long<T: Copy>(
    word: &str,
    next: Option<&str>,
    known: &[Known<T>],
    given: &mut Vec<Given<T>>,
) -> Result<usize, Wrong> {
    let (name, value) = match word.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (word, None),
    };
    let written = format!("--{name}");
    let option = find(name, known).map_err(|message| Wrong { written: written.clone(), message })?;
    let (value, used) = match (option.takes, value) {
        (Takes::Nothing, Some(value)) => {
            return Err(Wrong { written, message: format!("takes no value, and has `{value}`") });
        }
        (Takes::Nothing | Takes::Maybe, None) => (None, 1),
        (Takes::Value | Takes::Maybe, Some(value)) => (Some(value), 1),
        (Takes::Value, None) => match next {
            Some(next) => (Some(next.to_owned()), 2),
            None => return Err(Wrong { written, message: "needs a value".into() }),
        },
    };
    given.push(Given { long: option.long, written, value, meaning: option.meaning });
    Ok(used)
}

fn find<'a, T>(name: &str, known: &'a [Known<T>]) -> Result<&'a Known<T>, String> {
    if let Some(exact) = known.iter().find(|option| option.long == name) {
        return Ok(exact);
    }
    let begun: Vec<_> =
        known.iter().filter(|option| !name.is_empty() && option.long.starts_with(name)).collect();
    match begun.as_slice() {
        [one] => Ok(one),
        [] => {
            let names: Vec<&str> = known.iter().map(|option| option.long).collect();
            let near =
                nearest(name, &names).map(|near| format!("; did you mean --{near}?")).unwrap_or_default();
            Err(format!("there is no such option{near}"))
        }
        several => {
            let names: Vec<String> =
                several.iter().take(5).map(|option| format!("--{}", option.long)).collect();
            Err(format!("may be {}; write which", names.join(", ")))
        }
    }
}

fn read_short<T: Copy>(
    letters: &str,
    next: Option<&str>,
    known: &[Known<T>],
    given: &mut Vec<Given<T>>,
) -> Result<usize, Wrong> {
    for (at, letter) in letters.char_indices() {
        let written = format!("-{letter}");
        let Some(option) = known.iter().find(|option| option.short == Some(letter)) else {
            return Err(Wrong { written, message: "there is no such option".into() });
        };
        let rest = &letters[at + letter.len_utf8()..];
        let (value, used) = match option.takes {
            Takes::Nothing => (None, None),
            Takes::Maybe => (Some(rest).filter(|rest| !rest.is_empty()), Some(1)),
            Takes::Value if !rest.is_empty() => (Some(rest.strip_prefix('=').unwrap_or(rest)), Some(1)),
            Takes::Value if next.is_some() => (next, Some(2)),
            Takes::Value => return Err(Wrong { written, message: "needs a value".into() }),
        };
        given.push(Given {
            long: option.long,
            written,
            value: value.map(str::to_owned),
            meaning: option.meaning,
        });
        if let Some(used) = used {
            return Ok(used);
        }
    }
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [Known<()>; 6] = [
        Known { long: "nodes", short: Some('N'), takes: Takes::Value, meaning: () },
        Known { long: "ntasks", short: Some('n'), takes: Takes::Value, meaning: () },
        Known { long: "ntasks-per-node", short: None, takes: Takes::Value, meaning: () },
        Known { long: "label", short: Some('l'), takes: Takes::Nothing, meaning: () },
        Known { long: "kill-on-bad-exit", short: Some('K'), takes: Takes::Maybe, meaning: () },
        Known { long: "exclusive", short: None, takes: Takes::Maybe, meaning: () },
    ];

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn every_way_to_write_an_option_is_read() {
        for (line, expected, rest) in [
            ("--nodes=2 --ntasks 4 hostname -x", "nodes=2 ntasks=4", "hostname -x"),
            ("-N2 -n 4 -l true", "nodes=2 ntasks=4 label", "true"),
            ("-lN 2 -- -true", "label nodes=2", "-true"),
            (
                "-K0 -K --exclusive --exclusive=user x",
                "kill-on-bad-exit=0 kill-on-bad-exit exclusive exclusive=user",
                "x",
            ),
            ("--ntasks-per=3 --lab x", "ntasks-per-node=3 label", "x"),
            ("-n=4 x", "ntasks=4", "x"),
            ("- x", "", "- x"),
        ] {
            let words = words(line);
            let (given, at) = read(&words, &KNOWN).unwrap();
            let shown = |one: &Given<()>| match &one.value {
                Some(value) => format!("{}={value}", one.long),
                None => one.long.to_owned(),
            };
            assert_eq!(given.iter().map(shown).collect::<Vec<_>>().join(" "), expected, "{line}");
            assert_eq!(words[at..].join(" "), rest, "{line}");
        }
    }

    #[test]
    fn what_is_no_option_is_named_with_what_was_meant() {
        for (line, expected) in [
            (
                "--ntask-per-node=2",
                "--ntask-per-node there is no such option; did you mean --ntasks-per-node?",
            ),
            ("--nt=2", "--nt may be --ntasks, --ntasks-per-node; write which"),
            ("--label=2", "--label takes no value, and has `2`"),
            ("--nodes", "--nodes needs a value"),
            ("-lz", "-z there is no such option"),
            ("-N", "-N needs a value"),
        ] {
            let wrong = read(&words(line), &KNOWN).unwrap_err();
            assert_eq!(format!("{} {}", wrong.written, wrong.message), expected);
        }
    }
}
