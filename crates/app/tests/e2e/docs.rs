//! The documentation: what its pages tell people to do is done, on the real thing, and must go as they say.
//!
//! Pages are found, not listed: a new guide is walked through as soon as it is there.

mod page;

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_testkit::{Home, Running};
use page::{Step, fits, steps};

use crate::{home, python};

/// Pages walked through at once: each has a server of its own.
const AT_ONCE: usize = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every page with a walk-through, by its path in the repository.
fn pages() -> Vec<String> {
    let guides = fs::read_dir(root().join("docs/guides")).expect("docs/guides");
    let names = guides.map(|entry| entry.expect("a guide").file_name().into_string().expect("a plain name"));
    let guides = names.filter(|name| Path::new(name).extension().is_some_and(|end| end == "md"));
    let mut pages = vec!["README.md".to_owned(), "README.zh-CN.md".to_owned()];
    pages.extend(guides.map(|name| format!("docs/guides/{name}")));
    pages.sort();
    pages
}

fn read(page: &str) -> Vec<Step> {
    let text = fs::read_to_string(root().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
    steps(&text).unwrap_or_else(|error| panic!("{page}: {error}"))
}

/// One page, being walked through.
struct Walk {
    page: String,
    home: Home,
    folder: tempfile::TempDir,
    ran: usize,
}

impl Walk {
    fn new(page: &str) -> Self {
        let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).expect("a folder for programs");
        fs::create_dir(home.path()).expect("the data directory");
        symlink(env!("CARGO_BIN_EXE_muster"), bin.join("muster")).expect("the binary");
        // Whoever trains has a `python`; the machine that tests may have `python3` only.
        symlink(python(), bin.join("python")).expect("the interpreter");
        Self { page: page.into(), home, folder, ran: 0 }
    }

    /// One shell goes through the whole page, so that what a command sets the next one has. It ends at the first command
    /// that does not exit as the page says.
    fn script(&self, steps: &[Step]) -> String {
        let mut script = String::new();
        for (i, step) in steps.iter().enumerate() {
            let at = self.folder.path().join(i.to_string());
            let at = at.display();
            match step {
                Step::File { name, text } => {
                    fs::write(at.to_string(), text).expect("a file of the page");
                    let _ =
                        writeln!(script, "mkdir -p \"$(dirname \"{name}\")\" && cp {at} \"{name}\" || exit");
                }
                Step::Command { text, exit, .. } => {
                    let _ = writeln!(script, "{{ {text}\n}} >{at}.out 2>&1 </dev/null");
                    let _ = writeln!(
                        script,
                        "status=$?; echo $status >{at}.status; [ $status = {exit} ] || exit"
                    );
                }
                Step::Skipped { .. } => {}
            }
        }
        script
    }

    fn go(mut self) -> (usize, Vec<String>) {
        let steps = read(&self.page);
        let path = std::env::var("PATH").expect("PATH");
        let mut shell = Command::new("bash");
        shell
            .args(["-c", &self.script(&steps)])
            .current_dir(self.home.work())
            .env("PATH", format!("{}/bin:{path}", self.folder.path().display()))
            .env("MUSTER_HOME", self.home.path())
            // Shells of sessions read nobody's start-up files.
            .env("HOME", self.home.shared())
            .env_remove("MUSTER_SERVER")
            .env_remove("MUSTER_TOKEN")
            .env_remove("MUSTER_CONTEXT")
            .env_remove("MUSTER_FINGERPRINT")
            .env_remove("RANK");
        let done = Running::start(shell).finish();
        assert_eq!(done.out() + &done.err(), "", "{}: what is not a command's is silent", self.page);
        let mut skipped = Vec::new();
        for (i, step) in steps.iter().enumerate() {
            match step {
                Step::Command { line, text, exit, output } => self.check(i, *line, text, *exit, output),
                Step::Skipped { line, text, reason } => {
                    skipped.push(format!("{}:{line}: {text} ({reason})", self.page));
                }
                Step::File { .. } => {}
            }
        }
        (self.ran, skipped)
    }

    fn check(&mut self, i: usize, line: usize, text: &str, exit: i32, shown: &[String]) {
        let read =
            |end| fs::read_to_string(self.folder.path().join(format!("{i}.{end}"))).unwrap_or_default();
        let (printed, status) = (read("out"), read("status"));
        let place = format!("{}:{line}: `{text}`", self.page);
        assert_eq!(
            status.trim(),
            exit.to_string(),
            "{place} does not exit as the page says; it printed:\n{printed}"
        );
        assert!(
            shown.is_empty() || fits(shown, &printed),
            "{place} is shown to print:\n{}\n--- and printed:\n{printed}",
            shown.join("\n")
        );
        self.ran += 1;
    }
}

#[test]
fn every_walk_through_goes_as_its_page_says() {
    let (mut ran, mut skipped) = (0, Vec::new());
    for some in pages().chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            let walks: Vec<_> = some.iter().map(|page| scope.spawn(|| Walk::new(page).go())).collect();
            for walk in walks {
                let (count, left_out) = walk.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                ran += count;
                skipped.extend(left_out);
            }
        });
    }
    // Past the test harness, which keeps to itself what a passing test says.
    let list = skipped.iter().map(|line| format!("\n  {line}")).collect::<String>();
    let _ = writeln!(
        std::io::stderr(),
        "{ran} commands of the documentation ran, {} did not:{list}",
        skipped.len()
    );
    assert!(ran >= 20, "only {ran} commands were found: are the blocks still marked as console?");
}

/// A line as the shell would read it, with `--help` before the words that are the user's own command.
fn as_question(line: &str) -> String {
    let line = line.split(" # ").next().unwrap_or(line);
    let line = line.split(['|', '>', '&', ';']).next().unwrap_or(line).trim();
    match line.split_once(" -- ") {
        Some((ours, _)) => format!("{ours} --help"),
        None => format!("{line} --help"),
    }
}

#[test]
fn a_command_that_is_not_run_is_one_that_the_binary_takes() {
    let home = home();
    for page in pages() {
        for step in read(&page) {
            let Step::Skipped { line, text, .. } = step else { continue };
            if !text.starts_with("muster ") {
                continue;
            }
            let words = as_question(&text).replacen("muster", "\"$MUSTER\"", 1);
            let mut shell = Command::new("bash");
            shell
                .args(["-c", &words])
                .env("MUSTER", env!("CARGO_BIN_EXE_muster"))
                .env("MUSTER_HOME", home.path());
            let done = shell.current_dir(home.work()).output().expect("a shell");
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{page}:{line}: `{text}`: {said}");
        }
    }
}
