//! Who is who in a cluster: an authority of its own, a certificate for everybody, and what one says to reach the API server.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use super::network::{Network, output};

/// The keys of a cluster, in a directory.
pub(super) struct Keys {
    directory: PathBuf,
    network: Network,
}

impl Keys {
    /// Makes the authority, and what everybody but the nodes has.
    pub(super) fn make(directory: PathBuf, network: Network) -> Self {
        fs::create_dir(&directory).expect("a directory for keys");
        // What the machine's own settings would add to a certificate is not wanted.
        fs::write(directory.join("openssl.cnf"), "[req]\ndistinguished_name=name\n[name]\n").expect("a file");
        let keys = Self { directory, network };
        keys.issue("ca", "/CN=muster-test", "basicConstraints=critical,CA:TRUE", None);
        let path = |name: &str| keys.path(name);
        let pair = ["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"];
        output(Command::new("openssl").args(pair).arg(path("accounts.key")));
        let public = ["ec", "-pubout", "-out"];
        output(
            Command::new("openssl")
                .args(public)
                .arg(path("accounts.pub"))
                .arg("-in")
                .arg(path("accounts.key")),
        );
        let names = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc";
        let addresses = format!("IP:127.0.0.1,IP:{},IP:{}", network.plane(), network.api());
        keys.certify("apiserver", "/CN=kube-apiserver", &format!("{names},{addresses}"));
        for (name, subject) in [
            ("admin", "/O=system:masters/CN=admin"),
            ("to-kubelets", "/O=system:masters/CN=apiserver-kubelet-client"),
            ("manager", "/CN=system:kube-controller-manager"),
            ("scheduler", "/CN=system:kube-scheduler"),
            ("proxy", "/CN=system:kube-proxy"),
            ("dns", "/O=system:masters/CN=coredns"),
        ] {
            keys.certify(name, subject, &format!("DNS:{name}"));
        }
        keys
    }

    /// What a node is known by.
    pub(super) fn make_node(&self, name: &str, number: usize) {
        let subject = format!("/O=system:nodes/CN=system:node:{name}");
        self.certify(name, &subject, &format!("DNS:{name},IP:{}", self.network.node(number)));
    }

    /// A file of these.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The same as text.
    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes a key, and a certificate of the authority's for it; its own without one.
    fn issue(&self, name: &str, subject: &str, extension: &str, names: Option<&str>) {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        command.args(["-days", "365", "-subj", subject, "-addext", extension, "-config"]);
        command.arg(self.path("openssl.cnf"));
        command.arg("-keyout").arg(self.path(&format!("{name}.key")));
        command.arg("-out").arg(self.path(&format!("{name}.crt")));
        if let Some(names) = names {
            command.arg("-CA").arg(self.path("ca.crt")).arg("-CAkey").arg(self.path("ca.key"));
            command.args([
                "-addext",
                &format!("subjectAltName={names}"),
                "-addext",
                "basicConstraints=CA:FALSE",
            ]);
        }
        output(&mut command);
    }

    fn certify(&self, name: &str, subject: &str, names: &str) {
        self.issue(name, subject, "extendedKeyUsage=serverAuth,clientAuth", Some(names));
        let of = |end: &str| self.path(&format!("{name}.{end}"));
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": {
                "server": format!("https://{}:6443", self.network.plane()),
                "certificate-authority": self.path("ca.crt"),
            } }],
            "users": [{ "name": name, "user": { "client-certificate": of("crt"), "client-key": of("key") } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": name } }],
            "current-context": "test",
        });
        fs::write(of("kubeconfig"), config.to_string()).expect("a file");
    }
}
