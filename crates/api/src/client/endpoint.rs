//! Where a server is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;
use hyper::header::HeaderValue;

/// The port of `http://host` without one.
const HTTP_PORT: u16 = 80;

/// Where a server is, and the token it knows its client by.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) address: Address,
    pub(super) authorization: Option<HeaderValue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp { host: String, port: u16 },
}

/// An address that cannot be used, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Neither of the two forms.
    #[error("`{text}` is not the address of a server; write http://HOST:PORT or unix:/PATH")]
    Form {
        /// What was given.
        text: String,
    },
    /// A form that is not there yet.
    #[error(
        "`{text}` needs TLS, which is not supported yet; use http:// through an SSH tunnel or a local proxy"
    )]
    Https {
        /// What was given.
        text: String,
    },
    /// A token that does not fit a header. The token itself is never repeated.
    #[error("the token contains characters that cannot be sent; copy it again, without line breaks")]
    Token,
}

impl Endpoint {
    /// A server on this machine.
    pub fn unix(socket: impl Into<PathBuf>) -> Self {
        Self { address: Address::Unix(socket.into()), authorization: None }
    }

    /// Whether it is on this machine, where bytes cost nothing to send.
    pub fn is_near(&self) -> bool {
        matches!(self.address, Address::Unix(_))
    }

    /// The same, known by a bearer token.
    pub fn with_token(mut self, token: &str) -> Result<Self, ParseError> {
        let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| ParseError::Token)?;
        value.set_sensitive(true);
        self.authorization = Some(value);
        Ok(self)
    }

    /// The `Host` header.
    pub(super) fn host(&self) -> String {
        match &self.address {
            Address::Unix(_) => "localhost".into(),
            Address::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { .. } => write!(f, "http://{}", self.host()),
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint({self})")
    }
}

impl FromStr for Endpoint {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError::Form { text: text.to_owned() };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.starts_with('/') { Ok(Self::unix(path)) } else { Err(wrong()) };
        }
        if text.starts_with("https://") {
            return Err(ParseError::Https { text: text.to_owned() });
        }
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        if uri.scheme_str() != Some("http") || uri.path() != "/" || uri.query().is_some() {
            return Err(wrong());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => port.parse().map_err(|_| wrong())?,
            _ => HTTP_PORT,
        };
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self { address: Address::Tcp { host, port }, authorization: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port }
    }

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address, shown) in [
            ("unix:/run/muster.sock", Address::Unix("/run/muster.sock".into()), "unix:/run/muster.sock"),
            ("http://node1:8080", tcp("node1", 8080), "http://node1:8080"),
            ("http://node1:8080/", tcp("node1", 8080), "http://node1:8080"),
            ("http://node1", tcp("node1", 80), "http://node1:80"),
            ("http://[::1]:8080", tcp("::1", 8080), "http://[::1]:8080"),
            ("http://[::1]", tcp("::1", 80), "http://[::1]:80"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.address, address, "{text}");
            assert_eq!(endpoint.to_string(), shown);
        }
    }

    #[test]
    fn anything_else_is_refused_with_the_forms() {
        for text in
            ["", "node1:8080", "unix:relative", "http://", "http://n:99999", "http://n:x", "http://n/path"]
        {
            let error = text.parse::<Endpoint>().unwrap_err();
            assert!(error.to_string().contains("http://HOST:PORT"), "{text}: {error}");
        }
        assert!("http://user:secret@host:1".parse::<Endpoint>().is_err());
        assert!("https://node1".parse::<Endpoint>().unwrap_err().to_string().contains("TLS"));
    }

    #[test]
    fn a_token_is_never_shown() {
        let endpoint = Endpoint::unix("/s").with_token("hunter2").unwrap();
        assert!(!format!("{endpoint:?} {endpoint}").contains("hunter2"));
        assert!(!format!("{:?}", endpoint.authorization).contains("hunter2"));
        assert_eq!(Endpoint::unix("/s").with_token("a\nb").unwrap_err(), ParseError::Token);
    }
}
