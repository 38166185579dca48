//! A cluster that Slurm schedules.
//!
//! Slurm decides where and when; it gets one job for each attempt, with an agent on every node, which dials home like any other.
//! Everything goes through one process on the login node, the *gate*: it runs Slurm's programs as the user whose jobs they
//! are, and hands on the connections of agents, which need to reach nothing but it. What an attempt has is found by the comment
//! of its job, so nothing has to be remembered here; nothing is submitted twice, whoever is killed and when.
//!
//! A server of root's on the login node becomes the accounts of its jobs' owners: each has a gate of its own, which ends when there
//! is no work for it. A gate belongs to its account, which may have it say anything, so it is asked about that account's jobs alone.

mod account;
mod batch;
mod change;
mod excerpt;
pub mod gate;
mod idle;
mod inventory;
mod job;
mod partition;
mod past;
mod refusal;
mod submitter;
mod way;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use muster_model::spec::{FieldCode, FieldError};
use muster_model::{AttemptId, JobId};

use crate::ssh::identity;
use crate::{
    Accounts, AgentBinary, Capabilities, Class, Engine, Error, Family, Gang, GangChange, Key, NO_ACCOUNT,
    Observed, Offer, PlaceLimits, StartRequest, Status,
};
pub use batch::Wishes;
use partition::KnownPartitions;
use submitter::{Submitter, gang_of};
use way::WayBase;

/// What it is called in `--on` and among nodes.
pub const NAME: &str = "slurm";
/// How long a gate without work stays, usually: those who look at files of a job that is over come back within minutes.
pub const GATE_IDLE: Duration = Duration::from_secs(300);
/// Agents dial again for as long as their task lasts. One that is silent for so long is lost, unless Slurm says more.
const LOST_AFTER: Duration = Duration::from_secs(60);

/// What the engine works with.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its own directory on the server.
    pub dir: PathBuf,
    /// Where the SSH engine keeps the host keys that were seen.
    pub ssh_dir: PathBuf,
    /// The server's socket for what comes from elsewhere, by a name that can be connected to.
    pub socket: PathBuf,
    /// The muster binary.
    pub exe: PathBuf,
    /// Where binaries for other machines lie, as `muster-ARCHITECTURE`.
    pub others: PathBuf,
    /// The OpenSSH client.
    pub program: PathBuf,
    /// The login node; this machine, if absent.
    pub login: Option<String>,
    /// The port of its sshd, where that is not what the SSH configuration says.
    pub port: Option<u16>,
    /// The private key to show it.
    pub key: Option<PathBuf>,
    /// The account that jobs run as whose owners have none of their own, where the server is root's.
    pub user: Option<String>,
    /// Jobs run as the accounts of their owners, which a server of root's becomes on the login node.
    pub becomes_owners: bool,
    /// The directory there that compute nodes see, too; `~/.muster`, if absent. `{account}` in it is the account's name.
    pub directory: Option<String>,
    /// Where compute nodes reach the login node, if not at its name or the addresses it has.
    pub address: Option<String>,
    /// The directory that has Slurm's programs, if it is not on the path.
    pub programs: Option<String>,
    /// Its `slurm.conf`, if the login node's variables do not say.
    pub conf: Option<String>,
    /// What every job is submitted with.
    pub wishes: Wishes,
    /// How long agents keep their nodes for a server that is not there to say what to run.
    pub patience: Duration,
    /// How long the files of tasks that are over stay there; `None`: for ever.
    pub kept: Option<Duration>,
    /// How long the gate of an account that a server of root's became stays without work.
    pub gate_idle: Duration,
}
/// The engine.
#[derive(Debug)]
pub struct Slurm {
    capabilities: Capabilities,
    base: Arc<WayBase>,
    /// By account; that of the login, or the server's own, has no name.
    submitters: Mutex<BTreeMap<Option<String>, Arc<Submitter>>>,
    /// The limits of the cluster's partitions, where no account of the operator's is there to ask for them.
    partitions: KnownPartitions,
}

