//! What starts a cluster's daemons, and ends with the test whatever they have started.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};

const SCRIPT: &str = include_str!("keeper.py");

/// Puts directories that only some may enter out of the way, and what is to be seen of them back to its place.
/// $0: what to become in the end; then directories to empty, `--`, directories to show.
const SHOW: &str = r#"
hide=; while [ "$1" != -- ]; do hide="$hide $1"; shift; done; shift
mount -t tmpfs tmpfs /mnt
number=0; for path; do number=$((number + 1)); mkdir /mnt/$number; mount --bind "$path" /mnt/$number; done
for path in $hide; do mount -t tmpfs -o mode=755 tmpfs "$path"; done
number=0; for path; do number=$((number + 1)); mkdir -p "$path"; mount --bind /mnt/$number "$path"; done
umount -l /mnt
exec python3 -c "$0"
"#;

/// A process above all others of a cluster.
pub(crate) struct Keeper {
    process: Child,
    /// When this is closed, also by the end of the test, everything below the process is killed.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Keeper {
    /// One below which these directories can be seen by everybody, and nothing else changes for anybody.
    pub(crate) fn start(shown: &[PathBuf]) -> Self {
        let mut process = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-euc", SHOW, SCRIPT])
            .args(closed(shown))
            .arg("--")
            .args(shown)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare, of Debian's package util-linux, starts");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { input: process.stdin.take(), output, process }
    }

    /// One below which nothing is changed.
    pub(crate) fn plain() -> Self {
        let mut process = Command::new("python3")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3, of Debian's package of that name, starts");
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        Self { input: process.stdin.take(), output, process }
    }

    /// Takes a name that only one process of this network may hold, until all has ended; false if another does.
    pub(crate) fn lock(&mut self, name: &str) -> bool {
        self.ask(&json!({ "lock": name })) == "true"
    }

    /// Says what is to be removed when everything has ended, also when the test was killed.
    pub(crate) fn remove_after(&mut self, links: &[String], groups: &[PathBuf], directory: &Path) {
        let after = json!({ "links": links, "groups": groups, "directories": [directory] });
        self.ask(&json!({ "after": after }));
    }

    /// Starts a daemon that stays in the foreground, and gives its process id.
    pub(crate) fn daemon(&mut self, log: &Path, variables: &[(&str, &str)], words: &[&str]) -> u32 {
        let variables: serde_json::Map<_, _> =
            variables.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
        let answer = self.ask(&json!([log, variables, words]));
        answer.parse().unwrap_or_else(|_| panic!("{words:?} could not be started: {answer}"))
    }

    fn ask(&mut self, what: &Value) -> String {
        let input = self.input.as_mut().expect("it is open until the end");
        writeln!(input, "{what}").expect("the keeper reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the keeper answers");
        line.trim().to_owned()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.process.wait();
    }
}

/// The directories on the way to these that others may not enter.
fn closed(paths: &[PathBuf]) -> BTreeSet<PathBuf> {
    let is_closed = |path: &&Path| path.metadata().is_ok_and(|it| it.permissions().mode() & 0o001 == 0);
    // The outermost hides all below it.
    paths.iter().filter_map(|path| path.ancestors().filter(is_closed).last().map(Path::to_owned)).collect()
}
