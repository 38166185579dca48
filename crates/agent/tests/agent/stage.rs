//! Files of a launch contract at their real paths, for the task alone; and where they are if nothing can be mounted.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_link::message::{Launch, ToAgent};
use muster_model::Reason;
use muster_model::launch::{Host, LaunchFile, Process, Surroundings, Work};
use rustix::process::{Signal, getuid, kill_process};

use crate::life::supervisor;
use crate::node::{Node, eventually, exe, launch_with, prepare_with, task};

/// A directory that no machine has, for one test.
fn nowhere(name: &str) -> String {
    format!("/muster-test-{name}-{}", std::process::id())
}

fn file(path: impl Into<String>, content: &str) -> LaunchFile {
    LaunchFile { path: path.into(), content: content.into(), executable: false }
}

async fn output(node: &Node, rank: u32, script: &str, change: impl FnOnce(&mut Launch)) -> String {
    node.prepare(&task(rank)).await;
    node.server.send(launch_with(&task(rank), script, change)).await;
    String::from_utf8(node.server.output(&task(rank)).await).unwrap()
}

fn needs_root() {
    assert!(
        getuid().is_root(),
        "files at real paths are mounted: run this as root, as in `sudo -E cargo test`"
    );
}

#[tokio::test]
async fn files_are_where_the_contract_has_them_and_nowhere_else() {
    needs_root();
    let node = Node::new().await;
    let top = nowhere("top");
    let home_dir = format!("/home{}", nowhere("user"));
    let script = format!(
        "cat {top}/hostfile {home_dir}/run.sh {top}.env; echo $HOSTS; cat /etc/hosts | tail -1; {home_dir}/tool; \
         echo real > $MUSTER_OUTPUT_DIR/kept; ls -A / | wc -l; df / | wc -l; echo $PATH; ls {home_dir}/code"
    );
    let mut tool = file(format!("{home_dir}/tool"), "#!/bin/sh\necho runs in $(pwd)\n");
    tool.executable = true;
    let told = output(&node, 0, &script, |launch| {
        launch.files = vec![
            file(format!("{top}/hostfile"), "a slots=1\n"),
            file(format!("{home_dir}/run.sh"), "b\n"),
            tool,
        ];
        launch.paths.insert("HOSTS".into(), format!("{top}/hostfile"));
        launch.env.insert("QUOTED".into(), "it's".into());
        launch.surroundings = Surroundings {
            front: [("PATH".into(), vec![home_dir.clone()])].into(),
            workdir: vec![format!("{home_dir}/code")],
            directories: vec![format!("{top}/cache")],
            environment: vec![format!("{top}.env")],
            hosts: vec![Host { ip: [127, 64, 0, 9].into(), names: vec!["worker-9".into()] }],
            ..Surroundings::default()
        };
        launch.setup = Some(vec!["/bin/sh".into(), "-c".into(), "echo made > by-setup".into()]);
    })
    .await;
    let work = node.task_dir(&task(0)).join("work");
    let top_entries = fs::read_dir("/").unwrap().count() + 2;
    for expected in [
        "a slots=1\nb\n".to_owned(),
        "export QUOTED='it'\\''s'\n".to_owned(),
        format!("\n{top}/hostfile\n127.64.0.9\tworker-9\nruns in {}\n{top_entries}\n2\n", work.display()),
        format!("\n{home_dir}:/usr/bin:/bin\nby-setup\n"),
    ] {
        assert!(told.contains(&expected), "{expected:?} is not in {told}");
    }
    assert!(
        !Path::new(&top).exists()
            && !Path::new(&home_dir).exists()
            && !Path::new(&format!("{top}.env")).exists()
    );
    assert_eq!(fs::read(node.task_dir(&task(0)).join("output/kept")).unwrap(), b"real\n");
    assert!(!mounts().contains(node.dir().to_str().unwrap()), "nothing is mounted on the machine");
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mounts").unwrap()
}

fn home() -> PathBuf {
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let root = passwd.lines().find(|line| line.starts_with("root:")).unwrap();
    root.split(':').nth(5).unwrap().into()
}