/// Whom jobs run as. Where the login names nobody, the SSH configuration does.
fn accounts(options: &Options) -> Accounts {
    if options.becomes_owners {
        return Accounts::Owners;
    }
    let named = options.user.clone();
    if named.is_some() || options.login.is_none() {
        return Accounts::Submitter(named);
    }
    let written = options.login.as_deref().and_then(|login| login.rsplit_once('@'));
    match identity::login_user_blocking(&way::client(options, "true")) {
        Ok(user) => Accounts::Submitter(Some(user)),
        Err(_) if written.is_some() => Accounts::Submitter(written.map(|(user, _)| user.to_owned())),
        Err(error) => {
            tracing::warn!(
                error,
                "the account of slurm.login is not known; users with accounts cannot submit there"
            );
            Accounts::Machines
        }
    }
}

/// Which account's side a gang is on that was handed over under an account, or under none.
fn side_of(options: &Options, is_root: bool, account: Option<&str>) -> Result<Option<String>, Error> {
    let becomes_accounts = is_root && options.login.is_none();
    match (account, becomes_accounts) {
        (Some(""), _) => Err(Error::terminal(NO_ACCOUNT)),
        (Some(name), true) => Ok(Some(name.to_owned())),
        (Some(name), false) => {
            let what = format!(
                "it was handed over as `{name}`, and this server speaks with Slurm as one account alone now: it must run as root \
                 on the login node to become others"
            );
            Err(Error { what, class: Class::Retryable, source: None })
        }
        (None, true) => match &options.user {
            Some(user) => Ok(Some(user.clone())),
            None => Err(Error::terminal(
                "this server runs as root, and jobs never do; set slurm.user to the account they are to run as",
            )),
        },
        (None, false) => Ok(None),
    }
}

impl Slurm {
    /// An engine whose gates are started when they are first needed.
    pub fn new(options: Options) -> Self {
        // Without another machine or account between them, the submitter's variables and directories are those of the cluster.
        let is_own = options.login.is_none() && options.user.is_none() && !options.becomes_owners;
        let capabilities = Capabilities {
            name: NAME,
            family: Family::Delegating,
            submitter_environment: is_own,
            in_place: is_own,
            images: false,
            volumes: false,
            accounts: accounts(&options),
            keeps_files: true,
            lost_after: LOST_AFTER,
        };
        Self {
            capabilities,
            base: Arc::new(WayBase::new(options)),
            submitters: Mutex::default(),
            partitions: KnownPartitions::default(),
        }
    }

    fn options(&self) -> &Options {
        self.base.options()
    }

    /// The side of the account that a gang was handed over under.
    fn submitter(&self, account: Option<&str>) -> Result<Arc<Submitter>, Error> {
        let side = side_of(self.options(), rustix::process::getuid().is_root(), account)?;
        let mut submitters = self.submitters.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Submitter::new(Arc::clone(&self.base), side.clone()));
        Ok(Arc::clone(submitters.entry(side.clone()).or_insert_with(new)))
    }

    fn side(&self, key: &Key) -> Result<(Arc<Submitter>, AttemptId), Error> {
        let attempt = gang_of(key)?.clone();
        Ok((self.submitter(account_of(key))?, attempt))
    }

    /// Whether anything here speaks of a cluster. Who has none does not want to hear of it, and jobs that are sent there all the
    /// same are told. Slurm's programs may be installed where root's server has nothing to do with a cluster.
    fn is_any(&self) -> bool {
        let Options { login, user, programs, conf, .. } = self.options();
        let is_named = login.is_some() || user.is_some() || programs.is_some() || conf.is_some();
        let is_installed = || {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|dir| dir.join("sinfo").is_file())
        };
        is_named || self.is_used() || (!rustix::process::getuid().is_root() && is_installed())
    }

    /// Whether a job was submitted there.
    fn is_used(&self) -> bool {
        !self.submitters.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// The account that is asked about the cluster itself. What the gate of an owner says is believed of that owner's jobs, and of
    /// nothing that others see: where the operator has named no account, there is none.
    fn operator(&self) -> Option<Arc<Submitter>> {
        self.submitter(None).ok()
    }
}

