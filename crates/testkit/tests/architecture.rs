//! The walls of the workspace: which crate may see which, and what every source file must look like.
//!
//! The rules live here as data. The check of the arrows is a pure function, so that it is itself tested on made-up
//! workspaces; the test that matters then gives it what `cargo metadata` says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a crate may depend on, by the names of their folders.
enum MaySee {
    Only(&'static [&'static str]),
    Anything,
}

use MaySee::{Anything, Only};

/// One line for each folder of `crates/`, in the order of the arrows. A new crate adds its line here, and a new arrow
/// is a decision about the design: it should be rare, and it changes ARCHITECTURE.md in the same commit.
const RULES: &[(&str, MaySee)] = &[
    ("model", Only(&[])),
    ("bundle", Only(&["model"])),
    ("launch", Only(&["model"])),
    ("scheduler", Only(&["model"])),
    ("store", Only(&["model"])),
    ("link", Only(&["model"])),
    // Agents on a cluster's network reach the server through the engine's own way there, which has many streams.
    ("engine", Only(&["model", "link"])),
    // A crate of its own: nothing else is to be built with what it needs.
    ("engine-kube", Only(&["model", "engine", "link"])),
    // Whoever calls on a task gets bytes of the same kind as an agent does.
    ("api", Only(&["model", "link"])),
    ("ssh", Only(&["model"])),
    // Copies are written and read by the same code at both of their ends.
    ("inside", Only(&["model", "bundle", "link", "ssh"])),
    ("agent", Only(&["model", "bundle", "link", "ssh"])),
    ("server", Only(&["model", "launch", "scheduler", "store", "engine", "api", "bundle", "link"])),
    // The client knows the server by its API alone: what it needs of the model, `api` re-exports.
    // How a job is to be started is found from the code, which only the client sees. `sim` plays the scheduler without a server.
    ("cli", Only(&["api", "bundle", "launch", "scheduler", "ssh"])),
    ("app", Anything),
    ("testkit", Only(&["api", "model"])),
];

/// Nothing that ships may contain it.
const DEV_ONLY: &str = "testkit";

const MAX_LINES: usize = 800;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    /// A normal or a build dependency.
    Ships,
    Dev,
}

struct Arrow<'a> {
    from: &'a str,
    to: &'a str,
    kind: Kind,
}

/// Every violation, as a line that names the arrow and the rule.
fn violations(rules: &[(&str, MaySee)], crates: &[&str], arrows: &[Arrow]) -> Vec<String> {
    let rules: BTreeMap<_, _> = rules.iter().map(|(name, may_see)| (*name, may_see)).collect();
    let mut found = Vec::new();
    for name in crates.iter().filter(|name| !rules.contains_key(**name)) {
        found.push(format!("crates/{name} has no rule: say in architecture.rs what it may depend on"));
    }
    for name in rules.keys().filter(|name| !crates.contains(*name)) {
        found.push(format!("there is a rule for crates/{name}, and no such crate"));
    }
    for Arrow { from, to, kind } in arrows {
        if *to == DEV_ONLY {
            if *kind != Kind::Dev {
                found.push(format!("{from} -> {to}: {DEV_ONLY} may only be a dev-dependency"));
            }
            continue;
        }
        match rules.get(from) {
            None | Some(Anything) => {}
            Some(Only(allowed)) if allowed.contains(to) => {}
            Some(Only([])) => found.push(format!("{from} -> {to}: {from} may depend on no other crate")),
            Some(Only(allowed)) => {
                found.push(format!("{from} -> {to}: {from} may depend on {} only", allowed.join(", ")));
            }
        }
    }
    found
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace exists")
}

