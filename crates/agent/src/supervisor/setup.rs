//! The shell that `setup` shares with the command, so that what it activates, sources or sets is there for the command.
//!
//! One shell (bash where there is one) evaluates the script. Then it goes on with the command: a shell line is evaluated
//! in it, a program takes its place. Where that cannot be (elements of an array, several processes, a program that is not
//! found), it reports its environment, in which the supervisor starts the command itself.
//!
//! What `setup_once` makes is kept in the cache of the task's account, as that of package managers is: by the script, the
//! files of the code that it names or that list packages, and the node, since accounts may have one home on many nodes. Where
//! the script names the code itself, as in `pip install .`, the working directory counts, so that each job has its own.
//!
//! The shell reports through a file in memory, since among the variables are secrets, which are never on a disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::slice;

use rustix::fs::{MemfdFlags, memfd_create};

use super::file::{Launch, Step, StepKind};

/// Tells that the file in memory is still what it was: a script may use any descriptor for itself.
const NAME: &str = "muster-setup";
/// What the report begins with when the shell has gone on with the command.
const COMMAND: &[u8] = b"command\n";
/// What it begins with when variables follow.
const ENVIRONMENT: &[u8] = b"environment\n";
/// More than the kernel lets any program have.
const MAX_REPORT: u64 = 8 << 20;

/// Hands the shared shell to bash where there is one.
const BASH_OR_SH: &str = r#"exec "$(command -v bash || echo /bin/sh)" "$@""#;

