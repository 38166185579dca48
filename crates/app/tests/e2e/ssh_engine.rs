//! The ssh engine on machines with a real sshd: the suite that every engine passes, and what can go wrong on the way.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use muster_engine::conformance::{self, Home as Suite};
use muster_engine::ssh::{Options, Ssh};
use muster_engine::{Class, Engine, Error, Key, Machine, StartRequest, Status};
use muster_link::message::Hello;
use muster_model::NodeId;
use muster_testkit::{Account, Host, Hosts, Process, kill, wait_for, wait_for_some, with_word};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::gate::{Gate, TOKEN};

/// Above what two logins and an upload take on a machine with other things to do.
const DEADLINE: Duration = Duration::from_secs(60);

fn muster() -> PathBuf {
    env!("CARGO_BIN_EXE_muster").into()
}

fn node(host: &Host) -> NodeId {
    format!("node_pool.{}", host.name()).parse().expect("a name of a host is one of a node")
}

fn key(host: &Host) -> Key {
    Key::Node(node(host))
}

/// Something that plays the server: an engine, and where its agents come home to.
struct Office {
    engine: Ssh,
    gate: Gate,
    folder: TempDir,
}

impl Office {
    fn open(runtime: &Runtime, exe: &Path) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("server.sock");
        let _inside = runtime.enter();
        let gate = Gate::open(UnixListener::bind(&socket).expect("a socket"));
        let options = Options::new(folder.path().join("ssh"), socket, exe.into(), folder.path().into());
        Self { engine: Ssh::new(options), gate, folder }
    }

    fn adopt(&self, hosts: &Hosts, account: Account) {
        let machine = |host: &Host| Machine {
            node: node(host),
            destination: host.destination_of(account),
            port: None,
            key: Some(hosts.key()),
            address: None,
        };
        self.engine.adopt(hosts.all().iter().map(machine).collect());
    }

    async fn start(&self, host: &Host) -> Result<(), Error> {
        let request = StartRequest::node(node(host), TOKEN.into());
        timeout(DEADLINE, self.engine.start(&request)).await.expect("it comes to an end").map(drop)
    }

    async fn hello(&mut self) -> Hello {
        timeout(DEADLINE, self.gate.hellos.recv())
            .await
            .expect("an agent says hello")
            .expect("the gate is open")
    }

    async fn status(&self, host: &Host) -> Status {
        self.engine.status(&[key(host)]).await.expect("it answers").remove(0).status
    }

    async fn is_gone(&self, host: &Host) {
        let gone = async {
            while self.status(host).await != Status::Gone {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(DEADLINE, gone).await.expect("an end is noticed");
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// The client's processes that lead to a host.
fn clients(host: &Host) -> Vec<u32> {
    let is_client = |words: &[String]| words.first().is_some_and(|word| word == "ssh");
    let found = with_word(&host.destination()).into_iter().filter(|process| is_client(&process.words));
    found.map(|process| process.pid).collect()
}

/// What runs on a host at the other end of logins.
fn carries(host: &Host) -> Vec<Process> {
    host.processes_with(" carry ").into_iter().filter(|process| process.is("carry")).collect()
}

/// The suite's view of an office.
struct Home<'a> {
    gate: Gate,
    hosts: &'a Hosts,
}

#[async_trait]
impl Suite for Home<'_> {
    fn token(&self, _: &NodeId) -> String {
        TOKEN.into()
    }

    async fn next_hello(&mut self, wanted: &NodeId) -> u32 {
        let host = self.hosts.all().iter().find(|host| node(host) == *wanted).expect("a host of this test");
        loop {
            let hello = self.gate.hellos.recv().await.expect("the gate is open");
            assert_eq!(hello.node, *wanted);
            // Numbers of processes are the host's own.
            if host.try_run(&format!("kill -0 {}", hello.pid)).status.success() {
                return hello.pid;
            }
        }
    }

    async fn kill_agent(&mut self, of: &NodeId, pid: u32) {
        let host = self.hosts.all().iter().find(|host| node(host) == *of).expect("a host of this test");
        host.run(&format!("kill -9 {pid}"));
    }

    fn check_intruder(&self) {
        for host in self.hosts.all() {
            assert_eq!(host.intruder().loot(), "", "on {}", host.name());
        }
    }
}

#[test]
fn the_ssh_engine_conforms() {
    let (hosts, runtime) = (Hosts::start(2), runtime());
    let office = Office::open(&runtime, &muster());
    office.adopt(&hosts, Account::Root);
    // Another local user poses as the agent of each host, under the name that this server has there.
    let engines = office.folder.path().join("ssh");
    std::fs::create_dir(&engines).expect("the engine's directory");
    std::fs::write(engines.join("server"), "0a1b2c3d").expect("its name on machines");
    for host in hosts.all() {
        host.intruder().pose_as_agent(&format!("/var/tmp/muster-0/node-0a1b2c3d.pool.{}", host.name()));
    }
    let Office { engine, gate, folder: _folder } = office;
    runtime.block_on(conformance::run(&engine, &mut Home { gate, hosts: &hosts }));
    // Who told an agent to end has said so a moment before it ends itself.
    wait_for("nothing to be left", || {
        hosts.all().iter().all(|host| host.processes_with("/.muster/").is_empty())
    });
}

#[test]
fn an_ordinary_account_with_sh_alone_is_enough_and_a_broken_login_costs_nothing() {
    let (hosts, runtime) = (Hosts::start(1), runtime());
    let host = hosts.host(0);
    host.only_sh();
    host.without("tmux");
    // What people have in their start-up files is not ours.
    host.run("printf 'echo welcome; printf unfinished\\n' > /home/train/.profile");
    let mut office = Office::open(&runtime, &muster());
    office.adopt(&hosts, Account::Ordinary);
    runtime.block_on(async {
        office.start(host).await.unwrap();
        let first = office.hello().await;
        assert_eq!((first.account.name.as_str(), first.host.as_str()), ("train", "host0"));
        let address = host.run("cat /home/train/.muster/node-*/address");
        assert_eq!(address, host.address().to_string());
        let listed = host.run("stat -c %a /home/train/.muster /home/train/.muster/node-*");
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["700", "700"]);
        // Twice: the agent stays, and is found again.
        for _ in 0..2 {
            with_word(&host.destination_of(Account::Ordinary)).iter().for_each(|client| kill(client.pid));
            office.is_gone(host).await;
            office.start(host).await.unwrap();
            assert_eq!(office.hello().await.pid, first.pid);
        }
        // The second connection alone is made anew without anybody's asking.
        let bulk = wait_for_some("both logins, and no older one", || {
            let carries = carries(host);
            let bulk = carries.iter().find(|carry| carry.words.iter().any(|word| word == "bulk"))?.pid;
            (carries.len() == 2).then_some(bulk)
        });
        kill(bulk);
        wait_for("another bulk login", || {
            let carries = carries(host);
            carries.len() == 2 && carries.iter().all(|carry| carry.pid != bulk)
        });
        assert_eq!(office.status(host).await, Status::Running);
        office.engine.stop(&key(host)).await.unwrap();
    });
    wait_for("nothing to be left", || host.processes_with("/.muster/").is_empty());
}

