//! Who people are, and what they may do.
//!
//! All of it is in memory, because every request asks; the database has the same, and is written first. Whoever may do less than
//! before is cut off where they are: what is under way for them ends, and comes back, if it may, with what they may do now.

mod directory;
mod limiter;
mod password;

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use muster_api::problem::{Code, Problem};
use muster_model::Timestamp;
use muster_model::account::{Membership, Role, Scope, User, UserState, Workspace};
use muster_store::{AccountChange, Accounts as Stored, Change, NewAudit};
use tokio_util::sync::CancellationToken;

pub(crate) use self::directory::{Directory, Rights, no_workspace};
use self::limiter::Limiter;
use crate::core::{DEFAULT_WORKSPACE, Handle, Input, Then};
use crate::{audit, auth};

/// What begins the secret of every token, so that people and scanners know one when they see it.
pub(crate) const PREFIX: &str = "mst_";

/// Who the first admin is, and where their password lies until they change it.
pub(crate) const FIRST: &str = "admin";
pub(crate) const FIRST_PASSWORD: &str = "admin-password";

/// How people come to a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entrance {
    /// How long a login lasts.
    pub login: Duration,
    /// Whether anybody may ask for an account.
    pub sign_up: bool,
}

/// What depends on whether somebody or something is there is answered at the next of these, since the request came.
const STEP: Duration = Duration::from_millis(250);

/// Waits for the next step, so that how long an answer took says nothing of what was found.
pub(crate) async fn in_step(begun: Instant) {
    let steps = begun.elapsed().as_millis() / STEP.as_millis() + 1;
    let until = begun + STEP * u32::try_from(steps).unwrap_or(u32::MAX);
    tokio::time::sleep_until(until.into()).await;
}

/// Who asks.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Jobs that they make are theirs by this name.
    pub name: String,
    /// The token that they came with.
    pub token: Option<String>,
    pub rights: Rights,
    pub address: Option<IpAddr>,
    expires_at: Option<Timestamp>,
    until: CancellationToken,
}

impl Caller {
    /// The server's own user, who may do everything.
    pub fn operator(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            token: None,
            rights: Rights::all(),
            address: None,
            expires_at: None,
            until: CancellationToken::new(),
        }
    }

    /// Whether that is so.
    pub fn has_ended(&self) -> bool {
        self.until.is_cancelled() || self.expires_at.is_some_and(|end| end <= crate::core::now())
    }

    /// Ends when they may do less than they could when they came.
    pub async fn ended(&self) {
        let expired = async {
            let Some(at) = self.expires_at else { return std::future::pending().await };
            let left = at.duration_since(crate::core::now());
            tokio::time::sleep(left.try_into().unwrap_or_default()).await;
        };
        tokio::select! {
            () = expired => {}
            () = self.until.cancelled() => {}
        }
    }

    /// An entry of the audit log.
    pub fn audit(&self, operation: &str, target: impl Into<String>, outcome: &str) -> NewAudit {
        NewAudit {
            user: Some(self.name.clone()),
            token: self.token.clone(),
            address: self.address.map(|address| address.to_string()),
            target: target.into(),
            ..NewAudit::new(crate::core::now(), operation, outcome)
        }
    }
}

/// Everybody.
pub(crate) struct Accounts {
    known: RwLock<Known>,
    /// Changes are decided one after the other, each on what the one before it left.
    changing: Arc<tokio::sync::Mutex<()>>,
    limiter: Limiter,
    passwords: password::Passwords,
}

#[derive(Default)]
struct Known {
    directory: Directory,
    /// Until when those who came with a token may go on, by its id.
    until: HashMap<String, CancellationToken>,
}

impl Accounts {
    /// Accounts as stored, with the clients that logged in before, oldest first.
    pub fn new(stored: Stored, logins: Vec<(String, Option<IpAddr>)>) -> Self {
        Self {
            known: RwLock::new(Known { directory: Directory::new(stored), until: HashMap::new() }),
            changing: Arc::default(),
            limiter: Limiter::with_known(logins),
            passwords: password::Passwords::default(),
        }
    }