/// What the shared shell runs. Its words: how to go on, the script to run once, the setup script, the command. Only bash can put
/// them aside, so that the scripts have no words of ours.
const SHARED_SHELL: &str = r#"exec 7>&3 3>&-
muster_how=$1 muster_once=$2 muster_setup=$3 muster_trace=
shift 3
[ -z "${BASH_VERSION:-}" ] || { eval 'muster_words=("$@")'; set --; }
if [ -n "$muster_once" ]; then
    muster_cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/muster/setups
    muster_key=$(
        set -f
        {
            printf '%s\n' "$(uname -n)" "$muster_once"
            for muster_word in $muster_once requirements.txt pyproject.toml uv.lock poetry.lock environment.yml; do
                muster_word=$(printf %s "${muster_word##*=}" | tr -d "\"'")
                case $muster_word in
                . | ./ | .\[*) pwd ;;
                /*) ;;
                *) [ ! -f "./$muster_word" ] || cat "./$muster_word" ;;
                esac
            done
        } | sha256sum
    ) || exit
    MUSTER_SETUP_DIR=$muster_cache/${muster_key%% *}
    export MUSTER_SETUP_DIR
    mkdir -p "$muster_cache" || exit
    (
        flock -n 8 || {
            echo "[muster] another task runs setup_once; waiting for it" >&2
            flock 8 || exit
        }
        [ ! -e "$MUSTER_SETUP_DIR/.done" ] || exit 0
        rm -rf "$MUSTER_SETUP_DIR" && mkdir "$MUSTER_SETUP_DIR" || exit
        (
            exec 7>&- 8>&-
            eval "$muster_once"
        )
        muster_status=$?
        [ "$muster_status" = 0 ] || exit "$muster_status"
        : >"$MUSTER_SETUP_DIR/.done"
    ) 8>"$MUSTER_SETUP_DIR.lock"
    muster_status=$?
    [ "$muster_status" = 0 ] || exit "$muster_status"
fi
eval "$muster_setup"
{ muster_status=$?; case $- in *x*) muster_trace='set -x;'; set +x ;; esac; } 2>/dev/null
[ "$muster_status" = 0 ] || exit "$muster_status"
[ -z "${BASH_VERSION:-}" ] || eval 'set -- "${muster_words[@]}"'
case $(readlink /proc/self/fd/7 2>/dev/null) in
*memfd:muster-setup*) ;;
*) exit 0 ;;
esac
muster_find() { if [ -n "${BASH_VERSION:-}" ]; then type -P "$1"; else command -v "$1"; fi >/dev/null 2>&1; }
case $muster_how in
line)
    echo command >&7
    exec 7>&-
    muster_line=$muster_trace$1
    set --
    eval "$muster_line"
    exit
    ;;
words)
    if muster_find "$1"; then
        echo command >&7
        exec 7>&-
        exec "$@"
    fi
    ;;
esac
echo environment >&7
cat /proc/self/environ >&7"#;

/// The steps of a task: the shared shell, if there is anything to set up, and the command for where that shell did not start it.
pub(crate) fn steps(setup: Option<&[String]>, once: Option<&str>, command: Step, is_lane: bool) -> Vec<Step> {
    let script = match (setup, once) {
        (None, None) => return vec![command],
        (None, Some(_)) => "",
        (Some([_, flag, script]), _) if flag == "-c" => script,
        // No server gives a setup that is no script.
        (Some(argv), _) => return vec![Step { kind: StepKind::Setup, argv: argv.to_vec() }, command],
    };
    let (how, words): (&str, &[String]) = match &command.argv[..] {
        _ if is_lane => ("report", &[]),
        // In the shell it would be the shell.
        [program, ..] if program == "/proc/self/exe" => ("report", &[]),
        [shell, flag, line] if shell == "/bin/sh" && flag == "-c" => ("line", slice::from_ref(line)),
        words => ("words", words),
    };
    let once = once.unwrap_or_default();
    let shell = ["/bin/sh", "-c", BASH_OR_SH, "sh", "-c", SHARED_SHELL, "sh", how, once, script];
    let argv = shell.map(str::to_owned).into_iter().chain(words.iter().cloned()).collect();
    vec![Step { kind: StepKind::Setup, argv }, command]
}

/// What the shared shell reports, as it does.
pub(super) struct SetupReport {
    file: File,
}

impl SetupReport {
    pub(super) fn new() -> io::Result<SetupReport> {
        Ok(SetupReport { file: memfd_create(NAME, MemfdFlags::CLOEXEC)?.into() })
    }

    /// Where the shell writes it.
    pub(super) fn writer(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Whether the setup is over, and the process is the command's.
    pub(super) fn is_of_command(&self) -> bool {
        let mut start = [0; COMMAND.len()];
        self.file.read_exact_at(&mut start, 0).is_ok() && start == COMMAND
    }

    /// Has the command start as the shell would have started it. Without a report, as after an `exit 0`, nothing changes.
    pub(super) fn adopt(&self, launch: &mut Launch) -> io::Result<()> {
        let length = self.file.metadata()?.len().min(MAX_REPORT);
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.file.read_exact_at(&mut bytes, 0)?;
        let Some(environment) = bytes.strip_prefix(ENVIRONMENT) else { return Ok(()) };
        launch.env = variables(environment);
        // The task's processes are found by it.
        launch.env.insert("MUSTER_TASK_ID".into(), launch.task.clone());
        let directory = launch.env.remove("PWD").map(PathBuf::from);
        if let Some(directory) = directory.filter(|path| path.is_absolute()) {
            launch.cwd = directory;
        }
        Ok(())
    }
}

/// Variables as the kernel has them. One that is not text cannot be passed on.
fn variables(environment: &[u8]) -> BTreeMap<String, String> {
    let texts = environment.split(|byte| *byte == 0).filter_map(|entry| str::from_utf8(entry).ok());
    let pairs = texts.filter_map(|entry| entry.split_once('='));
    // What shells keep for themselves.
    let pairs = pairs.filter(|(name, _)| !matches!(*name, "_" | "SHLVL" | "OLDPWD"));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    fn argv(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// What the shared shell prints and reports, and its exit code.
    fn run(setup: &str, command: &[&str], is_lane: bool) -> (String, String, Option<i32>) {
        run_in(tempfile::tempdir().unwrap().path(), None, setup, command, is_lane)
    }

    fn run_in(
        dir: &Path,
        once: Option<&str>,
        setup: &str,
        command: &[&str],
        is_lane: bool,
    ) -> (String, String, Option<i32>) {
        let command = Step { kind: StepKind::Command, argv: argv(command) };
        let steps = steps(Some(&argv(&["/bin/sh", "-c", setup])), once, command, is_lane);
        // A plain file stands in for the one in memory, by a name that passes for it.
        let report = dir.join("memfd:muster-setup");
        let mut shell = Command::new("/bin/sh");
        shell
            .args(["-c", r#"exec "$@" 3>"$0""#])
            .arg(&report)
            .args(&steps[0].argv)
            .current_dir(dir)
            .env_clear();
        shell.env("PATH", "/usr/bin:/bin").env("GIVEN", "1").env("HOME", dir);
        let output = shell.output().unwrap();
        let report = std::fs::read(report).unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let shown = text(&output.stdout) + &text(&output.stderr);
        (shown, text(&report), output.status.code())
    }

    #[test]
    fn a_line_shares_variables_functions_and_options_with_the_setup() {
        let setup = "X=1; f() { echo function $X $# $1; }; set -e; set -- of setup";
        let line = ["/bin/sh", "-c", "f; false; echo never"];
        assert_eq!(run(setup, &line, false), ("function 1 0\n".into(), "command\n".into(), Some(1)));
        let (shown, _, _) = run("set -x", &["/bin/sh", "-c", "true"], false);
        assert!(shown.contains("+ true\n") && !shown.contains("muster"), "{shown}");
        let (shown, report, code) = run("cd /; source /dev/null", &["/bin/sh", "-c", "pwd; exit 5"], false);
        assert_eq!((shown.as_str(), report.as_str(), code), ("/\n", "command\n", Some(5)));
    }

    #[test]
    fn a_program_takes_the_place_of_the_shell_and_keeps_its_words() {
        let words = ["sh", "-c", r#"echo "$1|$2|$X|$(ulimit -n)"; exit 4"#, "sh", "a  b", "*"];
        let (shown, report, code) = run("export X='x  y'; ulimit -n 77; set -- other words", &words, false);
        assert_eq!((shown.as_str(), report.as_str(), code), ("a  b|*|x  y|77\n", "command\n", Some(4)));
    }

    #[test]
    fn a_setup_that_fails_or_leaves_reports_nothing() {
        for (setup, expected) in [
            ("exit 7", 7),
            ("set -e; false; echo never", 1),
            ("no-such-program-7f3", 127),
            ("if", 2),
            ("exit 0", 0),
            ("exec 7>/dev/null", 0),
        ] {
            let (_, report, code) = run(setup, &["echo", "never"], false);
            // bash has another code for what it cannot parse.
            assert!(code == Some(expected) || setup == "if" && code == Some(1), "{setup}: {code:?}");
            assert_eq!(report, "", "{setup}");
        }
    }

    #[test]
    fn what_the_shell_cannot_start_gets_its_environment_and_directory() {
        for (command, is_lane) in
            [(["no-such-program-7f3"], false), (["true"], true), (["/proc/self/exe"], false)]
        {
            let (shown, report, code) = run("export X='a\nb' GIVEN=2; Y=3; cd /", &command, is_lane);
            assert_eq!((shown.as_str(), code), ("", Some(0)));
            let report = report.strip_prefix("environment\n").unwrap();
            let found = variables(report.as_bytes());
            let value = |name: &str| found.get(name).map(String::as_str);
            let expected = [Some("a\nb"), Some("2"), None, Some("/")];
            assert_eq!(["X", "GIVEN", "Y", "PWD"].map(value), expected);
            assert_eq!(value("SHLVL"), None);
        }
    }
    #[test]
    fn what_is_set_up_once_is_kept_until_its_script_or_a_file_that_it_names_changes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("needs.txt");
        std::fs::write(&file, "a").unwrap();
        let count = ["/bin/sh", "-c", "wc -l < runs; cat \"$MUSTER_SETUP_DIR/made\""];
        let once = "set -e; echo ran >> runs; cp needs.txt \"$MUSTER_SETUP_DIR/made\"";
        let tell = |once: &str| run_in(dir.path(), Some(once), "export X=1", &count, false).0;
        assert_eq!((tell(once), tell(once)), ("1\na".into(), "1\na".into()));
        std::fs::write(&file, "b").unwrap();
        assert_eq!((tell(once), tell(once)), ("2\nb".into(), "2\nb".into()));
        // Quoted, as a value, and not named at all.
        let quoted = "set -e; echo ran >> runs; cp \"needs.txt\" --target-directory=\"$MUSTER_SETUP_DIR\"; \
                      cp requirements.txt \"$MUSTER_SETUP_DIR/made\"";
        for needs in ["c", "d"] {
            std::fs::write(&file, needs).unwrap();
            std::fs::write(dir.path().join("requirements.txt"), needs).unwrap();
            assert!(tell(quoted).ends_with(needs), "{needs}");
        }
        std::fs::write(dir.path().join("requirements.txt"), "e").unwrap();
        assert!(tell("cp requirements.t* $MUSTER_SETUP_DIR/made; echo ran >> runs").ends_with('e'));
        // A failure is not kept, and is the setup's.
        let fails = "echo ran >> runs; set -e; false; echo never";
        for _ in 0..2 {
            let (shown, report, code) = run_in(dir.path(), Some(fails), "", &count, false);
            assert_eq!((shown.as_str(), report.as_str(), code), ("", "", Some(1)));
        }
        assert_eq!(std::fs::read_to_string(dir.path().join("runs")).unwrap().lines().count(), 7);
    }
}
