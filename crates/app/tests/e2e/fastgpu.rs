//! The binary called as `fastgpu` and as `ecluster`, on this machine.

use std::os::unix::fs::symlink;
use std::path::Path;

use muster_testkit::hosts::{Host, Hosts};
use muster_testkit::{Account, Home, Slurm, wait_for};

use crate::home_with;
use crate::pool::slim;
use crate::secret::with_input;

const CREATE: &str = "; config.ini
[ncluster]
name=ncluster-v100
machines=2
instance_type=ecs.gn6v-c8g1.16xlarge
image_name=ubuntu_18_04_64_20G_alibase_20190624.vhd
spot=False
confirm_cost=False
skip_setup=False
disable_nas=True

[cmd]
install_script=echo once >> installed
";

/// A muster whose binary is a link of this name.
fn called(name: &str) -> Home {
    let mut home = home_with("[local]\ndevices = [\"V100:8\"]\n");
    let link = home.shared().join(name);
    symlink(env!("CARGO_BIN_EXE_muster"), &link).expect("a link to the binary");
    home.set_binary(link);
    home
}

#[test]
fn a_group_lives_as_the_documentation_says() {
    let mut home = called("ecluster");
    home.write("create.cfg", CREATE);
    let made = home.run(["create", "-c", "create.cfg"]);
    assert_eq!(made.code(), 0, "{}", made.err());
    assert!(made.err().contains("machines are on local"), "{}", made.err());
    let listed = home.ok(["ls"]);
    assert!(listed.starts_with("In Region local\nRunning Instances:\n----"), "{listed}");
    let row = listed.lines().find(|line| line.starts_with("task1.ncluster-v100 ")).expect("it is listed");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..3], ["0.0", "ecs.gn6v-c8g1.16xlarge"], "{listed}");
    assert!(cells[3].starts_with("127.") && cells[3] == cells[5] && cells[6] == "node_local", "{listed}");
    assert!(made.out().contains("In Region local\n"), "{}", made.out());
    assert_eq!(home.ok(["ls", "-a", "--stop"]).lines().count(), listed.lines().count());
    assert_eq!(home.ok(["ssh", "task1.ncluster-v100", "cat", "installed"]), "once\n");

    // Taken again, and not set up again; others of the name are refused.
    home.ok(["create", "-c", "create.cfg"]);
    assert_eq!(home.ok(["ssh", "{ncluster-v100}", "cat", "installed"]), "once\n");
    for flags in [&["--machines", "3"][..], &["-i", "ecs.other"]] {
        let words = ["create", "-c", "create.cfg"].iter().chain(flags).copied();
        let refused = home.run(words);
        assert!(refused.err().contains("kill {ncluster-v100}"), "{}", refused.err());
    }

    let hosts = home.ok(["ssh", "task0.ncluster-v100", "echo $MUSTER_HOSTS"]);
    let second = hosts.trim().split(',').nth(1).expect("two addresses");
    assert_eq!(home.ok(["ssh", "task0.ncluster-v100", &format!("ssh {second} 'echo $MUSTER_RANK'")]), "1\n");

    home.ok(["scp", "create.cfg", "{ncluster-v100}:copied"]);
    home.ok(["scp", "task1.ncluster-v100:copied", "back"]);
    assert_eq!(std::fs::read_to_string(home.work().join("back")).unwrap(), CREATE);

    assert_eq!(home.ok(["stop", "task1.ncluster-v100"]), "task1.ncluster-v100 stopped\n");
    let listed = home.ok(["ls"]);
    let (running, stopped) = listed.split_once("Stopped Instances:").expect("both are listed");
    assert!(running.contains("task0.ncluster-v100") && stopped.contains("task1.ncluster-v100"), "{listed}");
    assert_eq!(home.ok(["start", "task1.ncluster-v100"]), "task1.ncluster-v100 started\n");
    home.ok(["stop", "task0.ncluster-v100"]);
    assert!(home.ok(["start", "{ncluster-v100}"]).contains("task0.ncluster-v100 started"));
    assert_eq!(
        home.ok(["stop", "{ncluster-v100}"]),
        "task0.ncluster-v100 stopped\ntask1.ncluster-v100 stopped\n"
    );
    assert!(home.ok(["ls"]).contains("Stopped Instances:"));
    assert!(home.ok(["start", "ncluster-v100"]).contains("task1.ncluster-v100 started"));
    assert!(home.ok(["rename", "ncluster-v100", "bert"]).contains("is now task0.bert"));
    let asked = home.run(["kill", "{bert}"]);
    assert!(asked.code() == 2 && asked.err().contains("--yes"), "{}", asked.err());
    let asked = home.run(["kill", "task0.bert"]);
    assert!(asked.err().contains("kill task0.bert?\n"), "{}", asked.err());
    assert_eq!(home.ok(["kill", "task0.bert", "-y"]), "task0.bert killed\n");
    let part = home.run(["create", "-c", "create.cfg", "--name", "bert"]);
    assert!(part.err().contains("task0.bert was killed"), "{}", part.err());
    assert_eq!(home.ok(["kill", "{bert}", "-y"]), "task1.bert killed\n");
    home.set_binary(env!("CARGO_BIN_EXE_muster"));
    home.wait_for_no_tasks();
}

