//! Members of a gang reach each other with the host's ordinary programs, and nobody else reaches them.

use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Output};

use muster_testkit::Home;

use crate::{home, until};

/// A gang of two that runs a script in every task, and ends with it.
fn gang(home: &Home, script: &str) -> String {
    home.write("visit.sh", format!("set -eu\n{script}\n"));
    let done = home.run(["run", "-N", "2", "--name", "bert", "--", "bash", "visit.sh"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    done.out()
}

/// A shell line that waits until every task of a gang of two has come here.
fn meet(name: &str) -> String {
    format!(": > \"$SHARED/{name}$RANK\"; {}; {}", until(&format!("{name}0")), until(&format!("{name}1")))
}

/// What a task says, without the label.
fn said(output: &str, rank: u32) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix(&format!("task{rank} | "))).collect()
}

#[test]
fn ssh_reaches_every_member_by_every_name_from_every_other() {
    let home = home();
    let other = "other=$((1 - RANK)); ip=$(echo $MUSTER_HOSTS | cut -d, -f$((other + 1)))";
    let names =
        "worker-$other ib-worker-$other task$other.bert task$other.$MUSTER_JOB_ID $ip root@worker-$other";
    let script = format!(
        "{other}\nfor name in {names}; do ssh $name 'echo $RANK'; done\n\
         ssh -p $MUSTER_SSH_PORT worker-$other 'echo port $RANK'\n\
         ssh ps-0 'echo first $RANK'; ssh worker-$RANK 'echo self $RANK'\n\
         grep -c . <(grep '^  Port ' $MUSTER_SSH_CONFIG | sort -u)\n{}",
        meet("done")
    );
    let output = gang(&home, &script);
    for rank in 0..2 {
        let other = (1 - rank).to_string();
        let mut expected = vec![other.clone(); 6];
        expected.extend([format!("port {other}"), "first 0".into(), format!("self {rank}"), "1".into()]);
        assert_eq!(said(&output, rank), expected, "{output}");
    }
}

#[test]
fn files_go_from_task_to_task() {
    let home = home();
    let script = format!(
        "other=$((1 - RANK)); head -c 3000000 /dev/urandom > made$RANK; mkdir -p tree/sub; echo deep > tree/sub/f\n{}\n\
         scp -q made$RANK worker-$other:by-scp-$RANK\n\
         rsync -a -e ssh tree/ worker-$other:tree-$RANK\n\
         rsync -a worker-$other:made$other by-rsync-$other\n\
         echo get made$other by-sftp-$other | sftp -q -b - worker-$other >/dev/null; cmp by-sftp-$other by-rsync-$other\n\
         tar c tree | ssh worker-$other \"mkdir -p tar-$RANK && tar x -C tar-$RANK\"\n\
         ssh worker-$other cat by-scp-$RANK | cmp - made$RANK\n\
         ssh worker-$other cat made$other | cmp - by-rsync-$other\n{}\n\
         cat tree-$other/sub/f tar-$other/tree/sub/f",
        meet("made"),
        meet("sent"),
    );
    // Each task has its own copy of the code: what is there was sent.
    let output = gang(&home, &script);
    for rank in 0..2 {
        assert_eq!(said(&output, rank), ["deep", "deep"], "{output}");
    }
}

#[test]
fn pdsh_runs_a_command_on_all_of_them() {
    let home = home();
    let script = format!(
        "if [ $RANK = 0 ]; then pdsh -w worker-[0-1] 'echo $RANK of $WORLD_SIZE' | sort; \
         PDSH_SSH_ARGS_APPEND= pdsh -w worker-1 'echo by the path'; fi\n{}",
        meet("done")
    );
    let output = gang(&home, &script);
    assert_eq!(
        said(&output, 0),
        ["worker-0: 0 of 2", "worker-1: 1 of 2", "worker-1: by the path"],
        "pdsh, of Debian's package of that name: {output}"
    );
}

#[test]
fn who_runs_the_command_alone_reaches_those_that_wait() {
    let home = home();
    let words =
        ["run", "-N", "3", "--command-on", "first", "--", "sh", "-c", "ssh worker-2 'echo from $RANK'"];
    let done = home.run(words);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert_eq!(said(&done.out(), 0), ["from 2"]);
}

#[test]
fn nobody_is_let_in_where_nobody_comes() {
    let home = home();
    let listens = "import os, socket\n\
                   s = socket.socket(); s.settimeout(5)\n\
                   at = (os.environ['MUSTER_HOSTS'].split(',')[int(os.environ['RANK'])], int(os.environ['MUSTER_SSH_PORT']))\n\
                   print(s.connect_ex(at) == 0, 'MUSTER_SSH_CONFIG' in os.environ)\n";
    home.write("listens.py", listens);
    for (words, seen) in [(&["--"][..], "False False"), (&["--peers", "--"], "True True")] {
        let mut all = vec!["run", "-N", "2"];
        all.extend(words);
        all.extend([crate::python(), "listens.py"]);
        let done = home.run(all);
        assert_eq!(done.code(), 0, "{}", done.err());
        assert_eq!((said(&done.out(), 0), said(&done.out(), 1)), (vec![seen], vec![seen]), "{}", done.out());
    }
}

