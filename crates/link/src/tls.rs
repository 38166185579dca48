//! TLS as a client: whom it believes. Either the authorities that this machine believes, or one certificate alone, which is
//! *pinned* by its fingerprint: then it matters neither who has signed it nor what names it has.
//!
//! The fingerprint is that of the certificate rather than of its key: it is what `openssl x509 -fingerprint -sha256` and every
//! browser show, so that people can compare it with their own eyes.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InvalidMessage, OtherError, RootCertStore,
    SignatureScheme,
};
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
pub use tokio_rustls::client::TlsStream;

/// Links and calls upgrade to WebSockets, which are HTTP/1.1's.
pub const ALPN: &[u8] = b"http/1.1";
/// What fingerprints begin with, so that another digest can be told from this one.
const PREFIX: &str = "sha256:";

/// The SHA-256 of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint([u8; 32]);

/// A text that is no fingerprint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the fingerprint of a certificate; it is sha256: and 64 hexadecimal digits")]
pub struct ParseError {
    /// What was given.
    pub text: String,
}

impl Fingerprint {
    /// That of a certificate, as DER.
    pub fn of(certificate: &[u8]) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl FromStr for Fingerprint {
    type Err = ParseError;

    /// As it is shown, or as openssl and browsers write it: in capitals, with colons between the bytes.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let wrong = || ParseError { text: text.to_owned() };
        let lower = text.trim().to_ascii_lowercase();
        let digits: Vec<u8> =
            lower.strip_prefix(PREFIX).unwrap_or(&lower).bytes().filter(|b| *b != b':').collect();
        if digits.len() != 64 {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            // It would take a sign, too.
            let is_hex = pair.bytes().all(|b| b.is_ascii_hexdigit());
            *byte = u8::from_str_radix(pair, 16).ok().filter(|_| is_hex).ok_or_else(wrong)?;
        }
        Ok(Self(bytes))
    }
}

/// Why there is no connection by TLS.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The certificate is nobody's whom this machine believes.
    #[error("its certificate, {found}, is not trusted: {why}")]
    Unknown {
        /// The certificate's.
        found: Fingerprint,
        /// What is wrong with it.
        why: String,
    },
    /// It has another certificate than the one that is pinned.
    #[error("its certificate is {found}, and not {pinned}")]
    Changed {
        /// What was believed.
        pinned: Fingerprint,
        /// What was shown.
        found: Fingerprint,
    },
    /// Whoever answers speaks something else.
    #[error("it does not speak TLS")]
    NotTls,
    /// Both speak TLS, and do not agree.
    #[error("TLS failed")]
    Failed(#[source] rustls::Error),
    /// The host has a name that no certificate can have.
    #[error("`{0}` cannot be the name of a server with TLS")]
    Name(String),
    /// The connection broke.
    #[error("the connection broke")]
    Broken(#[source] io::Error),
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        match error {
            Error::Broken(error) => error,
            error => Self::other(error),
        }
    }
}

/// How connections are made by TLS.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl Connector {
    /// One that believes a certificate alone, or whom this machine believes.
    pub fn new(pinned: Option<Fingerprint>) -> Result<Self, Error> {
        let provider = provider();
        let trust = match pinned {
            Some(pinned) => Trust::Pinned(pinned),
            None => Trust::System(system(&provider)),
        };
        let verifier = Verifier { trust, algorithms: provider.signature_verification_algorithms };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(Error::Failed)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![ALPN.to_vec()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Speaks TLS over a connection to the host of this name or address.
    pub async fn connect(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, Error> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Name(host.to_owned()))?;
        self.0.connect(name, stream).await.map_err(refused)
    }
}

/// The one that everything in this program uses, whatever others install.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Those whom this machine believes; none where it has no certificates of authorities, or none that can be read.
fn system(provider: &Arc<CryptoProvider>) -> Option<Arc<WebPkiServerVerifier>> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider)).build().ok()
}

fn refused(error: io::Error) -> Error {
    let said = match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(said) => said.clone(),
        None => return Error::Broken(error),
    };
    match said {
        rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(ref inner))) => {
            match inner.downcast_ref::<Refusal>() {
                Some(Refusal::Unknown { found, why }) => Error::Unknown { found: *found, why: why.clone() },
                Some(Refusal::Changed { pinned, found }) => Error::Changed { pinned: *pinned, found: *found },
                None => Error::Failed(said),
            }
        }
        rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) => Error::NotTls,
        said => Error::Failed(said),
    }
}

/// What the verifier says, on its way through rustls.
#[derive(Debug, Clone, thiserror::Error)]
enum Refusal {
    #[error("{found} is not trusted: {why}")]
    Unknown { found: Fingerprint, why: String },
    #[error("{found} is not {pinned}")]
    Changed { pinned: Fingerprint, found: Fingerprint },
}

impl From<Refusal> for rustls::Error {
    fn from(refusal: Refusal) -> Self {
        Self::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
    }
}

#[derive(Debug)]
enum Trust {
    System(Option<Arc<WebPkiServerVerifier>>),
    Pinned(Fingerprint),
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        stapled: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let found = Fingerprint::of(certificate);
        let unknown = |why: String| Refusal::Unknown { found, why }.into();
        match &self.trust {
            Trust::Pinned(pinned) if *pinned == found => Ok(ServerCertVerified::assertion()),
            Trust::Pinned(pinned) => Err(Refusal::Changed { pinned: *pinned, found }.into()),
            Trust::System(None) => Err(unknown("this machine has no certificates of authorities".into())),
            Trust::System(Some(system)) => {
                match system.verify_server_cert(certificate, intermediates, name, stapled, now) {
                    Err(rustls::Error::InvalidCertificate(why)) => Err(unknown(in_words(&why))),
                    verified => verified,
                }
            }
        }
    }

    // That whoever shows the certificate has its key is asked of a pinned one, too.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What people meet; the rest in the words of whoever looks at certificates.
fn in_words(why: &CertificateError) -> String {
    match why {
        CertificateError::UnknownIssuer => {
            "it was signed by itself, or by nobody whom this machine knows".into()
        }
        CertificateError::Other(OtherError(inner)) => inner.to_string(),
        why => why.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_is_read_as_it_is_shown_and_as_others_write_it() {
        let one = Fingerprint::of(b"x");
        let shown = one.to_string();
        assert_eq!(shown, "sha256:2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
        assert_eq!(shown.parse(), Ok(one));
        let bytes: Vec<String> = shown.as_bytes()[7..]
            .chunks(2)
            .map(|pair| String::from_utf8_lossy(pair).to_uppercase())
            .collect();
        assert_eq!(bytes.join(":").parse(), Ok(one));
        for wrong in
            ["", "sha256:", "sha1:2d71", &shown[..70], &shown.replace("2d", "+d"), &shown.replace("2d", "xd")]
        {
            let error = wrong.parse::<Fingerprint>().unwrap_err();
            assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
        }
    }
}
