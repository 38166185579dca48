//! A server whose every text is hostile: it stands before a real one, and adds escape sequences, line breaks and
//! bidirectional overrides to each string of its answers that has no grammar.
//!
//! What a client prints of its answers must be safe, whoever wrote it. A new field is covered without a change here.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::http::{Connection, Door};

/// What is added: a window title, a clear screen in one byte, an override, a deletion, and a line that looks like one of
/// the client's own.
pub const HOSTILE: &str = "\u{1b}]0;pwned\u{7}\u{9b}2J\u{202e}\u{7f}\r\nFORGED";
/// How the beginning of it is to be shown.
pub const SHOWN: &str = r"\x1b]0;pwned\x07";

/// Strings that must be read, not only shown: they have a grammar, or name something that is asked for next.
const FORMAL: [&str; 24] = [
    "array",
    "attempt",
    "backoff",
    "base64",
    "build",
    "code",
    "cursor",
    "grace",
    "id",
    "ip",
    "job",
    "kind",
    "next_cursor",
    "node",
    "on",
    "over",
    "phase",
    "resource",
    "state",
    "stop_signal",
    "text",
    "timeout",
    "type",
    "version",
];

/// A hostile server on a Unix socket. It ends with the test's process.
pub struct HostileServer {
    socket: PathBuf,
}

/// What is known to be formal, and where the real server is.
struct Front {
    server: Door,
    /// Sent with each request, such as the token of the one who asks.
    headers: String,
    /// Values of enumerations, from the API's document.
    words: BTreeSet<String>,
}

impl HostileServer {
    /// Listens on a new socket before a server. The document is the server's `openapi.json`.
    pub fn start(socket: &Path, server: Door, headers: &[(&str, &str)], document: &Value) -> Self {
        let listener = UnixListener::bind(socket).expect("a socket of the test's own");
        let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let mut words = BTreeSet::new();
        enumerations(document, &mut words);
        let front = Front { server, headers, words };
        std::thread::spawn(move || {
            std::thread::scope(|scope| {
                for connection in listener.incoming().flatten() {
                    // A client that goes away early is no concern of the test's.
                    scope.spawn(|| drop(front.answer(connection)));
                }
            });
        });
        Self { socket: socket.to_owned() }
    }

    /// As `MUSTER_SERVER` wants it.
    pub fn address(&self) -> String {
        format!("unix:{}", self.socket.display())
    }
}

impl Front {
    /// One request and its answer; the end of the connection is the end of the answer.
    fn answer(&self, mut client: UnixStream) -> io::Result<()> {
        let mut reader = BufReader::new(client.try_clone()?);
        let head = lines(&mut reader)?;
        let [first, headers @ ..] = head.as_slice() else { return Ok(()) };
        let mut body = vec![0; length(headers)];
        reader.read_exact(&mut body)?;
        let mut server = self.server.connect()?;
        self.ask(&mut server, first, headers, &body)?;
        let mut reader = BufReader::new(server);
        let head = lines(&mut reader)?;
        let kind = head.iter().find_map(|line| value_of(line, "content-type")).unwrap_or_default().to_owned();
        for line in head.iter().filter(|line| value_of(line, "content-length").is_none()) {
            write!(client, "{}\r\n", line.replacen("HTTP/1.0", "HTTP/1.1", 1))?;
        }
        write!(client, "connection: close\r\n\r\n")?;
        self.pass_body(&mut reader, &mut client, &kind)
    }

    fn ask(
        &self,
        server: &mut Box<dyn Connection>,
        first: &str,
        headers: &[String],
        body: &[u8],
    ) -> io::Result<()> {
        write!(server, "{}\r\n{}", first.replacen("HTTP/1.1", "HTTP/1.0", 1), self.headers)?;
        for line in headers.iter().filter(|line| value_of(line, "connection").is_none()) {
            write!(server, "{line}\r\n")?;
        }
        server.write_all(b"\r\n")?;
        server.write_all(body)?;
        server.flush()
    }

    fn pass_body(&self, reader: &mut impl BufRead, client: &mut UnixStream, kind: &str) -> io::Result<()> {
        if kind.contains("json") {
            let mut body = Vec::new();
            reader.read_to_end(&mut body)?;
            return client.write_all(&self.spoilt(&body));
        }
        if !kind.contains("event-stream") {
            io::copy(reader, client)?;
            return Ok(());
        }
        let mut line = String::new();
        while reader.read_line(&mut line)? > 0 {
            match line.strip_prefix("data:") {
                Some(data) => {
                    client.write_all(b"data: ")?;
                    client.write_all(&self.spoilt(data.trim().as_bytes()))?;
                    client.write_all(b"\n")?;
                }
                None => client.write_all(line.as_bytes())?,
            }
            line.clear();
        }
        Ok(())
    }

    fn spoilt(&self, document: &[u8]) -> Vec<u8> {
        match serde_json::from_slice::<Value>(document) {
            Ok(mut value) => {
                self.spoil("", &mut value);
                value.to_string().into_bytes()
            }
            Err(_) => document.to_vec(),
        }
    }

    fn spoil(&self, key: &str, value: &mut Value) {
        match value {
            Value::String(text) if !self.is_formal(key, text) => text.push_str(HOSTILE),
            Value::Array(items) => items.iter_mut().for_each(|item| self.spoil(key, item)),
            Value::Object(fields) => fields.iter_mut().for_each(|(key, value)| self.spoil(key, value)),
            _ => {}
        }
    }

    fn is_formal(&self, key: &str, text: &str) -> bool {
        let is_number = text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
        FORMAL.contains(&key)
            || self.words.contains(text)
            || is_number
            || ["job_", "bundle_"].iter().any(|prefix| text.starts_with(prefix))
    }
}

fn enumerations(document: &Value, words: &mut BTreeSet<String>) {
    match document {
        Value::Object(fields) => {
            let values = fields.get("enum").and_then(Value::as_array).into_iter().flatten();
            words.extend(values.filter_map(Value::as_str).map(str::to_owned));
            fields.values().for_each(|value| enumerations(value, words));
        }
        Value::Array(items) => items.iter().for_each(|item| enumerations(item, words)),
        _ => {}
    }
}

/// The lines of a message's head.
fn lines(reader: &mut impl BufRead) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        match line.trim_end() {
            "" => return Ok(lines),
            text => lines.push(text.to_owned()),
        }
    }
}

fn value_of<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (found, value) = line.split_once(':')?;
    found.eq_ignore_ascii_case(name).then(|| value.trim())
}

fn length(headers: &[String]) -> usize {
    headers.iter().find_map(|line| value_of(line, "content-length")?.parse().ok()).unwrap_or(0)
}
