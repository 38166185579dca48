//! Contexts, credentials, deadlines: how the API server of a cluster is reached.
//!
//! A connection is made when a place is first asked for, and made anew when its credentials are turned away or have run out: the
//! kubeconfig is read again then, as somebody may have logged in since. No call outlasts its deadline, whatever the network
//! does; only watches and carried links last, and they have their own ways to notice silence.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use kube::config::{ExecInteractiveMode, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use muster_engine::{Class, Error};
use muster_model::Timestamp;
use tokio::sync::{Mutex, OnceCell};

use crate::settings::{Cluster, Settings};
use crate::watch::Reach;

/// How long any one call may take. An API server under load answers in a second or two, and who waits longer is better told.
pub(crate) const CALL: Duration = Duration::from_secs(15);
/// How long the way there may take, within a call.
const REACH: Duration = Duration::from_secs(5);
/// How long a credential plugin may take: it may ask a cloud's own service, and never a person.
const PLUGIN: Duration = Duration::from_secs(30);
/// Credentials are not shown any more when they have only this long to live.
const NEARLY: Duration = Duration::from_secs(60);

/// A cluster that can be spoken with.
#[derive(Clone)]
pub(crate) struct Connection {
    /// The client. Calls go through [`Connection::call`].
    pub(crate) client: Client,
    /// The context's own namespace.
    pub(crate) namespace: String,
    /// Where it is, for people.
    pub(crate) url: String,
    /// What is said about this place.
    pub(crate) cluster: Arc<Cluster>,
    /// How long any one call may take.
    deadline: Duration,
    /// What it shows is not accepted any more.
    is_turned_away: Arc<AtomicBool>,
}

impl Connection {
    /// Runs one call under the deadline of every call.
    pub(crate) async fn call<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        let failure = match tokio::time::timeout(self.deadline, call).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => Failure::Error(Box::new(error)),
            Err(_) => Failure::Silence,
        };
        if failure.status().is_some_and(|status| status.code == 401) {
            self.turned_away();
        }
        Err(failure)
    }

    /// Has the next one who asks for this place make a new connection, with what the kubeconfig says then.
    pub(crate) fn turned_away(&self) {
        self.is_turned_away.store(true, Ordering::Relaxed);
    }

    fn is_spent(&self) -> bool {
        let until = self.client.valid_until().as_ref();
        self.is_turned_away.load(Ordering::Relaxed)
            || until.is_some_and(|until| *until <= Timestamp::now() + NEARLY)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("url", &self.url).field("namespace", &self.namespace).finish()
    }
}

/// Every cluster that is in use, by place.
#[derive(Debug)]
pub(crate) struct Connections {
    settings: Arc<Settings>,
    open: Mutex<BTreeMap<String, Arc<OnceCell<Connection>>>>,
}

impl Connections {
    pub(crate) fn new(settings: Arc<Settings>) -> Self {
        Self { settings, open: Mutex::default() }
    }

    /// The connection of a place, made if there is none. Whoever asks while it is being made waits for the same one; one place
    /// that cannot be reached holds up no other.
    pub(crate) async fn get(&self, place: &str) -> Result<Connection, Error> {
        let cell = {
            let mut open = self.open.lock().await;
            let spent = open.get(place).and_then(|cell| cell.get()).is_some_and(Connection::is_spent);
            if spent {
                open.remove(place);
            }
            Arc::clone(open.entry(place.to_owned()).or_default())
        };
        cell.get_or_try_init(|| connect(&self.settings, place)).await.cloned()
    }
}

#[async_trait]
impl Reach for Connections {
    async fn client(&self, place: &str) -> Result<Client, Error> {
        self.get(place).await.map(|connection| connection.client)
    }

    async fn renew(&self, place: &str) {
        self.open.lock().await.remove(place);
    }
}

async fn connect(settings: &Settings, place: &str) -> Result<Connection, Error> {
    let cluster = settings.cluster(place);
    let path = settings.kubeconfig.clone();
    let context = cluster.context.clone();
    // Files are read, and a credential plugin runs, in a thread that may wait.
    let making = tokio::task::spawn_blocking(move || {
        let mut config = configuration(path.as_deref(), context.as_deref())?;
        config.connect_timeout = Some(REACH);
        // Who reads the API server's own log sees whose calls they are.
        if let (Ok(name), Ok(value)) =
            ("user-agent".parse(), concat!("muster/", env!("CARGO_PKG_VERSION")).parse())
        {
            config.headers.push((name, value));
        }
        let (namespace, url) = (config.default_namespace.clone(), config.cluster_url.to_string());
        let client = Client::try_from(config).map_err(|error| credentials(&error))?;
        Ok::<_, Error>((client, namespace, url))
    });
    let made = tokio::time::timeout(PLUGIN, making).await;
    let made = made.map_err(|_| {
        let what =
            format!("the credential plugin of the kubeconfig has said nothing for {} s", PLUGIN.as_secs());
        Error { what, class: Class::Retryable, source: None }
    })?;
    let (client, namespace, url) = made
        .unwrap_or_else(|error| Err(Error::retryable("read the kubeconfig", std::io::Error::other(error))))?;
    tracing::info!(place, url, namespace, "a cluster is spoken with");
    let cluster = Arc::new(cluster);
    Ok(Connection { client, namespace, url, cluster, deadline: CALL, is_turned_away: Arc::default() })
}

