//! Whose tasks are whose on machines that people share: each runs under the account of its user, has that user's storage and the
//! workspace's, and finds nothing of anybody else's. On hosts with a real sshd and accounts of their own.

use std::fs::{self, File};
use std::process::Command;

use muster_testkit::{Account, DEADLINE, Finished, Home, Hosts, Running, wait_for, wait_within};
use serde_json::Value;

use crate::pool::slim;

const VOLUMES: &str = "[volumes.user]\npath = \"/mnt/user/{user}\"\nsource = \"/var/nas/user\"\n\
                       [volumes.share]\npath = \"/mnt/share/{workspace}\"\nsource = \"/var/nas/share\"\n";

/// A server with accounts, and a pool `gpu` of hosts.
struct Team {
    // In this order: the server goes before the hosts that it talks to.
    server: Running,
    home: Home,
    hosts: Hosts,
    url: String,
}

impl Team {
    /// Everybody's accounts are on the hosts already.
    fn start(count: usize, settings: &str, login: Account) -> Self {
        let home = Home::new(slim());
        home.configure(settings);
        let hosts = Hosts::start(count);
        for host in hosts.all() {
            host.run(
                "useradd -m -s /bin/bash -G users ada && useradd -m -s /bin/bash bob && chmod 700 /home/*",
            );
            // Everything of the team's storage is in a directory that only root enters.
            host.run("mkdir -p /var/nas/user /var/nas/share && chmod 700 /var/nas");
            // A login has these, so a task does.
            host.run("echo 'ada soft nofile 1234\nada hard nofile 4321' > /etc/security/limits.d/team.conf");
            host.run("printf 'umask 027\nexport FROM_PROFILE=yes\n' > /home/ada/.bash_profile");
        }
        let folder = home.path();
        let words =
            ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", "127.0.0.1:0", "--auth"];
        let server = home.start(words);
        server.wait_for_out("ready\n");
        let address = fs::read_to_string(folder.join("server.address")).expect("where it listens");
        let team = Self { server, home, hosts, url: format!("http://{address}") };
        let key = team.hosts.key();
        let mut words =
            vec!["pool".to_owned(), "add".into(), "gpu".into(), "--key".into(), key.display().to_string()];
        words.extend(team.hosts.all().iter().map(|host| host.destination_of(login)));
        team.home.ok(words);
        for workspace in ["nlp", "cv"] {
            team.home.ok(["workspace", "add", workspace]);
        }
        for (name, workspace) in [("ada", "nlp"), ("bob", "cv")] {
            let words =
                ["user", "add", name, "--workspace", workspace, "--role", "member", "--password-stdin"];
            let mut command = team.home.command(words);
            command.stdin(team.input(name, &password(name)));
            assert_eq!(Running::start(command).finish().code(), 0);
            let person = team.person(name);
            let words = ["login", &team.url, "--user", name, "--name", "team", "--password-stdin"];
            let mut command = person.command(&words);
            command.stdin(team.input(name, &password(name)));
            let done = Running::start(command).finish();
            assert_eq!(done.code(), 0, "{}", done.err());
        }
        team
    }

    fn input(&self, name: &str, text: &str) -> File {
        let path = self.home.shared().join(format!("{name}.in"));
        fs::write(&path, format!("{text}\n")).expect("an input");
        File::open(path).expect("the input")
    }

    fn person<'a>(&'a self, name: &'a str) -> Person<'a> {
        Person { team: self, name }
    }

    fn stop(self) {
        self.server.signal(rustix::process::Signal::TERM);
        assert_eq!(self.server.finish().code(), 0);
    }
}

fn password(name: &str) -> String {
    format!("the password of {name}")
}

struct Person<'a> {
    team: &'a Team,
    name: &'a str,
}