/// A job of one task that lets peers in and waits; where it listens, and its files for ssh.
struct Open {
    id: String,
    address: SocketAddr,
    files: PathBuf,
}

impl Open {
    fn submit(home: &Home, name: &str) -> Open {
        let script = format!(
            "echo \"$MUSTER_HOSTS:$MUSTER_SSH_PORT $(dirname \"$MUSTER_SSH_CONFIG\")\" > \"$SHARED/{name}.new\"; \
             mv \"$SHARED/{name}.new\" \"$SHARED/{name}\"; {}",
            until(&format!("end-{name}"))
        );
        let id = home.submit(&["--peers", "--name", name, "--", "sh", "-c", &script]);
        let (address, files) = told(home, name);
        Open { id, address, files }
    }

    fn end(&self, home: &Home, name: &str) {
        home.touch(&format!("end-{name}"));
        home.wait_for_state(&self.id, "succeeded");
    }
}

fn told(home: &Home, name: &str) -> (SocketAddr, PathBuf) {
    let told = home.wait_for_file(name);
    let (address, files) = told.trim_end().split_once(' ').expect("an address and a directory");
    (address.parse().expect("an address"), files.into())
}

/// A bare client, which trusts anyone it meets.
fn come(address: SocketAddr, options: &[&str]) -> Output {
    let trusting =
        ["-F", "/dev/null", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"];
    let port = address.port().to_string();
    let mut ssh = Command::new("ssh");
    ssh.args(trusting).args(["-o", "LogLevel=ERROR", "-o", "NumberOfPasswordPrompts=1", "-p", &port]);
    // Nobody is asked: a password comes from a program.
    ssh.env("SSH_ASKPASS", "/bin/echo").env("SSH_ASKPASS_REQUIRE", "force").env_remove("SSH_AUTH_SOCK");
    ssh.args(options).arg(address.ip().to_string()).arg("echo inside").output().expect("an OpenSSH client")
}

fn identity(files: &std::path::Path) -> Vec<String> {
    ["-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-i"]
        .map(String::from)
        .into_iter()
        .chain([files.join("id").display().to_string()])
        .collect()
}

fn come_with(address: SocketAddr, files: &std::path::Path) -> Output {
    come(address, &identity(files).iter().map(String::as_str).collect::<Vec<_>>())
}

fn assert_refused(done: &Output, who: &str) {
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(255), "{who}: {done:?}");
    assert!(done.stdout.is_empty() && said.contains("Permission denied (publickey)"), "{who}: {said}");
}

#[test]
fn another_jobs_key_a_password_and_nothing_at_all_are_refused() {
    let home = home();
    let (one, other) = (Open::submit(&home, "one"), Open::submit(&home, "other"));
    assert_eq!(come_with(one.address, &one.files).stdout, b"inside\n");
    assert_refused(&come_with(one.address, &other.files), "another job's key");
    let password = "PreferredAuthentications=password,keyboard-interactive";
    assert_refused(&come(one.address, &["-o", "PubkeyAuthentication=no", "-o", password]), "a password");
    assert_refused(&come(one.address, &["-o", "PreferredAuthentications=none"]), "nothing");
    // The member itself does not take another job for its peer either: it knows its host's key.
    let to_other = format!("HostName={}", other.address.ip());
    let config = one.files.join("config").display().to_string();
    let port = other.address.port().to_string();
    let words = ["-F", &config, "-o", &to_other, "-p", &port, "worker-0", "true"];
    let done = Command::new("ssh").args(words).output().expect("an OpenSSH client");
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.code() == Some(255) && said.contains("Host key verification failed"), "{said}");
    for (job, name) in [(&one, "one"), (&other, "other")] {
        job.end(&home, name);
        assert!(TcpStream::connect(job.address).is_err(), "it ends with the job");
    }
}

#[test]
fn the_key_of_an_attempt_is_worth_nothing_to_the_next() {
    let home = home();
    let script = format!(
        "cp \"$(dirname \"$MUSTER_SSH_CONFIG\")/id\" \"$SHARED/id$MUSTER_ATTEMPT\"\n\
         [ $MUSTER_ATTEMPT = 2 ] || exit 1\n\
         echo \"$MUSTER_HOSTS:$MUSTER_SSH_PORT x\" > \"$SHARED/new\"; mv \"$SHARED/new\" \"$SHARED/second\"; {}",
        until("go")
    );
    let id = home.submit(&["--peers", "--retries", "1", "--", "sh", "-c", &script]);
    let (address, _) = told(&home, "second");
    let with = |number: u32| {
        let folder = home.shared().join(number.to_string());
        std::fs::create_dir_all(&folder).expect("a folder");
        std::fs::copy(home.shared().join(format!("id{number}")), folder.join("id")).expect("its key");
        come_with(address, &folder)
    };
    assert_refused(&with(1), "the key of the attempt before");
    assert_eq!(with(2).stdout, b"inside\n");
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}
