//! `[k8s]` of `config.toml`: Kubernetes clusters, what they have in common, and what one of them has of its own.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use muster_engine_kube::{Cluster, Pull, Settings, Source};
use muster_link::tls::Fingerprint;
use muster_model::quantity::parse_duration;
use muster_model::spec::Kubernetes;
use serde::Deserialize;
use serde_json::{Map, Value};

/// `[k8s]`, and `[k8s.contexts.NAME]`
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct K8s {
    /// The kubeconfig; of all contexts together.
    kubeconfig: Option<String>,
    /// What has something of its own, by the name in `--on k8s/NAME`.
    #[serde(default)]
    contexts: BTreeMap<String, K8s>,
    /// What it is called in the kubeconfig.
    context: Option<String>,
    namespace: Option<String>,
    /// Where pods reach the server.
    address: Option<String>,
    /// What it is known by there.
    fingerprint: Option<String>,
    agent_image: Option<String>,
    agent_image_pull: Option<String>,
    image: Option<String>,
    gpu_resource: Option<String>,
    #[serde(default)]
    devices: BTreeMap<String, String>,
    #[serde(default)]
    volumes: BTreeMap<String, Volume>,
    fence: Option<String>,
    patience: Option<String>,
    hold: Option<String>,
    /// Which Secrets users may name in `image_pull_secrets`.
    allowed_image_pull_secrets: Option<Value>,
    /// The rest is what a job says in its block `k8s`, for jobs that do not, and is read as that is.
    node_selector: Option<Value>,
    tolerations: Option<Value>,
    priority_class: Option<Value>,
    image_pull_secrets: Option<Value>,
    user: Option<Value>,
    group: Option<Value>,
    resources: Option<Value>,
    secrets: Option<Value>,
    service_account: Option<Value>,
    queue: Option<Value>,
    pod: Option<Value>,
}

/// What a volume is in the cluster: exactly one of the first three.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Volume {
    pvc: Option<String>,
    nfs: Option<String>,
    host_path: Option<String>,
    #[serde(default)]
    read_only: bool,
}

/// What the engine needs of this server.
pub struct Here {
    /// The engine's own directory.
    pub dir: PathBuf,
    /// The server's socket for what comes from elsewhere.
    pub socket: PathBuf,
    /// The muster binary.
    pub exe: PathBuf,
    /// The certificate that it has made for itself and shows on TCP.
    pub fingerprint: Option<Fingerprint>,
}

impl K8s {
    /// Everything that can be wrong without asking a cluster.
    pub fn check(&self) -> anyhow::Result<()> {
        self.clusters().map(drop)
    }

    /// What the engine works with.
    pub fn settings(&self, here: Here) -> anyhow::Result<Settings> {
        let (mut cluster, mut contexts) = self.clusters()?;
        for one in contexts.values_mut().chain([&mut cluster]) {
            let is_tls = one.address.as_ref().is_some_and(|address| address.starts_with("https://"));
            one.fingerprint = one.fingerprint.or(here.fingerprint).filter(|_| is_tls);
        }
        let kubeconfig = self.kubeconfig.as_deref().map(expanded);
        Ok(Settings { dir: here.dir, socket: here.socket, exe: here.exe, kubeconfig, cluster, contexts })
    }

    fn clusters(&self) -> anyhow::Result<(Cluster, BTreeMap<String, Cluster>)> {
        let common = self.cluster(&Cluster::default(), "k8s.")?;
        let own = |(name, own): (&String, &K8s)| {
            let prefix = format!("k8s.contexts.{name}.");
            ensure!(
                own.kubeconfig.is_none(),
                "{prefix}kubeconfig: all contexts are of one; set k8s.kubeconfig"
            );
            ensure!(own.contexts.is_empty(), "{prefix}contexts: a context has none of its own");
            // Another cluster is not called what this one is.
            let common = Cluster { context: None, ..common.clone() };
            Ok((name.clone(), own.cluster(&common, &prefix)?))
        };
        let contexts = self.contexts.iter().map(own).collect::<anyhow::Result<_>>()?;
        Ok((common, contexts))
    }