fn account_of(key: &Key) -> Option<&str> {
    match key {
        Key::Gang { account, .. } => account.as_deref(),
        Key::Node(_) => None,
    }
}

#[async_trait]
impl Engine for Slurm {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    /// Agents end with their task, which is sooner than they could change over.
    fn agent(&self) -> Option<AgentBinary> {
        None
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        if !self.is_any() {
            return Ok(Vec::new());
        }
        let output = match self.operator() {
            Some(operator) => operator.run(inventory::sinfo()).await?,
            None => account::run_as_nobody(self.options(), inventory::sinfo()).await?,
        };
        Ok(inventory::read(&output))
    }

    async fn limits(&self) -> Result<Vec<PlaceLimits>, Error> {
        if !self.is_any() {
            return Ok(Vec::new());
        }
        match self.operator() {
            Some(operator) => operator.limits().await,
            None => {
                let asked = account::run_as_nobody(self.options(), partition::scontrol());
                self.partitions.get(asked).await.map(|partitions| partitions.to_vec())
            }
        }
    }

    /// Slurm itself is not asked: this is what the operator of this server does not let jobs say, and whether the account that the
    /// job is to run as can be had.
    async fn check(&self, gang: &Gang, account: Option<&str>) -> Result<Vec<FieldError>, Error> {
        let mut errors = batch::refused_options(&gang.spec, &self.options().wishes);
        let submitter = self.submitter(account)?;
        match submitter.check_account().await {
            Ok(()) => {}
            Err(error) if error.class == Class::Retryable && errors.is_empty() => return Err(error),
            Err(error) => errors.push(FieldError::new("on", FieldCode::NotSupported, error.what)),
        }
        Ok(errors)
    }

    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error> {
        let (submitter, _) = self.side(&request.key)?;
        submitter.start(request).await
    }

    async fn change(&self, key: &Key, change: GangChange) -> Result<(), Error> {
        let (submitter, attempt) = self.side(key)?;
        submitter.change(&attempt, change).await
    }

    /// One question to Slurm for each account. Where there are several, one that cannot be asked does not hide the others.
    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        let mut sides: BTreeMap<Option<&str>, Vec<usize>> = BTreeMap::new();
        for (index, key) in keys.iter().enumerate() {
            gang_of(key)?;
            sides.entry(account_of(key)).or_default().push(index);
        }
        let is_only = sides.len() == 1;
        let mut all = vec![Observed::from(Status::Gone); keys.len()];
        for (account, indexes) in sides {
            let own: Vec<Key> = indexes.iter().map(|index| keys[*index].clone()).collect();
            let asked = async { self.submitter(account)?.status(&own).await };
            let observed = match asked.await {
                Ok(observed) => observed,
                Err(error) if is_only => return Err(error),
                Err(error) => vec![Status::Unanswered(error.what).into(); own.len()],
            };
            for (index, observed) in indexes.into_iter().zip(observed) {
                all[index] = observed;
            }
        }
        Ok(all)
    }

    async fn stop(&self, key: &Key) -> Result<(), Error> {
        let (submitter, attempt) = self.side(key)?;
        submitter.stop(&attempt).await
    }

    async fn remove(&self, job: &JobId, account: Option<&str>) -> Result<(), Error> {
        if account.is_none() && !self.is_any() {
            return Ok(());
        }
        self.submitter(account)?.remove(job).await
    }

    async fn salvage(&self, key: &Key) -> Result<(), Error> {
        let (submitter, attempt) = self.side(key)?;
        submitter.salvage(&attempt).await
    }
}

#[cfg(test)]
mod tests;
