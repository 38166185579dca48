//! The server's certificate: one of its own, made at the first start and kept, or the files that an operator names.
//!
//! Files are looked at again when somebody connects, at most once a second, so that a renewed certificate is used without a
//! restart. What cannot be used is never taken: the old one is shown until both files are right.

mod shake;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_link::tls::{self, Fingerprint};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
pub(crate) use shake::Shake;

/// The server's own certificate with its key, in the data directory. One file, so that there is never one without the other.
const OWN: &str = "tls.pem";
/// How often the files are looked at: a look is two calls of the system, a handshake a thousand times as much.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("{} cannot be read; check the path, and that the server's account may read it", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No certificate.
    #[error(
        "{} has no certificate; it must be PEM, `-----BEGIN CERTIFICATE-----`, the server's own before those that signed it",
        path.display()
    )]
    NoCertificate {
        /// In which file.
        path: PathBuf,
    },
    /// No key.
    #[error(
        "{} has no private key that can be used; it must be PEM without a passphrase (`openssl pkey -in KEY -out NEW` takes it off)",
        path.display()
    )]
    NoKey {
        /// In which file.
        path: PathBuf,
    },
    /// They do not belong together, or are of a kind that cannot be used.
    #[error(
        "{} and {} cannot be used together; the first certificate in the one must be that of the key in the other",
        certificate.display(), key.display()
    )]
    Pair {
        /// The file with the certificate.
        certificate: PathBuf,
        /// The file with the key.
        key: PathBuf,
        /// What is wrong.
        #[source]
        source: rustls::Error,
    },
    /// The server's own could not be made.
    #[error("no certificate could be made")]
    Make(#[from] rcgen::Error),
    /// The server's own could not be kept.
    #[error("{} cannot be written", path.display())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What the server shows to whoever connects by TLS.
#[derive(Debug)]
pub struct Certificate {
    certificate: PathBuf,
    key: PathBuf,
    shown: Mutex<Shown>,
}

#[derive(Debug)]
struct Shown {
    pair: Arc<CertifiedKey>,
    fingerprint: Fingerprint,
    /// What the files were like when they were last read, well or not.
    stamp: Stamp,
    looked_at: Instant,
}

/// By which it is known that a file is another one: its number, length, and when it was written.
type Stamp = [Option<(u64, u64, i64, i64)>; 2];

impl Certificate {
    /// The server's own, which is made if there is none. The names are for whoever looks at it; clients go by its fingerprint.
    pub fn own(home: &Path, names: &[&str]) -> Result<Arc<Self>, Error> {
        let path = home.join(OWN);
        if !path.exists() {
            make(home, &path, names)?;
        }
        Self::of_files(path.clone(), path)
    }

    /// The one in a file of PEM, and its key, which may be in the same file.
    pub fn of_files(certificate: PathBuf, key: PathBuf) -> Result<Arc<Self>, Error> {
        let stamp = stamp(&certificate, &key);
        let pair = read(&certificate, &key)?;
        let shown = Shown { fingerprint: fingerprint(&pair), pair, stamp, looked_at: Instant::now() };
        Ok(Arc::new(Self { certificate, key, shown: Mutex::new(shown) }))
    }

    /// What clients pin.
    pub fn fingerprint(&self) -> Fingerprint {
        self.now(|shown| shown.fingerprint)
    }

    fn now<T>(&self, of: impl FnOnce(&Shown) -> T) -> T {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.looked_at.elapsed() >= LOOK_EVERY {
            shown.looked_at = Instant::now();
            self.look(&mut shown);
        }
        of(&shown)
    }

    /// Reads files that have changed. A pair of which one half is replaced before the other does not fit for a moment.
    fn look(&self, shown: &mut Shown) {
        let stamp = stamp(&self.certificate, &self.key);
        if stamp == shown.stamp {
            return;
        }
        shown.stamp = stamp;
        match read(&self.certificate, &self.key) {
            Ok(pair) => {
                (shown.fingerprint, shown.pair) = (fingerprint(&pair), pair);
                tracing::info!(fingerprint = %shown.fingerprint, "the certificate was read anew");
            }
            Err(error) => {
                let error = in_words(&error);
                tracing::error!(%error, fingerprint = %shown.fingerprint, "the old certificate is kept");
            }
        }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now(|shown| Arc::clone(&shown.pair)))
    }
}

fn in_words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn fingerprint(pair: &CertifiedKey) -> Fingerprint {
    Fingerprint::of(pair.cert.first().map_or(&[], |certificate| certificate.as_ref()))
}