#[test]
fn kill_asks_on_a_terminal_and_no_is_no() {
    let home = called("fastgpu");
    home.ok(["create", "--name", "a"]);
    for (answer, said) in [("n", "nothing was killed"), ("y", "task0.a killed")] {
        let mut terminal = home.start_on_terminal(["kill", "task0.a"]);
        wait_for("the question", || terminal.screen().contains("kill task0.a? (y/N)"));
        terminal.press(&format!("{answer}\r"));
        wait_for(said, || terminal.screen().contains(said));
        let (status, _) = terminal.finish();
        assert_eq!(status.success(), answer == "y");
    }
    assert!(!home.ok(["ls"]).contains("task0.a"));
}

#[test]
fn a_pipe_answers_whether_to_kill() {
    let home = called("fastgpu");
    home.ok(["create", "--name", "a", "--disable_nas"]);
    let refused = with_input(home.command(["kill", "task0.a"]), b"n\n");
    assert!(refused.code() == 1 && refused.err().contains("nothing was killed"), "{}", refused.err());
    let killed = with_input(home.command(["kill", "task0.a"]), b"yes\n");
    assert_eq!((killed.code(), killed.out().as_str()), (0, "task0.a killed\n"), "{}", killed.err());
    assert!(killed.err().contains("kill task0.a? (y/N) yes\n"), "{}", killed.err());
    home.ok(["create", "--name", "b"]);
    assert_eq!(home.ok(["kill", "-f", "{b}"]), "task0.b killed\n");
}

#[test]
fn the_region_is_printed_alike_everywhere() {
    let mut home = called("fastgpu");
    home.set_variable("ALIYUN_DEFAULT_REGION", "cn-beijing");
    assert!(home.ok(["create", "--name", "a"]).starts_with("region=cn-beijing\n"));
    assert!(home.ok(["ls"]).starts_with("region=cn-beijing\n"));
    home.set_variable("ALIYUN_DEFAULT_REGION", "");
    home.set_variable("AWS_DEFAULT_REGION", "us-east-1");
    assert!(home.ok(["ls"]).starts_with("region=us-east-1\n"));
    home.ok(["kill", "-f", "{a}"]);
}

#[test]
fn what_only_a_cloud_has_is_said_in_a_word() {
    let home = called("fastgpu");
    let all = home.run(["addip", "-a"]);
    assert!(all.code() == 0 && all.err().contains("note: addip changes a security group"), "{}", all.err());
    let addip = home.run(["addip", "task0.a"]);
    assert!(addip.code() == 2 && addip.err().contains("only a cloud"), "{}", addip.err());
    assert!(home.ok(["queryimage"]).contains("only a cloud"));
    home.ok(["create", "-n", "a", "-np", "1", "--spot", "--confirm_cost", "-vpc", "v"]);
    assert!(home.ok(["querygpu"]).contains("V100 x 8"));
    let mount = home.run(["mount", "task0.a"]);
    assert!(mount.err().contains("no_shared_directory"), "{}", mount.err());
    let unknown = home.run(["ssh", "task0.b", "true"]);
    assert!(unknown.err().contains("did you mean `a`"), "{}", unknown.err());
    assert_eq!(home.run(["create"]).code(), 2);
}

