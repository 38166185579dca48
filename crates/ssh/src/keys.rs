//! Keys: those of a gang, made of the secret that its members share, and others.

use russh::keys::ssh_key::LineEnding;
use russh::keys::ssh_key::private::{Ed25519Keypair, KeypairData};
pub use russh::keys::{PrivateKey, PublicKey};

/// Each use has a key of its own: whoever can log in cannot pass for the machine.
const CLIENT: &str = "muster 2026-11-15 gang client key";
const HOST: &str = "muster 2026-11-15 gang host key";

/// A key could not be made, written down or read.
#[derive(Debug, thiserror::Error)]
#[error("the key cannot be used: {0}")]
pub struct Error(#[from] russh::keys::ssh_key::Error);

/// What members show to each other.
pub fn client(secret: &str) -> Result<PrivateKey, Error> {
    derived(CLIENT, secret)
}

/// By which members know each other.
pub fn host(secret: &str) -> Result<PrivateKey, Error> {
    derived(HOST, secret)
}

/// A key that nobody has to know again.
pub fn random() -> Result<PrivateKey, Error> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|_| russh::keys::ssh_key::Error::Crypto)?;
    of_seed(&seed)
}

/// A public key from a line as in `authorized_keys`.
pub fn parse(line: &str) -> Result<PublicKey, Error> {
    Ok(PublicKey::from_openssh(line)?)
}

/// The other way round.
pub fn line(key: &PublicKey) -> Result<String, Error> {
    Ok(key.to_openssh()?)
}

/// A private key as `ssh -i` reads it.
pub fn to_file(key: &PrivateKey) -> Result<String, Error> {
    Ok(key.to_openssh(LineEnding::LF)?.to_string())
}

/// The other way round.
pub fn from_file(text: &str) -> Result<PrivateKey, Error> {
    Ok(PrivateKey::from_openssh(text)?)
}

fn derived(context: &str, secret: &str) -> Result<PrivateKey, Error> {
    of_seed(&blake3::derive_key(context, secret.as_bytes()))
}

fn of_seed(seed: &[u8; 32]) -> Result<PrivateKey, Error> {
    Ok(PrivateKey::new(KeypairData::Ed25519(Ed25519Keypair::from_seed(seed)), "muster")?)
}

/// Whether two keys are the same, whatever is written beside them.
pub(crate) fn is_same(one: &PublicKey, other: &PublicKey) -> bool {
    one.key_data() == other.key_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_make_the_same_keys_and_no_two_of_them_are_one() {
        let key = |secret| client(secret).unwrap().public_key().clone();
        assert!(is_same(&key("a"), &key("a")));
        assert!(!is_same(&key("a"), &key("b")));
        assert!(!is_same(&key("a"), host("a").unwrap().public_key()));
    }
}
