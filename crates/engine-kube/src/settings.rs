//! What the configuration says about clusters: plain data, already merged and checked by whoever read it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use muster_engine::pod::FENCE;
use muster_link::tls::Fingerprint;

/// What a job may want of Kubernetes beyond what it wants of any engine: the spec's block `k8s`, and its defaults.
pub use muster_model::spec::Kubernetes as Wishes;

/// What the engine works with.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Its own directory on the server.
    pub dir: PathBuf,
    /// The server's socket for what comes from elsewhere, by a name that can be connected to.
    pub socket: PathBuf,
    /// The muster binary, for agents that say what pods could not.
    pub exe: PathBuf,
    /// The kubeconfig; what `KUBECONFIG` and `~/.kube/config` say, if absent.
    pub kubeconfig: Option<PathBuf>,
    /// What `--on k8s` means, and every context that has nothing of its own.
    pub cluster: Cluster,
    /// What `--on k8s/NAME` means, each with what it has in common with the others filled in.
    pub contexts: BTreeMap<String, Cluster>,
}

impl Settings {
    /// What is said about a place. A name that nothing is said about is a context of the kubeconfig's.
    pub fn cluster(&self, place: &str) -> Cluster {
        if place.is_empty() {
            return self.cluster.clone();
        }
        let own = self.contexts.get(place);
        let context = own.and_then(|own| own.context.clone()).unwrap_or_else(|| place.to_owned());
        Cluster { context: Some(context), ..own.unwrap_or(&self.cluster).clone() }
    }

    /// The longest of all fences.
    pub(crate) fn fence(&self) -> Duration {
        let all = std::iter::once(&self.cluster).chain(self.contexts.values());
        all.map(|cluster| cluster.fence.unwrap_or(FENCE)).max().unwrap_or(FENCE)
    }
}

/// A cluster, and what everything that goes there has in common.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cluster {
    /// What it is called in the kubeconfig; the current context, if absent.
    pub context: Option<String>,
    /// Where objects are made; `{workspace}` stands for the job's. The context's own namespace, if absent.
    pub namespace: Option<String>,
    /// Where pods reach the server: `http://muster.muster.svc:7717`. The API server carries the link, if absent.
    pub address: Option<String>,
    /// The certificate that they are to find there; whoever the image's authorities have signed, if absent.
    pub fingerprint: Option<Fingerprint>,
    /// Secrets that users may pull images with; all others are an admin's to name.
    pub allowed_image_pull_secrets: Vec<String>,
    /// The image that brings the muster binary.
    pub agent_image: Option<String>,
    /// When that image is pulled.
    pub agent_image_pull: Option<Pull>,
    /// For jobs that name no image.
    pub image: Option<String>,
    /// What devices are called that are asked for by number alone; `nvidia.com/gpu`, if absent.
    pub gpu_resource: Option<String>,
    /// What devices are called by our own words for them: `ascend`, `h100`.
    pub devices: BTreeMap<String, String>,
    /// What volumes are, by the names that specs have for them.
    pub volumes: BTreeMap<String, Volume>,
    /// How long a task goes on whose agent hears neither its server nor the API server; five minutes, if absent.
    pub fence: Option<Duration>,
    /// How long a pod that has begun waits for a server that is not there to say what is to run; a minute, if absent.
    pub patience: Option<Duration>,
    /// How long an agent that is done waits for its server with what is too much to leave in a log; an hour, if absent.
    pub hold: Option<Duration>,
    /// What every pod gets that its job does not say otherwise.
    pub wishes: Wishes,
}

/// When an image is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// Each time.
    Always,
    /// If the node has none.
    IfNotPresent,
    /// It is there.
    Never,
}

impl Pull {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Always => "Always",
            Self::IfNotPresent => "IfNotPresent",
            Self::Never => "Never",
        }
    }
}

/// What a volume is in the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// Where it comes from.
    pub source: Source,
    /// Nobody writes to it.
    pub read_only: bool,
}

/// Where a volume comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A PersistentVolumeClaim of the namespace.
    Claim(String),
    /// A directory of a file server.
    Nfs {
        /// The server.
        server: String,
        /// The directory.
        path: String,
    },
    /// A directory of the node.
    HostPath(String),
}