/// The workspace as cargo sees it: folder name of each crate, with the arrows that leave it.
fn real_workspace() -> (Vec<String>, Vec<(String, String, Kind)>) {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(workspace_root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let folder = |path: &serde_json::Value| {
        let path = Path::new(path.as_str()?);
        Some(path.file_name()?.to_str()?.to_owned())
    };
    let (mut crates, mut arrows) = (Vec::new(), Vec::new());
    for package in metadata["packages"].as_array().expect("a list of packages") {
        let manifest = Path::new(package["manifest_path"].as_str().expect("a path"));
        let from = folder(&manifest.parent().and_then(Path::to_str).into()).expect("a crate has a folder");
        for dependency in package["dependencies"].as_array().expect("a list of dependencies") {
            // Only dependencies inside the workspace have a path.
            if let Some(to) = folder(&dependency["path"]) {
                let kind = if dependency["kind"] == "dev" { Kind::Dev } else { Kind::Ships };
                arrows.push((from.clone(), to, kind));
            }
        }
        crates.push(from);
    }
    (crates, arrows)
}

/// Every Rust file below `folder`.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("a source folder is readable") {
        let path = entry.expect("an entry is readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// What is wrong with one source file, if anything.
fn fault(path: &Path, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let holds_tests = path.file_stem().is_some_and(|stem| stem == "tests")
        || path.parent().is_some_and(|folder| folder.components().any(|part| part.as_os_str() == "tests"));
    if lines > MAX_LINES {
        return Some(format!("{}: {lines} lines; split it ({MAX_LINES} at most)", path.display()));
    }
    if !text.starts_with("//!") && !holds_tests {
        let expected = "begin with a `//!` header: what the module owns, why, what it must never do";
        return Some(format!("{}: {expected}", path.display()));
    }
    None
}

fn assert_none(found: &[String]) {
    assert!(found.is_empty(), "\n  {}\n", found.join("\n  "));
}

#[test]
fn crates_depend_only_on_what_they_may_see() {
    let (crates, arrows) = real_workspace();
    let crates: Vec<_> = crates.iter().map(String::as_str).collect();
    let arrows: Vec<_> = arrows.iter().map(|(from, to, kind)| Arrow { from, to, kind: *kind }).collect();
    assert_none(&violations(RULES, &crates, &arrows));
}

#[test]
fn source_files_have_a_header_and_a_bounded_length() {
    let root = workspace_root();
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root.join("crates")).expect("crates/ is readable") {
        let folder = entry.expect("an entry is readable").path().join("src");
        if folder.is_dir() {
            sources(&folder, &mut found);
        }
    }
    assert!(!found.is_empty(), "no source files found below crates/");
    found.sort();
    let faults: Vec<_> = found
        .iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(path).expect("a source file is UTF-8");
            fault(path.strip_prefix(&root).expect("it is below the root"), &text)
        })
        .collect();
    assert_none(&faults);
}

/// Ways to an output of the process.
const OUTPUTS: &[&str] = &["print!(", "println!(", "eprint!(", "eprintln!(", "io::stdout()", "io::stderr()"];

/// Files of the client that may use them. Everything else prints by `terminal`, which escapes texts of other people.
const PRINTERS: &[&str] = &[
    "terminal.rs",
    // Interactive: a command in a task gets the user's own terminal, and its size.
    "remote.rs",
    "remote/stdio.rs",
    "command/session/attach.rs",
    // Bytes between `ssh` and a task.
    "command/ssh_proxy.rs",
];

/// Lines of a source file that write to an output.
fn printing_lines(text: &str) -> Vec<usize> {
    let writes = |line: &str| OUTPUTS.iter().any(|output| line.contains(output));
    let numbered =
        text.lines().enumerate().filter(|(_, line)| writes(line) && !line.trim_start().starts_with("//"));
    numbered.map(|(at, _)| at + 1).collect()
}

#[test]
fn the_client_prints_through_one_module() {
    let root = workspace_root().join("crates/cli/src");
    let mut found = Vec::new();
    sources(&root, &mut found);
    let mut faults = Vec::new();
    for path in found {
        let name = path.strip_prefix(&root).expect("it is below the root").display().to_string();
        if PRINTERS.contains(&name.as_str()) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a source file is UTF-8");
        let lines = printing_lines(&text);
        faults.extend(
            lines.iter().map(|line| format!("crates/cli/src/{name}:{line}: print by `crate::terminal`")),
        );
    }
    assert_none(&faults);
    for printer in PRINTERS {
        assert!(root.join(printer).exists(), "{printer} may print, and does not exist");
    }
}

/// The check itself, on made-up workspaces.
mod the_check {
    use super::*;

    const NAMES: &[&str] = &["model", "store", "server", "app", "testkit"];

