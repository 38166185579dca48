//! A node: a kubelet, containerd and kube-proxy in a network and a mount namespace of its own, both of which end with the processes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;

use super::KubeOptions;
use super::keys::Keys;
use super::network::Network;

/// Makes the mount namespace one of a node. $1: its directory; $2: that of a containerd with images.
///
/// What belongs to one kubelet of a machine is its own here. Three settings of the kernel, which a kubelet insists on and would change for
/// the whole machine, are shown to it as it wants them. Images lie where they were once unpacked, for all clusters; what is
/// written besides is in memory, so that files by the ten thousands are gone with the namespace.
const MOUNTS: &str = r#"set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib
mount -t tmpfs tmpfs /var/log
mkdir -p /var/lib/kubelet /run/netns /run/lock
mount -t tmpfs tmpfs /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
for setting in vm/overcommit_memory=1 kernel/panic=10 kernel/panic_on_oops=1; do
  name="${setting%=*}"
  echo "${setting#*=}" >"$1/$(basename "$name")"
  mount --bind "$1/$(basename "$name")" "/proc/sys/$name"
done
layers=io.containerd.snapshotter.v1.overlayfs blobs=io.containerd.content.v1.content/blobs/sha256
mount -t tmpfs tmpfs "$1/containerd"
mkdir -p "$1/containerd/$layers/snapshots" "$1/containerd/$blobs"
cp -r "$2/io.containerd.metadata.v1.bolt" "$1/containerd/"
cp "$2/$layers/metadata.db" "$1/containerd/$layers/"
ln -s "$2/$blobs"/* "$1/containerd/$blobs/"
for layer in "$2/$layers/snapshots"/*; do
  own="$1/containerd/$layers/snapshots/$(basename "$layer")"
  mkdir -p "$own/fs" "$own/work"
  mount --bind -o ro "$layer/fs" "$own/fs"
done
touch "$1/ready"
exec sleep infinity
"#;

/// What a node is made of.
pub(super) struct Node<'a> {
    pub(super) number: usize,
    pub(super) programs: &'a Path,
    /// What its containerd has from the start.
    pub(super) stock: &'a Path,
    pub(super) directory: &'a Path,
    pub(super) network: Network,
    pub(super) keys: &'a Keys,
    pub(super) options: &'a KubeOptions,
}

/// What a node is called, from 1.
pub(super) fn name(number: usize) -> String {
    format!("node{number}")
}

/// Where a node's files are.
pub(super) fn directory(cluster: &Path, number: usize) -> PathBuf {
    cluster.join(name(number))
}

/// Where its containerd listens.
pub(super) fn socket(cluster: &Path, number: usize) -> String {
    directory(cluster, number).join("containerd.sock").display().to_string()
}

impl Node<'_> {
    fn name(&self) -> String {
        name(self.number)
    }

    fn own(&self, file: &str) -> String {
        directory(self.directory, self.number).join(file).display().to_string()
    }

    /// Its files, keys and control groups.
    pub(super) fn furnish(&self) {
        for folder in ["containerd", "pods", "cni", "addresses"] {
            fs::create_dir_all(self.own(folder)).expect("a directory of a node");
        }
        fs::write(self.own("containerd.toml"), self.containerd_settings()).expect("a file");
        fs::write(self.own("cni/10-bridge.conflist"), self.pod_network()).expect("a file");
        fs::write(self.own("kubelet.json"), self.kubelet_settings()).expect("a file");
        fs::write(self.own("proxy.json"), self.proxy_settings()).expect("a file");
        self.keys.make_node(&self.name(), self.number);
        for group in self.network.groups(self.number) {
            fs::create_dir(&group).unwrap_or_else(|error| panic!("{}: {error}", group.display()));
            let above = group.parent().expect("a hierarchy is above it");
            // A group of version 1 has no processors until it is told which.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                if let Ok(all) = fs::read(above.join(file)) {
                    fs::write(group.join(file), all).expect("processors for a node");
                }
            }
            // One of version 2 has no controllers until those above hand them down.
            if let Ok(all) = fs::read_to_string(above.join("cgroup.controllers")) {
                let all: Vec<String> = all.split_whitespace().map(|name| format!("+{name}")).collect();
                let _ = fs::write(above.join("cgroup.subtree_control"), all.join(" "));
                let _ = fs::write(group.join("cgroup.subtree_control"), all.join(" "));
            }
        }
    }

    /// The process that the namespaces are of.
    pub(super) fn holder(&self) -> Vec<String> {
        let directory = directory(self.directory, self.number).display().to_string();
        let fixed = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", MOUNTS, "sh"];
        fixed
            .iter()
            .map(|word| (*word).to_owned())
            .chain([directory, self.stock.display().to_string()])
            .collect()
    }

    pub(super) fn containerd(&self) -> Vec<String> {
        vec!["containerd".into(), "-c".into(), self.own("containerd.toml")]
    }

    pub(super) fn kubelet(&self) -> Vec<String> {
        super::plane::words(
            &self.program("kubelet"),
            &[
                ("config", &self.own("kubelet.json")),
                ("kubeconfig", &self.keys.text(&format!("{}.kubeconfig", self.name()))),
                ("hostname-override", &self.name()),
                ("node-ip", &self.network.node(self.number).to_string()),
                ("cert-dir", &self.own("certs")),
                ("v", "1"),
            ],
        )
    }

    pub(super) fn proxy(&self) -> Vec<String> {
        super::plane::words(&self.program("kube-proxy"), &[("config", &self.own("proxy.json"))])
    }

    fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    fn containerd_settings(&self) -> String {
        // Whoever makes a container here may lack the right to lower a score, and has no AppArmor.
        format!(
            r#"version = 2
root = "{root}"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{cni}"
"#,
            root = self.own("containerd"),
            socket = socket(self.directory, self.number),
            cni = self.own("cni"),
        )
    }

    fn pod_network(&self) -> String {
        json!({ "cniVersion": "0.4.0", "name": "pods", "plugins": [
            { "type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true, "ipam": {
                "type": "host-local",
                "ranges": [[{ "subnet": self.network.pods_of(self.number) }]],
                "routes": [{ "dst": "0.0.0.0/0" }],
                "dataDir": self.own("addresses"),
            } },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ] })
        .to_string()
    }

    fn kubelet_settings(&self) -> String {
        let mut settings = json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self.network.node(self.number),
            "readOnlyPort": 0,
            "healthzBindAddress": "127.0.0.1",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.keys.path("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            "tlsCertFile": self.keys.path(&format!("{}.crt", self.name())),
            "tlsPrivateKeyFile": self.keys.path(&format!("{}.key", self.name())),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": format!("/{}-n{}", self.network.name(), self.number),
            "failCgroupV1": false,
            "containerRuntimeEndpoint": format!("unix://{}", socket(self.directory, self.number)),
            "podLogsDir": self.own("pods"),
            "failSwapOn": false,
            "resolvConf": "",
            "clusterDNS": [self.network.dns()],
            "clusterDomain": "cluster.local",
            "oomScoreAdj": 0,
            "maxOpenFiles": 20000,
            "nodeStatusUpdateFrequency": "5s",
            "maxPods": 200,
            "serializeImagePulls": false,
            "registerNode": true,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
                "nodefs.inodesFree": "1%",
            },
        });
        if let Some(seconds) = self.options.silence_s {
            // It is renewed four times as often.
            settings["nodeLeaseDurationSeconds"] = json!(seconds.max(4));
            settings["nodeStatusUpdateFrequency"] = json!("1s");
        }
        settings.to_string()
    }

    fn proxy_settings(&self) -> String {
        // What it would set for connections is the whole machine's.
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "iptables",
            "clusterCIDR": self.network.pods(),
            "detectLocalMode": "ClusterCIDR",
            "hostnameOverride": self.name(),
            "clientConnection": { "kubeconfig": self.keys.path("proxy.kubeconfig") },
            "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
            "iptables": { "minSyncPeriod": "0s" },
        })
        .to_string()
    }
}
