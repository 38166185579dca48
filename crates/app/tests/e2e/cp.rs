//! `muster cp`, both ways, and through the deaths of everyone on the way.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use muster_testkit::{Home, kill, wait_for};

use crate::{home, until};

/// A job that waits for `go`, and says in `pwd` of the shared directory where it works.
fn waiting(home: &Home, flags: &[&str]) -> String {
    let script = format!("mkdir -p logs; pwd > \"$SHARED/pwd$RANK\"; {}", until("go"));
    let words: Vec<&str> = flags.iter().copied().chain(["--", "sh", "-c", &script]).collect();
    let id = home.submit(&words);
    home.wait_for_state(&id, "running");
    home.wait_for_file("pwd0");
    id
}

fn finish(home: &Home, id: &str) {
    home.touch("go");
    home.wait_for_state(id, "succeeded");
}

/// Bytes that no two places of have in common.
fn content(megabytes: u64) -> Vec<u8> {
    (0..megabytes << 17).flat_map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15)).to_le_bytes()).collect()
}

fn same_trees(one: &Path, other: &Path) {
    let compared =
        std::process::Command::new("diff").args(["-r", "--no-dereference"]).args([one, other]).output();
    let compared = compared.expect("diff, of Debian's package diffutils, starts");
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
}

#[test]
fn a_tree_goes_to_a_task_and_comes_back_as_it_was() {
    let home = home();
    let id = waiting(&home, &[]);
    let data = home.work().join("data");
    fs::create_dir_all(data.join("deep/empty")).unwrap();
    fs::write(data.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(data.join("run.sh"), fs::Permissions::from_mode(0o754)).unwrap();
    fs::write(data.join(std::ffi::OsStr::from_bytes(b"odd \xff name")), "odd").unwrap();
    fs::write(data.join("deep/large"), content(3)).unwrap();
    symlink("../run.sh", data.join("deep/link")).unwrap();
    let sent = home.json(["cp", "--json", "data", &format!("{id}:")]);
    assert_eq!((&sent["files"], &sent["skipped"]), (&4.into(), &0.into()), "{sent}");
    home.ok(["cp", "-r", &format!("{id}:data"), "back"]);
    same_trees(&data, &home.work().join("back"));
    let mode = fs::metadata(home.work().join("back/run.sh")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o754);
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    assert_eq!(modified(&data.join("deep/large")), modified(&home.work().join("back/deep/large")));
    // All of it is there: nothing moves, unless it is forced to.
    let again = home.json(["cp", "--json", "data", &format!("{id}/0:")]);
    assert_eq!((&again["files"], &again["skipped"]), (&0.into(), &4.into()), "{again}");
    let forced = home.json(["cp", "--json", "--force", "data", &format!("{id}:")]);
    // A link of the same target needs no force.
    assert_eq!((&forced["files"], &forced["bytes"]), (&3.into(), &sent["bytes"]), "{forced}");
    finish(&home, &id);
}

#[test]
fn patterns_are_expanded_in_the_task_and_here() {
    let home = home();
    let id = waiting(&home, &[]);
    for name in ["a.txt", "b.txt", "c.log", "x:y"] {
        home.write(name, name);
    }
    home.ok(["cp", "*.txt", "c.log", "./x:y", &format!("{id}:logs/")]);
    fs::create_dir(home.work().join("got")).unwrap();
    home.ok(["cp", &format!("{id}:logs/*.txt"), &format!("{id}:logs/x:y"), "got"]);
    let mut names: Vec<_> =
        fs::read_dir(home.work().join("got")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["a.txt", "b.txt", "x:y"]);
    // The output directory, as `get` calls it; and the task's home.
    home.ok(["cp", "a.txt", &format!("{id}:@output/kept")]);
    home.ok(["cp", &format!("{id}:@output/kept"), "kept"]);
    assert_eq!(fs::read_to_string(home.work().join("kept")).unwrap(), "a.txt");
    finish(&home, &id);
}

#[test]
fn every_task_of_a_gang_gets_files_and_gives_them() {
    let home = home();
    let id = waiting(&home, &["-N", "2"]);
    home.wait_for_file("pwd1");
    home.write("vocab", "words");
    home.ok(["cp", "--all", "vocab", &format!("{id}:logs")]);
    home.ok(["cp", "--all", &format!("{id}:logs/vocab"), "from"]);
    for task in ["task0", "task1"] {
        assert_eq!(fs::read_to_string(home.work().join("from").join(task).join("vocab")).unwrap(), "words");
    }
    finish(&home, &id);
}

#[test]
fn what_all_tasks_get_is_passed_on_by_the_first() {
    let home = home();
    let id = waiting(&home, &["-N", "3", "--peers"]);
    (1..3).for_each(|rank| drop(home.wait_for_file(&format!("pwd{rank}"))));
    let data = home.work().join("data");
    fs::create_dir_all(data.join("deep/empty")).unwrap();
    fs::write(data.join("run.sh"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(data.join("run.sh"), fs::Permissions::from_mode(0o754)).unwrap();
    fs::write(data.join("deep/large"), content(20)).unwrap();
    symlink("../run.sh", data.join("deep/link")).unwrap();
    // What lies beside it in the first task is that one's own.
    home.ok(["exec", &id, "--", "sh", "-c", "mkdir -p data && echo own > data/own"]);
    let sent = home.json(["cp", "--all", "--json", "data", "data/run.sh", &format!("{id}:")]);
    assert_eq!(sent["files"], 4, "{sent}");
    for rank in 0..3 {
        let work = fs::read_to_string(home.shared().join(format!("pwd{rank}"))).unwrap();
        let work = Path::new(work.trim());
        if rank == 0 {
            fs::remove_file(work.join("data/own")).unwrap();
        }
        same_trees(&data, &work.join("data"));
        let mode = fs::metadata(work.join("run.sh")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o754, "task {rank}");
    }
    let again = home.json(["cp", "--all", "--json", "data", &format!("{id}:")]);
    assert_eq!((&again["files"], &again["skipped"]), (&0.into(), &3.into()), "{again}");
    // One that cannot take it does not keep the others from it, and is named.
    home.ok(["exec", &format!("{id}/1"), "--", "sh", "-c", "rm -r data && echo file > data"]);
    fs::write(data.join("new"), "new").unwrap();
    let failed = home.run(["cp", "--all", "data", &format!("{id}:")]);
    assert_eq!(failed.code(), 1, "{}", failed.err());
    assert!(failed.err().contains("task1"), "{}", failed.err());
    assert_eq!(home.ok(["exec", &format!("{id}/2"), "--", "cat", "data/new"]), "new");
    finish(&home, &id);
}

#[test]
fn what_cannot_be_copied_is_named_and_the_rest_is_copied() {
    let home = home();
    let id = waiting(&home, &[]);
    home.write("good", "good");
    let partly = home.run(["cp", "good", "absent", &format!("{id}:logs")]);
    assert_eq!(partly.code(), 1, "{}", partly.err());
    assert!(partly.err().contains("error[copy_incomplete]: 1 file was not copied"), "{}", partly.err());
    assert!(partly.err().contains("absent: no such file or directory"), "{}", partly.err());
    home.ok(["cp", &format!("{id}:logs/good"), "back"]);
    let nowhere = home.run(["cp", "good", &format!("{id}:no/such/place")]);
    assert!(nowhere.err().contains("error[copy_failed]"), "{}", nowhere.err());
    for wrong in [vec!["cp", "good", "good2"], vec!["cp", "a:x", "b:y"], vec!["cp", "--all", "good", "a/0:"]]
    {
        let refused = home.run(&wrong);
        assert_eq!(refused.code(), 2, "{wrong:?}: {}", refused.err());
        assert!(refused.err().contains("error[usage]"), "{wrong:?}: {}", refused.err());
    }
    finish(&home, &id);
    let over = home.run(["cp", &format!("{id}:logs/good"), "later"]);
    assert!(over.err().contains("error[invalid_state]"), "{}", over.err());
    assert!(over.err().contains("`muster get"), "{}", over.err());
}

/// Whoever may die in the middle of a copy.
const ON_THE_WAY: [&str; 3] = ["inside", "agent", "server"];

#[test]
fn a_copy_to_a_task_survives_everyone_on_the_way() {
    let home = home();
    let id = waiting(&home, &[]);
    let whole = content(96);
    home.write("big", &whole);
    for victim in ON_THE_WAY {
        let place = home.shared().join(victim);
        fs::create_dir(&place).unwrap();
        let part = place.join(".big.muster-part");
        let copying = home.start(["cp", "big", &format!("{id}:{}", place.display())]);
        wait_for("some of it to be there", || part.metadata().is_ok_and(|stat| stat.len() > 8 << 20));
        assert!(home.kill(victim) > 0, "{victim}");
        let copied = copying.finish();
        assert_eq!(copied.code(), 0, "{victim}: {}", copied.err());
        assert!(fs::read(place.join("big")).unwrap() == whole, "{victim}");
        assert!(!part.exists());
        fs::remove_file(place.join("big")).unwrap();
    }
    finish(&home, &id);
}

#[test]
fn a_copy_from_a_task_survives_everyone_on_the_way() {
    let home = home();
    let id = waiting(&home, &[]);
    let whole = content(96);
    let source = home.shared().join("big");
    fs::write(&source, &whole).unwrap();
    for victim in ON_THE_WAY {
        let part = home.work().join(".big.muster-part");
        let copying = home.start(["cp", &format!("{id}:{}", source.display()), "."]);
        wait_for("some of it to be here", || part.metadata().is_ok_and(|stat| stat.len() > 8 << 20));
        assert!(home.kill(victim) > 0, "{victim}");
        let copied = copying.finish();
        assert_eq!(copied.code(), 0, "{victim}: {}", copied.err());
        assert!(fs::read(home.work().join("big")).unwrap() == whole, "{victim}");
        assert!(!part.exists());
        fs::remove_file(home.work().join("big")).unwrap();
    }
    finish(&home, &id);
}

#[test]
fn a_copy_that_was_killed_goes_on_when_it_is_run_again() {
    let home = home();
    let id = waiting(&home, &[]);
    let whole = content(96);
    fs::create_dir(home.work().join("data")).unwrap();
    home.write("data/big", &whole);
    let place = home.shared().join("new");
    let to = format!("{id}:{}", place.display());
    let part = place.join(".big.muster-part");
    let copying = home.start(["cp", "data", &to]);
    wait_for("some of it to be there", || part.metadata().is_ok_and(|stat| stat.len() > 8 << 20));
    kill(copying.pid());
    assert!(!copying.finish().status.success());
    assert!(!place.join("big").exists());
    // The directory is there now, and is still the one that was to be made.
    home.ok(["cp", "data", &to]);
    assert!(fs::read(place.join("big")).unwrap() == whole);
    assert!(!part.exists() && !place.join("data").exists());
    assert!(!home.shared().join(".new.muster-part").exists());
    finish(&home, &id);
}
