//! Reading server-sent events as they come, in whatever pieces the network makes of them.
//!
//! Only the grammar of `text/event-stream` is known here, not what the events mean. A line and an event are bounded,
//! so that a stream gone wild ends in an error and not in all the memory there is.

use memchr::memchr2;

/// The longest event: a piece of log is some tens of kilobytes, a job in full rarely a megabyte.
const MAX_EVENT: usize = 8 << 20;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What it is called; `message` when the stream does not say.
    pub name: String,
    /// The last id the stream gave: where to go on from.
    pub id: Option<String>,
    /// The content; several `data` lines are joined by newlines.
    pub data: String,
}

/// A stream that breaks the rules.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Beyond the bound.
    #[error("an event is longer than {MAX_EVENT} bytes")]
    TooLong,
    /// Not text.
    #[error("an event is not UTF-8")]
    NotText,
}

/// Puts pieces of a stream together.
#[derive(Debug, Default)]
pub struct Parser {
    buffer: Vec<u8>,
    /// Where the first line that is not read yet begins.
    start: usize,
    /// Up to here there is no end of a line.
    scanned: usize,
    /// The last line ended in a carriage return: a newline right after it belongs to that end.
    after_return: bool,
    begun: bool,
    name: Vec<u8>,
    id: Option<String>,
    data: Vec<u8>,
    has_data: bool,
}

impl Parser {
    /// Takes the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        // What was read is dropped only here, so that reading many events of one piece moves no bytes.
        self.buffer.drain(..self.start);
        self.scanned -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(piece);
    }

    /// The next whole event, if there is one.
    pub fn next_event(&mut self) -> Result<Option<Event>, ParseError> {
        while let Some((from, to)) = self.next_line()? {
            if from == to {
                if let Some(event) = self.dispatch()? {
                    return Ok(Some(event));
                }
            } else {
                self.on_line(from, to)?;
            }
        }
        Ok(None)
    }

    /// The bounds of the next whole line, without its end.
    fn next_line(&mut self) -> Result<Option<(usize, usize)>, ParseError> {
        if self.after_return && self.buffer.get(self.start) == Some(&b'\n') {
            self.start += 1;
            self.after_return = false;
        }
        self.scanned = self.scanned.max(self.start);
        let Some(found) = memchr2(b'\n', b'\r', &self.buffer[self.scanned..]) else {
            self.scanned = self.buffer.len();
            return if self.scanned - self.start > MAX_EVENT { Err(ParseError::TooLong) } else { Ok(None) };
        };
        let (mut from, to) = (self.start, self.scanned + found);
        self.after_return = self.buffer[to] == b'\r';
        self.start = to + 1;
        self.scanned = self.start;
        if !std::mem::replace(&mut self.begun, true) && self.buffer[from..to].starts_with(b"\xef\xbb\xbf") {
            from += 3;
        }
        Ok(Some((from, to)))
    }

    fn on_line(&mut self, from: usize, to: usize) -> Result<(), ParseError> {
        let line = &self.buffer[from..to];
        let (field, value) = match memchr::memchr(b':', line) {
            // A comment: a sign of life.
            Some(0) => return Ok(()),
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => {
                if self.data.len() + value.len() > MAX_EVENT {
                    return Err(ParseError::TooLong);
                }
                if self.has_data {
                    self.data.push(b'\n');
                }
                self.data.extend_from_slice(value);
                self.has_data = true;
            }
            b"event" => self.name = value.to_vec(),
            b"id" if !value.contains(&0) => self.id = Some(text(value.to_vec())?),
            // `retry`, and whatever comes later: not for us.
            _ => {}
        }
        Ok(())
    }

    /// An empty line: the event is whole. Without data there is none.
    fn dispatch(&mut self) -> Result<Option<Event>, ParseError> {
        let (name, data) = (std::mem::take(&mut self.name), std::mem::take(&mut self.data));
        if !std::mem::take(&mut self.has_data) {
            return Ok(None);
        }
        let name = if name.is_empty() { "message".into() } else { text(name)? };
        Ok(Some(Event { name, id: self.id.clone(), data: text(data)? }))
    }
}

fn text(bytes: Vec<u8>) -> Result<String, ParseError> {
    String::from_utf8(bytes).map_err(|_| ParseError::NotText)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, id: Option<&str>, data: &str) -> Event {
        Event { name: name.into(), id: id.map(Into::into), data: data.into() }
    }

    fn all(pieces: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::default();
        let mut found = Vec::new();
        for piece in pieces {
            parser.feed(piece);
            while let Some(event) = parser.next_event().unwrap() {
                found.push(event);
            }
        }
        found
    }

    const STREAM: &[u8] =
        "\u{feff}: hello\n\nevent: log\nid: 7\ndata: {\"text\":\"größe\"}\n\n: alive\n\nevent:end\r\n\
        data:one\r\ndata: two\r\n\r\ndata\rdata:  x\r\rretry: 5\nunknown: y\nevent: lost\n\ndata: last\n\n"
            .as_bytes();

    fn expected() -> Vec<Event> {
        vec![
            event("log", Some("7"), "{\"text\":\"größe\"}"),
            event("end", Some("7"), "one\ntwo"),
            event("message", Some("7"), "\n x"),
            event("message", Some("7"), "last"),
        ]
    }

    #[test]
    fn names_ids_and_lines_of_data_are_read_and_comments_are_not() {
        assert_eq!(all(&[STREAM]), expected());
    }

    #[test]
    fn it_does_not_matter_where_the_network_cuts() {
        for cut in 0..STREAM.len() {
            assert_eq!(all(&[&STREAM[..cut], &STREAM[cut..]]), expected(), "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(all(&bytes), expected());
    }

    #[test]
    fn half_an_event_is_none() {
        assert_eq!(all(&[b"event: log\ndata: 1\n"]), []);
    }

    #[test]
    fn endless_lines_and_events_are_refused() {
        let mut parser = Parser::default();
        parser.feed(&vec![b'x'; MAX_EVENT + 1]);
        assert_eq!(parser.next_event(), Err(ParseError::TooLong));

        let mut parser = Parser::default();
        let line = [b"data: ".as_slice(), &vec![b'x'; MAX_EVENT / 2], b"\n"].concat();
        for _ in 0..3 {
            parser.feed(&line);
        }
        assert_eq!(parser.next_event(), Err(ParseError::TooLong));
    }

    #[test]
    fn what_is_not_text_is_refused() {
        let mut parser = Parser::default();
        parser.feed(b"data: \xff\n\n");
        assert_eq!(parser.next_event(), Err(ParseError::NotText));
    }
}
