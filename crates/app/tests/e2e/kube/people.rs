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
