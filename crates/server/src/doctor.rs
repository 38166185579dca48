//! How the server is: what an operator would look at first, as pure judgements over what was found.
//!
//! What fleets and agents are like is known from what they have said; other schedulers were asked by whoever calls this.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use muster_api::cluster::{ClusterView, HiddenPlace};
use muster_api::doctor::Check;
use muster_api::view::NodeView;
use muster_model::Timestamp;
use muster_model::quantity::format_bytes;
use muster_store::OwedRemovals;

use crate::disk;

/// Every connection and every task costs a few; see `raise_open_files` in the binary.
const FEW_OPEN_FILES: u64 = 4096;
/// A node that is connected removes what is large within this time.
const REMOVAL: Duration = Duration::from_secs(600);

/// What the server found out about itself.
pub(crate) struct Facts<'a> {
    pub home: &'a str,
    pub version: &'a str,
    pub engines: Vec<&'static str>,
    pub nodes: Vec<NodeView>,
    /// What other schedulers say that they have.
    pub clusters: Vec<ClusterView>,
    /// Whether a file could be written into the data directory.
    pub write: io::Result<()>,
    /// Whether the database could be read.
    pub read: Result<(), String>,
    /// Free bytes, all bytes, and how many more files can be made, where that is limited.
    pub space: io::Result<(u64, u64, Option<u64>)>,
    /// How much of the disk reserve is left, and how large it is when it is whole.
    pub reserve: (u64, u64),
    /// None if there is no limit.
    pub open_files: Option<u64>,
    /// How many secrets there are, and which of them cannot be opened.
    pub secrets: Result<(usize, Vec<String>), String>,
    /// What nodes have yet to remove.
    pub owed_removals: Vec<OwedRemovals>,
    pub now: Timestamp,
}

/// The judgements, the server first, then engines and nodes.
pub(crate) fn checks(facts: &Facts) -> Vec<Check> {
    let mut checks = vec![data(facts), database(facts), space(facts), open_files(facts.open_files)];
    checks.extend(reserve(facts));
    checks.extend(secrets(&facts.secrets));
    for engine in &facts.engines {
        checks.push(engine_check(engine, &facts.nodes));
    }
    checks.extend(facts.clusters.iter().flat_map(cluster_checks));
    checks.extend(facts.nodes.iter().map(|node| node_check(node, facts)));
    checks.extend(facts.owed_removals.iter().filter_map(|owed| removal_check(owed, facts)));
    checks
}

/// A node that is there removes files at once. What it still has after some minutes it cannot remove.
fn removal_check(owed: &OwedRemovals, facts: &Facts) -> Option<Check> {
    let OwedRemovals { node, jobs, since } = owed;
    let is_there = facts.nodes.iter().any(|one| one.id == *node && one.connected);
    let is_recent = since.is_some_and(|since| facts.now < since + REMOVAL);
    if is_there && is_recent {
        return None;
    }
    let since = since.map(|since| since.strftime(", the first removed at %Y-%m-%d %H:%M UTC").to_string());
    let jobs = if *jobs == 1 { "1 removed job".into() } else { format!("{jobs} removed jobs") };
    let remedy = match is_there {
        true => "its agent.log says why they cannot be removed; the agent tries again when it connects",
        false => "it removes them when it is back; `muster pool rm` forgets a host that will not be",
    };
    let detail = format!("still has files of {jobs}{}", since.unwrap_or_default());
    Some(Check::warning(format!("removals of {node}"), detail, remedy))
}

/// One that answers and has nothing is nobody's: a server that could use Slurm, where there is none.
fn cluster_checks(cluster: &ClusterView) -> Vec<Check> {
    let engine = &cluster.engine;
    let remedy =
        "jobs there wait until it answers; see that it runs and that this server reaches it and may log in";
    let mut checks = Vec::new();
    if let Some(error) = &cluster.error {
        checks.push(Check::broken(format!("engine {engine}"), format!("does not answer: {error}"), remedy));
    }
    if !cluster.nodes.is_empty() {
        let detail = format!("answers, and has {} machines", cluster.nodes.len());
        checks.push(Check::ok(format!("engine {engine}"), detail));
    }
    checks.extend(cluster.limits_error.iter().map(|error| {
        let detail = format!("the limits of its partitions are not known: {error}");
        Check::warning(
            format!("limits of {engine}"),
            detail,
            "see that `scontrol show partition` works there",
        )
    }));
    let hidden = |place: &HiddenPlace| {
        Check::warning(place.on.clone(), format!("its machines cannot be seen: {}", place.why), remedy)
    };
    checks.extend(cluster.hidden.iter().map(hidden));
    checks
}

