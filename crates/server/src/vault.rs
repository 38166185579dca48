//! Seals secrets before they are stored, and opens them for the tasks that are given them.
//!
//! A sealed value begins with which key has sealed it, so that a wrong key is told from a damaged row. Whose it is and what it is
//! called are sealed in: a row that was copied under another name does not open. Nothing here must ever be logged.

use std::io;
use std::path::Path;

use muster_model::spec::{JobSpec, Secret};
use muster_store::{Readers, SecretRow};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

use crate::auth;
use crate::core::DEFAULT_WORKSPACE;

/// Where the key is that the server makes where it is given none, in the data directory.
const FILE: &str = "secrets.key";
const KEY_ID: usize = 8;
/// What is shorter can be guessed.
const SHORTEST: usize = 32;

/// Why a secret cannot be had.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub(crate) enum Error {
    #[error(
        "was sealed with another key than this server has now: start it with that key, or put the secret again"
    )]
    OtherKey,
    #[error("is damaged: put it again")]
    Damaged,
}

/// Has the key.
pub(crate) struct Vault {
    key: LessSafeKey,
    id: [u8; KEY_ID],
}

impl Vault {
    /// With the key that was given, or else with one that is made at the first start and kept in the data directory.
    pub fn open(home: &Path, given: Option<&str>) -> io::Result<Self> {
        match given {
            Some(text) => Self::new(text),
            None => Self::new(&auth::read_or_make(&home.join(FILE))?),
        }
    }

    fn new(text: &str) -> io::Result<Self> {
        let text = text.trim().as_bytes();
        if text.len() < SHORTEST {
            let what = format!(
                "the key of the secrets has {} characters, and must have at least {SHORTEST} random ones: `openssl rand -hex 32` makes some",
                text.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let key = blake3::derive_key("muster 2026 secrets of workspaces: key", text);
        let id = blake3::derive_key("muster 2026 secrets of workspaces: id of the key", text);
        let key = UnboundKey::new(&CHACHA20_POLY1305, &key);
        let key = LessSafeKey::new(key.map_err(|_| io::Error::other("no key can be made of it"))?);
        Ok(Self { key, id: std::array::from_fn(|i| id[i]) })
    }

    pub fn seal(&self, workspace: &str, name: &str, value: &[u8]) -> Result<Vec<u8>, Error> {
        let mut nonce = [0; NONCE_LEN];
        crate::random::fill(&mut nonce);
        let mut sealed = value.to_vec();
        let aad = Aad::from(bound(workspace, name));
        let done = self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut sealed);
        done.map_err(|_| Error::Damaged)?;
        Ok([&self.id[..], &nonce, &sealed].concat())
    }

    pub fn unseal(&self, row: &SecretRow) -> Result<Vec<u8>, Error> {
        let (id, rest) = row.sealed.split_at_checked(KEY_ID).ok_or(Error::Damaged)?;
        if id != self.id {
            return Err(Error::OtherKey);
        }
        let (nonce, sealed) = rest.split_first_chunk::<NONCE_LEN>().ok_or(Error::Damaged)?;
        let mut value = sealed.to_vec();
        let aad = Aad::from(bound(&row.workspace, &row.name));
        let opened = self.key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut value);
        let length = opened.map_err(|_| Error::Damaged)?.len();
        value.truncate(length);
        Ok(value)
    }

    /// How many secrets there are, and which of them cannot be opened.
    pub fn check(&self, readers: &Readers) -> Result<(usize, Vec<String>), String> {
        let rows = readers.all_secrets().map_err(|error| error.to_string())?;
        let closed = rows.iter().filter(|row| self.unseal(row).is_err());
        let closed = closed.map(|row| format!("{} of {}", row.name, row.workspace)).collect();
        Ok((rows.len(), closed))
    }

    /// What a job's tasks are given, in the order of its spec; or which of them cannot be given, and why.
    pub fn given(&self, readers: &Readers, spec: &JobSpec) -> Result<Vec<Vec<u8>>, Vec<(usize, String)>> {
        let workspace = spec.workspace.as_deref().unwrap_or(DEFAULT_WORKSPACE);
        let (mut values, mut wrong) = (Vec::new(), Vec::new());
        for (i, secret) in spec.secrets.iter().enumerate() {
            match self.one(readers, workspace, secret) {
                Ok(value) => values.push(value),
                Err(why) => wrong.push((i, why)),
            }
        }
        if wrong.is_empty() { Ok(values) } else { Err(wrong) }
    }

