//! The binary called as `fastgpu` and as `ecluster`, on this machine.

use std::os::unix::fs::symlink;
use std::path::Path;

use muster_testkit::hosts::{Host, Hosts};
use muster_testkit::{Home, wait_for};

use crate::home_with;

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
    assert!(listed.contains("task1.ncluster-v100   |     0.0 | 127."), "{listed}");
    assert!(home.ok(["ls", "-a"]).contains("| node_local"));
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

    let one = home.run(["stop", "task0.ncluster-v100"]);
    assert!(one.code() == 2 && one.err().contains("{ncluster-v100}"), "{}", one.err());
    assert_eq!(
        home.ok(["stop", "{ncluster-v100}"]),
        "task0.ncluster-v100 stopped\ntask1.ncluster-v100 stopped\n"
    );
    assert!(home.ok(["ls"]).contains("Stopped Instances:"));
    assert!(home.ok(["start", "ncluster-v100"]).contains("task1.ncluster-v100 started"));
    assert!(home.ok(["rename", "ncluster-v100", "bert"]).contains("is now task0.bert"));
    let asked = home.run(["kill", "{bert}"]);
    assert!(asked.code() == 2 && asked.err().contains("--yes"), "{}", asked.err());
    assert!(home.ok(["kill", "{bert}", "-y"]).contains("task1.bert killed"));
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
fn what_only_a_cloud_has_is_said_in_a_word() {
    let home = called("fastgpu");
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