    /// The first admin of a server that has nobody, with a password that is in a file of the data directory.
    pub async fn bootstrap(self: &Arc<Self>, core: &Handle, home: &Path) -> io::Result<()> {
        if !self.look(Directory::is_empty) {
            return Ok(());
        }
        let secret = crate::random::secret();
        let password = secret[..24].to_owned();
        let path = home.join(FIRST_PASSWORD);
        // First the file: an account that nobody can get into would be worse than a file that opens nothing.
        auth::write_secret(&path, &password)?;
        let hash =
            tokio::task::spawn_blocking(move || password::hash(&password)).await.map_err(io::Error::other)?;
        let hash = hash.map_err(io::Error::other)?;
        let (created_at, entry) =
            (crate::core::now(), Caller::operator("server").audit("bootstrap", FIRST, "done"));
        let decide = move |_: &Directory| {
            let user = User {
                name: FIRST.into(),
                display_name: None,
                state: UserState::Active,
                is_admin: true,
                password: Some(hash),
                account: None,
                created_at,
            };
            let workspace = Workspace {
                name: DEFAULT_WORKSPACE.into(),
                display_name: None,
                priority: None,
                max_run_time: None,
                created_at,
            };
            let membership = Membership {
                workspace: DEFAULT_WORKSPACE.into(),
                user: FIRST.into(),
                role: Some(Role::Lead),
                since: created_at,
            };
            let changes = vec![
                AccountChange::User(user),
                AccountChange::Workspace(workspace),
                AccountChange::Membership(membership),
            ];
            Ok((changes, ()))
        };
        self.change(core, None, entry, decide).await.map_err(io::Error::other)?;
        tracing::info!(user = FIRST, password = %path.display(), "the first admin's password is in this file");
        Ok(())
    }

    /// Looks something up.
    pub fn look<T>(&self, up: impl FnOnce(&Directory) -> T) -> T {
        up(&self.known.read().unwrap_or_else(PoisonError::into_inner).directory)
    }

    /// Who shows this secret, if anybody whom it still lets in.
    pub fn known_by(&self, secret: &str, address: Option<IpAddr>) -> Option<Caller> {
        let digest = digest(secret);
        let find = |known: &Known| {
            let (token, rights) = known.directory.admit(&digest, crate::core::now())?;
            Some((token.clone(), rights))
        };
        let made = |token: &muster_model::account::Token, rights, until: &CancellationToken| Caller {
            name: token.user.clone(),
            token: Some(token.id.clone()),
            rights,
            address,
            expires_at: token.expires_at,
            until: until.clone(),
        };
        {
            let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
            let (token, rights) = find(&known)?;
            if let Some(until) = known.until.get(&token.id) {
                return Some(made(&token, rights, until));
            }
        }
        // The first time since it changed; it is asked again, because it may just have.
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let (token, rights) = find(&known)?;
        let until = known.until.entry(token.id.clone()).or_default();
        Some(made(&token, rights, until))
    }

    /// Who has this password. A wrong one costs whoever tries, not the server: there is a bound on how often, by name and
    /// address, and in all.
    pub async fn sign_in(
        &self,
        name: &str,
        password: &str,
        address: Option<IpAddr>,
    ) -> Result<User, Problem> {
        let turn = self.limiter.take(name, address, Instant::now()).map_err(too_often)?;
        self.checked(name, password, turn).await
    }