#[tokio::test]
async fn a_home_has_the_files_and_keeps_what_is_written_to_it() {
    needs_root();
    let node = Node::new().await;
    let name = nowhere("home").replace('/', "");
    let own = home().join(&name);
    let by_name = format!("/home/root/{name}");
    let script = format!(
        "cat {by_name}/ib_config {own}/ib_config; echo kept > {own}/written; stat -c %s {by_name}/written; sleep 1000",
        own = own.display()
    );
    node.prepare(&task(0)).await;
    let change = |launch: &mut Launch| launch.files = vec![file(format!("{by_name}/ib_config"), "ib\n")];
    node.server.send(launch_with(&task(0), &script, change)).await;
    node.server.started(&task(0)).await;
    eventually("it has written", || fs::read(own.join("written")).is_ok_and(|text| text == b"kept\n")).await;
    assert_eq!(fs::read(own.join("ib_config")).unwrap(), b"", "only a place to mount on is seen outside");
    kill_process(supervisor(&node), Signal::KILL).unwrap();
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::SupervisorLost));
    let told = String::from_utf8(node.server.output(&task(0)).await).unwrap();
    assert!(told.starts_with("ib\nib\n"), "{told}");
    node.server.send(ToAgent::Forget { task: task(0), continues: false }).await;
    eventually("the place is gone", || !own.join("ib_config").exists()).await;
    assert_eq!(fs::read(own.join("written")).unwrap(), b"kept\n");
    fs::remove_dir_all(&own).unwrap();
}

#[tokio::test]
async fn where_nothing_can_be_mounted_the_task_is_told_where_its_files_lie() {
    let mut node = Node::new().await;
    node.kill_agent();
    // Whoever may not mount: any other user, and root without that right.
    let mut agent = Command::new("setpriv");
    agent
        .args(["--bounding-set", "-sys_admin", "--"])
        .arg(exe())
        .arg("agent")
        .arg(node.dir())
        .arg(node.server.socket());
    node.agent = Some(agent.spawn().expect("run this as root, with `setpriv` of util-linux installed"));
    node.server.connected().await;
    let top = nowhere("told");
    let script =
        format!("cat $TABLE {top}/table; cat \"$1\"; . {top}/env; echo $QUOTED; ls {top}/code; echo $LIST");
    let told = output(&node, 0, "", |launch| {
        let words = ["/bin/sh", "-c", &script, "sh", &format!("{top}/table")];
        launch.work = Work::Run(vec![Process::new(words.map(str::to_owned).into())]);
        launch.files = vec![file(format!("{top}/table"), "a\n")];
        launch.paths.insert("TABLE".into(), format!("{top}/table"));
        launch.env.insert("QUOTED".into(), "it's".into());
        launch.surroundings.environment = vec![format!("{top}/env")];
        launch.surroundings.workdir = vec![format!("{top}/code")];
        launch.surroundings.front = [("LIST".into(), vec![format!("{top}/lib")])].into();
        launch.setup = Some(vec!["/bin/sh".into(), "-c".into(), "echo made > by-setup".into()]);
    })
    .await;
    let lib = node.task_dir(&task(0)).join("contract").join(&top[1..]).join("lib");
    assert_eq!(told, format!("a\na\na\nit's\nby-setup\n{}\n", lib.display()));
}

#[tokio::test]
async fn several_processes_of_a_task_see_the_files_and_their_own_variables() {
    needs_root();
    let node = Node::new().await;
    let path = format!("{}/table.json", nowhere("table"));
    let told = output(&node, 0, "", |launch| {
        let process = |rank: u32| Process {
            argv: vec!["/bin/sh".into(), "-c".into(), format!("echo $RANK $(cat {path}) $(basename $PWD)")],
            env: [("RANK".into(), rank.to_string())].into(),
            dir: Some(format!("device{rank}")),
        };
        launch.work = Work::Run((0..3).map(process).collect());
        launch.files = vec![file(&path, "ranks")];
    })
    .await;
    let mut lines: Vec<_> = told.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0 ranks device0", "1 ranks device1", "2 ranks device2"]);
}

#[tokio::test]
async fn one_process_with_variables_of_its_own_is_the_command_itself() {
    let node = Node::new().await;
    let told = output(&node, 0, "echo $RANK; cat /proc/$PPID/cmdline | tr '\\0' ' '", |launch| {
        let Work::Run(processes) = &mut launch.work else { panic!("it runs") };
        processes[0].env.insert("RANK".into(), "7".into());
    })
    .await;
    assert!(told.starts_with("7\n") && told.contains("supervise"), "{told}");
}