    fn rules() -> Vec<(&'static str, MaySee)> {
        vec![
            ("model", Only(&[])),
            ("store", Only(&["model"])),
            ("server", Only(&["model", "store"])),
            ("app", Anything),
            ("testkit", Only(&["model"])),
        ]
    }

    fn found(from: &str, to: &str, kind: Kind) -> Vec<String> {
        violations(&rules(), NAMES, &[Arrow { from, to, kind }])
    }

    #[test]
    fn names_a_forbidden_arrow_and_its_rule() {
        assert_eq!(
            found("store", "server", Kind::Ships),
            ["store -> server: store may depend on model only"]
        );
        assert_eq!(
            found("model", "store", Kind::Ships),
            ["model -> store: model may depend on no other crate"]
        );
    }

    #[test]
    fn holds_dev_dependencies_to_the_same_rules() {
        assert_eq!(found("store", "server", Kind::Dev).len(), 1);
        assert_eq!(found("server", "store", Kind::Dev), [""; 0]);
    }

    #[test]
    fn lets_the_app_see_everything_that_ships() {
        assert_eq!(found("app", "store", Kind::Ships), [""; 0]);
    }

    #[test]
    fn keeps_the_testkit_out_of_what_ships() {
        assert_eq!(found("model", "testkit", Kind::Dev), [""; 0]);
        assert_eq!(
            found("app", "testkit", Kind::Ships),
            ["app -> testkit: testkit may only be a dev-dependency"]
        );
    }

    #[test]
    fn wants_a_rule_for_every_crate_and_a_crate_for_every_rule() {
        let crates = ["model", "store", "server", "testkit", "gateway"];
        assert_eq!(
            violations(&rules(), &crates, &[]),
            [
                "crates/gateway has no rule: say in architecture.rs what it may depend on",
                "there is a rule for crates/app, and no such crate",
            ]
        );
    }

    #[test]
    fn finds_ways_to_an_output() {
        let text = "fn f() {\n    println!(\"{name}\");\n    // println!(x)\n    let mut out = io::stdout().lock();\n}\n";
        assert_eq!(printing_lines(text), [2, 4]);
    }

    #[test]
    fn wants_a_header_unless_the_file_holds_tests() {
        let without = "use std::fmt;\n";
        assert!(fault(Path::new("crates/x/src/lib.rs"), without).is_some_and(|line| line.contains("header")));
        assert_eq!(fault(Path::new("crates/x/src/lib.rs"), "//! Owns x.\n"), None);
        assert_eq!(fault(Path::new("crates/x/src/foo/tests.rs"), without), None);
        assert_eq!(fault(Path::new("crates/x/src/foo/tests/bar.rs"), without), None);
    }

    #[test]
    fn bounds_the_length_of_a_file() {
        let lines = |count| format!("//! Owns x.\n{}", "\n".repeat(count - 1));
        assert_eq!(fault(Path::new("crates/x/src/lib.rs"), &lines(MAX_LINES)), None);
        assert!(fault(Path::new("crates/x/src/lib.rs"), &lines(MAX_LINES + 1)).is_some());
    }
}

/// `docs/security.md` names a test for each promise, as `crate module::name`: each is there.
#[test]
fn every_promise_of_the_security_page_has_its_test() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = std::fs::read_to_string(root.join("docs/security.md")).expect("the page");
    let mut files = Vec::new();
    sources(&root.join("crates"), &mut files);
    let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a source is readable");
    let sources: String = files.iter().map(read).collect();
    let rows = page.lines().filter(|line| line.starts_with("| ") && line.matches(" | ").count() == 1);
    let promises = rows.filter_map(|line| line.rsplit_once(" | ")).filter(|(_, test)| test.contains("::"));
    let names: Vec<String> = promises
        .flat_map(|(_, tests)| tests.split('`').filter(|part| part.contains("::")).map(str::to_owned))
        .collect();
    assert!(names.len() > 20, "the page names tests: {names:?}");
    let is_there = |name: &&String| {
        let test = name.rsplit("::").next().unwrap_or_default();
        sources.contains(&format!("fn {test}("))
    };
    let missing: Vec<&String> = names.iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "docs/security.md names tests that are not there: {missing:#?}");
}