#[test]
fn what_keeps_us_out_is_said_with_its_remedy() {
    let (hosts, runtime) = (Hosts::start(1), runtime());
    let host = hosts.host(0);
    let office = Office::open(&runtime, &muster());
    let machine = Machine {
        node: node(host),
        destination: host.destination(),
        port: None,
        key: Some(hosts.key()),
        address: None,
    };
    let try_with = |machine: Machine| {
        office.engine.adopt(vec![machine]);
        let error = runtime.block_on(office.start(host)).unwrap_err();
        (error.to_string(), error.class)
    };
    let expect = |machine: Machine, words: &str, class: Class| {
        let (told, of_class) = try_with(machine);
        assert!(told.contains(words), "{told}");
        assert_eq!(of_class, class, "{told}");
    };
    let wrong = hosts.wrong_key();
    let shown = format!("does not let us in with the key {}", wrong.display());
    expect(Machine { key: Some(wrong), ..machine.clone() }, &shown, Class::Terminal);
    expect(
        Machine { key: Some("/no/key".into()), ..machine.clone() },
        "/no/key cannot be read",
        Class::Terminal,
    );
    expect(Machine { port: Some(2), ..machine.clone() }, "no sshd listens there", Class::Retryable);
    let nowhere = "nobody.invalid".to_owned();
    expect(Machine { destination: nowhere, ..machine.clone() }, "no host of that name", Class::Retryable);
    host.fill_disk();
    expect(machine.clone(), "its disk is full", Class::Retryable);
    host.free_disk();
    // Its key was seen by now, and is another one.
    host.new_host_key();
    let known = office.folder.path().join("ssh/known_hosts");
    let remedy = format!("remove line 1 of {}", known.display());
    expect(machine.clone(), &remedy, Class::Terminal);
    std::fs::remove_file(known).unwrap();
    runtime.block_on(async {
        office.start(host).await.unwrap();
        office.engine.stop(&key(host)).await.unwrap();
    });
}