    /// A cluster of which this is said, and of everything else that.
    fn cluster(&self, common: &Cluster, prefix: &str) -> anyhow::Result<Cluster> {
        let or = |own: &Option<String>, other: &Option<String>| own.clone().or_else(|| other.clone());
        self.check_words(prefix)?;
        let mut volumes = common.volumes.clone();
        for (name, volume) in &self.volumes {
            volumes.insert(name.clone(), volume.read().with_context(|| format!("{prefix}volumes.{name}"))?);
        }
        let mut devices = common.devices.clone();
        devices.extend(self.devices.clone());
        let pull = self.agent_image_pull.as_deref().map(pull).transpose();
        let span = |own: &Option<String>, other: Option<Duration>, name: &str| match own {
            Some(text) => parse_duration(text).map(Some).with_context(|| format!("{prefix}{name}")),
            None => Ok(other),
        };
        Ok(Cluster {
            context: or(&self.context, &common.context),
            namespace: or(&self.namespace, &common.namespace),
            address: or(&self.address, &common.address),
            fingerprint: self
                .fingerprint
                .as_deref()
                .map(str::parse)
                .transpose()
                .with_context(|| format!("{prefix}fingerprint"))?
                // Another address is another certificate's.
                .or(common.fingerprint.filter(|_| self.address.is_none())),
            agent_image: or(&self.agent_image, &common.agent_image),
            agent_image_pull: pull
                .with_context(|| format!("{prefix}agent_image_pull"))?
                .or(common.agent_image_pull),
            image: or(&self.image, &common.image),
            gpu_resource: or(&self.gpu_resource, &common.gpu_resource),
            devices,
            volumes,
            fence: span(&self.fence, common.fence, "fence")?,
            patience: span(&self.patience, common.patience, "patience")?,
            hold: span(&self.hold, common.hold, "hold")?,
            allowed_image_pull_secrets: match &self.allowed_image_pull_secrets {
                Some(names) => pull_secrets(names, prefix)?,
                None => common.allowed_image_pull_secrets.clone(),
            },
            wishes: self.wishes(prefix)?.over(&common.wishes),
        })
    }

    fn check_words(&self, prefix: &str) -> anyhow::Result<()> {
        if let Some(namespace) = &self.namespace {
            let bare = namespace.replace("{workspace}", "w");
            let is_valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            ensure!(
                !bare.is_empty() && bare.len() <= 63 && bare.bytes().all(is_valid),
                "{prefix}namespace: must be lower-case letters, digits and `-`, and may contain {{workspace}}"
            );
        }
        if let Some(address) = &self.address {
            let rest = address.strip_prefix("http://").or(address.strip_prefix("https://"));
            ensure!(
                rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(char::is_whitespace)),
                "{prefix}address: must be a URL that pods reach, such as http://muster.muster.svc:7717"
            );
        }
        for (device, resource) in &self.devices {
            ensure!(
                resource.split_once('/').is_some_and(|(vendor, name)| !vendor.is_empty() && !name.is_empty()),
                "{prefix}devices.{device}: must be a resource of the cluster's, such as nvidia.com/gpu"
            );
        }
        Ok(())
    }

    /// What every job gets that does not say otherwise.
    fn wishes(&self, prefix: &str) -> anyhow::Result<Kubernetes> {
        let said = [
            ("node_selector", &self.node_selector),
            ("tolerations", &self.tolerations),
            ("priority_class", &self.priority_class),
            ("image_pull_secrets", &self.image_pull_secrets),
            ("user", &self.user),
            ("group", &self.group),
            ("resources", &self.resources),
            ("secrets", &self.secrets),
            ("service_account", &self.service_account),
            ("queue", &self.queue),
            ("pod", &self.pod),
        ];
        let said: Map<String, Value> =
            said.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?))).collect();
        read_wishes(said, prefix)
    }
}

fn read_wishes(said: Map<String, Value>, prefix: &str) -> anyhow::Result<Kubernetes> {
    Kubernetes::from_value(Value::Object(said), prefix).map_err(|errors| {
        let lines: Vec<String> =
            errors.iter().map(|error| format!("{}: {}", error.field, error.message)).collect();
        anyhow::Error::msg(lines.join("; "))
    })
}

/// Names of Secrets, checked as those of a job are.
fn pull_secrets(names: &Value, prefix: &str) -> anyhow::Result<Vec<String>> {
    let said = Map::from_iter([("image_pull_secrets".to_owned(), names.clone())]);
    Ok(read_wishes(said, &format!("{prefix}allowed_"))?.image_pull_secrets)
}

impl Volume {
    fn read(&self) -> anyhow::Result<muster_engine_kube::Volume> {
        let source = match (&self.pvc, &self.nfs, &self.host_path) {
            (Some(claim), None, None) => Source::Claim(claim.clone()),
            (None, Some(share), None) => match share.split_once(':') {
                Some((server, path)) if !server.is_empty() && path.starts_with('/') => {
                    Source::Nfs { server: server.to_owned(), path: path.to_owned() }
                }
                _ => bail!("`{share}` must be HOST:/PATH"),
            },
            (None, None, Some(path)) if path.starts_with('/') => Source::HostPath(path.clone()),
            (None, None, Some(path)) => bail!("`{path}` must be an absolute path"),
            _ => bail!("must have one of `pvc`, `nfs` and `host_path`"),
        };
        Ok(muster_engine_kube::Volume { source, read_only: self.read_only })
    }
}