#[test]
fn machines_of_a_pool_are_whole_hosts_used_as_if_one_had_logged_in() {
    let hosts = Hosts::start(2);
    let mut home = called("fastgpu");
    let key = hosts.key().display().to_string();
    let destinations: Vec<String> = hosts.all().iter().map(Host::destination).collect();
    let pool = ["pool", "add", "gpu", "--shared", "/shared", "--key", &key];
    let muster = Path::new(env!("CARGO_BIN_EXE_muster"));
    home.set_binary(muster);
    home.ok(pool.iter().copied().chain(destinations.iter().map(String::as_str)));
    home.set_binary(home.shared().join("fastgpu"));

    let made = home.run(["create", "-n", "bert", "-np", "2", "--install_script", "pwd > where"]);
    assert_eq!(made.code(), 0, "{}", made.err());
    assert!(made.err().contains("machines are on ssh/gpu (the only pool)"), "{}", made.err());
    assert!(home.ok(["ls"]).contains("region=ssh/gpu"));
    assert_eq!(home.ok(["ssh", "task1.bert", "cat", "where"]), "/root\n");
    // The shared directory is where scripts look for it, and was there before anybody asked.
    home.ok(["ssh", "task0.bert", "echo run > /fastgpu/runs/a"]);
    assert_eq!(home.ok(["ssh", "task1.bert", "cat", "/fastgpu/runs/a"]), "run\n");
    assert!(home.ok(["mount", "{bert}"]).contains("/fastgpu is /shared"));
    // As mpirun has it.
    let other = hosts.host(1).address().to_string();
    let names = home.ok(["ssh", "task0.bert", &format!("hostname; ssh {other} hostname")]);
    assert_eq!(names.lines().count(), 2);
    assert_ne!(names.lines().next(), names.lines().nth(1), "{names}");

    home.set_binary(muster);
    let before = home.json(["machine", "ls", "--json"]);
    assert!(home.run(["machine", "create", "more", "--on", "ssh/gpu", "--no-wait"]).code() == 0);
    assert!(home.ok(["why", "more"]).contains("whole node"), "nothing else has room there");
    home.ok(["machine", "kill", "more"]);
    home.ok(["machine", "stop", "bert"]);
    home.ok(["machine", "start", "bert"]);
    let after = home.json(["machine", "ls", "--json"]);
    for rank in 0..2 {
        assert_eq!(before[rank]["node"], after[rank]["node"], "it has the hosts it had");
    }
    assert_eq!(home.ok(["exec", "bert/0", "--", "cat", "where"]), "/root\n");
    home.ok(["machine", "kill", "bert"]);
}

/// Hosts in a pool of these accounts, with a directory that they share, and the binary called as `fastgpu`.
fn on_hosts(count: usize, account: Account) -> (Home, Hosts) {
    let hosts = Hosts::start(count);
    let mut home = Home::new(slim());
    let key = hosts.key().display().to_string();
    let words = ["pool", "add", "gpu", "--shared", "/shared", "--key", &key].map(str::to_owned).into_iter();
    let added = home.run(words.chain(hosts.all().iter().map(|host| host.destination_of(account))));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    let link = home.shared().join("fastgpu");
    symlink(slim(), &link).expect("a link to the binary");
    home.set_binary(link);
    (home, hosts)
}

