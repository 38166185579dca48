//! Who may talk to this server where it has no accounts: people by the server's token. And agents everywhere, by their node's.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use axum::http::{HeaderMap, header};
use muster_model::NodeId;

/// The secrets of this server.
pub(crate) struct Auth {
    /// People show this on TCP. On the Unix socket the file's mode is the check.
    token: String,
    /// Nodes' tokens are derived from this, so none has to be stored.
    key: [u8; 32],
}

impl Auth {
    /// Reads the secrets, or makes them at the first start. A token that was given goes before the server's own.
    pub fn open(home: &Path, given: Option<String>) -> io::Result<Self> {
        let token = given.map_or_else(|| read_or_make(&home.join("token")), Ok)?;
        let key = read_or_make(&home.join("server.key"))?;
        Ok(Self { token, key: *blake3::hash(key.as_bytes()).as_bytes() })
    }

    /// What a node's agent shows.
    pub fn node_token(&self, node: &NodeId) -> String {
        blake3::keyed_hash(&self.key, node.as_str().as_bytes()).to_hex().to_string()
    }

    /// What the secrets of gangs are derived from: apart from the nodes' tokens, so that none can pass for the other.
    pub fn gang_key(&self) -> [u8; 32] {
        *blake3::keyed_hash(&self.key, b"gangs").as_bytes()
    }

    pub fn is_node(&self, node: &NodeId, headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(|shown| same(shown, &self.node_token(node)))
    }

    pub fn is_person(&self, headers: &HeaderMap) -> bool {
        bearer(headers).is_some_and(|shown| same(shown, &self.token))
    }
}

pub(crate) fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::AUTHORIZATION)?.to_str().ok()?.strip_prefix("Bearer ")
}

/// Compares digests, so that the time taken says nothing about the secret.
fn same(shown: &str, secret: &str) -> bool {
    blake3::hash(shown.as_bytes()) == blake3::hash(secret.as_bytes())
}

pub(crate) fn read_or_make(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
        Ok(_) => make(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make(path),
        Err(error) => Err(error),
    }
}

fn make(path: &Path) -> io::Result<String> {
    let secret = crate::random::secret();
    write_secret(path, &secret)?;
    Ok(secret)
}

/// Whole or not at all, and for nobody else's eyes.
pub(crate) fn write_secret(path: &Path, secret: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(secret.as_bytes())?;
    file.sync_all()?;
    fs::rename(temporary, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_survive_a_restart_and_only_the_right_one_is_taken() {
        let dir = tempfile::tempdir().unwrap();
        let first = Auth::open(dir.path(), None).unwrap();
        let node: NodeId = "node_local".parse().unwrap();
        let mut headers = HeaderMap::new();
        assert!(!first.is_node(&node, &headers));
        headers.insert(header::AUTHORIZATION, format!("Bearer {}", first.node_token(&node)).parse().unwrap());
        let second = Auth::open(dir.path(), None).unwrap();
        assert!(second.is_node(&node, &headers));
        assert!(!second.is_node(&"node_other".parse().unwrap(), &headers));
        assert!(!second.is_person(&headers));
    }
}