impl Person<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.team.home.command(words);
        command.env("MUSTER_HOME", self.team.home.shared().join(self.name)).env("USER", self.name);
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        Running::start(self.command(words)).finish()
    }

    fn ok(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert_eq!(done.code(), 0, "{} {words:?}: {}{}", self.name, done.out(), done.err());
        done.out()
    }

    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.ok(words)).expect("JSON")
    }

    /// A line of a shell, run to its end on a host.
    fn line(&self, flags: &[&str], line: &str) -> String {
        self.ok(&[&["run", "--on", "ssh/gpu"], flags, &["--", "bash", "-c", line]].concat())
    }

    fn submit(&self, flags: &[&str], line: &str) -> String {
        let words =
            [&["run", "-d", "--json", "--on", "ssh/gpu"], flags, &["--", "bash", "-c", line]].concat();
        self.json(&words)["id"].as_str().expect("an id").to_owned()
    }

    fn wait_for_log(&self, job: &str, text: &str) {
        wait_for(&format!("`{text}` in the log of {job}"), || self.ok(&["logs", job]).contains(text));
    }
}

#[test]
fn a_task_is_its_users_in_everything() {
    let team = Team::start(2, VOLUMES, Account::Root);
    let ada = team.person("ada");
    // Enough files that the working directory is an overlay where it can be.
    for number in 0..40 {
        team.home.write(&format!("code/{number}.py"), format!("{number}\n"));
    }
    let line = "echo $(id -un) $(id -Gn | tr ' ' '\\n' | sort) $(umask) $(ulimit -Sn) $(ulimit -Hn) $HOME $USER $FROM_PROFILE; \
                set -e; touch code/made; echo 1 > code/1.py; rm code/2.py; echo result > $MUSTER_OUTPUT_DIR/result; \
                echo again > /dev/stderr; stat -c %U . code code/3.py $MUSTER_OUTPUT_DIR | sort -u; \
                ! ls $(dirname $(dirname $PWD)); ! cat ../launch.json; ! ls ../log; ! touch ../made";
    team.home.write("job.yaml", "outputs: [code/made]\n");
    let job = ada.submit(&["-f", "job.yaml", "--nodes", "2"], line);
    wait_for("the end", || {
        ["succeeded", "failed"].contains(&ada.json(&["show", &job, "--json"])["state"].as_str().unwrap())
    });
    let done = ada.run(&["logs", &job]);
    let (log, errors) = (done.out(), done.err());
    assert_eq!(ada.json(&["show", &job, "--json"])["state"], "succeeded", "{log}");
    assert!(log.contains("ada ada users 0027 1234 4321 /home/ada ada yes"), "{log}");
    assert!(errors.contains("again"), "{errors}");
    assert_eq!(errors.matches("Permission denied").count(), 8, "{errors}");
    // What is its own is its own, and nobody else's.
    assert!(log.contains("task0 | ada\n") && !log.contains("root\n"), "{log}");
    assert_eq!(ada.ok(&["get", &job, "@output/result", "-o", "-"]), "result\n");

    // Whoever comes in is the same, and so is who comes from a peer.
    let line = "if [ $RANK = 0 ]; then ssh worker-1 'echo peer $(id -un) $RANK'; fi; echo begun; sleep 1000";
    let gang = ada.submit(&["--peers", "--nodes", "2"], line);
    ada.wait_for_log(&gang, "peer ada 1");
    assert_eq!(ada.ok(&["exec", &gang, "--", "id", "-un"]), "ada\n");
    assert!(ada.ok(&["session", "run", &gang, "--", "id", "-un"]).starts_with("ada\n"));
    fs::write(team.home.work().join("up"), "sent").expect("a file");
    ada.ok(&["cp", "up", &format!("{gang}:up")]);
    assert_eq!(ada.ok(&["exec", &gang, "--", "stat", "-c", "%U", "up"]), "ada\n");
    ada.ok(&["stop", &gang]);

    // An agent that is killed finds its tasks again, and they end as ever.
    let job = ada.submit(&[], "echo begun; while [ ! -e go ]; do sleep 0.05; done; echo went on");
    ada.wait_for_log(&job, "begun");
    let agents: Vec<_> = team
        .hosts
        .all()
        .iter()
        .flat_map(|host| host.processes())
        .filter(|process| process.is("agent"))
        .collect();
    assert!(!agents.is_empty());
    agents.iter().for_each(|agent| muster_testkit::kill(agent.pid));
    wait_for("the agent to be back", || ada.run(&["exec", &job, "--", "true"]).code() == 0);
    // The task ends at this, and may take the command with it before its exit code is told.
    ada.run(&["exec", &job, "--", "touch", "go"]);
    wait_for("its end", || ada.json(&["show", &job, "--json"])["state"] == "succeeded");
    assert!(ada.ok(&["logs", &job]).contains("went on"));
    team.stop();
}

