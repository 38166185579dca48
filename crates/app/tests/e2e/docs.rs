//! The documentation: every command line in it is one that the binary takes.

use std::path::Path;

use crate::home;

/// The `muster …` lines of a page's shell blocks.
fn command_lines(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut in_shell = false;
    for line in page.lines() {
        if let Some(language) = line.trim_start().strip_prefix("```") {
            in_shell = !in_shell && ["console", "sh", "bash"].contains(&language.trim());
            continue;
        }
        let line = line.trim_start().trim_start_matches("$ ");
        // A line with brackets is a synopsis.
        if in_shell && line.starts_with("muster ") && !line.contains('[') {
            found.push(line.to_owned());
        }
    }
    found
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
fn every_command_line_in_the_documentation_is_understood() {
    let home = home();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = [
        "README.md",
        "README.zh-CN.md",
        "docs/guides/first-run.md",
        "docs/guides/run-a-job.md",
        "docs/guides/retries.md",
    ];
    let mut count = 0;
    for page in pages {
        let text = std::fs::read_to_string(root.join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        for line in command_lines(&text) {
            let words = as_question(&line).replacen("muster", "\"$MUSTER\"", 1);
            let mut shell = std::process::Command::new("sh");
            shell
                .args(["-c", &words])
                .env("MUSTER", env!("CARGO_BIN_EXE_muster"))
                .env("MUSTER_HOME", home.path());
            let done = shell.current_dir(home.work()).output().unwrap();
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{page}: `{line}`: {said}");
            assert!(String::from_utf8_lossy(&done.stdout).contains("Usage:"), "{page}: `{line}`");
            count += 1;
        }
    }
    assert!(count >= 10, "only {count} command lines were found: are the blocks still marked as console?");
    assert!(!home.path().exists(), "asking for help starts nothing");
}
