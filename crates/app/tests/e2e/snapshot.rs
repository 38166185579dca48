//! The code directory: what of it a task sees, and who may write to it.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use muster_testkit::wait_for;

use crate::home;

#[test]
fn the_code_is_copied_as_it_is_without_what_is_ignored() {
    let home = home();
    home.write("main.py", "print('hi')");
    home.write("run.sh", "#!/bin/sh\n");
    home.write("secret.txt", "s");
    home.write("lib/deep/er/x.txt", "x");
    home.write("größe 训练.txt", "u");
    home.write(".gitignore", "*.log\nbuild/\n/only-here\n");
    home.write("a.log", "");
    home.write("lib/b.log", "");
    home.write("build/out.o", "");
    home.write("only-here", "");
    home.write("lib/only-here", "");
    home.write(".musterignore", "data/\n!kept.log\n");
    home.write("kept.log", "");
    home.write("data/big.bin", "");
    home.write(".git/config", "");
    home.write(".hidden/file", "");
    let work = home.work();
    fs::create_dir_all(work.join("empty/below")).unwrap();
    symlink("main.py", work.join("link")).unwrap();
    symlink("/nowhere/at/all", work.join("dangling")).unwrap();
    symlink("lib", work.join("folder-link")).unwrap();
    for (name, mode) in [("run.sh", 0o755), ("secret.txt", 0o600), ("main.py", 0o644)] {
        fs::set_permissions(work.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let list = "find . -mindepth 1 \\( -type d -printf '%P/\\n' \\) -o \\( -type l -printf '%P -> %l\\n' \\) \
                -o -printf '%P %m\\n' | LC_ALL=C sort";
    let done = home.run(["run", "--", "sh", "-c", list]);
    let ordinary =
        format!("{:o}", fs::metadata(work.join(".gitignore")).unwrap().permissions().mode() & 0o777);
    let expected = [
        ".gitignore @".replace('@', &ordinary),
        ".hidden/".into(),
        ".hidden/file @".replace('@', &ordinary),
        ".musterignore @".replace('@', &ordinary),
        "dangling -> /nowhere/at/all".into(),
        "empty/".into(),
        "empty/below/".into(),
        "folder-link -> lib".into(),
        "größe 训练.txt @".replace('@', &ordinary),
        "kept.log @".replace('@', &ordinary),
        "lib/".into(),
        "lib/deep/".into(),
        "lib/deep/er/".into(),
        "lib/deep/er/x.txt @".replace('@', &ordinary),
        "lib/only-here @".replace('@', &ordinary),
        "link -> main.py".into(),
        "main.py 644".into(),
        "run.sh 755".into(),
        "secret.txt 600".into(),
    ];
    let shown = done.out();
    assert_eq!(shown.lines().collect::<Vec<_>>(), expected, "{}", done.err());
}

#[test]
fn ranks_write_to_copies_of_their_own() {
    let home = home();
    home.write("input.txt", "as it was\n");
    let script = r#"
echo "rank $RANK" > mine.txt; echo "by $RANK" >> input.txt; touch "$SHARED/$RANK"
while [ ! -e "$SHARED/0" ] || [ ! -e "$SHARED/1" ]; do sleep 0.01; done
cat mine.txt input.txt; pwd"#;
    let done = home.run(["run", "-N", "2", "--", "sh", "-c", script]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let shown = done.out();
    let of = |rank: u32| -> Vec<&str> {
        shown.lines().filter_map(|line| line.strip_prefix(&format!("task{rank} | "))).collect()
    };
    for rank in 0..2 {
        let lines = [format!("rank {rank}"), "as it was".into(), format!("by {rank}")];
        assert_eq!(of(rank)[..3], lines, "{shown}");
    }
    assert_ne!(of(0)[3], of(1)[3]);
    assert_eq!(fs::read_to_string(home.work().join("input.txt")).unwrap(), "as it was\n");
    assert!(!home.work().join("mine.txt").exists());

    // The next job starts from the source again, also when its code is the same.
    assert_eq!(home.ok(["run", "--", "sh", "-c", "ls; cat input.txt"]), "input.txt\nas it was\n");
    home.write("input.txt", "changed\n");
    assert_eq!(home.ok(["run", "--", "cat", "input.txt"]), "changed\n");
}

#[test]
fn in_place_runs_in_the_directory_itself() {
    let home = home();
    home.write("input.txt", "as it was\n");
    let done = home.run(["run", "--in-place", "--", "sh", "-c", "echo more >> input.txt; pwd"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert_eq!(done.out().trim(), home.work().canonicalize().unwrap().to_str().unwrap());
    assert_eq!(fs::read_to_string(home.work().join("input.txt")).unwrap(), "as it was\nmore\n");
    fs::create_dir(home.work().join("below")).unwrap();
    let done = home.run(["run", "--workdir", "below", "--in-place", "--", "touch", "here"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(home.work().join("below/here").exists());
}

#[test]
fn what_the_code_is_when_the_job_is_submitted_is_what_runs() {
    let home = home();
    home.write("value", "first\n");
    let id = home.submit(&["--", "sh", "-c", &format!("{}; cat value", crate::until("go"))]);
    home.write("value", "second\n");
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
    assert_eq!(home.ok(["logs", &id]), "first\n");
    // A large tree is sent in pieces, and comes together again.
    let large: Vec<u8> = (0..24u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(home.work().join("large.bin"), &large).unwrap();
    let id = home.submit(&[
        "--",
        "sh",
        "-c",
        "cp large.bin \"$SHARED/copy.bin\"; mv \"$SHARED/copy.bin\" \"$SHARED/done\"",
    ]);
    home.wait_for_state(&id, "succeeded");
    wait_for("the copy", || home.shared().join("done").exists());
    assert!(fs::read(home.shared().join("done")).unwrap() == large, "the copy differs");
}
