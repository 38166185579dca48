//! A Kubernetes for whoever is not a test in Rust: people and benchmarks. `kube` starts one, says on one line of JSON where it is,
//! and then does what each line of its standard input says, with one line of JSON for an answer. When the input ends, or
//! it is killed, nothing is left.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;

use muster_testkit::{Kube, KubeOptions};
use serde_json::{Value, json};

const USAGE: &str = "usage: kube [nodes=N] [gpus=N] [silence=SECONDS] [apiserver=--WORD…] [scheduler=--WORD…] [manager=--WORD…], \
    then on standard input: cut N | join N | cut-plane | join-plane | kill-kubelet N | start-kubelet N | kill-node N | \
    kill NAME | restart NAME (of etcd, apiserver, manager, scheduler, dns) | bring IMAGE (busybox, debian) | \
    bring-muster BINARY | import ARCHIVE | calls AGENT | ready | kubectl WORDS…";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = options(&words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let kube = Kube::start_with(options);
    say(&json!({
        "kubeconfig": kube.kubeconfig(),
        "launcher": kube.launcher(),
        "programs": kube.programs(),
        "shared": kube.shared(),
    }));
    for line in std::io::stdin().lock().lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
        say(&obey(&kube, line.trim()).unwrap_or_else(|| json!({ "error": USAGE })));
    }
    ExitCode::SUCCESS
}

fn options(words: &[String]) -> Option<KubeOptions> {
    let mut options = KubeOptions::default();
    for word in words {
        let (name, value) = word.split_once('=')?;
        match name {
            "nodes" => options.nodes = value.parse().ok()?,
            "gpus" => options.gpus = value.parse().ok()?,
            "silence" => options.silence_s = Some(value.parse().ok()?),
            "apiserver" => options.apiserver.push(value.to_owned()),
            "scheduler" => options.scheduler.push(value.to_owned()),
            "manager" => options.manager.push(value.to_owned()),
            _ => return None,
        }
    }
    Some(options)
}

fn say(what: &Value) {
    // Whoever started this may have gone; then the input has ended too.
    let _ = writeln!(std::io::stdout(), "{what}");
}

/// Does what a line says; None for one that says nothing known.
fn obey(kube: &Kube, line: &str) -> Option<Value> {
    let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
    let node = || rest.parse::<usize>().ok().filter(|number| *number > 0);
    match verb {
        "cut" => kube.cut(node()?),
        "join" => kube.join(node()?),
        "cut-plane" => kube.cut_plane(),
        "join-plane" => kube.join_plane(),
        "kill-kubelet" => kube.kill_kubelet(node()?),
        "start-kubelet" => kube.start_kubelet(node()?),
        "kill-node" => kube.kill_node(node()?),
        "kill" => kube.kill(rest),
        "restart" => kube.restart(rest),
        "bring" => return Some(json!({ "image": kube.bring(rest) })),
        "bring-muster" => return Some(json!({ "image": kube.bring_muster(Path::new(rest)) })),
        "import" => kube.import(Path::new(rest)),
        "calls" => return Some(json!(kube.calls(rest))),
        "ready" => return Some(json!(kube.ready_nodes())),
        "kubectl" => {
            let done = kube.try_kubectl(&rest.split_whitespace().collect::<Vec<_>>());
            return Some(json!({ "code": done.code(), "stdout": done.out(), "stderr": done.err() }));
        }
        _ => return None,
    }
    Some(json!({}))
}
