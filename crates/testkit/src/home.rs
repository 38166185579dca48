//! A data directory of a test's own, and the binary run in it.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::Value;

use crate::process::{self, Process};
use crate::wait::{DEADLINE, wait_for};

/// A muster of its own. Dropping it ends everything it started.
pub struct Home {
    directory: tempfile::TempDir,
    binary: PathBuf,
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
    /// An empty data directory and an empty code directory beside it.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        let directory =
            tempfile::Builder::new().prefix("muster-test-").tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("work")).expect("a code directory");
        Self { directory, binary: binary.into() }
    }

    /// The data directory.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// The code directory that commands run in.
    pub fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    /// The same data directory with another binary.
    pub fn set_binary(&mut self, binary: impl Into<PathBuf>) {
        self.binary = binary.into();
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
            .env_remove("RANK")
            .current_dir(self.work())
            .stdin(Stdio::null());
        command
    }

    /// Starts a command whose output nobody reads.
    pub fn spawn<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Child {
        self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the binary starts")
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

    /// Waits until a job is in a state.
    pub fn wait_for_state(&self, job: &str, state: &str) {
        wait_for(&format!("{job} to be {state}"), || self.job(job)["state"] == state);
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
        // Those that start others go first; whatever is started meanwhile is found in the next round.
        for role in ["server", "agent", "supervise"] {
            self.processes_as(role).iter().for_each(|process| process::kill(process.pid));
        }
        let begun = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() || begun.elapsed() > DEADLINE {
                return;
            }
            left.iter().for_each(|process| process::kill(process.pid));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}

/// Runs a command to its end, or kills it at the deadline and panics with what it printed.
pub(crate) fn finish(mut command: Command) -> Finished {
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