    async fn checked(&self, name: &str, password: &str, turn: limiter::Turn) -> Result<User, Problem> {
        let user = self.look(|directory| directory.user(name).cloned());
        let hash = user.as_ref().and_then(|user| user.password.clone());
        let is_right = self.passwords.check(password, hash, turn.is_known()).await?;
        match user {
            Some(user) if is_right && user.state == UserState::Active => {
                self.limiter.succeeded(turn);
                Ok(user)
            }
            // Who knows the password may know this, too.
            Some(user) if is_right => {
                let (what, hint) = match user.state {
                    UserState::Pending => {
                        ("waits for somebody to approve it", "a lead of the workspace, or an admin, can")
                    }
                    UserState::Disabled | UserState::Active => {
                        ("is disabled", "an admin can enable it again")
                    }
                };
                Err(Problem::new(Code::Forbidden, format!("the account `{}` {what}", user.name)).hint(hint))
            }
            _ => Err(Problem::new(Code::Unauthorized, "the name or the password is wrong")
                .hint("`muster login --user NAME` asks again; an admin can set a new password")),
        }
    }

    /// Whether somebody who is known already has this password, too.
    pub async fn confirm(&self, caller: &Caller, password: &str) -> Result<(), Problem> {
        let turn =
            self.limiter.take_known(&caller.name, caller.address, Instant::now()).map_err(too_often)?;
        self.checked(&caller.name, password, turn).await.map(drop)
    }

    /// For those who are known.
    pub async fn hash(&self, password: String) -> Result<String, Problem> {
        self.passwords.hash(password, true).await
    }

    /// For strangers, who would have the server hash for them: within the same bounds as those who guess.
    pub async fn hash_for_stranger(
        &self,
        password: String,
        name: &str,
        address: Option<IpAddr>,
    ) -> Result<String, Problem> {
        self.limiter.take(name, address, Instant::now()).map_err(too_often)?;
        self.passwords.hash(password, false).await
    }

    /// Decides, writes, and only then has it be so.
    pub async fn change<T>(
        self: &Arc<Self>,
        core: &Handle,
        caller: Option<&Caller>,
        entry: NewAudit,
        decide: impl FnOnce(&Directory) -> Result<(Vec<AccountChange>, T), Problem>,
    ) -> Result<T, Problem> {
        let turn = Arc::clone(&self.changing).lock_owned().await;
        // What was allowed when the request began may not be any more.
        if caller.is_some_and(Caller::has_ended) {
            return Err(Problem::new(Code::Unauthorized, "what you came with is good no longer"));
        }
        let (changes, made) = self.look(decide)?;
        // A request has a record, which the core writes with the change.
        let entry = (!audit::describe(&entry)).then_some(Change::Audit(entry));
        let rows = changes.iter().cloned().map(Change::Account).chain(entry).collect();
        let accounts = Arc::clone(self);
        // Also if whoever asked has gone by then: what is written must be what is known, before anybody decides anew.
        let then = Then(Box::new(move || {
            accounts.take(&changes);
            drop(turn);
        }));
        core.ask(|reply| Input::Write(rows, Some(then), reply)).await?;
        Ok(made)
    }

    fn take(&self, changes: &[AccountChange]) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { directory, until } = &mut *known;
        for change in changes {
            for token in directory.apply(change) {
                if let Some(until) = until.remove(&token) {
                    until.cancel();
                }
            }
        }
    }
}

/// What is kept of a secret. It is random, so a quick digest is as good as a slow one.
pub(crate) fn digest(secret: &str) -> [u8; 32] {
    *blake3::hash(secret.as_bytes()).as_bytes()
}

/// What a new token is called.
pub(crate) fn token_id() -> String {
    format!("tok_{:016x}", crate::random::bits())
}

/// A secret that nobody has, and what is kept of it.
pub(crate) fn secret() -> (String, [u8; 32]) {
    let secret = format!("{PREFIX}{}", crate::random::secret());
    let digest = digest(&secret);
    (secret, digest)
}

/// What a login is good for: everything that the person may do.
pub(crate) const LOGIN: Scope = Scope::Admin;

fn too_often(wait: Duration) -> Problem {
    let seconds = wait.as_secs() + 1;
    Problem::new(Code::TooManyRequests, "there were too many failed logins")
        .hint(format!("try again in {seconds} s"))
        .retry_after(seconds)
}
