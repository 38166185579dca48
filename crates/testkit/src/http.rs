//! HTTP as raw as a test needs it. One request for each connection, of version 1.0: a reply then ends where its
//! connection does, streams included, and there is nothing to decode.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use serde_json::Value;

use crate::wait::DEADLINE;

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Door {
    /// A socket file.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct Request {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

/// A reply that came whole.
#[derive(Debug)]
pub struct Reply {
    /// The status code.
    pub status: u16,
    headers: Vec<(String, String)>,
    /// The content.
    pub body: Vec<u8>,
}

/// A server-sent event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Its id, if it has one.
    pub id: Option<String>,
    /// What kind it is.
    pub kind: String,
    /// Its content.
    pub data: String,
}

/// A reply that is still coming, as server-sent events.
pub struct Events {
    reader: BufReader<Box<dyn Connection>>,
}

/// An open connection.
pub trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

impl Request {
    /// A request without content.
    pub fn new(method: &str, path: &str) -> Self {
        Self { method: method.into(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    /// `GET`.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// `POST` of a JSON document.
    pub fn post(path: &str, content: &Value) -> Self {
        Self::new("POST", path)
            .header("content-type", "application/json")
            .body(content.to_string().into_bytes())
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// With a content.
    #[must_use]
    pub fn body(mut self, body: Vec<u8>) -> Self {
        self.body = body;
        self
    }

    fn send(&self, connection: &mut impl Write) -> io::Result<()> {
        let mut head = format!("{} {} HTTP/1.0\r\nhost: localhost\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", self.body.len()));
        connection.write_all(head.as_bytes())?;
        connection.write_all(&self.body)?;
        connection.flush()
    }
}

impl Door {
    /// A bare connection. Reading from it gives up at the deadline.
    pub fn connect(&self) -> io::Result<Box<dyn Connection>> {
        Ok(match self {
            Self::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(DEADLINE))?;
                Box::new(stream)
            }
            Self::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_read_timeout(Some(DEADLINE))?;
                Box::new(stream)
            }
        })
    }

    /// Sends a request and waits for the whole reply.
    pub fn try_ask(&self, request: &Request) -> io::Result<Reply> {
        let mut connection = self.connect()?;
        // A server that has heard enough answers without reading on; what counts is the answer.
        let sent = request.send(&mut connection);
        let mut reader = BufReader::new(connection);
        let (status, headers) = match head(&mut reader) {
            Ok(head) => head,
            Err(error) => return Err(sent.err().unwrap_or(error)),
        };
        let mut body = Vec::new();
        match reader.read_to_end(&mut body) {
            Ok(_) => {}
            // The same, seen from the other side.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && !body.is_empty() => {}
            Err(error) => return Err(error),
        }
        Ok(Reply { status, headers, body })
    }

    /// The same where a reply is certain.
    pub fn ask(&self, request: &Request) -> Reply {
        self.try_ask(request)
            .unwrap_or_else(|error| panic!("{} {} at {self:?}: {error}", request.method, request.path))
    }

    /// Sends a request that is answered with a stream of events.
    pub fn follow(&self, request: &Request) -> Events {
        let mut connection = self.connect().expect("the server takes connections");
        request.send(&mut connection).expect("the request can be sent");
        let mut reader = BufReader::new(connection);
        let (status, headers) = head(&mut reader).expect("the server answers");
        let kind = headers.iter().find(|(name, _)| name == "content-type").map(|(_, value)| value.as_str());
        assert_eq!((status, kind), (200, Some("text/event-stream")), "{} {}", request.method, request.path);
        Events { reader }
    }
}

fn head(reader: &mut impl BufRead) -> io::Result<(u16, Vec<(String, String)>)> {
    let wrong = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {line:?}"));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let status = line.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(|| wrong(&line))?;
    let mut headers = Vec::new();
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        let text = line.trim_end();
        if text.is_empty() {
            return Ok((status, headers));
        }
        let (name, value) = text.split_once(':').ok_or_else(|| wrong(text))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

impl Reply {
    /// A header by its name in small letters.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The content as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{} is not JSON: {error}\n{}", self.status, self.text()))
    }

    /// The content of a problem document with this status and code.
    pub fn problem(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{}", self.text());
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{}", self.text());
        let problem = self.json();
        assert_eq!(
            (&problem["code"], &problem["status"], &problem["type"]),
            (&code.into(), &status.into(), &format!("urn:muster:problem:{code}").into()),
            "{problem}"
        );
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{problem}");
        problem
    }
}

impl Iterator for Events {
    type Item = Event;

    /// The next event; none once the server has ended the stream.
    fn next(&mut self) -> Option<Event> {
        let mut event = Event { id: None, kind: "message".into(), data: String::new() };
        let mut line = String::new();
        loop {
            line.clear();
            if self.reader.read_line(&mut line).expect("the stream can be read") == 0 {
                return None;
            }
            let text = line.trim_end_matches(['\r', '\n']);
            if text.is_empty() {
                if !event.data.is_empty() {
                    return Some(event);
                }
                continue;
            }
            let (name, value) = text.split_once(':').unwrap_or((text, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match name {
                "id" => event.id = Some(value.into()),
                "event" => event.kind = value.into(),
                "data" => event.data.push_str(value),
                // A comment, which keeps the connection alive.
                _ => {}
            }
        }
    }
}
