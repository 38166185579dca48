//! The keys of a gang, made of the secret that its members share.

use russh::keys::ssh_key::private::{Ed25519Keypair, KeypairData};
use russh::keys::{PrivateKey, PublicKey};

/// Each use has a key of its own: whoever can log in cannot pass for the machine.
const CLIENT: &str = "muster 2026-11-15 gang client key";
const HOST: &str = "muster 2026-11-15 gang host key";

/// A key could not be made or written down.
#[derive(Debug, thiserror::Error)]
#[error("a key of the gang cannot be made")]
pub struct Error(#[from] russh::keys::ssh_key::Error);

/// What members show to each other.
pub fn client(secret: &str) -> Result<PrivateKey, Error> {
    derived(CLIENT, secret)
}

/// By which members know each other.
pub fn host(secret: &str) -> Result<PrivateKey, Error> {
    derived(HOST, secret)
}

fn derived(context: &str, secret: &str) -> Result<PrivateKey, Error> {
    let seed = blake3::derive_key(context, secret.as_bytes());
    Ok(PrivateKey::new(KeypairData::Ed25519(Ed25519Keypair::from_seed(&seed)), "muster")?)
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