fn data(facts: &Facts) -> Check {
    match &facts.write {
        Ok(()) => Check::ok("data directory", format!("{} can be written", facts.home)),
        Err(error) => Check::broken(
            "data directory",
            format!("{} cannot be written: {error}", facts.home),
            "free space on its disk, and see that it belongs to the user the server runs as",
        ),
    }
}

fn database(facts: &Facts) -> Check {
    match &facts.read {
        Ok(()) => Check::ok("database", "can be read"),
        Err(error) => Check::broken(
            "database",
            format!("cannot be read: {error}"),
            format!(
                "see server.log in {}; restore the directory from a copy if its disk is damaged",
                facts.home
            ),
        ),
    }
}

fn space(facts: &Facts) -> Check {
    match &facts.space {
        Ok((free, total, files)) => Check::disk_space("disk space", facts.home, *free, *total, *files),
        Err(error) => Check::broken(
            "disk space",
            format!("{} cannot be looked at: {error}", facts.home),
            "mount its disk again",
        ),
    }
}

/// A reserve that is whole is not worth a line.
fn reserve(facts: &Facts) -> Option<Check> {
    let remedy = "free space on that disk: `muster gc` and `muster rm JOB` work as long as some of the reserve is left";
    let (left, size) = facts.reserve;
    let is_full = facts.write.as_ref().is_err_and(disk::is_full);
    match left {
        0 if is_full => Some(Check::broken(
            "disk reserve",
            "is used up: the server is read-only; it answers questions and changes nothing",
            "delete other files on that disk; the server goes on by itself once there is room",
        )),
        _ if is_full => Some(Check::warning(
            "disk reserve",
            format!("{} are left for stopping and removing jobs", format_bytes(left)),
            remedy,
        )),
        _ if left < size => Some(Check::warning(
            "disk reserve",
            format!(
                "{} of {} are there: the disk is full, or was a moment ago",
                format_bytes(left),
                format_bytes(size)
            ),
            remedy,
        )),
        _ => None,
    }
}

fn open_files(limit: Option<u64>) -> Check {
    match limit {
        Some(limit @ ..FEW_OPEN_FILES) => Check::warning(
            "open files",
            format!("the server may have {limit} files open: enough for about {} connections", limit / 4),
            "raise the hard limit: `ulimit -Hn 16384`, or LimitNOFILE= of its service",
        ),
        Some(limit) => Check::ok("open files", format!("the server may have {limit} open")),
        None => Check::ok("open files", "no limit"),
    }
}

/// A server without secrets has nothing to say of them.
fn secrets(found: &Result<(usize, Vec<String>), String>) -> Option<Check> {
    match found {
        Ok((0, _)) => None,
        Ok((all, closed)) if closed.is_empty() => {
            Some(Check::ok("secrets", format!("all {all} can be opened with the key")))
        }
        Ok((all, closed)) => Some(Check::broken(
            "secrets",
            format!("{} of {all} cannot be opened with the key, {} among them", closed.len(), closed[0]),
            "start the server with the key that they were put under, or put them again",
        )),
        Err(error) => Some(Check::broken("secrets", format!("cannot be read: {error}"), "see server.log")),
    }
}

fn engine_check(engine: &str, nodes: &[NodeView]) -> Check {
    let name = format!("engine {engine}");
    let own: Vec<&NodeView> = nodes.iter().filter(|node| node.engine == engine).collect();
    let ready = own.iter().filter(|node| node.connected).count();
    let detail = format!("{ready} of {} nodes ready", own.len());
    match (own.len(), ready) {
        // Hosts are somebody's to add.
        (0, _) if engine == "ssh" => Check::ok(name, "no hosts; `muster pool add NAME USER@HOST` adds some"),
        (0, _) => Check::broken(
            name,
            "offers no node",
            "see server.log for what it answered when the server started",
        ),
        (_, 0) => Check::broken(name, detail, "no job can start there: see the nodes below"),
        (all, ready) if ready < all => Check::warning(name, detail, "see the nodes below"),
        _ => Check::ok(name, detail),
    }
}

fn node_check(node: &NodeView, facts: &Facts) -> Check {
    let name = format!("node {}", node.id);
    if let Some(error) = &node.error {
        let remedy = match error.may_pass {
            true => "it is tried again and again by itself; `muster pool add` tries at once",
            false => "mend what it says; then `muster pool add` of the same host tries at once",
        };
        return Check::broken(name, format!("cannot be reached: {}", error.message), remedy);
    }
    if !node.connected {
        let log = if node.engine == "local" {
            format!("{}/node/agent.log", facts.home)
        } else {
            "agent.log there".into()
        };
        return Check::broken(
            name,
            format!("the agent on {} is not connected", node.host),
            format!("it is started again and again by itself; see {log} for why it ends"),
        );
    }
    if node.slots == 0 {
        return Check::warning(name, "has not said yet what it has", "look again in a few seconds");
    }
    let version = node.agent_version.as_deref().unwrap_or("unknown");
    if version != facts.version {
        return Check::warning(
            name,
            format!("its agent has version {version}, the server {}", facts.version),
            "it is replaced when no task of it runs; `muster server stop` does that when no job is left",
        );
    }
    if node.drained {
        return Check::warning(
            name,
            "is drained: it gets no new tasks",
            format!("`muster nodes undrain {}` when it may have them again", node.id),
        );
    }
    let devices = match node.devices.len() {
        0 => String::new(),
        1 => ", 1 device".into(),
        count => format!(", {count} devices"),
    };
    Check::ok(name, format!("connected from {}, version {version}{devices}", node.host))
}