#[tokio::test]
async fn a_path_that_leads_elsewhere_is_refused() {
    let node = Node::new().await;
    node.server.send(prepare_with(&task(0), |_| {})).await;
    node.server.ready(&task(0)).await;
    let change = |launch: &mut Launch| launch.files = vec![file("/job/../../escape", "")];
    node.server.send(launch_with(&task(0), "true", change)).await;
    let failure = node.server.ended(&task(0)).await.failure;
    assert!(
        matches!(&failure, Some(Reason::PrepareFailed { message }) if message.contains("/job/../../escape")),
        "{failure:?}"
    );
}

fn with_home(launch: &mut Launch) {
    launch.surroundings.home = Some("/root".into());
}

#[tokio::test]
async fn a_home_of_its_own_shows_the_accounts_and_keeps_what_is_changed() {
    needs_root();
    let tool = tempfile::NamedTempFile::with_prefix_in(".muster-test-", "/root").unwrap();
    fs::write(tool.path(), "a tool\n").unwrap();
    let node = Node::new().await;
    let tool_path = tool.path().display();
    let script = format!(
        "pwd; echo $HOME; cat {tool_path}; echo changed > {tool_path}; echo made > ~/.muster-test-made; rm {tool_path}; \
         mkdir -p d/e; mv d moved; echo real > $MUSTER_OUTPUT_DIR/kept; sleep 1000"
    );
    node.prepare(&task(0)).await;
    node.server.send(launch_with(&task(0), &script, with_home)).await;
    node.server.started(&task(0)).await;
    let work = node.task_dir(&task(0)).join("work");
    eventually("it has written", || node.task_dir(&task(0)).join("output/kept").exists()).await;
    assert_eq!(fs::read(tool.path()).unwrap(), b"a tool\n");
    assert!(!Path::new("/root/.muster-test-made").exists() && work.join("moved/e").is_dir());
    assert_eq!(fs::read(work.join(".muster-test-made")).unwrap(), b"made\n");
    assert!(!mounts().contains(node.dir().to_str().unwrap()), "nothing is mounted on the machine");
    kill_process(supervisor(&node), Signal::KILL).unwrap();
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::SupervisorLost));
    let told = String::from_utf8(node.server.output(&task(0)).await).unwrap();
    assert_eq!(told, "/root\n/root\na tool\n");
    node.server.send(ToAgent::Forget { task: task(0), continues: false }).await;
    eventually("only its files are left", || !node.task_dir(&task(0)).join("scratch").exists()).await;
}

/// A file system of its own in a directory, gone with this.
struct MountedDisk(PathBuf);

impl MountedDisk {
    fn at(path: PathBuf) -> MountedDisk {
        fs::create_dir(&path).unwrap();
        let words = ["-t", "tmpfs", "-o", "size=1m", "tmpfs"];
        assert!(Command::new("mount").args(words).arg(&path).status().unwrap().success());
        MountedDisk(path)
    }
}

impl Drop for MountedDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[tokio::test]
async fn homes_of_two_tasks_are_not_one_and_other_file_systems_in_them_are() {
    needs_root();
    // The agent's own directory lies in the home that is shown.
    let node = Node::at(tempfile::tempdir_in("/root").unwrap(), &[]).await;
    let place = tempfile::tempdir_in("/root").unwrap();
    let disk = MountedDisk::at(place.path().join("my disk"));
    let name = format!(".muster-test-{}", std::process::id());
    for rank in 0..2 {
        let script = format!(
            "[ ! -e /root/{name} ] && echo {rank} > /root/{name} && cat ~/{name}; echo {rank} >> '{}/ranks'; \
             echo $MUSTER_OUTPUT_DIR",
            disk.0.display()
        );
        let told = output(&node, rank, &script, with_home).await;
        let own = node.task_dir(&task(rank)).join("output");
        assert_eq!(told, format!("{rank}\n{}\n", own.display()));
    }
    assert!(!Path::new("/root").join(&name).exists());
    assert_eq!(fs::read(disk.0.join("ranks")).unwrap(), b"0\n1\n");
}
