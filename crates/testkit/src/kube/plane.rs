//! The words that the control plane's programs are started with.

use std::fs;
use std::path::Path;

use serde_json::json;

use super::KubeOptions;
use super::keys::Keys;
use super::network::Network;

/// What all of them are started from.
pub(super) struct Plane<'a> {
    pub(super) programs: &'a Path,
    pub(super) directory: &'a Path,
    pub(super) network: Network,
    pub(super) keys: &'a Keys,
    pub(super) options: &'a KubeOptions,
}

impl Plane<'_> {
    fn program(&self, name: &str) -> String {
        self.programs.join(name).display().to_string()
    }

    fn own(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    pub(super) fn etcd(&self) -> Vec<String> {
        let (clients, peers) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
        words(
            "etcd",
            &[
                ("data-dir", &self.own("etcd")),
                ("listen-client-urls", clients),
                ("advertise-client-urls", clients),
                ("listen-peer-urls", peers),
                ("initial-advertise-peer-urls", peers),
                ("initial-cluster", &format!("default={peers}")),
                // The machine is not what fails here, and a disk that others use is slow.
                ("unsafe-no-fsync", "true"),
                ("quota-backend-bytes", "4294967296"),
            ],
        )
    }

    pub(super) fn apiserver(&self) -> Vec<String> {
        let policy = self.directory.join("audit.json");
        let rules = json!({
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [{ "level": "Metadata" }],
        });
        fs::write(&policy, rules.to_string()).expect("a file");
        let plane = self.network.plane().to_string();
        let mut all = words(
            &self.program("kube-apiserver"),
            &[
                ("etcd-servers", "http://127.0.0.1:2379"),
                ("bind-address", &plane),
                ("advertise-address", &plane),
                ("secure-port", "6443"),
                ("service-cluster-ip-range", &self.network.services()),
                ("allow-privileged", "true"),
                ("authorization-mode", "Node,RBAC"),
                ("client-ca-file", &self.keys.text("ca.crt")),
                ("tls-cert-file", &self.keys.text("apiserver.crt")),
                ("tls-private-key-file", &self.keys.text("apiserver.key")),
                ("kubelet-client-certificate", &self.keys.text("to-kubelets.crt")),
                ("kubelet-client-key", &self.keys.text("to-kubelets.key")),
                ("kubelet-preferred-address-types", "InternalIP"),
                ("service-account-key-file", &self.keys.text("accounts.pub")),
                ("service-account-signing-key-file", &self.keys.text("accounts.key")),
                ("service-account-issuer", "https://kubernetes.default.svc"),
                ("enable-admission-plugins", "NodeRestriction"),
                ("audit-policy-file", &policy.display().to_string()),
                ("audit-log-path", &self.own("audit.log")),
                // What is asked is counted to the end.
                ("audit-log-maxsize", "1000"),
                ("cert-dir", &self.own("certs")),
            ],
        );
        if let Some(seconds) = self.options.silence_s {
            all.push(format!("--default-not-ready-toleration-seconds={seconds}"));
            all.push(format!("--default-unreachable-toleration-seconds={seconds}"));
        }
        all.extend(self.options.apiserver.iter().cloned());
        all
    }

    pub(super) fn manager(&self) -> Vec<String> {
        let config = self.keys.text("manager.kubeconfig");
        let mut all = self.client("kube-controller-manager", &config);
        all.extend(
            words(
                "",
                &[
                    ("root-ca-file", &self.keys.text("ca.crt")),
                    ("service-account-private-key-file", &self.keys.text("accounts.key")),
                    ("use-service-account-credentials", "true"),
                    // Many at once are a test's way to look for what breaks.
                    ("kube-api-qps", "1000"),
                    ("kube-api-burst", "1000"),
                    ("concurrent-job-syncs", "10"),
                ],
            )
            .split_off(1),
        );
        if let Some(seconds) = self.options.silence_s {
            all.push(format!("--node-monitor-grace-period={seconds}s"));
            all.push("--node-monitor-period=1s".into());
        }
        all.extend(self.options.manager.iter().cloned());
        all
    }

    pub(super) fn scheduler(&self) -> Vec<String> {
        let config = self.keys.text("scheduler.kubeconfig");
        let mut all = self.client("kube-scheduler", &config);
        all.extend(["--kube-api-qps=2000".to_owned(), "--kube-api-burst=2000".to_owned()]);
        all.extend(self.options.scheduler.iter().cloned());
        all
    }

    fn client(&self, program: &str, config: &str) -> Vec<String> {
        words(
            &self.program(program),
            &[
                ("bind-address", "127.0.0.1"),
                ("kubeconfig", config),
                ("authentication-kubeconfig", config),
                ("authorization-kubeconfig", config),
                ("leader-elect", "false"),
                ("cert-dir", &self.own("certs")),
            ],
        )
    }

    /// Names of Services and of their pods. It is beside the API server and not in a pod, so that it is there from the first second.
    pub(super) fn dns(&self) -> Vec<String> {
        let path = self.directory.join("Corefile");
        // What was asked a moment too early is asked again.
        let zone = format!(
            ".:53 {{\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {} test\n    ttl 1\n  }}\n}}\n",
            self.keys.text("dns.kubeconfig")
        );
        fs::write(&path, zone).expect("a file");
        vec![self.program("coredns"), "-conf".into(), path.display().to_string()]
    }

    /// The Service that pods ask for names, in front of the one who knows them.
    pub(super) fn dns_objects(&self) -> String {
        let ports = |target: bool| {
            ["UDP", "TCP"].map(|protocol| {
                let port = json!({ "name": protocol.to_lowercase(), "protocol": protocol, "port": 53 });
                if target {
                    json!({ "targetPort": 53, "name": port["name"], "protocol": protocol, "port": 53 })
                } else {
                    port
                }
            })
        };
        let labels = json!({ "kubernetes.io/service-name": "kube-dns" });
        json!({ "apiVersion": "v1", "kind": "List", "items": [
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": { "name": "kube-dns", "namespace": "kube-system" },
                "spec": { "clusterIP": self.network.dns(), "ports": ports(true) },
            },
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": { "name": "kube-dns-1", "namespace": "kube-system", "labels": labels },
                "addressType": "IPv4",
                "ports": ports(false),
                "endpoints": [{ "addresses": [self.network.plane()], "conditions": { "ready": true } }],
            },
        ] })
        .to_string()
    }
}

/// A program with options.
pub(super) fn words(program: &str, options: &[(&str, &str)]) -> Vec<String> {
    let options = options.iter().map(|(name, value)| format!("--{name}={value}"));
    std::iter::once(program.to_owned()).chain(options).collect()
}
