//! Muster in a cluster, as its operators install it: the manifests and the chart, on a real Kubernetes, with the rights that they give
//! and no others.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use muster_testkit::http::{Door, Request};
use muster_testkit::{Home, Kube, Running, wait_for, wait_for_some};
use serde_json::{Value, json};

use crate::home;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a script of the project prints.
fn script(words: &str) -> String {
    let line = format!("source scripts/lib.sh; {words}");
    let done = Command::new("bash").args(["-euo", "pipefail", "-c", &line]).current_dir(root()).output();
    let done = done.expect("bash starts");
    assert!(done.status.success(), "{words}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("text")
}

#[test]
fn the_manifests_are_what_the_chart_makes() {
    for name in ["muster.yaml", "nodes.yaml"] {
        let made = script(&format!("scripts/manifest.sh {name}"));
        let kept = fs::read_to_string(root().join("deploy").join(name)).expect("a manifest");
        assert!(
            made == kept,
            "deploy/{name} is out of date; write it anew: scripts/manifest.sh {name} >deploy/{name}"
        );
    }
}

#[test]
fn an_image_is_made_of_the_same_bytes_wherever_it_is_made() {
    let here = tempfile::tempdir().expect("a folder");
    let elsewhere = here.path().join("cache/images");
    fs::create_dir_all(&elsewhere).expect("another cache");
    let line = |cache: &str, out: &str| {
        let out = here.path().join(out);
        let program = "python3 scripts/image.py muster --binary scripts/image.py --tag localhost/muster:test";
        script(&format!("{cache} {program} {}", out.display()));
        fs::read(out).expect("an image")
    };
    let image = line("", "a.tar");
    // Packages are fetched once; nothing else is to come from the first time.
    let debs = PathBuf::from(script("echo \"$CACHE\"").trim()).join("images/debs");
    std::os::unix::fs::symlink(debs, elsewhere.join("debs")).expect("the packages");
    let again = line(&format!("MUSTER_CACHE={}", here.path().join("cache").display()), "b.tar");
    assert!(image == again, "two images of the same binary differ");
}

/// A cluster for all of these tests, each of which has namespaces of its own there. It ends with the process.
fn kube() -> &'static Kube {
    static KUBE: OnceLock<Kube> = OnceLock::new();
    KUBE.get_or_init(|| {
        let kube = Kube::start();
        kube.bring("debian");
        kube.bring_muster(Path::new(env!("CARGO_BIN_EXE_muster")));
        kube
    })
}

/// What the image of this muster is called there.
const IMAGE: (&str, &str) = ("localhost/muster", "dev");

/// Somebody outside of the cluster who uses a server in it.
struct Site {
    kube: &'static Kube,
    namespace: &'static str,
    home: Home,
}

impl Site {
    fn new(namespace: &'static str) -> Self {
        let site = Self { kube: kube(), namespace, home: home() };
        site.volume();
        site
    }