#[test]
fn tmux_shows_the_shell_of_the_script_and_falls_back_to_one_of_ones_own() {
    let (mut home, hosts) = on_hosts(2, Account::Root);
    hosts.host(1).without("tmux");
    home.ok(["create", "-n", "bert", "-np", "2"]);
    let fastgpu = home.shared().join("fastgpu");
    let ip = |rank: usize| home.ok(["ssh", &format!("task{rank}.bert"), "hostname"]).trim().to_owned();
    let names = [ip(0), ip(1)];
    for (rank, name) in names.iter().enumerate() {
        let machine = format!("task{rank}.bert");
        // Nothing runs there yet: a plain shell, as of ssh.
        let mut terminal = home.start_on_terminal(["tmux", &machine]);
        terminal.wait_for("a shell of your own", 1);
        terminal.press("echo at-$(hostname); exit\r");
        terminal.wait_for(&format!("at-{name}"), 1);
        let (status, screen) = terminal.finish();
        assert!(status.success(), "{screen}");
        // Then the script's own shell: what it set is there, and what is typed there is there afterwards.
        home.set_binary(slim());
        home.ok(["session", "run", &format!("bert/{rank}"), "-c", "cd /var/tmp; SEEN=by-script"]);
        home.set_binary(&fastgpu);
        let mut terminal = home.start_on_terminal(["tmux", &machine]);
        let has_tmux = name == "host0";
        if has_tmux {
            terminal.wait_for("[", 1);
        } else {
            terminal.wait_for("leave with Ctrl-]", 1);
        }
        terminal.press("echo $PWD $SEEN; TYPED=by-hand\r");
        terminal.wait_for("/var/tmp by-script", 1);
        terminal.press(if has_tmux { "\x02d" } else { "\x1d" });
        let (status, screen) = terminal.finish();
        assert!(status.success() && screen.contains("left session main"), "{screen}");
        home.set_binary(slim());
        assert_eq!(home.ok(["session", "run", &format!("bert/{rank}"), "-c", "echo $TYPED"]), "by-hand\n");
        home.set_binary(&fastgpu);
    }
    home.ok(["kill", "{bert}", "-y"]);
}

#[test]
fn mount_without_root_says_what_root_has_to_do() {
    let (home, hosts) = on_hosts(1, Account::Ordinary);
    let made = home.run(["create", "-n", "bert"]);
    assert_eq!(
        made.code(),
        0,
        "a directory that cannot be linked is no reason to have no machine: {}",
        made.err()
    );
    let refused = home.run(["mount", "{bert}"]);
    let said = format!("{}{}", refused.out(), refused.err());
    let remedy = "as root: ln -s /shared /fastgpu";
    assert!(refused.code() == 1 && said.contains(remedy) && said.contains("train"), "{said}");
    hosts.host(0).run("ln -s /shared /fastgpu");
    assert!(home.ok(["mount", "task0.bert"]).contains("/fastgpu is /shared"));
    assert_eq!(home.ok(["ssh", "task0.bert", "echo run > /fastgpu/runs/a; cat /shared/runs/a"]), "run\n");
    // What is there and is something else is left alone.
    hosts.host(0).run("rm /fastgpu; mkdir /fastgpu");
    let other = home.run(["mount", "task0.bert"]);
    assert!(other.code() == 1 && format!("{}{}", other.out(), other.err()).contains("is there already"));
    home.ok(["kill", "{bert}", "-y"]);
}

/// A muster whose data lies in root's home, as it does unless somebody has said otherwise.
fn in_roots_home(name: &str) -> (tempfile::TempDir, Home) {
    let below = tempfile::tempdir_in("/root").expect("these tests run as root");
    let mut home = Home::named(env!("CARGO_BIN_EXE_muster"), below.path().join("home"));
    let link = home.shared().join(name);
    symlink(env!("CARGO_BIN_EXE_muster"), &link).expect("a link to the binary");
    home.set_binary(link);
    (below, home)
}

