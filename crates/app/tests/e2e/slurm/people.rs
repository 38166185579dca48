//! From where people use a cluster: from its login node with their own account, and from a laptop that reaches only that.

use muster_testkit::{Home, Slurm, SlurmSite, wait_for};

use crate::pool::slim;

/// A muster on a laptop that reaches a site's login node.
pub(super) fn laptop(site: &SlurmSite) -> Home {
    let home = Home::new(slim());
    home.configure(&format!(
        "[slurm]\nlogin = \"{}\"\nkey = \"{}\"\n",
        site.login().destination_of(muster_testkit::Account::Ordinary),
        site.hosts().key().display()
    ));
    home
}

#[test]
fn an_ordinary_account_needs_no_settings_on_a_login_node() {
    let slurm = Slurm::start();
    let mut home = Home::new(slim());
    home.set_variable("SLURM_CONF", slurm.conf());
    // Theirs is this machine's, and what is there stays there.
    home.configure(&format!("[slurm]\ndirectory = \"{}\"\n", slurm.home().join("muster").display()));
    home.give_to(Slurm::ACCOUNT);
    let done = home.run(["run", "--on", "slurm/main", "-N", "2", "--", "sh", "-c", "echo $(whoami) $RANK"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    for rank in ["0", "1"] {
        assert_eq!(home.ok(["logs", "last", "--task", rank]), format!("muster-test {rank}\n"));
    }
    assert_eq!(home.run(["run", "--on", "slurm/gpu", "--gpus", "1", "--", "sh", "-c", "exit 4"]).code(), 4);
    wait_for("nothing to be left", || slurm.open_jobs().is_empty());
}

#[test]
fn a_laptop_runs_gangs_on_a_cluster_that_does_not_reach_it() {
    let site = SlurmSite::start(2);
    let home = laptop(&site);
    home.write("data", "what is sent is there\n");
    let script = "cat data; echo $(whoami) $RANK $(hostname) $CUDA_VISIBLE_DEVICES; echo $RANK > \"$MUSTER_OUTPUT_DIR/rank\"";
    let words = ["run", "--on", "slurm/main", "-N", "2", "--gpus", "2", "--", "sh", "-c", script];
    let done = home.run(words);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    for rank in 0..2 {
        let text = home.ok(["logs", "last", "--task", &rank.to_string()]);
        assert_eq!(text, format!("what is sent is there\ntrain {rank} host{} 0,1\n", rank + 1));
    }
    assert_eq!(home.ok(["get", "last", "@output/rank", "--task", "1", "-o", "-"]), "1\n");
    let job = home.submit(&["--on", "slurm/main", "-N", "2", "--", "sleep", "1000"]);
    home.wait_for_state(&job, "running");
    assert_eq!(home.ok(["exec", &format!("{job}/1"), "--", "hostname"]), "host2\n");
    home.kill("server");
    assert_eq!(home.ok(["exec", &format!("{job}/0"), "--", "hostname"]), "host1\n");
    home.ok(["stop", &job]);
    wait_for("the nodes to be free", || {
        site.login().run("squeue -h").is_empty()
            && (1..=2).all(|number| site.node(number).processes_with("sleep 1000").is_empty())
    });
}