fn pull(text: &str) -> anyhow::Result<Pull> {
    match text {
        "Always" => Ok(Pull::Always),
        "IfNotPresent" => Ok(Pull::IfNotPresent),
        "Never" => Ok(Pull::Never),
        _ => bail!("must be Always, IfNotPresent or Never, not `{text}`"),
    }
}

/// Whether there is anything that speaks of a cluster: who has none hears of none, and pays nothing for it.
pub fn is_any() -> bool {
    let is_inside = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    let is_named = std::env::var_os("KUBECONFIG").is_some_and(|list| !list.is_empty());
    let is_usual = || home().is_some_and(|home| home.join(".kube/config").is_file());
    is_inside || is_named || is_usual()
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from)
}

fn expanded(path: &str) -> PathBuf {
    match (path.strip_prefix("~/"), home()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => Path::new(path).to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Settings> {
        let section: K8s = toml::from_str(text)?;
        section.settings(Here {
            dir: "/h/k8s".into(),
            socket: "/h/gate.sock".into(),
            exe: "/m".into(),
            fingerprint: Some(Fingerprint::of(b"own")),
        })
    }

    #[test]
    fn a_context_has_what_all_have_and_what_it_says_itself() {
        let settings = read(
            r#"
            kubeconfig = "/etc/kube"
            namespace = "team-{workspace}"
            user = 1000
            context = "here"
            fence = "10m"
            node_selector = { pool = "gpu", zone = "a" }
            resources = { "rdma/hca" = 1 }
            volumes = { data = { pvc = "datasets", read_only = true }, home = { nfs = "nas:/home" } }
            [contexts.prod]
            context = "arn:prod"
            agent_image_pull = "Always"
            node_selector = { zone = "b" }
            volumes = { data = { host_path = "/data" } }
            [contexts.lab]
            "#,
        )
        .unwrap();
        assert_eq!(
            (settings.kubeconfig.as_deref(), settings.contexts.len()),
            (Some(Path::new("/etc/kube")), 2)
        );
        let common = &settings.cluster;
        assert_eq!((common.context.as_deref(), common.fence), (Some("here"), Some(Duration::from_secs(600))));
        assert_eq!(common.wishes.resources["rdma/hca"], "1");
        let claim = muster_engine_kube::Volume { source: Source::Claim("datasets".into()), read_only: true };
        assert_eq!(common.volumes["data"], claim);
        let prod = &settings.contexts["prod"];
        assert_eq!((prod.context.as_deref(), prod.agent_image_pull), (Some("arn:prod"), Some(Pull::Always)));
        assert_eq!((prod.wishes.node_selector["zone"].as_str(), prod.wishes.user), ("b", Some(1000)));
        assert_eq!(prod.volumes["data"].source, Source::HostPath("/data".into()));
        let home = Source::Nfs { server: "nas".into(), path: "/home".into() };
        assert_eq!(prod.volumes["home"].source, home);
        assert_eq!(settings.contexts["lab"].context, None);
    }

    #[test]
    fn pods_take_the_servers_own_certificate_where_no_other_is_named() {
        let pinned = Fingerprint::of(b"pinned");
        let text = format!(
            "address = 'https://a'\n[contexts.plain]\naddress = 'http://a'\n\
             [contexts.ingress]\naddress = 'https://b'\nfingerprint = '{pinned}'\n"
        );
        let settings = read(&text).unwrap();
        assert_eq!(settings.cluster.fingerprint, Some(Fingerprint::of(b"own")));
        assert_eq!(settings.contexts["plain"].fingerprint, None);
        assert_eq!(settings.contexts["ingress"].fingerprint, Some(pinned));
        assert_eq!(read("").unwrap().cluster.fingerprint, None);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        for (text, word) in [
            ("namespace = 'A B'", "k8s.namespace"),
            ("address = 'muster:7717'", "k8s.address"),
            ("fingerprint = 'sha256:1'", "k8s.fingerprint"),
            ("agent_image_pull = 'sometimes'", "k8s.agent_image_pull"),
            ("fence = 'soon'", "k8s.fence"),
            ("patience = 'long'", "k8s.patience"),
            ("devices = { ascend = 'npu' }", "k8s.devices.ascend"),
            ("volumes = { data = { } }", "k8s.volumes.data"),
            ("volumes = { data = { nfs = 'nas' } }", "k8s.volumes.data"),
            ("volumes = { data = { host_path = 'data' } }", "k8s.volumes.data"),
            ("priority_class = 'High'", "k8s.priority_class"),
            ("pod = [1]", "k8s.pod"),
            ("[contexts.lab]\nuser = -1", "k8s.contexts.lab.user"),
            ("[contexts.lab]\nkubeconfig = '/x'", "k8s.contexts.lab.kubeconfig"),
            ("[contexts.lab.contexts.x]", "k8s.contexts.lab.contexts"),
            ("name_space = 'x'", "name_space"),
        ] {
            let error = format!("{:#}", read(text).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
    }
}
