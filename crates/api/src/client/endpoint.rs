//! Where a server is.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use hyper::Uri;
use hyper::header::HeaderValue;
use muster_link::tls::{self, Fingerprint};

/// The ports of `http://host` and `https://host` without one.
const HTTP_PORT: u16 = 80;
const HTTPS_PORT: u16 = 443;

/// Where a server is, whom to take for it, and the token it knows its client by.
#[derive(Clone)]
pub struct Endpoint {
    pub(super) address: Address,
    pub(super) pinned: Option<Fingerprint>,
    pub(super) authorization: Option<HeaderValue>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Address {
    Unix(PathBuf),
    Tcp { host: String, port: u16, is_tls: bool },
}

/// An address that cannot be used, with the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// None of the forms.
    #[error(
        "`{text}` is not the address of a server; write https://HOST:PORT, http://HOST:PORT or unix:/PATH"
    )]
    Form {
        /// What was given.
        text: String,
    },
    /// A fingerprint that is none.
    #[error(transparent)]
    Fingerprint(#[from] tls::ParseError),
    /// A certificate is to be checked where none is shown.
    #[error("`{text}` has no certificate to compare with a fingerprint; write https://HOST:PORT")]
    NothingToPin {
        /// The address.
        text: String,
    },
    /// A token that does not fit a header. The token itself is never repeated.
    #[error("the token contains characters that cannot be sent; copy it again, without line breaks")]
    Token,
}

impl Endpoint {
    /// A server on this machine.
    pub fn unix(socket: impl Into<PathBuf>) -> Self {
        Self { address: Address::Unix(socket.into()), pinned: None, authorization: None }
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

    /// The same, if it shows the certificate of this fingerprint, and only then.
    pub fn with_fingerprint(mut self, fingerprint: &str) -> Result<Self, ParseError> {
        let pinned = fingerprint.parse()?;
        if !matches!(self.address, Address::Tcp { is_tls: true, .. }) {
            return Err(ParseError::NothingToPin { text: self.to_string() });
        }
        self.pinned = Some(pinned);
        Ok(self)
    }

    /// The certificate that it must show, if only one will do.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.pinned
    }

    /// Whether a token is shown there.
    pub fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// The `Host` header.
    pub(super) fn host(&self) -> String {
        match &self.address {
            Address::Unix(_) => "localhost".into(),
            Address::Tcp { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port, .. } => format!("{host}:{port}"),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp { is_tls: false, .. } => write!(f, "http://{}", self.host()),
            Address::Tcp { is_tls: true, .. } => write!(f, "https://{}", self.host()),
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
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let authority =
            uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(wrong)?;
        let (is_tls, usual_port) = match uri.scheme_str() {
            Some("http") => (false, HTTP_PORT),
            Some("https") => (true, HTTPS_PORT),
            _ => return Err(wrong()),
        };
        if uri.path() != "/" || uri.query().is_some() {
            return Err(wrong());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = match authority.as_str().rsplit_once(':') {
            Some((_, port)) if !port.ends_with(']') => port.parse().map_err(|_| wrong())?,
            _ => usual_port,
        };
        if host.is_empty() {
            return Err(wrong());
        }
        Ok(Self { address: Address::Tcp { host, port, is_tls }, pinned: None, authorization: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port, is_tls: false }
    }

    fn tls(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.into(), port, is_tls: true }
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
            ("https://node1:7717", tls("node1", 7717), "https://node1:7717"),
            ("https://[::1]", tls("::1", 443), "https://[::1]:443"),
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
    }

    #[test]
    fn a_fingerprint_goes_with_a_certificate() {
        let pin = format!("sha256:{}", "0f".repeat(32));
        let endpoint = |text: &str| text.parse::<Endpoint>().unwrap();
        assert_eq!(endpoint("https://node1").with_fingerprint(&pin).unwrap().pinned, pin.parse().ok());
        let plain = endpoint("http://node1").with_fingerprint(&pin).unwrap_err();
        assert!(plain.to_string().contains("http://node1:80") && plain.to_string().contains("https://"));
        let wrong = endpoint("https://node1").with_fingerprint("sha256:12").unwrap_err();
        assert!(wrong.to_string().contains("64 hexadecimal digits"), "{wrong}");
    }

    #[test]
    fn a_token_is_never_shown() {
        let endpoint = Endpoint::unix("/s").with_token("hunter2").unwrap();
        assert!(!format!("{endpoint:?} {endpoint}").contains("hunter2"));
        assert!(!format!("{:?}", endpoint.authorization).contains("hunter2"));
        assert_eq!(Endpoint::unix("/s").with_token("a\nb").unwrap_err(), ParseError::Token);
    }
}
