//! Hosts that cannot be used, or only just: what is said, and that it is mended without starting anything anew.

use muster_testkit::{Account, Finished};

use super::Site;

/// Adds the first host, which is refused for a reason that names these.
fn refused(site: &Site, added: &Finished, words: &[&str]) {
    assert_ne!(added.code(), 0, "{}{}", added.out(), added.err());
    let said = format!("{}{}", added.out(), added.err());
    for word in words.iter().chain(&[&*site.host(0).address().to_string()]) {
        assert!(said.contains(word), "{word:?} is not in:\n{said}");
    }
    // The same is there for whoever comes later.
    let node = site.node(0);
    assert_eq!(node["connected"], false);
    assert!(node["error"]["message"].as_str().is_some_and(|text| text.contains(words[0])), "{node}");
}

/// The pool is used, after its first host was mended.
fn works(site: &Site) {
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    assert_eq!(site.home.ok(["run", "--on", "ssh/gpu", "--", "hostname"]), "host0\n");
}

#[test]
fn a_wrong_key_is_said_and_the_right_one_mends_it() {
    let site = Site::bare(1);
    let key = site.hosts.wrong_key();
    let added = site.add_with(&key, &site.destinations(Account::Root));
    refused(&site, &added, &["key"]);
    works(&site);
}

#[test]
fn a_changed_host_key_is_refused_until_somebody_says_that_it_is_right() {
    let site = Site::new(1);
    site.host(0).new_host_key();
    site.host(0).reboot();
    site.wait_for_connected(0, false);
    let added = site.add(&site.destinations(Account::Root));
    refused(&site, &added, &["key", "known_hosts"]);
    let known = site.home.path().join("ssh/known_hosts");
    let known = known.to_str().expect("a path of a test");
    let address = site.host(0).address().to_string();
    let removed = std::process::Command::new("ssh-keygen").args(["-q", "-R", &address, "-f", known]).output();
    assert!(removed.expect("ssh-keygen starts").status.success());
    works(&site);
}

#[test]
fn a_full_disk_is_said_and_space_mends_it() {
    let site = Site::bare(1);
    site.host(0).fill_disk();
    let added = site.add(&site.destinations(Account::Root));
    refused(&site, &added, &["space"]);
    site.host(0).free_disk();
    works(&site);
}

#[test]
fn a_home_that_cannot_be_written_to_is_done_without() {
    let site = Site::bare(1);
    site.host(0).read_only_home();
    works(&site);
    assert!(site.host(0).try_run("ls -d /root/.muster").code() != 0);
}

#[test]
fn a_host_with_sh_alone_and_no_tmux_runs_everything() {
    let site = Site::bare(1);
    site.host(0).only_sh();
    site.host(0).without("tmux");
    works(&site);
    let job = site.submit(&["--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    assert_eq!(site.home.ok(["exec", &job, "--", "sh", "-c", "echo $0"]), "sh\n");
    site.home.ok(["stop", &job]);
}

#[test]
fn a_host_that_is_not_there_is_said_and_used_when_it_comes() {
    let site = Site::bare(1);
    site.host(0).power_off();
    let added = site.add(&site.destinations(Account::Root));
    assert_ne!(added.code(), 0, "{}{}", added.out(), added.err());
    let job = site.submit(&["--", "hostname"]);
    let why = site.home.ok(["why", &job]);
    assert!(why.contains("gpu"), "{why}");
    site.host(0).power_on();
    site.home.wait_for_state(&job, "succeeded");
    assert_eq!(site.home.ok(["logs", &job]), "host0\n");
}
