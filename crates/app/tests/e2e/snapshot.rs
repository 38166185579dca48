//! The code directory: what of it a task sees, and who may write to it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use muster_testkit::{Home, Running, wait_for};

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

/// How many chunks a server has, and how large they are.
fn chunks(home: &Home) -> (usize, u64) {
    let mut total = (0, 0);
    for folder in fs::read_dir(home.path().join("chunks")).expect("chunks").flatten() {
        for file in fs::read_dir(folder.path()).into_iter().flatten().flatten() {
            total = (total.0 + 1, total.1 + file.metadata().expect("a chunk").len());
        }
    }
    total
}

/// Bytes that cannot be compressed, and no two chunks of which are the same.
fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed << 1 | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn bundle(home: &Home, id: &str) -> String {
    home.job(id)["bundle"].as_str().expect("a bundle").to_owned()
}

#[test]
fn only_what_changed_travels() {
    let home = home();
    for file in 0..40 {
        home.write(&format!("data/{file:02}.bin"), noise(300_000, file));
    }
    home.write("train.py", "print('one')\n");
    let first = home.submit(&["--", "cat", "train.py"]);
    let (count, bytes) = chunks(&home);
    assert!(bytes >= 12_000_000 && count > 20, "{count} chunks, {bytes} bytes");

    home.write("train.py", "print('two')\n");
    let second = home.submit(&["--", "cat", "train.py"]);
    let (more, after) = chunks(&home);
    assert!(more - count <= 4, "{} new chunks", more - count);
    assert!(after - bytes < 2_200_000, "{} new bytes", after - bytes);
    assert_ne!(bundle(&home, &first), bundle(&home, &second));

    // The same code is the same bundle, however it came about.
    let third = home.submit(&["--", "cat", "train.py"]);
    assert_eq!(bundle(&home, &third), bundle(&home, &second));
    fs::remove_dir_all(home.path().join("snapshots")).unwrap();
    let fourth = home.submit(&["--", "cat", "train.py"]);
    assert_eq!(bundle(&home, &fourth), bundle(&home, &second));
    assert_eq!(chunks(&home), (more, after));
    for (job, shown) in [(&first, "print('one')\n"), (&second, "print('two')\n"), (&fourth, "print('two')\n")]
    {
        home.wait_for_state(job, "succeeded");
        assert_eq!(home.ok(["logs", job.as_str()]), shown);
    }
}

#[test]
fn a_server_that_lost_the_code_gets_it_again() {
    let home = home();
    home.write("value", "as it was\n");
    home.write("data.bin", noise(5_000_000, 1));
    assert_eq!(home.ok(["run", "--", "cat", "value"]), "as it was\n");
    assert_eq!(home.run(["server", "stop"]).code(), 0);
    // Everything but what the client remembers.
    for entry in fs::read_dir(home.path()).unwrap().map(Result::unwrap) {
        if entry.file_name() != "snapshots" {
            let _ = fs::remove_dir_all(entry.path());
            let _ = fs::remove_file(entry.path());
        }
    }
    assert_eq!(home.ok(["run", "--", "cat", "value"]), "as it was\n");
    assert_eq!(home.ok(["run", "--", "sh", "-c", "wc -c < data.bin"]).trim(), "5000000");
}

#[test]
fn odd_names_and_times_survive() {
    let home = home();
    let work = home.work();
    let odd = OsStr::from_bytes(b"not-utf8-\xff");
    fs::write(work.join(odd), "raw").unwrap();
    home.write("two\nlines", "n");
    home.write("old", "o");
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    fs::File::open(work.join("old")).unwrap().set_modified(old).unwrap();
    symlink(".", work.join("loop")).unwrap();
    let show = "stat -c %y old; cat not-utf8-*; readlink loop; cat \"$(printf 'two\\nlines')\"";
    let done = home.run(["run", "--", "sh", "-c", &format!("TZ=UTC; export TZ; {show}")]);
    assert_eq!(done.out(), "2001-09-09 01:46:40.123456789 +0000\nraw.\nn", "{}", done.err());
}

