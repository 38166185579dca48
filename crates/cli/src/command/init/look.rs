//! What is in a directory, as far as it says something about the job.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use ignore::WalkBuilder;
use muster_api::model::Framework;
use muster_api::model::spec::Command;
use muster_launch::detect::detect;

use crate::spec::Folder;

/// From here on people may not know that they copy it.
const LARGE: u64 = 100 << 20;
/// Files looked at for their size: a guess is enough, and nobody waits for it.
const MOST_FILES: usize = 50_000;
/// How much of a script is read: imports are at its beginning.
const MOST_TEXT: u64 = 256 << 10;
/// How many scripts are read.
const MOST_SCRIPTS: usize = 50;

/// What scripts are called that people run, the most likely first.
const USUAL: [&str; 8] =
    ["train.py", "main.py", "run.py", "finetune.py", "pretrain.py", "train.sh", "run.sh", "main.sh"];

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The directory's own name.
    pub name: Option<String>,
    pub script: Option<String>,
    /// Other scripts that could have been meant.
    pub others: Vec<String>,
    pub notebook: Option<String>,
    /// The launch contract, and by what it was found; several where the code speaks for more than one.
    pub frameworks: Vec<(Framework, String)>,
    pub requirements: bool,
    pub pyproject: bool,
    pub environment: Option<String>,
    pub dockerfile: bool,
    /// Files and directories of the top that are large, as they would be written into `.musterignore`.
    pub large: Vec<(String, u64)>,
}

/// Looks at a directory. What cannot be read is not there.
pub(super) fn around(folder: &Path) -> Seen {
    let files = names(folder);
    let has = |name: &str| files.iter().any(|file| file == name);
    let of_kind =
        |ending: &str| files.iter().filter(|file| file.ends_with(ending)).cloned().collect::<Vec<_>>();
    let usual = USUAL.iter().find(|name| has(name)).map(|name| (*name).to_owned());
    let scripts = of_kind(".py");
    let is_main = |name: &&String| text(&folder.join(name.as_str())).contains("__main__");
    let script =
        usual.or_else(|| scripts.iter().take(MOST_SCRIPTS).find(is_main).or(scripts.first()).cloned());
    let frameworks = frameworks(folder, script.as_deref(), &scripts);
    Seen {
        name: folder.canonicalize().ok().and_then(|path| path.file_name()?.to_str().map(str::to_owned)),
        others: scripts.iter().filter(|name| Some(*name) != script.as_ref()).take(3).cloned().collect(),
        notebook: of_kind(".ipynb").into_iter().next(),
        script,
        frameworks,
        requirements: has("requirements.txt"),
        pyproject: has("pyproject.toml"),
        environment: ["environment.yml", "environment.yaml"]
            .into_iter()
            .find(|name| has(name))
            .map(str::to_owned),
        dockerfile: has("Dockerfile"),
        large: large(folder),
    }
}

/// The files of the top, by name. A name that is no text, or breaks a line, is no part of a job file.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.path().is_file())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !name.contains(char::is_control) && !name.starts_with('.'))
        .collect();
    names.sort_unstable();
    names
}

fn text(path: &Path) -> String {
    let mut bytes = Vec::new();
    // What cannot be read says nothing.
    let _ = File::open(path).and_then(|file| file.take(MOST_TEXT).read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

/// What the script uses; else what any script beside it does.
fn frameworks(folder: &Path, script: Option<&str>, scripts: &[String]) -> Vec<(Framework, String)> {
    let used = |name: &str| -> Vec<(Framework, String)> {
        let command = Command::Argv(vec![format!("./{name}")]);
        let found = detect(&command, &Folder(folder)).frameworks;
        found.into_iter().map(|found| (found.what, found.why)).collect()
    };
    let others = scripts.iter().map(String::as_str).take(MOST_SCRIPTS);
    script.into_iter().chain(others).map(used).find(|found| !found.is_empty()).unwrap_or_default()
}

/// What is large of what would be copied, each by the name of its top.
fn large(folder: &Path) -> Vec<(String, u64)> {
    let walker = WalkBuilder::new(folder)
        .hidden(false)
        .ignore(false)
        .require_git(false)
        .parents(false)
        .add_custom_ignore_filename(".musterignore")
        .filter_entry(|entry| entry.file_name() != ".git")
        .build();
    let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
    for entry in walker.flatten().take(MOST_FILES) {
        let Some(metadata) = entry.metadata().ok().filter(fs::Metadata::is_file) else { continue };
        let below = entry.path().strip_prefix(folder).unwrap_or(entry.path());
        let mut parts = below.components();
        let Some(top) = parts.next().and_then(|top| top.as_os_str().to_str()) else { continue };
        let name = if parts.next().is_some() { format!("{top}/") } else { top.to_owned() };
        if !name.contains(char::is_control) {
            *sizes.entry(name).or_default() += metadata.len();
        }
    }
    let mut large: Vec<(String, u64)> = sizes.into_iter().filter(|(_, bytes)| *bytes > LARGE).collect();
    large.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    large
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_the_usual_one_or_the_one_that_can_be_run() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(around(folder.path()).script, None);
        write("a.py", "x = 1\n");
        assert_eq!(around(folder.path()).script.as_deref(), Some("a.py"));
        write("b.py", "import jax\nif __name__ == '__main__':\n    pass\n");
        let seen = around(folder.path());
        assert_eq!(seen.script.as_deref(), Some("b.py"));
        assert_eq!(seen.frameworks, [(Framework::Jax, "b.py imports jax".to_owned())]);
        write("train.sh", "python b.py\n");
        let seen = around(folder.path());
        assert_eq!((seen.script.as_deref(), seen.others.len()), (Some("train.sh"), 2));
        write("odd\nname.py", "");
        assert!(around(folder.path()).others.iter().all(|name| !name.contains('\n')));
    }

    #[test]
    fn large_files_are_named_by_their_top_unless_they_are_left_out_already() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("data/part")).unwrap();
        for (name, size) in [("data/part/a", 90), ("data/b", 20), ("model.ckpt", 101), ("small.bin", 5)] {
            File::create(folder.path().join(name)).unwrap().set_len(size << 20).unwrap();
        }
        let seen = around(folder.path());
        assert_eq!(seen.large, [("data/".to_owned(), 110 << 20), ("model.ckpt".to_owned(), 101 << 20)]);
        fs::write(folder.path().join(".musterignore"), "data/\n*.ckpt\n").unwrap();
        assert_eq!(around(folder.path()).large, []);
    }
}