#[test]
fn what_start_up_files_say_or_leave_binds_nobody() {
    let team = Team::start(1, "", Account::Root);
    let (ada, bob, host) = (team.person("ada"), team.person("bob"), team.hosts.host(0));
    host.run("echo '* hard nofile 4000\n* soft nofile 2000' > /etc/security/limits.d/all.conf");
    // Ada's say that she may have everything, in the kernel's own words, and leave processes that keep all they were given.
    let lie = "sed -E 's/[0-9]+ {2,}[0-9]+ /9999                 9999 /' /proc/self/limits";
    host.run(&format!(
        "printf '%s\\n' \"cat() {{ {lie}; }}\" 'umask 027' 'sleep 7654321 &' 'setsid sleep 7654321 &' > /home/ada/.bash_profile"
    ));
    // Bob's wait for a task of ada's, which therefore must not wait for them.
    let wait = "touch /tmp/bob-asked; while [ ! -e /tmp/ada-ran ]; do sleep 0.05; done; export SAW=ada";
    host.run(&format!("echo '{wait}' > /home/bob/.bash_profile"));
    let job = bob.submit(&[], "echo bob saw $SAW");
    wait_for("bob's shell to be asked", || host.try_run("test -e /tmp/bob-asked").code() == 0);
    let log = ada.line(&[], "touch /tmp/ada-ran; echo $(umask) $(ulimit -Sn) $(ulimit -Hn)");
    assert_eq!(log, "0027 1234 4321\n");
    bob.wait_for_log(&job, "bob saw");
    assert!(bob.ok(&["logs", &job]).contains("bob saw ada"), "{}", bob.ok(&["logs", &job]));
    wait_for("an end of what they have left", || host.processes_with("sleep 7654321").is_empty());

    // An account that nobody logs in to has what the machine gives, and so has one whose shell never answers.
    host.run("useradd -m -s /bin/bash dan && echo 'sleep 7654321' > /home/dan/.bash_profile");
    host.run("useradd -m -s /usr/sbin/nologin service && chmod 700 /home/service /home/dan");
    team.home.ok(["user", "set", "bob", "--account", "dan"]);
    assert_eq!(bob.line(&[], "echo $USER $(umask) $(ulimit -Sn)"), "dan 0022 2000\n");
    team.home.ok(["user", "set", "bob", "--account", "service"]);
    let log = bob.line(&[], "echo $USER $HOME $SHELL $(umask) $(ulimit -Sn) $(ulimit -Hn)");
    assert_eq!(log, "service /home/service /usr/sbin/nologin 0022 2000 4000\n");
    wait_for("an end of the shell", || host.processes_with("sleep 7654321").is_empty());

    // Nothing stands in for what the machine does not say.
    host.run("useradd -m -s /bin/bash carl && echo 'session requisite pam_deny.so' > /etc/pam.d/runuser");
    team.home.ok(["user", "set", "bob", "--account", "carl"]);
    let refused = bob.run(&["run", "--on", "ssh/gpu", "--", "true"]);
    assert_ne!(refused.code(), 0);
    for word in
        ["the limits of the account `carl` cannot be had", "runuser: ", "`runuser -u carl -- /bin/cat`"]
    {
        assert!(refused.err().contains(word), "{word}: {}", refused.err());
    }
    team.stop();
}

