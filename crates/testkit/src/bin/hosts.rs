//! Hosts for whoever is not a test in Rust: people, benchmarks, tests of the SDK. `hosts 2` starts two, says on one line of
//! JSON where they are, and then does what each line of its standard input says, with one line of JSON for an answer.
//! When the input ends, or it is killed, nothing is left.

use std::io::{BufRead, Write};
use std::process::ExitCode;

use muster_testkit::{Account, Host, Hosts};
use serde_json::{Value, json};

const USAGE: &str = "usage: hosts COUNT, then on standard input: cut I | join I | power-off I | power-on I | reboot I | \
    slow I RATE|off | slow-launcher RATE|off | fill-disk I | free-disk I | read-only-home I | only-sh I | without I PROGRAM | \
    new-host-key I | run I SHELL-LINE | traffic";

fn main() -> ExitCode {
    let Some(count) = std::env::args().nth(1).and_then(|word| word.parse().ok()) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let hosts = Hosts::start(count);
    say(&json!({
        "launcher": hosts.launcher(),
        "key": hosts.key(),
        "shared": hosts.shared(),
        "wrong_key": hosts.wrong_key(),
        "hosts": hosts.all().iter().map(describe).collect::<Vec<_>>(),
    }));
    for line in std::io::stdin().lock().lines().map_while(Result::ok).filter(|line| !line.trim().is_empty()) {
        say(&obey(&hosts, &line).unwrap_or_else(|| json!({ "error": USAGE })));
    }
    ExitCode::SUCCESS
}

fn describe(host: &Host) -> Value {
    json!({
        "name": host.name(),
        "address": host.address(),
        "root": host.destination(),
        "ordinary": host.destination_of(Account::Ordinary),
    })
}

fn say(what: &Value) {
    // Whoever started this may have gone; then the input has ended too.
    let _ = writeln!(std::io::stdout(), "{what}");
}

/// Does what a line says; None for one that says nothing known.
fn obey(hosts: &Hosts, line: &str) -> Option<Value> {
    let (verb, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
    match verb {
        "traffic" => return Some(traffic(hosts)),
        "slow-launcher" => {
            hosts.slow_launcher(rate(rest));
            return Some(json!({}));
        }
        _ => {}
    }
    let (number, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let host = hosts.all().get(number.parse::<usize>().ok()?)?;
    match verb {
        "cut" => host.cut(),
        "join" => host.join(),
        "power-off" => host.power_off(),
        "power-on" => host.power_on(),
        "reboot" => host.reboot(),
        "slow" => host.slow(rate(rest)),
        "fill-disk" => host.fill_disk(),
        "free-disk" => host.free_disk(),
        "read-only-home" => host.read_only_home(),
        "only-sh" => host.only_sh(),
        "without" => host.without(rest),
        "new-host-key" => host.new_host_key(),
        "run" => {
            let done = host.try_run(rest);
            return Some(json!({ "code": done.code(), "stdout": done.out(), "stderr": done.err() }));
        }
        _ => return None,
    }
    Some(json!({}))
}

fn rate(word: &str) -> Option<&str> {
    (word != "off").then_some(word)
}

/// Bytes sent to the hosts and received from them: by the launcher, and over each cable.
fn traffic(hosts: &Hosts) -> Value {
    let pair = |(sent, received): (u64, u64)| json!({ "sent": sent, "received": received });
    let each: Vec<Value> = hosts.all().iter().map(|host| pair(host.traffic())).collect();
    json!({ "launcher": pair(hosts.launcher_traffic()), "hosts": each })
}