    fn one(&self, readers: &Readers, workspace: &str, secret: &Secret) -> Result<Vec<u8>, String> {
        let name = &secret.name;
        let row =
            readers.secret(workspace, name).map_err(|error| format!("`{name}` cannot be read: {error}"))?;
        let Some(row) = row else { return Err(unknown(readers, workspace, name)) };
        let value = self.unseal(&row).map_err(|error| format!("`{name}` {error}"))?;
        let is_text = std::str::from_utf8(&value).is_ok_and(|text| !text.contains('\0'));
        match secret.env.is_some() && !is_text {
            true => Err(format!(
                "`{name}` is not a text, so it can be no variable: give it as a file, {name}=file:NAME"
            )),
            false => Ok(value),
        }
    }
}

/// What a value is bound to.
fn bound(workspace: &str, name: &str) -> Vec<u8> {
    // No name has a NUL in it.
    format!("muster secret\0{workspace}\0{name}").into_bytes()
}

fn unknown(readers: &Readers, workspace: &str, name: &str) -> String {
    let rows = readers.secrets(workspace).unwrap_or_default();
    let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    let near = match muster_model::spec::nearest(name, &names) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => String::new(),
    };
    format!(
        "there is no secret `{name}` in the workspace {workspace}{near}; `muster secret put {name}` puts one there"
    )
}

#[cfg(test)]
mod tests {
    use muster_model::Timestamp;
    use muster_model::spec::MAX_SECRET;

    use super::*;

    fn row(workspace: &str, name: &str, sealed: Vec<u8>) -> SecretRow {
        SecretRow {
            workspace: workspace.into(),
            name: name.into(),
            sealed,
            size: 0,
            put_by: "ada".into(),
            put_at: Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn what_is_sealed_opens_with_the_same_key_alone() {
        let home = tempfile::tempdir().unwrap();
        let vault = Vault::open(home.path(), None).unwrap();
        for value in [&b""[..], b"hunter2", &[0; MAX_SECRET]] {
            let sealed = vault.seal("default", "TOKEN", value).unwrap();
            assert_ne!(sealed, vault.seal("default", "TOKEN", value).unwrap(), "no two are alike");
            let row = row("default", "TOKEN", sealed);
            assert_eq!(vault.unseal(&row).unwrap(), value);
            // The key is kept, and another is told from it.
            assert_eq!(Vault::open(home.path(), None).unwrap().unseal(&row).unwrap(), value);
            let other = Vault::open(home.path(), Some(&"k".repeat(32))).unwrap();
            assert_eq!(other.unseal(&row), Err(Error::OtherKey));
        }
    }

    #[test]
    fn a_row_opens_only_as_what_it_was_stored_as() {
        let vault = Vault::new(&"k".repeat(32)).unwrap();
        let sealed = vault.seal("default", "TOKEN", b"hunter2").unwrap();
        assert!(!sealed.windows(7).any(|window| window == b"hunter2"));
        for (workspace, name) in [("default", "OTHER"), ("vision", "TOKEN"), ("", "default\0TOKEN")] {
            assert_eq!(vault.unseal(&row(workspace, name, sealed.clone())), Err(Error::Damaged));
        }
        for at in KEY_ID..sealed.len() {
            let mut damaged = sealed.clone();
            damaged[at] ^= 1;
            assert_eq!(vault.unseal(&row("default", "TOKEN", damaged)), Err(Error::Damaged), "at {at}");
        }
        for length in KEY_ID..sealed.len() {
            assert_eq!(vault.unseal(&row("default", "TOKEN", sealed[..length].into())), Err(Error::Damaged));
        }
        assert_eq!(vault.unseal(&row("default", "TOKEN", Vec::new())), Err(Error::Damaged));
    }

    #[test]
    fn a_key_that_can_be_guessed_is_refused() {
        let home = tempfile::tempdir().unwrap();
        assert!(Vault::open(home.path(), Some("hunter2\n")).is_err());
        assert!(!home.path().join(FILE).exists());
    }
}
