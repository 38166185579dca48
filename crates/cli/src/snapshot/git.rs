//! Which commit the code is of, and how it differs from it.
//!
//! This asks the `git` that is installed, because only it knows everything a repository may be. It must never get in
//! the way: it takes no locks, runs no hook, pager or helper, asks nothing, and has little time. Where it has no answer
//! (no repository, no commit yet, a repository of someone else) there is no source, and no word about it.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use muster_bundle::cut;
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::time::timeout;

/// A large repository on a slow disk takes a second or two; the job does not wait for longer.
const DEADLINE: Duration = Duration::from_secs(5);
/// The first lines of the status are all that is read: commit, branch, and whether there is a change.
const STATUS: usize = 16 << 10;
/// What the end of a diff says that is longer than a chunk.
const CUT: &str = "\n[the rest of the diff is left out: it is longer than 1 MiB]\n";

/// What git says of a code directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct State {
    pub commit: String,
    /// None where no branch is checked out.
    pub branch: Option<String>,
    pub is_dirty: bool,
    /// At most as long as a chunk.
    pub diff: Option<Vec<u8>>,
}

/// What git says of a directory in a repository.
pub(super) async fn look(root: &Path) -> Option<State> {
    timeout(DEADLINE, ask(root)).await.ok().flatten()
}

async fn ask(root: &Path) -> Option<State> {
    let (status, _) = output(
        root,
        &["status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules=untracked"],
        STATUS,
    )
    .await?;
    let mut state = parse(&String::from_utf8_lossy(&status))?;
    if state.is_dirty {
        let options =
            ["diff", "--no-ext-diff", "--no-textconv", "--no-color", "--src-prefix=a/", "--dst-prefix=b/"];
        let (diff, is_whole) = output(root, &[&options[..], &["HEAD"]].concat(), cut::MAX).await?;
        state.diff = (!diff.is_empty()).then(|| if is_whole { diff } else { shortened(diff) });
    }
    Some(state)
}

/// The beginning of what git prints, and whether that is all.
async fn output(root: &Path, words: &[&str], limit: usize) -> Option<(Vec<u8>, bool)> {
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(root)
        .args([
            "--no-optional-locks",
            "--no-pager",
            "-c",
            "core.fsmonitor=",
            "-c",
            "core.hooksPath=/dev/null",
        ])
        .args(["-c", "diff.relative=false"])
        .args(words)
        // What changed elsewhere in the repository is not part of the code.
        .args(["--", "."])
        .env("GIT_OPTIONAL_LOCKS", "0")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_NO_LAZY_FETCH", "1")
        .env("LC_ALL", "C");
    // Somebody's hook may run us; what it says of its own repository does not hold for ours.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_EXTERNAL_DIFF", "GIT_TRACE"]
    {
        git.env_remove(name);
    }
    git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let mut child = git.spawn().ok()?;
    let mut read = Vec::new();
    child.stdout.take()?.take(limit as u64 + 1).read_to_end(&mut read).await.ok()?;
    if read.len() > limit {
        read.truncate(limit);
        // It has more to say, and nobody listens.
        let _ = child.kill().await;
        return Some((read, false));
    }
    child.wait().await.ok()?.success().then_some((read, true))
}

fn parse(status: &str) -> Option<State> {
    let header = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let commit = header("# branch.oid ").filter(|commit| commit != "(initial)")?;
    let branch = header("# branch.head ").filter(|branch| branch != "(detached)");
    let is_dirty = status.lines().any(|line| !line.starts_with('#'));
    Some(State { commit, branch, is_dirty, diff: None })
}

/// As many whole lines as a chunk has room for, with a word about it.
fn shortened(mut diff: Vec<u8>) -> Vec<u8> {
    diff.truncate(cut::MAX - CUT.len());
    diff.truncate(memchr::memrchr(b'\n', &diff).unwrap_or(diff.len()));
    diff.extend_from_slice(CUT.as_bytes());
    diff
}

#[cfg(test)]
mod tests {
    use super::*;

    fn git(folder: &Path, words: &[&str]) {
        let done = std::process::Command::new("git")
            .args([
                "-c",
                "user.name=someone",
                "-c",
                "user.email=someone@example.com",
                "-c",
                "init.defaultBranch=main",
            ])
            .args(words)
            .current_dir(folder)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .output()
            .unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        git(folder.path(), &["init", "-q"]);
        std::fs::create_dir(folder.path().join("project")).unwrap();
        std::fs::write(folder.path().join("project/train.py"), "one\n").unwrap();
        std::fs::write(folder.path().join("notes"), "one\n").unwrap();
        git(folder.path(), &["add", "."]);
        folder
    }

    #[tokio::test]
    async fn commit_branch_and_diff_are_found() {
        let folder = repository();
        let project = folder.path().join("project");
        assert_eq!(look(&project).await, None, "there is no commit yet");
        git(folder.path(), &["commit", "-q", "-m", "first"]);
        let clean = look(&project).await.unwrap();
        assert_eq!((clean.commit.len(), clean.branch.as_deref()), (40, Some("main")));
        assert!(!clean.is_dirty && clean.diff.is_none());

        std::fs::write(folder.path().join("notes"), "two\n").unwrap();
        assert_eq!(look(&project).await.unwrap(), clean, "another directory is not part of the code");
        std::fs::write(project.join("untracked"), "x").unwrap();
        assert_eq!(look(&project).await.unwrap(), clean, "untracked files are in the bundle");

        // A helper that prints something else, and one that would run at every look.
        git(folder.path(), &["config", "diff.external", "echo nonsense"]);
        git(folder.path(), &["config", "core.fsmonitor", "touch fsmonitor-ran"]);
        git(folder.path(), &["config", "color.ui", "always"]);
        std::fs::write(project.join("train.py"), "two\n").unwrap();
        let dirty = look(&project).await.unwrap();
        let diff = String::from_utf8(dirty.diff.unwrap()).unwrap();
        assert!(dirty.is_dirty);
        assert!(diff.contains("+++ b/project/train.py\n@@ -1 +1 @@\n-one\n+two\n"), "{diff}");
        assert!(!project.join("fsmonitor-ran").exists() && !folder.path().join("fsmonitor-ran").exists());

        git(folder.path(), &["commit", "-qam", "second"]);
        git(folder.path(), &["checkout", "-q", "--detach"]);
        assert_eq!(look(&project).await.unwrap().branch, None);
    }

    #[tokio::test]
    async fn a_long_diff_is_cut_and_says_so() {
        let folder = repository();
        git(folder.path(), &["commit", "-q", "-m", "first"]);
        let long: String = (0..300_000).map(|line| format!("{line}\n")).collect();
        std::fs::write(folder.path().join("notes"), long).unwrap();
        let diff = look(folder.path()).await.unwrap().diff.unwrap();
        assert!(diff.len() <= cut::MAX && diff.len() > cut::MAX - 100, "{}", diff.len());
        assert!(diff.ends_with(CUT.as_bytes()));
    }

    #[tokio::test]
    async fn no_repository_is_no_source() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(".git")).unwrap();
        assert_eq!(look(folder.path()).await, None);
    }
}
