//! A data directory of a test's own, and the binary run in it.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::cgroup;
use crate::http::{Door, Reply, Request};
use crate::process::{self, Process};
use crate::running::Running;
use crate::terminal::Terminal;
use crate::wait::{DEADLINE, wait_for, wait_for_some};

/// A muster of its own. Dropping it ends everything it started.
pub struct Home {
    directory: tempfile::TempDir,
    /// Where the data is, below the directory.
    name: PathBuf,
    binary: PathBuf,
    variables: Vec<(String, OsString)>,
    account: Option<u32>,
}

/// A command that ended.
#[derive(Debug)]
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it said besides.
    pub stderr: Vec<u8>,
}

impl Finished {
    /// Its exit code; -1 for a signal.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl Home {
    /// An empty data directory, and beside it an empty code directory and one that tasks share.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self::named(binary, "home")
    }

    /// The same with a data directory of this name.
    pub fn named(binary: impl Into<PathBuf>, name: impl Into<PathBuf>) -> Self {
        let directory =
            tempfile::Builder::new().prefix("muster-test-").tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("work")).expect("a code directory");
        std::fs::create_dir(directory.path().join("shared")).expect("a shared directory");
        Self { directory, name: name.into(), binary: binary.into(), variables: Vec::new(), account: None }
    }

    /// Leaves the directories where they are when the test is over, for someone to look at. Processes end all the same.
    pub fn keep(&mut self) {
        self.directory.disable_cleanup(true);
    }

    /// The data directory.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join(&self.name)
    }

    /// A directory that the test and every task see: tasks find it in `$SHARED`.
    pub fn shared(&self) -> PathBuf {
        self.directory.path().join("shared")
    }

    /// Makes a file in the shared directory: what a task waits for.
    pub fn touch(&self, name: &str) {
        std::fs::write(self.shared().join(name), "").expect("a file in the shared directory");
    }

    /// Waits for a file in the shared directory and gives its content.
    pub fn wait_for_file(&self, name: &str) -> String {
        let path = self.shared().join(name);
        wait_for_some(&format!("a task to make {name}"), || std::fs::read_to_string(&path).ok())
    }

    /// The code directory that commands run in.
    pub fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// The same data directory with another binary.
    pub fn set_binary(&mut self, binary: impl Into<PathBuf>) {
        self.binary = binary.into();
    }

    /// A variable that every command has from now on, and whatever it starts.
    pub fn set_variable(&mut self, name: &str, value: impl Into<OsString>) {
        self.variables.push((name.to_owned(), value.into()));
    }

    /// Makes it another account's, who also runs every command from now on.
    pub fn give_to(&mut self, account: &str) {
        let number = crate::account::number(account);
        let binary = self.directory.path().join("muster");
        crate::copy_program(&self.binary, &binary);
        self.binary = binary;
        let mut all = vec![self.directory.path().to_owned()];
        while let Some(path) = all.pop() {
            chown(&path, Some(number), Some(number)).expect("it is given away");
            let inside = std::fs::read_dir(&path).into_iter().flatten().flatten();
            all.extend(inside.map(|entry| entry.path()));
        }
        self.account = Some(number);
        self.set_variable("HOME", format!("/home/{account}"));
        self.set_variable("USER", account);
    }

    /// Lets tasks use the shared directory that run as another account.
    pub fn share_with_everybody(&self) {
        for (path, mode) in [(self.directory.path(), 0o711), (&self.shared(), 0o1777)] {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, permissions).expect("a directory's permissions");
        }
    }

    /// Writes `config.toml`.
    pub fn configure(&self, text: &str) {
        std::fs::create_dir_all(self.path()).expect("the data directory");
        std::fs::write(self.path().join("config.toml"), text).expect("config.toml");
    }

    /// Writes a file into the code directory.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        let path = self.work().join(name);
        std::fs::create_dir_all(path.parent().expect("a file has a directory")).expect("its directory");
        std::fs::write(path, text).expect("a file of the code");
    }

    /// The command, ready to be changed and started.
    pub fn command<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(&self.binary);
        command
            .args(words)
            .env("MUSTER_HOME", self.path())
            .env_remove("MUSTER_SERVER")
            .env_remove("MUSTER_TOKEN")
            .env_remove("MUSTER_CONTEXT")
            .env_remove("MUSTER_FINGERPRINT")
            .env("SHARED", self.shared())
            .env_remove("RANK")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(self.work())
            .stdin(Stdio::null());
        if let Some(account) = self.account {
            command.uid(account).gid(account);
        }
        command
    }

    /// Starts a command whose output nobody reads.
    pub fn spawn<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Child {
        self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
    }

    /// Starts a command and reads what it prints while it runs.
    pub fn start<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Running {
        Running::start(self.command(words))
    }

    /// For `--env`: shells of a task with this read nobody's start-up files, which may take long or wait for one another.
    pub fn bare_shells(&self) -> String {
        format!("HOME={}", self.shared().display())
    }

    /// Starts a command on a terminal.
    pub fn start_on_terminal<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Terminal {
        Terminal::start(&self.command(words))
    }

    /// Runs a command to its end.
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Finished {
        finish(self.command(words))
    }

    /// Runs a command that must succeed, and gives its standard output.
    pub fn ok<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> String {
        let finished = self.run(words);
        assert!(finished.status.success(), "{}\n{}{}", finished.status, finished.out(), finished.err());
        finished.out()
    }

    /// Runs a command with `--json` that must succeed, and gives what it printed.
    pub fn json<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Value {
        let text = self.ok(words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("not JSON: {error}\n{text}"))
    }

    /// Submits a job and gives its id.
    pub fn submit(&self, words: &[&str]) -> String {
        let all = ["run", "--detach", "--json"].iter().chain(words).copied();
        self.json(all)["id"].as_str().expect("a job has an id").to_owned()
    }

    /// A job as the API shows it.
    pub fn job(&self, job: &str) -> Value {
        self.json(["show", job, "--json"])
    }

    /// Where the server listens.
    pub fn door(&self) -> Door {
        Door::Unix(self.path().join("server.sock"))
    }

    /// Asks the running server for something.
    pub fn get(&self, path: &str) -> Reply {
        self.door().ask(&Request::get(path))
    }

    /// Sends the running server a document.
    pub fn post(&self, path: &str, content: &Value) -> Reply {
        self.door().ask(&Request::post(path, content))
    }

    /// A job as the running server shows it; through the command line, which starts one, if none runs.
    fn look(&self, job: &str) -> Value {
        let request = Request::get(&format!("/api/v1/jobs/{job}"));
        match self.door().try_ask(&request) {
            Ok(reply) if reply.status == 200 => reply.json(),
            _ => self.job(job),
        }
    }

    /// Waits until a job is in a state, and gives it. One that can no longer get there is not waited for.
    pub fn wait_for_state(&self, job: &str, state: &str) -> Value {
        let is_over = |now: &Value| ["succeeded", "failed", "stopped"].iter().any(|end| now == end);
        wait_for_some(&format!("{job} to be {state}"), || {
            let seen = self.look(job);
            assert!(
                seen["state"] == state || !is_over(&seen["state"]),
                "{job} is not {state} but {} ({})",
                seen["state"],
                seen["message"]
            );
            (seen["state"] == state).then_some(seen)
        })
    }

    /// Starts the server and waits until this machine's agent has said what it has.
    pub fn wait_for_node(&self) -> Value {
        self.ok(["server", "start"]);
        wait_for_some("the agent to connect", || {
            let nodes = self.get("/api/v1/nodes").json();
            nodes["items"].as_array()?.iter().find(|node| node["connected"] == true).cloned()
        })
    }

    /// The server's process.
    pub fn server_pid(&self) -> u32 {
        let status = self.json(["server", "status", "--json"]);
        u32::try_from(status["pid"].as_u64().expect("the server has a pid")).expect("a pid")
    }

    /// Every living process of this home.
    pub fn processes(&self) -> Vec<Process> {
        process::of_home(&self.path())
    }

    /// Those started in one role: `server`, `agent`, `supervise`.
    pub fn processes_as(&self, role: &str) -> Vec<Process> {
        self.processes().into_iter().filter(|process| process.is(role)).collect()
    }

    /// `kill -9` for every process of a role; gives how many there were.
    pub fn kill(&self, role: &str) -> usize {
        let processes = self.processes_as(role);
        processes.iter().for_each(|process| process::kill(process.pid));
        wait_for("the killed to be gone", || processes.iter().all(|process| !process::is_alive(process.pid)));
        processes.len()
    }

    /// Waits until no task and no supervisor is left.
    pub fn wait_for_no_tasks(&self) {
        let task = |process: &Process| !process.is("server") && !process.is("agent");
        let what = || format!("no task to be left, but there are {:?}", self.processes());
        let begun = Instant::now();
        while self.processes().iter().any(task) {
            assert!(begun.elapsed() < DEADLINE, "{}", what());
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// What the server and the agent logged, for a test that fails.
    pub fn diagnosis(&self) -> String {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let tail = |text: String| {
            text.lines().rev().take(40).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
        };
        let server = tail(read(&self.path().join("server.log")));
        let agent = tail(read(&self.path().join("node/agent.log")));
        format!("--- server.log\n{server}\n--- agent.log\n{agent}\n")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr(), "{}", self.diagnosis());
        }
        let held = |process: &Process| std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).ok();
        let groups: Vec<PathBuf> =
            self.processes().iter().filter_map(held).flat_map(|text| cgroup::directories(&text)).collect();
        // Those that start others go first; whatever is started meanwhile is found in the next round.
        for role in ["server", "agent", "supervise"] {
            self.processes_as(role).iter().for_each(|process| process::kill(process.pid));
        }
        let begun = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() || begun.elapsed() > DEADLINE {
                break;
            }
            left.iter().for_each(|process| process::kill(process.pid));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // Whoever would have removed them was killed above.
        groups.iter().for_each(|group| cgroup::end(group));
    }
}

/// Runs a command to its end, or kills it at the deadline and panics with what it printed.
fn finish(mut command: Command) -> Finished {
    let shown = format!("{command:?}");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if begun.elapsed() > 2 * DEADLINE {
            let _ = child.kill();
            let _ = child.wait();
            let out = String::from_utf8_lossy(&stdout.join().unwrap_or_default()).into_owned();
            let err = String::from_utf8_lossy(&stderr.join().unwrap_or_default()).into_owned();
            panic!("{shown} did not end\n--- stdout\n{out}\n--- stderr\n{err}");
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    };
    Finished {
        status,
        stdout: stdout.join().expect("stdout was read"),
        stderr: stderr.join().expect("stderr was read"),
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}
