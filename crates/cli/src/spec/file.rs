//! A job in a YAML file.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::Here;
use crate::error::{Code, Error, system_message};

/// A larger file is not a job but something else, a data set or a log, given by mistake.
const MAX_FILE: u64 = 1 << 20;

/// The fields of a file, and the folder that paths in it are relative to.
pub(super) fn read(path: &Path, here: &Here) -> Result<(Map<String, Value>, PathBuf), Error> {
    let (text, folder) = if path == Path::new("-") {
        (text(io::stdin().lock(), path)?, here.directory.clone())
    } else {
        let place = here.directory.join(path);
        let failed = |error: io::Error| {
            Error::new(
                Code::JobFileUnreadable,
                format!("cannot read {}: {}", path.display(), system_message(&error)),
            )
        };
        let file = File::open(&place).map_err(failed)?;
        let folder = place.parent().map_or_else(|| here.directory.clone(), Path::to_owned);
        (text(file, path)?, folder)
    };
    Ok((fields(&text, path)?, folder))
}

fn text(input: impl Read, path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| {
        Error::new(
            Code::JobFileUnreadable,
            format!("cannot read {}: {}", path.display(), system_message(&error)),
        )
    })?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::new(
            Code::JobFileTooLarge,
            format!("{} is larger than 1 MB, too large for a job", path.display()),
        ));
    }
    String::from_utf8(bytes).map_err(|error| {
        let line = error.as_bytes()[..error.utf8_error().valid_up_to()]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count()
            + 1;
        Error::new(Code::JobFileInvalid, format!("{}: line {line} is not valid UTF-8", path.display()))
    })
}

fn fields(text: &str, path: &Path) -> Result<Map<String, Value>, Error> {
    // Through YAML's own type, which refuses a key that is there twice.
    let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).map_err(|error| {
        let place = error.location().map(|at| format!(":{}:{}", at.line(), at.column())).unwrap_or_default();
        let message = error.to_string();
        // The words repeat the place at their end.
        let message = message.split(" at line ").next().unwrap_or(&message);
        Error::new(Code::JobFileInvalid, format!("{}{place}: {message}", path.display()))
    })?;
    let not_json = |error| Error::new(Code::JobFileInvalid, format!("{}: {error}", path.display()));
    match serde_json::to_value(yaml).map_err(not_json)? {
        Value::Object(fields) => Ok(fields),
        Value::Null => Ok(Map::new()),
        _ => Err(Error::new(Code::JobFileInvalid, format!("{}: a job is a map of fields", path.display()))
            .hint("for example: `command: python train.py`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        fields(text, Path::new("job.yaml")).unwrap_err().to_string()
    }

    #[test]
    fn a_mistake_is_shown_with_its_line_and_column() {
        assert!(
            error("nodes: 2\ncommand: [a, b\n").starts_with("job.yaml:3:1: "),
            "{}",
            error("command: [a\n")
        );
        assert!(error("nodes: 2\n\tcommand: x\n").starts_with("job.yaml:2:1: "));
    }

    #[test]
    fn a_field_given_twice_is_refused() {
        let message = error("nodes: 2\nnodes: 3\n");
        assert!(message.contains("duplicate") && message.contains("nodes"), "{message}");
    }

    #[test]
    fn what_is_not_a_map_is_refused_and_nothing_is_a_map() {
        assert!(error("[1, 2]").contains("a job is a map of fields"));
        assert!(fields("", Path::new("x")).unwrap().is_empty());
        assert!(fields("# nothing yet\n", Path::new("x")).unwrap().is_empty());
    }

    #[test]
    fn a_bomb_of_aliases_is_refused() {
        let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for i in 1..12 {
            let before = format!("*a{}", i - 1);
            text.push_str(&format!("a{i}: &a{i} [{}]\n", vec![before; 9].join(", ")));
        }
        assert!(error(&text).contains("repetition limit"), "{}", error(&text));
    }

    #[test]
    fn a_file_that_is_too_large_or_not_text_is_refused() {
        let path = Path::new("job.yaml");
        let large = vec![b'#'; MAX_FILE as usize + 1];
        assert!(text(large.as_slice(), path).unwrap_err().to_string().contains("larger than 1 MB"));
        assert!(
            text(b"a: 1\nb: \xff".as_slice(), path)
                .unwrap_err()
                .to_string()
                .contains("line 2 is not valid UTF-8")
        );
    }
}