/// Whether the data directory takes a file, tried with one. May wait for the disk.
pub(crate) fn try_write(home: &Path) -> io::Result<()> {
    let probe = home.join(format!(".doctor-{:016x}", crate::random::bits()));
    let written = fs::write(&probe, b"muster");
    let removed = fs::remove_file(&probe);
    written.and(removed)
}

/// The space on the disk of a directory.
pub(crate) fn look_at_space(home: &Path) -> io::Result<(u64, u64, Option<u64>)> {
    let disk = rustix::fs::statvfs(home)?;
    // A file system that makes its inodes as it goes says that it has none.
    let files = (disk.f_files > 0).then_some(disk.f_favail);
    Ok((disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, files))
}

#[cfg(test)]
mod tests {
    use muster_api::doctor::Health;
    use muster_api::view::NodeError;

    use super::*;

    fn node(connected: bool) -> NodeView {
        NodeView {
            id: "node_local".parse().unwrap(),
            engine: "local".into(),
            pool: None,
            drained: false,
            labels: Default::default(),
            error: None,
            host: "here".into(),
            connected,
            agent_pid: Some(1),
            agent_version: Some("1".into()),
            cpu_millis: 1000,
            cpu_millis_used: 0,
            memory_bytes: 1,
            memory_bytes_used: 0,
            slots: 1,
            slots_used: 0,
            now: None,
            devices: Vec::new(),
        }
    }