    /// A volume for the one claim that is to have it.
    fn volume(&self) {
        let (name, folder) = (self.namespace, self.kube.shared().join(self.namespace));
        fs::create_dir(&folder).expect("a folder for the server");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("a folder for anybody");
        let spec = json!({
            "capacity": { "storage": "50Gi" }, "accessModes": ["ReadWriteOnce"],
            "claimRef": { "namespace": name, "name": "muster" }, "hostPath": { "path": folder },
        });
        let volume = json!({ "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name }, "spec": spec });
        self.kube.apply(&volume.to_string());
    }

    /// The first admin logs in, with the server's fingerprint and the first password, and makes a token.
    fn enter(&mut self) -> (Running, String) {
        let (forward, url) = self.forward();
        let status = self.inside(&["muster", "server", "status", "--json"]);
        let status: Value = serde_json::from_str(&status).expect("JSON");
        let fingerprint = status["fingerprint"].as_str().expect("the server speaks TLS").to_owned();
        let password = self.home.shared().join("password");
        fs::write(&password, self.inside(&["cat", "/var/lib/muster/admin-password"]) + "\n").expect("a file");
        // Without the variable, commands use the context that the login makes.
        self.home.set_variable("MUSTER_SERVER", "");
        let words = ["login", &url, "--fingerprint", &fingerprint, "--user", "admin", "--password-stdin"];
        let mut command = self.home.command(words);
        command.stdin(fs::File::open(password).expect("the password"));
        let done = Running::start(command).finish();
        assert_eq!(done.code(), 0, "{}\n{}", done.err(), self.diagnosis());
        let token = self.ok(&["token", "add", "test", "--scope", "admin"]);
        self.home.set_variable("MUSTER_SERVER", &url);
        self.home.set_variable("MUSTER_FINGERPRINT", fingerprint);
        self.home.set_variable("MUSTER_TOKEN", token.trim());
        (forward, url)
    }

    /// What a command in the server's pod prints.
    fn inside(&self, words: &[&str]) -> String {
        let pod = ["-n", self.namespace, "exec", "deployment/muster", "--"];
        self.kube.kubectl(&[&pod[..], words].concat()).trim().to_owned()
    }

    /// A port of this machine that leads to the server.
    fn forward(&mut self) -> (Running, String) {
        let mut command = self.kube.command();
        command.args(["-n", self.namespace, "port-forward", "service/muster", ":7717"]);
        let forward = Running::start(command);
        let port = wait_for_some("a way to the server", || {
            let said = forward.out();
            said.split("127.0.0.1:").nth(1)?.split_once(' ').map(|(port, _)| port.to_owned())
        });
        let url = format!("https://127.0.0.1:{port}");
        self.home.set_variable("MUSTER_SERVER", &url);
        (forward, url)
    }

    /// Neither a person nor an agent reaches the server in cleartext, and nobody without an account.
    fn is_closed(&self, url: &str, jobs: &str) {
        let door = Door::Tcp(url.trim_start_matches("https://").to_owned());
        assert_eq!(door.ask(&Request::get("/api/v1/jobs")).status, 400, "plain HTTP is refused");
        let mut command = self.home.command(["ps"]);
        command.env_remove("MUSTER_TOKEN");
        assert!(Running::start(command).finish().err().contains("error[unauthorized]"));
        let config = self.kube.get(&["-n", self.namespace, "configmap", "muster"]);
        let config = config["data"]["config.toml"].as_str().expect("a configuration").to_owned();
        assert!(config.contains("address = \"https://"), "{config}");
        for namespace in [self.namespace, jobs] {
            assert_eq!(self.names(namespace, "networkpolicies"), ["muster"], "{namespace}");
        }
    }

    fn wait_until_served(&self) {
        let words = ["-n", self.namespace, "rollout", "status", "deployment/muster", "--timeout=100s"];
        let done = self.kube.try_kubectl(&words);
        assert_eq!(done.code(), 0, "{}\n{}", done.err(), self.diagnosis());
    }

    fn diagnosis(&self) -> String {
        let said = |words: &[&str]| self.kube.try_kubectl(&[&["-n", self.namespace], words].concat()).out();
        said(&["describe", "pods"]) + &said(&["logs", "deployment/muster"])
    }

    /// A command line with a script as its last word, in an image that knows nothing of muster.
    fn words<'a>(line: &'a str, script: &'a str) -> Vec<&'a str> {
        let image = ["--image", "localhost/debian:1", "--", "sh", "-c", script];
        line.split(' ').chain(image).collect()
    }

    fn ok(&self, words: &[&str]) -> String {
        let done = self.home.run(words);
        assert_eq!(done.code(), 0, "{words:?}: {}\n{}", done.err(), self.diagnosis());
        done.out()
    }

    fn names(&self, namespace: &str, kinds: &str) -> Vec<String> {
        let found = self.kube.get(&["-n", namespace, kinds]);
        let name = |object: &Value| object["metadata"]["name"].as_str().map(str::to_owned);
        found["items"].as_array().into_iter().flatten().filter_map(name).collect()
    }

    /// Whether the server's account may do something.
    fn may(&self, words: &str) -> bool {
        let account = format!("--as=system:serviceaccount:{}:muster", self.namespace);
        let words: Vec<&str> = ["auth", "can-i", &account].into_iter().chain(words.split(' ')).collect();
        self.kube.try_kubectl(&words).out().trim() == "yes"
    }
}

#[test]
fn one_manifest_installs_a_server_whose_jobs_outlive_it() {
    let mut site = Site::new("muster");
    let manifest = fs::read_to_string(root().join("deploy/muster.yaml")).expect("the manifest");
    let (name, tag) = IMAGE;
    site.kube.apply(&manifest.replace("muster:0.1.0", &format!("{name}:{tag}")));
    site.wait_until_served();
    let (forward, url) = site.enter();
    site.is_closed(&url, "muster-jobs");

    let said = site.ok(&Site::words("run --on k8s -N 2", "echo $RANK here"));
    assert!(said.contains("0 here") && said.contains("1 here"), "{said}");
    let said = site.home.run(["nodes"]);
    let said = said.out() + &said.err();
    assert!(said.contains("deploy/nodes.yaml"), "what may not be seen is said: {said}");
    for denied in [
        "get secrets -n muster-jobs",
        "get secrets -n muster",
        "list pods -n default",
        "list nodes",
        "create jobs -n muster",
    ] {
        assert!(!site.may(denied), "{denied}");
    }

    let wait = "until [ -e /tmp/end ]; do sleep 0.1; done; echo done";
    let job = site.home.submit(&Site::words("--on k8s", wait));
    site.home.wait_for_state(&job, "running");
    // Those of the job before end on their own.
    wait_for("its pod to be the only one", || site.names("muster-jobs", "pods").len() == 1);
    let (pods, servers) = (site.names("muster-jobs", "pods"), site.names("muster", "pods"));
    drop(forward);
    site.kube.kubectl(&["-n", "muster", "delete", "pod", &servers[0], "--grace-period=0", "--force"]);
    wait_for("another server", || site.names("muster", "pods").iter().any(|name| !servers.contains(name)));
    site.wait_until_served();
    let _forward = site.forward();
    assert_eq!(site.home.job(&job)["state"], "running");
    assert_eq!(site.names("muster-jobs", "pods"), pods);
    // The task ends at this, and may take the command with it before its exit code is told.
    site.home.run(["exec", &job, "--", "touch", "/tmp/end"]);
    site.home.wait_for_state(&job, "succeeded");
    assert_eq!(site.ok(&["logs", &job]), "done\n");
    assert_eq!(site.home.job(&job)["attempt"], 1, "nothing ran twice");
    wait_for("nothing of the jobs to be left", || {
        site.names("muster-jobs", "jobs,pods,services,secrets").is_empty()
    });

    let nodes = fs::read_to_string(root().join("deploy/nodes.yaml")).expect("the manifest");
    site.kube.apply(&nodes);
    wait_for("the nodes to be seen", || site.home.run(["nodes"]).out().contains("node2"));
}

/// The pinned Helm on the test's cluster.
struct Helm {
    program: String,
    chart: String,
    home: PathBuf,
}

impl Helm {
    fn new(home: PathBuf) -> Self {
        let chart = root().join("deploy/helm/muster").display().to_string();
        Self { program: script("helm").trim().to_owned(), chart, home }
    }

    /// Installs or changes the release `muster` of the namespace `team`, and waits until it serves.
    fn apply(&self, verb: &str, more: &[&str]) -> String {
        let (name, tag) = IMAGE;
        let image = format!("image.repository={name},image.tag={tag},jobs.namespaces={{team-jobs}}");
        let words = [verb, "muster", &self.chart, "--set", &image, "--wait", "--timeout", "100s"];
        self.run(&[&words[..], more].concat())
    }

    fn run(&self, words: &[&str]) -> String {
        let mut command = Command::new(&self.program);
        command.env("KUBECONFIG", kube().kubeconfig()).env("HOME", &self.home).args(["-n", "team"]);
        let done = command.args(words).output().expect("helm starts");
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(done.status.success(), "{words:?}: {}{said}", String::from_utf8_lossy(&done.stderr));
        said
    }
}

#[test]
fn the_chart_is_installed_changed_and_removed_without_a_trace() {
    let mut site = Site::new("team");
    let helm = Helm::new(site.home.shared());
    let said = helm.apply("install", &["--create-namespace"]);
    assert!(said.contains("muster login --user admin"), "{said}");
    let (forward, url) = site.enter();
    site.is_closed(&url, "team-jobs");
    assert_eq!(site.ok(&Site::words("run --on k8s", "echo hello")), "hello\n");
    drop(forward);

    helm.apply("upgrade", &["--set", "nodes=true", "--set", "k8s=image = \"localhost/debian:1\""]);
    let (forward, _) = site.forward();
    assert_eq!(site.ok(&["run", "--on", "k8s", "--", "echo", "again"]), "again\n");
    assert_eq!(
        site.ok(&["ps", "-a", "-q"]).lines().count(),
        2,
        "what the first server knew the second knows"
    );
    wait_for("the nodes to be seen", || site.home.run(["nodes"]).out().contains("node2"));
    drop(forward);

    helm.run(&["uninstall", "muster", "--wait", "--timeout", "100s"]);
    // Every namespace has these two, whatever is done in it.
    let is_left = |name: &String| !["default", "kube-root-ca.crt"].contains(&name.as_str());
    wait_for("nothing to be left in its namespace", || {
        let kinds = "deployments,pods,services,configmaps,persistentvolumeclaims,serviceaccounts,secrets,networkpolicies";
        !site.names("team", kinds).iter().any(is_left)
    });
    wait_for("nothing to be left elsewhere", || {
        let left = site.names("team", "namespaces,clusterroles,clusterrolebindings");
        left.iter().any(|name| name == "team") && !left.iter().any(|name| name.starts_with("team-"))
    });
}