#[test]
fn nothing_of_one_user_is_read_by_a_task_of_another() {
    let team = Team::start(1, VOLUMES, Account::Root);
    let (ada, bob) = (team.person("ada"), team.person("bob"));
    for number in 0..40 {
        team.home.write(&format!("code/{number}.py"), "marker-of-ada in the code\n");
    }
    let mut command = ada.command(&["secret", "put", "TOKEN"]);
    command.stdin(team.input("ada", "marker-of-ada as a secret"));
    assert_eq!(Running::start(command).finish().code(), 0);
    let line = "echo marker-of-ada in the log; echo marker-of-ada > $MUSTER_OUTPUT_DIR/out; \
                echo marker-of-ada > /mnt/user/ada/mine; echo marker-of-ada > /mnt/share/nlp/ours; \
                ls -ld /mnt/user/ada | cut -d' ' -f1,3; echo begun; sleep 1000";
    let flags = [
        "--env",
        "PLAIN=marker-of-ada in the environment",
        "--secret",
        "TOKEN",
        "--secret",
        "TOKEN=file:token",
        "--peers",
    ];
    let job = ada.submit(&flags, line);
    ada.wait_for_log(&job, "begun");
    assert!(ada.ok(&["logs", &job]).contains("drwx------ ada"));

    // As bob: every file that he can open, every environment, and the ways to them.
    let line = "me=marker-of; look() { grep -rlsa --exclude-dir=proc --exclude-dir=sys \"$me-ada\" / ; }; \
                echo files: $(look); \
                echo environments: $(for it in /proc/[0-9]*; do tr '\\0' '\\n' < $it/environ 2>/dev/null; done | grep -c \"$me-ada\"); \
                echo storage: $(ls /mnt/user /mnt/share); ls /var/nas /home/ada /root 2>&1 | sort -u; \
                for it in $(pgrep -u ada); do kill -0 $it 2>/dev/null && echo reached $it; done; \
                ls $(dirname $(dirname $PWD)) 2>&1; echo mine > /mnt/user/bob/mine && echo done";
    // A search of a whole machine takes long where its cores are busy.
    let search = bob.submit(&[], line);
    wait_within(4 * DEADLINE, "the end of the search", || {
        bob.json(&["show", &search, "--json"])["state"] == "succeeded"
    });
    let log = bob.ok(&["logs", &search]);
    assert!(log.contains("files:\n") && log.contains("environments: 0\n"), "{log}");
    assert!(log.contains("storage: /mnt/share: cv /mnt/user: bob\n"), "{log}");
    assert!(log.contains("ls: cannot open directory '/home/ada': Permission denied"), "{log}");
    assert!(log.contains("ls: cannot open directory '/var/nas': Permission denied"), "{log}");
    assert!(
        log.contains("/tasks': Permission denied") && !log.contains("reached") && log.contains("done"),
        "{log}"
    );

    // The same user finds all of it again, the workspace's storage included.
    assert_eq!(ada.line(&[], "cat /mnt/user/ada/mine /mnt/share/nlp/ours"), "marker-of-ada\nmarker-of-ada\n");
    ada.ok(&["stop", &job]);
    // On the host itself nothing was opened to anybody, and nothing is left mounted.
    let host = team.hosts.host(0);
    assert!(
        host.run("stat -c '%a %U' /root /var/nas /var/nas/user/ada").contains("700 root\n700 root\n700 ada")
    );
    assert!(!host.run("cat /proc/self/mounts").contains("/mnt/user"));
    team.stop();
}