#[test]
fn each_machine_of_this_computer_has_a_root_of_its_own() {
    let (below, mut home) = in_roots_home("fastgpu");
    std::fs::write(below.path().join("tool"), "#!/bin/sh\necho a tool of mine\n").unwrap();
    let name = below.path().file_name().unwrap().to_str().unwrap().to_owned();
    let own = format!("/root/own{name}");
    let made = home.run([
        "create",
        "-n",
        "a",
        "-np",
        "2",
        "--install_script",
        &format!("mkdir {own}; pwd > {own}/pwd"),
    ]);
    assert_eq!(made.code(), 0, "{}", made.err());
    assert!(!made.err().contains("may not mount"), "{}", made.err());
    assert_eq!(
        home.ok(["ssh", "task1.a", &format!("cat ~/own{name}/pwd; sh {}/tool", below.path().display())]),
        "/root\na tool of mine\n"
    );

    // Each has its own, however it is reached.
    home.ok(["ssh", "task0.a", &format!("echo first > {own}/whose")]);
    assert_eq!(home.ok(["ssh", "task1.a", &format!("ls {own}")]), "pwd\n");
    home.write("copied", "copied\n");
    home.ok(["scp", "copied", &format!("task1.a:{own}/copied")]);
    home.ok(["scp", "copied", "task1.a:beside"]);
    home.set_binary(env!("CARGO_BIN_EXE_muster"));
    assert_eq!(
        home.ok(["session", "run", "a/1", "-c", &format!("cd {own} && cat copied /root/beside")]),
        "copied\ncopied\n"
    );
    assert_eq!(home.ok(["exec", "a/0", "--", "ssh", "task1.a", &format!("cat {own}/copied")]), "copied\n");
    // What looks like another build in a task does not replace the server that runs it.
    let copy = below.path().join("muster");
    std::fs::copy(env!("CARGO_BIN_EXE_muster"), &copy).unwrap();
    let listed = home.ok(["exec", "a/0", "--", copy.to_str().unwrap(), "machine", "ls"]);
    assert!(listed.contains("task1.a"), "the server is there as well: {listed}");
    assert!(!Path::new(&own).exists() && !Path::new("/root/beside").exists());

    // An agent that is killed changes nothing of it, nor does a machine that is stopped.
    let whose = format!("{own}/whose");
    let is_kept = || home.run(["exec", "a/0", "--", "cat", &whose]).out() == "first\n";
    assert_eq!(home.kill("agent"), 1);
    wait_for("the machine to be reached again", is_kept);
    home.ok(["machine", "stop", "task0.a"]);
    home.ok(["machine", "start", "task0.a"]);
    assert!(is_kept());
    home.kill("supervise");
    home.run(["machine", "kill", "a"]);
    home.wait_for_no_tasks();
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(&name) && !mounts.contains("muster /root overlay"), "{mounts}");
    wait_for("the machines to be removed", || home.run(["rm", "last"]).code() == 0);
    let tasks = home.path().join("node/tasks");
    let is_empty = || std::fs::read_dir(&tasks).is_ok_and(|mut tasks| tasks.next().is_none());
    wait_for("nothing of them to be left", is_empty);
    assert!(!Path::new(&own).exists());
}

#[test]
fn machines_of_muster_have_a_root_of_their_own_when_they_are_asked_to() {
    let home = Home::new(env!("CARGO_BIN_EXE_muster"));
    home.ok(["machine", "create", "plain"]);
    assert_ne!(home.ok(["exec", "plain", "--", "pwd"]), "/root\n");
    home.ok(["machine", "create", "own", "--own-home"]);
    assert_eq!(home.ok(["exec", "own", "--", "sh", "-c", "pwd; echo $HOME"]), "/root\n/root\n");
    let refused = home.run(["machine", "create", "far", "--own-home", "--on", "ssh/gpu"]);
    assert!(
        refused.code() == 2 && refused.err().contains("own_home: only machines on local"),
        "{}",
        refused.err()
    );
    home.ok(["machine", "kill", "plain", "own"]);
}

/// The same, called without a right that root has.
fn without(home: &mut Home, program: &str) {
    let binary = home.shared().join("fastgpu");
    let wrapper = home.shared().join("wrapper");
    let text = format!("#!/bin/sh\nexec {program} '{}' \"$@\"\n", binary.display());
    std::fs::write(&wrapper, text).expect("the wrapper");
    std::fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("its mode");
    home.set_binary(wrapper);
}

#[test]
fn without_the_right_to_mount_it_is_said_whose_root_there_is() {
    let mut home = called("fastgpu");
    without(&mut home, "setpriv --bounding-set -sys_admin");
    let made = home.run(["create", "-n", "a", "-np", "2"]);
    assert_eq!(made.code(), 0, "{}", made.err());
    let note = "note: paths below /root are this computer's, since muster may not mount here";
    assert_eq!(made.err().matches(note).count(), 1, "{}", made.err());
    assert_ne!(home.ok(["ssh", "task1.a", "pwd"]), "/root\n");
    home.ok(["kill", "-f", "{a}"]);
}