#[test]
fn what_cannot_be_read_is_named_and_no_job_is_made() {
    let home = home();
    home.ok(["server", "start"]);
    home.write("good", "x");
    home.write("secret", "x");
    let secret = home.work().join("secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    // Root reads everything, unless it gives that right away.
    let run = |words: &[&str]| {
        let plain = home.command(words);
        if fs::read(&secret).is_err() {
            return Running::start(plain).finish();
        }
        let mut command = Command::new("setpriv");
        command.args(["--bounding-set", "-dac_override,-dac_read_search"]).arg(plain.get_program());
        command.args(plain.get_args()).current_dir(home.work()).env("MUSTER_HOME", home.path());
        Running::start(command).finish()
    };
    let done = run(&["run", "--", "true"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("cannot read `secret`: permission denied"), "{}", done.err());
    assert!(done.err().contains(".musterignore"), "{}", done.err());
    assert_eq!(home.json(["ps", "--all", "--json"]).as_array().map(Vec::len), Some(0));
    home.write(".musterignore", "secret\n");
    assert_eq!(run(&["run", "--", "true"]).code(), 0);
}

#[test]
fn a_pipe_and_a_socket_are_left_out_with_a_note() {
    let home = home();
    home.write("a", "x");
    assert!(Command::new("mkfifo").arg(home.work().join("pipe")).status().unwrap().success());
    let _socket = std::os::unix::net::UnixListener::bind(home.work().join("socket")).unwrap();
    let done = home.run(["run", "--", "ls"]);
    assert_eq!(done.out(), "a\n");
    assert!(done.err().contains("pipe, socket"), "{}", done.err());
}

#[test]
fn the_largest_files_of_a_large_directory_are_named_once() {
    let home = home();
    for file in 0..12_u64 {
        fs::File::create(home.work().join(format!("model-{file:02}.bin")))
            .unwrap()
            .set_len((file + 4) << 20)
            .unwrap();
    }
    let done = home.run(["run", "--", "true"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let said = done.err();
    assert!(said.contains("largest files:\n  15 MB  model-11.bin\n"), "{said}");
    assert!(said.contains("model-02.bin") && !said.contains("model-01.bin"), "{said}");
    assert!(said.contains(".musterignore"), "{said}");
    let again = home.run(["run", "--", "true"]);
    assert!(!again.err().contains("largest"), "{}", again.err());
}

fn git(folder: &Path, words: &[&str]) -> String {
    let done = Command::new("git")
        .args([
            "-c",
            "user.name=someone",
            "-c",
            "user.email=someone@example.com",
            "-c",
            "init.defaultBranch=main",
        ])
        .args(words)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .expect("git runs");
    assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("git runs").trim().to_owned()
}

#[test]
fn the_commit_and_what_differs_from_it_are_recorded_with_the_job() {
    let home = home();
    home.write("train.py", "one\n");
    let work = home.work();
    let none = home.submit(&["--", "true"]);
    assert!(home.job(&none)["source"].is_null());
    let asked = home.run(["show", &none, "--diff"]);
    assert_eq!(asked.code(), 2);
    assert!(asked.err().contains("not known which commit"), "{}", asked.err());

    git(&work, &["init", "-q"]);
    git(&work, &["add", "."]);
    git(&work, &["commit", "-q", "-m", "first"]);
    let commit = git(&work, &["rev-parse", "HEAD"]);
    let clean = home.submit(&["--", "sh", "-c", "ls -A"]);
    let source = &home.job(&clean)["source"];
    assert_eq!((source["commit"].as_str(), source["branch"].as_str()), (Some(commit.as_str()), Some("main")));
    assert_eq!(source["dirty"], false);
    assert!(home.ok(["show", &clean]).contains(&format!("{commit} on main\n")));
    assert_eq!(home.ok(["show", &clean, "--diff"]), "");

    home.write("train.py", "two\n");
    for _ in 0..2 {
        let dirty = home.submit(&["--", "true"]);
        assert_eq!(home.job(&dirty)["source"]["dirty"], true);
        let diff = home.ok(["show", &dirty, "--diff"]);
        assert!(diff.contains("--- a/train.py\n+++ b/train.py\n@@ -1 +1 @@\n-one\n+two\n"), "{diff}");
        assert!(home.ok(["show", &dirty]).contains("with changes"));
    }
    home.wait_for_state(&clean, "succeeded");
    assert_eq!(home.ok(["logs", &clean]), "train.py\n", "the repository itself is not copied");
}

#[test]
fn commands_at_once_from_one_directory_all_run_what_is_there() {
    let home = home();
    for file in 0..50 {
        home.write(&format!("{file}"), format!("content {file}\n"));
    }
    let running: Vec<_> =
        (0..4).map(|_| home.start(["run", "--", "sh", "-c", "cat * | sort | uniq | wc -l"])).collect();
    for running in running {
        let done = running.finish();
        assert_eq!(done.out().trim(), "50", "{}", done.err());
    }
}