#[test]
fn nobody_becomes_root_by_what_their_task_is_shown() {
    let volumes = "[volumes.home]\npath = \"/home/{user}/nas\"\nsource = \"/var/nas/user\"\n";
    let team = Team::start(1, volumes, Account::Root);
    let (ada, bob, host) = (team.person("ada"), team.person("bob"), team.hosts.host(0));
    // Whatever puts files into directories of the machine's leaves these to root.
    let line = "for name in /made /etc/made /usr/made; do touch $name 2>/dev/null && echo made $name; done; \
                mv /lib64 /moved 2>/dev/null && echo moved; mv /etc/hosts /etc/moved 2>/dev/null && echo moved; \
                stat -c '%u %a %n' / /etc; cat /etc/mpi/hostfile > /dev/null && echo hosts; \
                srun --version > /dev/null && echo srun; touch ~/nas/kept ~/beside && stat -c %U ~/nas/kept";
    let flags = ["--faces", "dlws,dlc,modelarts,slurm", "--framework", "mpi"];
    assert_eq!(ada.line(&flags, line), "0 755 /\n0 755 /etc\nhosts\nsrun\nada\n");
    assert_eq!(host.run("ls /var/nas/user/ada/nas"), "kept\n");
    wait_for("what was mounted on to go", || host.run("ls /home/ada") == "beside\n");
    // What is mounted is mounted where it says, and not where its user has put a link to.
    host.run("su bob -c 'ln -s /etc /home/bob/nas'");
    let refused = bob.run(&["run", "--on", "ssh/gpu", "--", "cat", "/etc/shadow"]);
    assert_ne!(refused.code(), 0);
    assert!(refused.err().contains("/home/bob/nas cannot be mounted"), "{}{}", refused.out(), refused.err());
    host.run("rm /home/bob/nas && su bob -c 'mkfifo /home/bob/nas'");
    assert_ne!(bob.run(&["run", "--on", "ssh/gpu", "--", "true"]).code(), 0);
    host.run("rm /home/bob/nas");
    assert_eq!(bob.line(&[], "stat -c %U ~/nas"), "bob\n");
    team.stop();
}

#[test]
fn an_agent_that_is_not_roots_runs_tasks_of_its_own_account_alone() {
    let team = Team::start(1, "", Account::Ordinary);
    let ada = team.person("ada");
    let refused = ada.run(&["run", "--on", "ssh/gpu", "--", "true"]);
    assert_eq!(refused.code(), 2, "{}{}", refused.out(), refused.err());
    for word in ["on:", "runs tasks of `train` alone, not of `ada`", "muster user set"] {
        assert!(refused.err().contains(word), "{word}: {}", refused.err());
    }
    team.home.ok(["user", "set", "ada", "--account", "train"]);
    assert_eq!(ada.line(&[], "id -un"), "train\n");
    // Nobody is root, whatever they are called.
    team.home.ok(["user", "set", "ada", "--account", "root"]);
    assert_eq!(ada.run(&["run", "--on", "ssh/gpu", "--", "true"]).code(), 2);
    team.stop();
}

#[test]
fn storage_that_a_host_does_not_have_is_told_at_submit_and_noticed_when_it_comes() {
    let team = Team::start(1, "[volumes.user]\npath = \"/mnt/user/{user}\"\n", Account::Root);
    let ada = team.person("ada");
    let refused = ada.run(&["run", "--on", "ssh/gpu", "--", "true"]);
    assert_eq!(refused.code(), 2, "{}{}", refused.out(), refused.err());
    for word in ["volumes:", "volume `user`: there is no directory `/mnt/user`", "--without-volumes"] {
        assert!(refused.err().contains(word), "{word}: {}", refused.err());
    }
    assert_eq!(ada.line(&["--without-volumes"], "ls /mnt"), "");
    // Once it was missed, it is looked for again.
    team.hosts.host(0).run("mkdir /mnt/user");
    wait_for("the host to say so", || {
        ada.run(&["run", "--dry-run", "--on", "ssh/gpu", "--", "true"]).code() == 0
    });
    team.hosts.host(0).run("rmdir /mnt/user");
    let late = ada.run(&["run", "--on", "ssh/gpu", "--", "true"]);
    assert!(
        late.code() != 0 && late.err().contains("no directory `/mnt/user`"),
        "{}{}",
        late.out(),
        late.err()
    );
    // It is mounted, and nobody has to say so.
    team.hosts.host(0).run("mkdir /mnt/user && mount -t tmpfs -o mode=0755 nas /mnt/user");
    wait_for("the host to say so", || {
        ada.run(&["run", "--dry-run", "--on", "ssh/gpu", "--", "true"]).code() == 0
    });
    assert_eq!(ada.line(&[], "echo kept > /mnt/user/ada/file; stat -c '%a %U' /mnt/user/ada"), "700 ada\n");
    assert_eq!(team.hosts.host(0).run("cat /mnt/user/ada/file"), "kept\n");
    assert!(
        team.person("bob").line(&[], "cat /mnt/user/ada/file 2>&1 || true").contains("Permission denied")
    );
    team.stop();
}