fn stamp(certificate: &Path, key: &Path) -> Stamp {
    [certificate, key].map(|path| {
        let file = fs::metadata(path).ok()?;
        Some((file.ino(), file.len(), file.mtime(), file.mtime_nsec()))
    })
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, Error> {
    let bytes = |path: &Path| fs::read(path).map_err(|source| Error::Read { path: path.into(), source });
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes(certificate)?).collect();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.ok_or_else(|| Error::NoCertificate { path: certificate.into() })?;
    let secret =
        PrivateKeyDer::from_pem_slice(&bytes(key)?).map_err(|_| Error::NoKey { path: key.into() })?;
    let pair = CertifiedKey::from_der(chain, secret, &tls::provider()).map_err(|source| Error::Pair {
        certificate: certificate.into(),
        key: key.into(),
        source,
    })?;
    Ok(Arc::new(pair))
}

/// Makes the server's own. Of two servers that start at once one makes it, and both read that.
fn make(home: &Path, path: &Path, names: &[&str]) -> Result<(), Error> {
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    let names: BTreeSet<&str> = names.iter().copied().collect();
    params.subject_alt_names = names
        .iter()
        .filter_map(|name| CertificateParams::new([(*name).to_owned()]).ok())
        .flat_map(|named| named.subject_alt_names)
        .collect();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, "muster");
    let certificate = params.self_signed(&key)?;
    let text = format!("{}{}", key.serialize_pem(), certificate.pem());
    keep(home, path, &text).map_err(|source| Error::Write { path: path.into(), source })
}

fn keep(home: &Path, path: &Path, text: &str) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(home)?;
    let temporary = home.join(format!("{OWN}.{}", std::process::id()));
    // A file that is left there by a process of this number may be anybody's to read.
    drop(fs::remove_file(&temporary));
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // A link, unlike a renamed file, never takes the place of one that is there.
    let linked = fs::hard_link(&temporary, path);
    fs::remove_file(&temporary)?;
    match linked {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn files(dir: &Path) -> (PathBuf, PathBuf) {
        let (certificate, key) = (dir.join("cert.pem"), dir.join("key.pem"));
        write_pair(&certificate, &key);
        (certificate, key)
    }

    fn write_pair(certificate: &Path, key: &Path) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(certificate, made.cert.pem()).unwrap();
        fs::write(key, made.signing_key.serialize_pem()).unwrap();
    }

    /// As if the last look were long ago.
    fn forget_look(certificate: &Certificate) {
        certificate.shown.lock().unwrap().looked_at = Instant::now() - LOOK_EVERY;
    }

    #[test]
    fn the_servers_own_is_made_once_and_is_nobody_elses_to_read() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let first = Certificate::own(&home, &["localhost", "127.0.0.1", "not a name\u{fc}"]).unwrap();
        let again = Certificate::own(&home, &[]).unwrap();
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_eq!(fs::metadata(home.join(OWN)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&home).unwrap().count(), 1);
        // Another server that was as quick does not take its place.
        make(&home, &home.join(OWN), &[]).unwrap();
        assert_eq!(Certificate::own(&home, &[]).unwrap().fingerprint(), first.fingerprint());
    }

    #[test]
    fn a_file_that_cannot_be_used_is_named_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = files(dir.path());
        let refused = |certificate: &Path, key: &Path| {
            in_words(&Certificate::of_files(certificate.into(), key.into()).unwrap_err())
        };
        let missing = refused(&dir.path().join("none.pem"), &key);
        assert!(missing.contains("none.pem cannot be read; check the path"), "{missing}");
        let swapped = refused(&key, &certificate);
        assert!(swapped.contains("key.pem has no certificate; it must be PEM"), "{swapped}");
        let no_key = refused(&certificate, &certificate);
        assert!(no_key.contains("cert.pem has no private key"), "{no_key}");
        let other = dir.path().join("other.pem");
        write_pair(&dir.path().join("unused.pem"), &other);
        let mismatch = refused(&certificate, &other);
        assert!(mismatch.contains("cert.pem") && mismatch.contains("other.pem"), "{mismatch}");
        assert!(mismatch.contains("cannot be used together"), "{mismatch}");
    }

    #[test]
    fn a_replaced_certificate_is_shown_once_both_files_are_right() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = files(dir.path());
        let shown = Certificate::of_files(certificate.clone(), key.clone()).unwrap();
        let first = shown.fingerprint();
        let (new_certificate, new_key) = (dir.path().join("new-cert.pem"), dir.path().join("new-key.pem"));
        write_pair(&new_certificate, &new_key);
        fs::rename(&new_certificate, &certificate).unwrap();
        forget_look(&shown);
        assert_eq!(shown.fingerprint(), first, "the key is still the old one");
        fs::rename(&new_key, &key).unwrap();
        assert_eq!(shown.fingerprint(), first, "it is not looked every time");
        forget_look(&shown);
        let second = shown.fingerprint();
        assert_ne!(second, first);
        fs::remove_file(&key).unwrap();
        forget_look(&shown);
        assert_eq!(shown.fingerprint(), second);
    }
}
