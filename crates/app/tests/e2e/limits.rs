//! Hostile or broken tasks and clients against the disks and the memory of the server and its nodes.

use std::fs;
use std::path::Path;
use std::thread;

use muster_testkit::http::Request;
use muster_testkit::peak_memory_kb;

use crate::{home, home_with};

fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => size(&entry.path()),
            Ok(metadata) => metadata.len(),
            Err(_) => 0,
        })
        .sum()
}

#[test]
fn a_task_that_floods_its_log_fills_no_disk_and_goes_on() {
    let home = home_with("[limits]\ntask_log = '1MB'\n");
    let script = "echo begun; yes | head -c 60000000; echo end; touch $SHARED/end";
    let job = home.submit(&["--", "sh", "-c", script]);
    home.wait_for_file("end");
    home.wait_for_state(&job, "succeeded");
    let log = home.ok(["logs", &job]);
    assert!(log.starts_with("begun\n"), "{}", &log[..100]);
    // The last words may still be on their way to the server.
    muster_testkit::wait_for("the whole log", || home.ok(["logs", &job]).contains("of output were dropped"));
    let log = home.ok(["logs", &job]);
    let cut = log.find("log cut here").expect("the log says where it was cut");
    assert!(log[cut..].contains("limits.task_log") && !log[cut..].contains("\nend\n"), "{}", &log[cut..]);
    for dir in ["logs", "node"] {
        let bytes = size(&home.path().join(dir));
        assert!(bytes < 8 << 20, "{dir} has {bytes} bytes");
    }
}

#[test]
fn large_manifests_at_once_leave_the_servers_memory_small() {
    const CHUNKS: usize = 250_000;
    let home = home();
    home.wait_for_node();
    let piece = format!("{{\"id\":\"chunk_{}\",\"bytes\":1}}", "0".repeat(64));
    let content = vec![piece.as_str(); CHUNKS].join(",");
    let body = format!("{{\"listing\":[],\"content\":[{content}]}}").into_bytes();
    let request =
        Request::new("POST", "/api/v1/bundles").header("content-type", "application/json").body(body);
    let pid = home.server_pid();
    let before = peak_memory_kb(pid).expect("its memory");
    let statuses: Vec<u16> = thread::scope(|scope| {
        let senders: Vec<_> = (0..12).map(|_| scope.spawn(|| home.door().ask(&request).status)).collect();
        senders.into_iter().map(|sender| sender.join().expect("a reply")).collect()
    });
    // Read one after the other; who waits too long is told when to come again.
    assert!(statuses.iter().all(|status| [200, 429].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&200), "{statuses:?}");
    let grown = peak_memory_kb(pid).expect("its memory") - before;
    assert!(grown < 100 << 10, "the server grew by {grown} KB");
}