#[test]
fn an_account_without_privileges_has_machines_with_a_root_of_their_own() {
    let mut home = Home::new(env!("CARGO_BIN_EXE_muster"));
    home.give_to(Slurm::ACCOUNT);
    let link = home.shared().join("fastgpu");
    symlink("../muster", &link).unwrap();
    home.set_binary(&link);
    let made = home.run(["create", "-n", "a", "-np", "2"]);
    assert_eq!(made.code(), 0, "{}", made.err());
    assert_eq!(
        made.err().matches("note: /root is each machine's own, and sudo has no effect").count(),
        1,
        "{}",
        made.err()
    );
    for (machine, content) in [("task0.a", "0"), ("task1.a", "1")] {
        assert_eq!(
            home.ok([
                "ssh",
                machine,
                &format!("ls /root/whose 2>/dev/null; echo {content} > /root/whose; pwd; cat ~/whose")
            ]),
            format!("/root\n{content}\n")
        );
    }
    assert_eq!(home.ok(["ssh", "task0.a", "ssh task1.a cat /root/whose"]), "1\n");
    home.ok(["stop", "task1.a"]);
    home.ok(["start", "task1.a"]);
    assert_eq!(home.ok(["ssh", "task1.a", "cat /root/whose"]), "1\n");
    home.ok(["kill", "-f", "{a}"]);
    home.wait_for_no_tasks();
}

/// What a line of the shell prints by plain `ssh`, with what `muster ssh-config` prints.
fn plain_ssh(home: &Home, host: &str, line: &str) -> String {
    home.write("ssh_config", home.ok(["ssh-config"]));
    let done = std::process::Command::new("ssh")
        .arg("-F")
        .arg(home.work().join("ssh_config"))
        .args([host, line])
        .env("MUSTER_HOME", home.path())
        .output()
        .expect("Debian: apt-get install openssh-client");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

#[test]
fn one_machine_of_a_group_has_a_name_of_its_own() {
    let mut home = called("ecluster");
    home.ok(["create", "-n", "v100", "-np", "2"]);
    home.ok(["create", "-n", "other"]);
    assert_eq!(home.ok(["rename", "task1.v100", "eval"]), "task1.v100 is now eval\n");
    for taken in ["other", "v100", "task0.other", "task0.v100"] {
        let refused = home.run(["rename", "task0.v100", taken]);
        assert!(taken == "task0.v100" || refused.err().contains("name_taken"), "{taken}: {}", refused.err());
    }
    let listed = home.ok(["ls"]);
    assert!(
        listed.contains("\neval ") && listed.contains("\ntask0.v100 ") && !listed.contains("task1.v100"),
        "{listed}"
    );
    assert_eq!(home.ok(["ssh", "eval", "echo $MUSTER_RANK"]), "1\n");
    home.write("file", "content\n");
    home.ok(["scp", "file", "eval:copied"]);
    assert_eq!(home.ok(["ssh", "task1.v100", "cat copied"]), "content\n");
    assert_eq!(home.ok(["rename", "v100", "bert"]), "task0.v100 is now task0.bert\n");
    assert_eq!(home.ok(["stop", "eval"]), "eval stopped\n");
    assert!(home.ok(["ls"]).split_once("Stopped Instances:").expect("one is stopped").1.contains("\neval "));
    home.ok(["start", "eval"]);
    home.set_binary(env!("CARGO_BIN_EXE_muster"));
    assert_eq!(home.ok(["exec", "eval", "--", "sh", "-c", "echo $MUSTER_RANK; cat copied"]), "1\ncontent\n");
    assert_eq!(home.json(["exec", "--json", "eval", "--", "true"])["task"], 1);
    home.ok(["cp", "eval:copied", "back"]);
    assert_eq!(std::fs::read_to_string(home.work().join("back")).unwrap(), "content\n");
    let by_ssh = home.run(["ssh-proxy", "nobody.muster"]);
    assert!(by_ssh.err().contains("machine_not_found"), "{}", by_ssh.err());
    assert_eq!(plain_ssh(&home, "eval.muster", "echo $MUSTER_RANK"), "1\n");
    let rows = home.json(["machine", "ls", "--json"]);
    assert_eq!((&rows[1]["name"], &rows[1]["group"]), (&"eval".into(), &"bert".into()), "{rows}");
    home.ok(["machine", "rename", "eval", "task1.bert"]);
    assert!(home.run(["exec", "eval", "--", "true"]).err().contains("job_not_found"));
    home.ok(["machine", "rename", "task1.bert", "eval"]);
    home.kill("server");
    assert_eq!(home.ok(["machine", "kill", "eval"]), "eval stopped\n");
    assert!(home.ok(["machine", "ls"]).contains("task0.bert"));
    home.ok(["machine", "kill", "bert", "other"]);
}