/// What the kubeconfig says of a context; without either, the cluster that this process is in.
fn configuration(path: Option<&Path>, context: Option<&str>) -> Result<Config, Error> {
    let files = files(path);
    if files.is_empty() || (path.is_none() && !files.iter().any(|file| file.exists())) {
        let inside = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
        return match context {
            None if inside => Config::incluster().map_err(|error| unusable(&error.to_string())),
            Some(context) => Err(unusable(&format!(
                "there is no context `{context}`, because there is no kubeconfig{}; set k8s.kubeconfig or KUBECONFIG",
                named(&files)
            ))),
            None => Err(unusable(&format!(
                "there is no kubeconfig{}, and this is no pod; set k8s.kubeconfig or KUBECONFIG",
                named(&files)
            ))),
        };
    }
    let mut kubeconfig = read(&files)?;
    let chosen = context.map(str::to_owned).or_else(|| kubeconfig.current_context.clone());
    let chosen = chosen.filter(|name| !name.is_empty());
    check_context(&kubeconfig, chosen.as_deref(), &files)?;
    never_ask(&mut kubeconfig)?;
    let proxy = proxy_of(&kubeconfig, chosen.as_deref());
    let options = KubeConfigOptions { context: chosen, cluster: None, user: None };
    // It reads files of certificates and does nothing that waits, for all that it is called async.
    let config = futures::executor::block_on(Config::from_custom_kubeconfig(kubeconfig, &options));
    let mut config = config.map_err(|error| unreadable(&error, &files))?;
    config.proxy_url = match proxy {
        Some(_) => config.proxy_url,
        None => proxy_from_environment(&config.cluster_url)?,
    };
    Ok(config)
}

/// Where kubeconfigs lie: the one that is set, or those that `kubectl` would read.
fn files(path: Option<&Path>) -> Vec<PathBuf> {
    if let Some(path) = path {
        return vec![path.to_owned()];
    }
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<PathBuf> =
        std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if !listed.is_empty() {
        return listed;
    }
    std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect()
}

/// All of them as one; earlier ones count. Of a list, those that are missing are passed over, as `kubectl` does.
fn read(files: &[PathBuf]) -> Result<Kubeconfig, Error> {
    let there = files.iter().filter(|file| files.len() == 1 || file.exists());
    let mut merged = Kubeconfig::default();
    for file in there {
        let one =
            Kubeconfig::read_from(file).map_err(|error| unreadable(&error, std::slice::from_ref(file)))?;
        merged = merged.merge(one).map_err(|error| unreadable(&error, files))?;
    }
    Ok(merged)
}

fn check_context(kubeconfig: &Kubeconfig, chosen: Option<&str>, files: &[PathBuf]) -> Result<(), Error> {
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    let there =
        if known.is_empty() { "; it has none".into() } else { format!("; there are: {}", known.join(", ")) };
    match chosen {
        Some(name) if known.contains(&name) => Ok(()),
        Some(name) => {
            let near = muster_model::spec::nearest(name, &known);
            let near = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            Err(unusable(&format!("context `{name}` is not in {}{there}{near}", list(files))))
        }
        None => Err(unusable(&format!(
            "{} has no current context{there}; name one with --on k8s/CONTEXT or k8s.context",
            list(files)
        ))),
    }
}

/// Nobody sits at a server's terminal: a plugin that must ask fails at once, and the others are told not to.
fn never_ask(kubeconfig: &mut Kubeconfig) -> Result<(), Error> {
    for user in &mut kubeconfig.auth_infos {
        let Some(exec) = user.auth_info.as_mut().and_then(|info| info.exec.as_mut()) else { continue };
        if exec.interactive_mode == Some(ExecInteractiveMode::Always) {
            let plugin = exec.command.clone().unwrap_or_default();
            return Err(unusable(&format!(
                "the credential plugin `{plugin}` of user `{}` asks at a terminal, which a server has none of; use one that \
                 does not, or a token",
                user.name
            )));
        }
        exec.interactive_mode = Some(ExecInteractiveMode::Never);
        // It may need any variable that a cloud has, and none of muster's own.
        let own = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        exec.drop_env.get_or_insert_default().extend(own.filter(|name| name.starts_with("MUSTER_")));
    }
    Ok(())
}

