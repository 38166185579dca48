//! A job in a YAML file.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde_json::{Map, Value};

use super::Here;
use crate::error::{Code, Error, system_message};

/// A larger file is not a job but something else, a data set or a log, given by mistake.
const MAX_FILE: u64 = 1 << 20;
/// The parser takes time with the square of the depth before it refuses it: minutes for a file of this size.
const MAX_DEPTH: usize = 1000;

/// The text of a file, and the folder that paths in it are relative to.
pub(super) fn read(path: &Path, here: &Here) -> Result<(String, PathBuf), Error> {
    if path == Path::new("-") {
        return Ok((text(io::stdin().lock(), path)?, here.directory.clone()));
    }
    let place = here.directory.join(path);
    let file = open(&place).map_err(|error| unreadable(path, &error))?;
    let folder = place.parent().map_or_else(|| here.directory.clone(), Path::to_owned);
    Ok((text(file, path)?, folder))
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    let message = format!("cannot read {}: {}", path.display(), system_message(error));
    Error::new(Code::JobFileUnreadable, message)
}

/// Opens a file without ever waiting for it. A pipe may be meant, as in `--file <(generate)`; but one that nobody
/// writes to would be waited for until somebody does.
fn open(path: &Path) -> io::Result<Box<dyn Read>> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let mut file = match OpenOptions::new().read(true).custom_flags(nonblocking).open(path) {
        // What opening a socket is answered with.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
            return Err(io::Error::other("it is a socket, not a file"));
        }
        other => other?,
    };
    let kind = file.metadata()?.file_type();
    if kind.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    let mut first = Vec::new();
    if kind.is_fifo() {
        let mut byte = [0];
        match file.read(&mut byte) {
            Ok(0) => return Err(io::Error::other("it is a pipe that nobody writes to")),
            Ok(_) => first.extend(byte),
            // Somebody has it open for writing, and has not written yet.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(Box::new(io::Cursor::new(first).chain(file)))
}

fn text(input: impl Read, path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    input.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
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

/// The fields of a job in YAML.
pub(super) fn fields(text: &str, path: &Path) -> Result<Map<String, Value>, Error> {
    if depth(text) > MAX_DEPTH {
        let message = format!("{}: more than {MAX_DEPTH} brackets within each other", path.display());
        return Err(Error::new(Code::JobFileInvalid, message));
    }
    // Through YAML's own type, which refuses a key that is there twice.
    let yaml: serde_yaml_ng::Value = serde_yaml_ng::from_str(text).map_err(|error| {
        let place = error.location().map(|at| format!(":{}:{}", at.line(), at.column())).unwrap_or_default();
        let message = error.to_string();
        // The words repeat the place at their end.
        let message = in_users_words(message.split(" at line ").next().unwrap_or(&message));
        Error::new(Code::JobFileInvalid, format!("{}{place}: {message}", path.display()))
    })?;
    if let Some(place) = not_finite(&yaml) {
        let message = format!("{}: {place}: is not a number, or not a finite one", path.display());
        return Err(Error::new(Code::JobFileInvalid, message));
    }
    let not_json = |error| Error::new(Code::JobFileInvalid, format!("{}: {error}", path.display()));
    match serde_json::to_value(yaml).map_err(not_json)? {
        Value::Object(fields) => Ok(fields),
        Value::Null => Ok(Map::new()),
        _ => Err(Error::new(Code::JobFileInvalid, format!("{}: a job is a map of fields", path.display()))
            .hint("for example: `command: python train.py`")),
    }
}

/// The most brackets that are open at once, wherever they stand. Those in texts are counted too: no script leaves so
/// many of them open.
fn depth(text: &str) -> usize {
    let mut open = 0_usize;
    let mut most = 0;
    for byte in text.bytes() {
        match byte {
            b'[' | b'{' => open += 1,
            b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        most = most.max(open);
    }
    most
}

/// The field whose value is `.nan` or `.inf`. JSON has no such numbers, and would have nothing in their place.
fn not_finite(value: &serde_yaml_ng::Value) -> Option<String> {
    use serde_yaml_ng::Value;
    let within = |name: String, value| {
        let inner: Option<String> = not_finite(value);
        inner.map(|inner| if inner.is_empty() { name.clone() } else { format!("{name}.{inner}") })
    };
    match value {
        Value::Number(number) => number.as_f64().is_some_and(|number| !number.is_finite()).then(String::new),
        Value::Sequence(items) => items.iter().enumerate().find_map(|(i, item)| within(i.to_string(), item)),
        Value::Mapping(fields) => {
            fields.iter().find_map(|(name, value)| within(name.as_str().unwrap_or("?").to_owned(), value))
        }
        Value::Tagged(tagged) => not_finite(&tagged.value),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

/// The parser's words for a number of more than 64 bits say more of itself than of the number.
fn in_users_words(message: &str) -> String {
    let number =
        |from: &str| Some(from.split_once("invalid type: integer `")?.1.split_once('`')?.0.to_owned());
    match number(message).filter(|_| message.contains("128")) {
        Some(number) => {
            let field = message.split("invalid type").next().unwrap_or_default();
            format!("{field}the number {number} is too large")
        }
        None => message.to_owned(),
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
    fn brackets_within_brackets_are_refused_before_they_take_time() {
        let deep = format!("command: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(error(&deep).contains("more than 1000 brackets"), "{}", error(&deep));
        assert!(error("command: [[[[]]]]\nx: [").starts_with("job.yaml:"));
    }

    #[test]
    fn what_is_no_number_is_not_taken_for_nothing() {
        assert!(error("resources: {cpus: .nan}").starts_with("job.yaml: resources.cpus: is not a number"));
        assert!(error("command: [a, .inf]").starts_with("job.yaml: command.1: "));
    }

    #[test]
    fn a_number_beyond_all_measure_is_said_to_be_too_large() {
        let message = error("command: x\nnodes: 99999999999999999999999999\n");
        assert_eq!(message, "job.yaml:2:8: nodes: the number 99999999999999999999999999 is too large");
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
