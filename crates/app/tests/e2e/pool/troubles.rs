//! The server dies, and is replaced by another build, while hosts have troubles that do not pass by themselves: homes that
//! cannot be written to, shells and programs that are missing, keys that are not let in or not trusted.

use std::path::PathBuf;
use std::process::Command;

use muster_testkit::{Account, Host, wait_for};

use super::Site;
use super::upheaval::{COUNT, check, check_one, counting, tomorrow};
use crate::attempts;

/// A command that says a line for each word that comes through a pipe, and keeps count in the session's own variables.
const LISTEN: &str = "rm -f /var/tmp/words; mkfifo /var/tmp/words; heard=0; \
    while read -r word; do heard=$((heard + 1)); echo $heard $word; [ $word != end ] || break; done <> /var/tmp/words";

/// What happens to the server while the hosts are as they are.
#[derive(Clone, Copy)]
enum Upheaval {
    Killed,
    Replaced,
}

const UPHEAVALS: [Upheaval; 2] = [Upheaval::Killed, Upheaval::Replaced];

impl Upheaval {
    /// Lets it happen; afterwards a server runs.
    fn strike(self, site: &mut Site) {
        match self {
            Self::Killed => assert_eq!(site.home.kill("server"), 1),
            Self::Replaced => {
                let other = tomorrow(site);
                site.home.set_binary(other);
            }
        }
        site.home.ok(["server", "start"]);
    }

    fn word(self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Replaced => "replaced",
        }
    }
}

/// What is the matter with a host for as long as it is used.
const TROUBLES: [fn(&Host); 3] = [Host::read_only_home, Host::only_sh, |host| host.without("tmux")];

#[test]
fn hosts_that_lack_something_keep_tasks_and_sessions_through_every_upheaval() {
    let mut site = Site::bare(TROUBLES.len());
    site.hosts.all().iter().zip(TROUBLES).for_each(|(host, trouble)| trouble(host));
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    let agents = |site: &Site| -> Vec<Option<PathBuf>> {
        (0..TROUBLES.len()).map(|number| site.agents_exe(number)).collect()
    };
    let before = agents(&site);
    let job = counting(&site);
    let shown = site.home.job(&job);
    let task = |rank: usize| format!("{job}/{rank}");
    for rank in 0..TROUBLES.len() {
        site.home.ok(["session", "run", &task(rank), "--detach", "-c", LISTEN]);
    }
    let say = |site: &Site, rank: usize, word: &str| {
        let line = format!("until [ -p /var/tmp/words ]; do sleep 0.01; done; echo {word} > /var/tmp/words");
        site.host_of(&shown, rank).run(&line);
    };
    for upheaval in UPHEAVALS {
        upheaval.strike(&mut site);
        (0..TROUBLES.len()).for_each(|rank| say(&site, rank, upheaval.word()));
        (0..TROUBLES.len()).for_each(|number| drop(site.wait_for_connected(number, true)));
    }
    wait_for("agents of the other build everywhere", || {
        agents(&site).iter().zip(&before).all(|(now, before)| now.is_some() && now != before)
    });
    for rank in 0..TROUBLES.len() {
        say(&site, rank, "end");
        let waited = site.home.run(["session", "wait", &task(rank)]);
        assert_eq!(waited.code(), 0, "task {rank}: {}{}", waited.out(), waited.err());
        let output = site.home.ok(["session", "output", &task(rank)]);
        assert_eq!(output, "1 killed\n2 replaced\n3 end\n", "of task {rank}");
        let kept = site.home.ok(["session", "run", &task(rank), "-c", "echo $heard"]);
        assert_eq!(kept, "3\n", "of task {rank}");
    }
    check(&site, &job);
    assert!(site.host(0).try_run("ls -d /root/.muster").code() != 0, "its home was left alone");
}

/// A host that is no longer let in to, and how somebody mends that.
struct Locked {
    lock: fn(&Site, &Host),
    mend: fn(&Site, &Host),
    /// What `muster nodes` says meanwhile.
    words: &'static str,
}

const LOCKED: [Locked; 2] = [
    Locked {
        lock: |_, host| drop(host.run("mv /root/.ssh/authorized_keys /root/.ssh/kept")),
        mend: |_, host| drop(host.run("mv /root/.ssh/kept /root/.ssh/authorized_keys")),
        words: "does not let us in",
    },
    Locked { lock: |_, host| host.new_host_key(), mend: forget_host_key, words: "another host key" },
];

/// As the message has it: the line that pins the key is removed.
fn forget_host_key(site: &Site, host: &Host) {
    let known = site.home.path().join("ssh/known_hosts");
    let address = host.address().to_string();
    let removed = Command::new("ssh-keygen").args(["-q", "-R", &address, "-f"]).arg(known).output();
    assert!(removed.expect("ssh-keygen starts").status.success());
}

#[test]
fn hosts_that_are_not_let_in_to_are_used_again_after_every_upheaval_and_nothing_runs_twice() {
    let mut site = Site::new(LOCKED.len());
    // A key that stays wrong for long is a host that is lost: then another attempt is right, and two at once are not.
    site.home.write(
        "job.yaml",
        format!("on: ssh/gpu\nexclusive: true\nretries: {{max: 3, backoff: 100ms}}\ncommand: [sh, -c, '{COUNT}']\n"),
    );
    let jobs: Vec<String> = LOCKED.iter().map(|_| site.home.submit(&["--file", "job.yaml"])).collect();
    jobs.iter().for_each(|job| drop(site.home.wait_for_state(job, "running")));
    site.hosts.all().iter().zip(&LOCKED).for_each(|(host, locked)| (locked.lock)(&site, host));
    for upheaval in UPHEAVALS {
        upheaval.strike(&mut site);
        for (number, locked) in LOCKED.iter().enumerate() {
            wait_for(
                &format!("host {number} to be refused by the server that was {}", upheaval.word()),
                || {
                    let node = site.node(number);
                    node["error"]["message"].as_str().is_some_and(|text| text.contains(locked.words))
                },
            );
        }
    }
    site.hosts.all().iter().zip(&LOCKED).for_each(|(host, locked)| (locked.mend)(&site, host));
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    jobs.iter().for_each(|job| drop(site.home.wait_for_state(job, "running")));
    for host in site.hosts.all() {
        wait_for("one task on each host", || host.processes_with("sh -c i=0").len() == 1);
    }
    for job in &jobs {
        let shown = site.home.job(job);
        let number = usize::from(site.host_of(&shown, 0).address() == site.host(1).address());
        check_one(&site, number, job);
        let all = attempts(&site.home.job(job)).clone();
        let (_, lost) = all.split_last().expect("an attempt");
        assert!(lost.iter().all(|attempt| attempt["reason"]["code"] == "node_lost"), "{all:?}");
    }
}

#[test]
fn a_job_that_waits_for_a_host_with_the_wrong_key_runs_when_the_right_one_is_named() {
    let mut site = Site::bare(1);
    let refused = site.add_with(&site.hosts.wrong_key(), &site.destinations(Account::Root));
    assert_eq!(refused.code(), 125, "{}{}", refused.out(), refused.err());
    let job = site.submit(&["--", "hostname"]);
    for upheaval in UPHEAVALS {
        upheaval.strike(&mut site);
        wait_for("the refusal to be said again", || {
            site.home.ok(["why", &job]).contains("does not let us in with the key")
        });
    }
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    site.home.wait_for_state(&job, "succeeded");
    assert_eq!(site.home.ok(["logs", &job]), "host0\n");
}
