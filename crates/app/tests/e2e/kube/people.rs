//! What people do with a cluster: they train over its nodes with images as they are.

use std::path::Path;

use super::Site;

/// Copies an example into the code directory.
fn example(site: &Site, name: &str) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(name);
    for entry in std::fs::read_dir(folder).expect("an example") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, site.home.work().join(path.file_name().expect("a name"))).expect("its file");
    }
}

#[test]
fn the_example_trains_over_two_nodes() {
    let site = Site::new();
    example(&site, "kubernetes");
    // Each takes more than half of a node's devices.
    let done =
        site.home.run(["run", "--file", "job.yaml", "--on", "k8s", "--image", super::IMAGE, "--gpus", "5"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let said = done.out();
    let sums: Vec<&str> = said.lines().filter_map(|line| Some(line.split_once("checksum ")?.1)).collect();
    assert_eq!(sums.len(), 2, "{said}");
    assert_eq!(sums[0], sums[1], "all ranks end with the same parameters");
    let shown = site.home.json(["show", "last", "--json"]);
    assert_ne!(shown["allocation"]["hosts"][0], shown["allocation"]["hosts"][1], "{shown}");
    site.wait_for_nothing_left();
}

#[test]
fn every_task_has_its_users_part_of_a_volume() {
    let site = Site::new();
    let nas = site.home.shared().join("nas");
    std::fs::create_dir(&nas).expect("what a file server has");
    let settings = |name: &str| {
        let whole = super::configuration(&site.kube, &site.namespace, &site.home, "");
        let nas = nas.display();
        format!(
            "{whole}[k8s.volumes.{name}]\nhost_path = \"{nas}\"\n[volumes.user]\npath = \"/mnt/user/{{user}}\"\n"
        )
    };
    // What the cluster has under no name that is known cannot be had, and that is said before anything waits.
    site.home.configure(&settings("other"));
    let refused = site.home.run(["run", "--on", "k8s", "--", "true"]);
    assert_eq!(refused.code(), 2, "{}{}", refused.out(), refused.err());
    assert!(refused.err().contains("k8s.volumes"), "{}", refused.err());
    site.home.ok(["server", "stop"]);
    site.home.configure(&settings("user"));
    let line = "cd /mnt/user/* && echo of $RANK > $RANK && pwd";
    let job = site.submit_line(&["-N", "2", "--gpus", "5"], line);
    let done = site.end_of(&job, 0);
    let owner = done["owner"].as_str().expect("somebody's");
    for rank in 0..2 {
        let written = std::fs::read_to_string(nas.join(owner).join(rank.to_string())).expect("its file");
        assert_eq!(written, format!("of {rank}\n"));
    }
    assert!(site.home.ok(["logs", &job]).contains(&format!("/mnt/user/{owner}\n")));
    site.wait_for_nothing_left();
}