#[test]
fn a_home_that_cannot_be_written_to_is_not_needed() {
    let (hosts, runtime) = (Hosts::start(1), runtime());
    let host = hosts.host(0);
    host.read_only_home();
    // Somebody else was here first, with a directory that looks like ours.
    host.run("mkdir -p /var/tmp/muster-4242/bin && chown -R 1:1 /var/tmp/muster-4242");
    let mut office = Office::open(&runtime, &muster());
    office.adopt(&hosts, Account::Ordinary);
    runtime.block_on(async {
        let refused = office.start(host).await.unwrap_err().to_string();
        assert!(refused.contains("could not be put into"), "{refused}");
        host.run("rm -r /var/tmp/muster-4242");
        office.start(host).await.unwrap();
        assert_eq!(office.hello().await.account.name, "train");
        host.run("ls /var/tmp/muster-4242/node-*/agent.json");
        office.engine.stop(&key(host)).await.unwrap();
    });
}

/// The name that this server's binary and agent's directory have on a host.
fn names_there(office: &Office, host: &Host) -> (String, String) {
    let binary = office.engine.agent().expect("a machine was asked for").path;
    let server = std::fs::read_to_string(office.folder.path().join("ssh/server")).expect("its name");
    (binary.trim_start_matches("bin/").into(), format!("node-{}.pool.{}", server.trim(), host.name()))
}

/// Another local user has planted a program, a held lock, sockets and a process id wherever everybody may write, before the first
/// login.
#[test]
fn another_local_user_of_a_host_gets_nothing_and_is_trusted_with_nothing() {
    let (hosts, runtime) = (Hosts::start(3), runtime());
    let mut office = Office::open(&runtime, &muster());
    for (account, host) in [(Account::Root, hosts.host(1)), (Account::Ordinary, hosts.host(2))] {
        office.adopt(&hosts, account);
        runtime.block_on(async {
            // On another host, so that the engine knows its names; and these are the same everywhere.
            office.start(hosts.host(0)).await.unwrap();
            office.hello().await;
            office.engine.stop(&key(hosts.host(0))).await.unwrap();
        });
        let (binary, directory) = names_there(&office, host);
        let uid = if account == Account::Root { 0 } else { 4242 };
        let intruder = host.intruder();
        intruder.offer_binary(&binary);
        let victim = intruder.pose_as_agent(&format!("/var/tmp/muster-{uid}/{directory}"));
        runtime.block_on(async {
            office.start(host).await.unwrap();
            let hello = office.hello().await;
            assert_eq!(hello.account.name, account.name());
            host.run(&format!(
                "test {uid} = $(stat -c %u {}/.muster/{directory}/control.sock)",
                account.home()
            ));
            office.engine.stop(&key(host)).await.unwrap();
        });
        host.run(&format!("kill -0 {victim}"));
        assert_eq!(intruder.loot(), "", "as {}", account.name());
    }
}