    fn facts() -> Facts<'static> {
        Facts {
            home: "/data",
            version: "1",
            engines: vec!["local"],
            nodes: vec![node(true)],
            clusters: Vec::new(),
            write: Ok(()),
            read: Ok(()),
            space: Ok((1 << 40, 1 << 41, None)),
            reserve: (8, 8),
            open_files: Some(16_384),
            secrets: Ok((0, Vec::new())),
            owed_removals: Vec::new(),
            now: Timestamp::UNIX_EPOCH + 2 * REMOVAL,
        }
    }

    /// The one check that is not well, of all.
    fn fault(facts: &Facts) -> Check {
        let mut faults: Vec<Check> =
            checks(facts).into_iter().filter(|check| check.status != Health::Ok).collect();
        assert_eq!(faults.len(), 1, "{faults:?}");
        faults.remove(0)
    }

    #[test]
    fn a_server_that_is_well_has_nothing_to_complain_of() {
        let found = checks(&facts());
        assert!(found.iter().all(|check| check.status == Health::Ok), "{found:?}");
        assert_eq!(found.len(), 6);
        assert_eq!(open_files(None).status, Health::Ok);
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_broken() {
        let denied = Facts { write: Err(io::ErrorKind::PermissionDenied.into()), ..facts() };
        assert_eq!((fault(&denied).name.as_str(), fault(&denied).status), ("data directory", Health::Broken));
        assert!(try_write(Path::new("/proc/nowhere")).is_err());
        let folder = tempfile::tempdir().unwrap();
        try_write(folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_database_that_cannot_be_read_is_broken() {
        let damaged = Facts { read: Err("malformed".into()), ..facts() };
        assert!(fault(&damaged).detail.contains("malformed"));
    }

    #[test]
    fn a_full_disk_and_one_that_is_gone_are_broken() {
        assert_eq!(fault(&Facts { space: Ok((1, 1 << 40, None)), ..facts() }).status, Health::Broken);
        let gone = Facts { space: Err(io::ErrorKind::NotFound.into()), ..facts() };
        assert_eq!(fault(&gone).name, "disk space");
        assert!(look_at_space(Path::new("/nowhere")).is_err());
        assert!(look_at_space(Path::new("/")).unwrap().1 > 0);
    }

    #[test]
    fn on_a_full_disk_the_reserve_says_what_still_works() {
        let full =
            |left| Facts { write: Err(io::ErrorKind::StorageFull.into()), reserve: (left, 8), ..facts() };
        let of_reserve = |facts: &Facts| {
            let found = checks(facts).into_iter().find(|check| check.name == "disk reserve").unwrap();
            (found.status, found.detail)
        };
        assert_eq!(of_reserve(&full(4)).0, Health::Warning);
        let (status, detail) = of_reserve(&full(0));
        assert!(status == Health::Broken && detail.contains("read-only"), "{detail}");
        assert_eq!(of_reserve(&Facts { reserve: (4, 8), ..facts() }).0, Health::Warning);
    }

    #[test]
    fn few_open_files_are_a_warning() {
        assert_eq!(fault(&Facts { open_files: Some(1024), ..facts() }).status, Health::Warning);
    }

    #[test]
    fn an_engine_without_nodes_is_broken() {
        assert_eq!(fault(&Facts { nodes: Vec::new(), ..facts() }).name, "engine local");
        let with_ssh = checks(&Facts { engines: vec!["local", "ssh"], ..facts() });
        assert!(with_ssh.iter().all(|check| check.status == Health::Ok), "hosts are somebody's to add");
        let mut second = node(false);
        second.id = "node_other".parse().unwrap();
        let found = checks(&Facts { nodes: vec![node(true), second], ..facts() });
        let statuses: Vec<Health> = found[4..].iter().map(|check| check.status).collect();
        assert_eq!(statuses, [Health::Warning, Health::Ok, Health::Broken]);
    }

    #[test]
    fn a_scheduler_that_does_not_answer_is_named_and_one_that_nobody_has_is_not() {
        let cluster = |error: Option<&str>, hidden| ClusterView {
            engine: "k8s".into(),
            nodes: Vec::new(),
            limits: Vec::new(),
            limits_error: None,
            hidden,
            error: error.map(str::to_owned),
        };
        let silent = Facts { clusters: vec![cluster(Some("no route"), Vec::new())], ..facts() };
        assert_eq!((fault(&silent).name.as_str(), fault(&silent).status), ("engine k8s", Health::Broken));
        let place = HiddenPlace { on: "k8s/lab".into(), why: "no route".into() };
        let partly = Facts { clusters: vec![cluster(None, vec![place])], ..facts() };
        assert_eq!((fault(&partly).name.as_str(), fault(&partly).status), ("k8s/lab", Health::Warning));
        assert_eq!(checks(&Facts { clusters: vec![cluster(None, Vec::new())], ..facts() }).len(), 6);
        let unlimited = ClusterView { limits_error: Some("denied".into()), ..cluster(None, Vec::new()) };
        assert_eq!(fault(&Facts { clusters: vec![unlimited], ..facts() }).name, "limits of k8s");
    }

    #[test]
    fn files_of_removed_jobs_that_a_node_still_has_are_named() {
        let owed = |node: &str, since: Duration| OwedRemovals {
            node: node.parse().unwrap(),
            jobs: 3,
            since: Some(Timestamp::UNIX_EPOCH + since),
        };
        let with = |owed| Facts { owed_removals: vec![owed], ..facts() };
        let away = fault(&with(owed("node_gpu.h1", 2 * REMOVAL)));
        assert_eq!((away.name.as_str(), away.status), ("removals of node_gpu.h1", Health::Warning));
        assert_eq!(
            away.detail,
            "still has files of 3 removed jobs, the first removed at 1970-01-01 00:20 UTC"
        );
        assert!(fault(&with(owed("node_local", Duration::ZERO))).remedy.unwrap().contains("agent.log"));
        let found = checks(&with(owed("node_local", 2 * REMOVAL)));
        assert!(found.iter().all(|check| check.status == Health::Ok), "it is about to");
    }

    #[test]
    fn secrets_of_another_key_are_named() {
        let found = Facts { secrets: Ok((2, vec!["TOKEN of default".into()])), ..facts() };
        assert!(fault(&found).detail.contains("1 of 2") && fault(&found).detail.contains("TOKEN of default"));
    }

    #[test]
    fn a_node_that_is_away_or_silent_or_of_another_version_is_named() {
        let found = checks(&Facts { nodes: vec![node(false)], ..facts() });
        assert_eq!(found[4..].iter().filter(|check| check.status == Health::Broken).count(), 2);
        assert!(found[5].remedy.as_deref().unwrap().contains("/data/node/agent.log"));
        let old = NodeView { agent_version: Some("0".into()), ..node(true) };
        assert!(fault(&Facts { nodes: vec![old], ..facts() }).detail.contains("version 0, the server 1"));
        let drained = NodeView { drained: true, ..node(true) };
        assert!(fault(&Facts { nodes: vec![drained], ..facts() }).remedy.unwrap().contains("undrain"));
        let error = NodeError { message: "no route".into(), may_pass: true, at: Default::default() };
        let lost = NodeView { error: Some(error), ..node(false) };
        assert!(checks(&Facts { nodes: vec![lost], ..facts() })[5].detail.contains("no route"));
        let silent = NodeView { slots: 0, ..node(true) };
        assert_eq!(fault(&Facts { nodes: vec![silent], ..facts() }).status, Health::Warning);
    }
}
