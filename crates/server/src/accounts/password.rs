//! Passwords: hashed slowly, so that a stolen database is worth little, and one at a time, so that it costs one core at most.

use std::sync::{Arc, OnceLock};

use argon2::password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash};
use argon2::{Algorithm, Argon2, Params, Version};
use muster_api::problem::{Code, Problem};
use tokio::sync::Semaphore;

/// What OWASP asks for at the least: 19 MiB, two passes, one lane.
const MEMORY_KIB: u32 = 19 * 1024;
const PASSES: u32 = 2;
/// Those who wait for their turn; it takes some milliseconds.
const WAITING: usize = 64;

fn hasher() -> Argon2<'static> {
    let params = Params::new(MEMORY_KIB, PASSES, 1, None).unwrap_or_default();
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
}

/// The hash of a password, with a salt of its own. Takes its time.
pub(crate) fn hash(password: &str) -> Result<String, Problem> {
    let hashed = hasher().hash_password(password.as_bytes());
    hashed.map(|hash| hash.to_string()).map_err(|error| failed(&error))
}

/// Whether a password is the one that was hashed.
fn is_right(password: &str, hash: &str) -> bool {
    PasswordHash::new(hash).is_ok_and(|hash| hasher().verify_password(password.as_bytes(), &hash).is_ok())
}

fn failed(error: &dyn std::fmt::Display) -> Problem {
    tracing::error!(%error, "a password could not be hashed");
    Problem::new(Code::Internal, "the password could not be hashed")
}

/// Hashes, one at a time.
#[derive(Debug)]
pub(super) struct Passwords {
    turns: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
    /// Known clients wait apart: others cannot take their places.
    known_waiting: Arc<Semaphore>,
}

impl Default for Passwords {
    fn default() -> Self {
        let places = || Arc::new(Semaphore::new(WAITING));
        Self { turns: Arc::new(Semaphore::new(1)), waiting: places(), known_waiting: places() }
    }
}

impl Passwords {
    pub async fn hash(&self, password: String, is_known: bool) -> Result<String, Problem> {
        self.in_turn(is_known, move || hash(&password)).await?
    }

    /// Takes as long for somebody who is not there as for somebody who is.
    pub async fn check(&self, password: &str, hash: Option<String>, is_known: bool) -> Result<bool, Problem> {
        let password = password.to_owned();
        self.in_turn(is_known, move || match hash {
            Some(hash) => is_right(&password, &hash),
            None => {
                is_right(&password, nobodys());
                false
            }
        })
        .await
    }

    async fn in_turn<T: Send + 'static>(
        &self,
        is_known: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let busy = || {
            Problem::new(Code::TooManyRequests, "too many people log in at once")
                .hint("try again in a moment")
                .retry_after(1)
        };
        let places = if is_known { &self.known_waiting } else { &self.waiting };
        let waiting = Arc::clone(places).try_acquire_owned().map_err(|_| busy())?;
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| busy())?;
        let working = tokio::task::spawn_blocking(move || {
            // Also if whoever waits for it has gone.
            let _held = (waiting, turn);
            work()
        });
        working.await.map_err(|error| failed(&error))
    }
}

/// A hash that nobody's password has.
fn nobodys() -> &'static str {
    static HASH: OnceLock<String> = OnceLock::new();
    HASH.get_or_init(|| hash(&crate::random::secret()).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_password_is_right() {
        let passwords = Passwords::default();
        let hash = passwords.hash("correct horse".into(), false).await.unwrap();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert_ne!(
            hash,
            passwords.hash("correct horse".into(), false).await.unwrap(),
            "each has a salt of its own"
        );
        assert!(passwords.check("correct horse", Some(hash.clone()), false).await.unwrap());
        assert!(!passwords.check("correct horsf", Some(hash), false).await.unwrap());
        assert!(!passwords.check("correct horse", None, false).await.unwrap());
        assert!(!passwords.check("correct horse", Some("not a hash".into()), false).await.unwrap());
    }
}