/// With a home that cannot be written to, the ordinary account's spare directory is taken: it is refused, and root has another.
#[test]
fn a_spare_directory_of_another_local_user_is_not_used() {
    let (hosts, runtime) = (Hosts::start(1), runtime());
    let host = hosts.host(0);
    host.read_only_home();
    let mut office = Office::open(&runtime, &muster());
    runtime.block_on(async {
        office.adopt(&hosts, Account::Root);
        office.start(host).await.unwrap();
        assert_eq!(office.hello().await.account.name, "root");
        host.run("test -d /var/lib/muster-agent/bin");
        office.engine.stop(&key(host)).await.unwrap();
        let (binary, directory) = names_there(&office, host);
        host.intruder().offer_binary(&binary);
        let victim = host.intruder().pose_as_agent(&format!("/var/tmp/muster-4242/{directory}"));
        office.adopt(&hosts, Account::Ordinary);
        let refused = office.start(host).await.unwrap_err().to_string();
        assert!(refused.contains("writable by it alone"), "{refused}");
        let _ = office.engine.stop(&key(host)).await;
        host.run(&format!("kill -0 {victim}"));
    });
    assert_eq!(host.intruder().loot(), "");
}

#[test]
fn servers_do_not_disturb_each_other_and_each_brings_its_own_build() {
    let (hosts, runtime) = (Hosts::start(1), runtime());
    let host = hosts.host(0);
    let mut first = Office::open(&runtime, &muster());
    first.adopt(&hosts, Account::Root);
    let folder = tempfile::tempdir().unwrap();
    let newer = folder.path().join("newer");
    std::fs::copy(muster(), &newer).unwrap();
    let mut file = std::fs::OpenOptions::new().append(true).open(&newer).unwrap();
    std::io::Write::write_all(&mut file, b"\n").unwrap();
    drop(file);
    let mut second = Office::open(&runtime, &newer);
    second.adopt(&hosts, Account::Root);
    runtime.block_on(async {
        first.start(host).await.unwrap();
        second.start(host).await.unwrap();
        let (one, other) = (first.hello().await, second.hello().await);
        assert_ne!((one.pid, &one.incarnation), (other.pid, &other.incarnation));
        let build = |office: &Office| office.engine.agent().unwrap().build;
        assert_eq!((one.build, other.build), (build(&first), build(&second)));
        second.engine.stop(&key(host)).await.unwrap();
        assert_eq!(first.status(host).await, Status::Running);
        // The first server is replaced by one that is newer; its agent is not new, and changes over.
        first.engine.adopt(Vec::new());
        let socket = first.folder.path().join("server.sock");
        let options = Options::new(first.folder.path().join("ssh"), socket, newer, folder.path().into());
        first.engine = Ssh::new(options);
        first.adopt(&hosts, Account::Root);
        first.start(host).await.unwrap();
        let found = first.hello().await;
        assert_eq!(found.pid, one.pid);
        assert_ne!(found.build, build(&first));
        *first.gate.wanted.lock().unwrap() = first.engine.agent();
        clients(host).into_iter().for_each(kill);
        first.is_gone(host).await;
        first.start(host).await.unwrap();
        assert_eq!(first.hello().await.pid, one.pid);
        first.is_gone(host).await;
        first.start(host).await.unwrap();
        let changed = first.hello().await;
        assert_eq!((changed.pid, changed.build), (one.pid, build(&first)));
        assert_eq!(changed.incarnation, one.incarnation);
        first.engine.stop(&key(host)).await.unwrap();
    });
}

#[test]
fn a_machine_that_vanishes_is_noticed_soon_and_found_again_as_it_was() {
    let (hosts, runtime) = (Hosts::start(1), runtime());
    let host = hosts.host(0);
    let mut office = Office::open(&runtime, &muster());
    office.adopt(&hosts, Account::Root);
    runtime.block_on(async {
        office.start(host).await.unwrap();
        let first = office.hello().await;
        host.cut();
        let since = Instant::now();
        office.is_gone(host).await;
        let noticed = since.elapsed();
        let limit = Duration::from_secs(15) - office.engine.capabilities().lost_after;
        assert!(noticed < limit, "{noticed:?}");
        let error = office.start(host).await.unwrap_err();
        assert!(error.to_string().contains("cannot be reached"), "{error}");
        assert_eq!(error.class, Class::Retryable);
        host.join();
        office.start(host).await.unwrap();
        assert_eq!(office.hello().await.pid, first.pid);
        wait_for("the old logins to end", || carries(host).len() == 2);
        host.reboot();
        office.is_gone(host).await;
        office.start(host).await.unwrap();
        let third = office.hello().await;
        assert_eq!(third.incarnation, first.incarnation);
        office.engine.stop(&key(host)).await.unwrap();
    });
}