/// The proxy that the kubeconfig itself names for a context: it counts whatever the environment says.
fn proxy_of(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<String> {
    let context = kubeconfig.contexts.iter().find(|named| Some(named.name.as_str()) == context)?;
    let cluster = &context.context.as_ref()?.cluster;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == *cluster)?.cluster.as_ref()?;
    cluster.proxy_url.clone().filter(|url| !url.is_empty())
}

/// The environment's proxy for an API server. The client's own reading of it asks `NO_PROXY` about the proxy, not about the server.
fn proxy_from_environment<U>(server: &U) -> Result<Option<U>, Error>
where
    U: fmt::Display + std::str::FromStr<Err: fmt::Display>,
{
    let variable = |name: &str| {
        [name.to_owned(), name.to_ascii_lowercase()]
            .iter()
            .find_map(|name| std::env::var(name).ok())
            .unwrap_or_default()
    };
    let (proxy, exceptions) = (variable("HTTPS_PROXY"), variable("NO_PROXY"));
    if proxy.is_empty() || is_excepted(&server.to_string(), &exceptions) {
        return Ok(None);
    }
    let proxy = if proxy.contains("://") { proxy } else { format!("http://{proxy}") };
    proxy.parse().map(Some).map_err(|error| unusable(&format!("HTTPS_PROXY is no address: {error}")))
}

/// Whether `NO_PROXY` has the host of an address: by name, by the end of a name, by address or by network.
fn is_excepted(url: &str, exceptions: &str) -> bool {
    let authority = url.split_once("://").map_or(url, |(_, rest)| rest).split('/').next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(six) => six.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let address: Option<std::net::IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    exceptions.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let end = entry.trim_start_matches("*.").trim_start_matches('.');
        let ends_so =
            |host: &str| host.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        entry == "*" || address.is_some_and(|address| is_within(address, entry)) || ends_so(host)
    })
}

fn is_within(address: std::net::IpAddr, network: &str) -> bool {
    let Some((base, length)) = network.split_once('/') else { return false };
    let (Ok(base), Ok(length)) = (base.parse::<std::net::IpAddr>(), length.parse::<u32>()) else {
        return false;
    };
    let bits = |address: std::net::IpAddr| match address {
        std::net::IpAddr::V4(four) => (u128::from(four.to_bits()) << 96, 32),
        std::net::IpAddr::V6(six) => (six.to_bits(), 128),
    };
    let ((address, width), (base, base_width)) = (bits(address), bits(base));
    let mask = u128::MAX.checked_shl(128 - length.min(128)).unwrap_or(0);
    width == base_width && length <= width && address & mask == base & mask
}

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn named(files: &[PathBuf]) -> String {
    if files.is_empty() { String::new() } else { format!(" ({})", list(files)) }
}

/// What is wrong with a kubeconfig may be mended at any time, and jobs wait for it.
fn unusable(what: &str) -> Error {
    Error { what: what.to_owned(), class: Class::Retryable, source: None }
}

fn unreadable(error: &KubeconfigError, files: &[PathBuf]) -> Error {
    let files = list(files);
    unusable(&match error {
        KubeconfigError::ReadConfig(source, path) => format!("{} cannot be read: {source}", path.display()),
        KubeconfigError::LoadClusterOfContext(name) => {
            format!("cluster `{name}`, which the context names, is not in {files}")
        }
        error => format!("{files}: {error}"),
    })
}

/// A client that could not be made: mostly a plugin that failed, whose own words say why.
fn credentials(error: &kube::Error) -> Error {
    unusable(&match error {
        kube::Error::Auth(error) => plugin(error).unwrap_or_else(|| format!("credentials: {error}")),
        error => error.to_string(),
    })
}

/// What a credential plugin of the kubeconfig complained of.
pub(crate) fn plugin(error: &kube::client::AuthError) -> Option<String> {
    use kube::client::AuthError;
    match error {
        AuthError::AuthExecStart(source) => {
            Some(format!("the credential plugin of the kubeconfig cannot be run: {source}"))
        }
        // The command line would be too much: it has the whole of the plugin's environment in it.
        AuthError::AuthExecRun { out, .. } => {
            let said = String::from_utf8_lossy(&out.stderr);
            let said: String = said.trim().chars().take(500).collect();
            let said = if said.is_empty() { out.status.to_string() } else { said };
            Some(format!("the credential plugin of the kubeconfig failed: {said}"))
        }
        AuthError::AuthExecParse(_) | AuthError::ExecPluginFailed => {
            Some("the credential plugin of the kubeconfig gave no credential".into())
        }
        _ => None,
    }
}

/// A call that did not come to what was wanted.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nothing was heard in time. It may have happened.
    Silence,
    /// Something was.
    Error(Box<kube::Error>),
}

impl Failure {
    /// What the API server itself said, if it did.
    pub(crate) fn status(&self) -> Option<&kube::core::Status> {
        match self {
            Self::Error(error) => match &**error {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Silence => None,
        }
    }
}
