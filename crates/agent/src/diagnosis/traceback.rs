//! Python tracebacks in a log, also where several processes write to it at once.
//!
//! A launcher ends with a traceback of its own, and the peers of a process that failed end with errors about a lost connection.
//! Neither is why the job failed: they count only where there is nothing else.

use super::output::Line;

const HEADER: &str = "Traceback (most recent call last):";
/// torchrun's summary names the process that failed first below this line.
const ROOT_CAUSE: &str = "Root Cause (first observed failure):";
/// Errors in which launchers say that something they started has failed.
const OF_LAUNCHERS: &[&str] = &[
    "ChildFailedError",
    "CalledProcessError",
    "ProcessExitedException",
    "ProcessRaisedException",
    "SystemExit",
];
/// Words of errors that follow from the failure of a peer.
const OF_PEERS: &[&str] = &[
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "DistBackendError",
    "DistNetworkError",
    "ncclRemoteError",
    "NCCL communicator was aborted",
    "HorovodInternalError",
    "KeyboardInterrupt",
];

/// How an error came about, the most telling last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    Launcher,
    Peer,
    Own,
}

/// The last line of a traceback.
#[derive(Debug, Clone, Copy)]
struct Found<'a> {
    /// The process, as its launcher or PyTorch labels its lines; empty without a label.
    label: &'a str,
    error: &'a str,
    origin: Origin,
}

/// The last error of the process that failed first.
pub(super) fn error_of_first_failure(lines: &[Line]) -> Option<&str> {
    let found = tracebacks(lines);
    let most = found.iter().map(|found| found.origin).max().filter(|origin| *origin > Origin::Launcher)?;
    let candidates = || found.iter().filter(|found| found.origin == most);
    if let Some(rank) = first_failed_rank(lines)
        && let Some(named) = candidates().rfind(|found| is_label_of(found.label, rank))
    {
        return Some(named.error);
    }
    // Every process counts with its last error, since one that went on has caught the others. The first of these is wanted.
    let is_last_of_its_process = |at: usize| {
        !found[at + 1..].iter().any(|later| later.origin == most && later.label == found[at].label)
    };
    (0..found.len())
        .find(|at| found[*at].origin == most && is_last_of_its_process(*at))
        .map(|at| found[at].error)
}

/// All tracebacks, in the order in which they end.
fn tracebacks(lines: &[Line]) -> Vec<Found<'_>> {
    let mut found = Vec::new();
    // Labels of tracebacks that have begun and not ended. Where lines have no label, several may have begun.
    let mut open: Vec<&str> = Vec::new();
    for line in lines {
        let (label, text) = split_label(&line.text);
        let text = text.strip_prefix("  | ").unwrap_or(text);
        let is_open = open.contains(&label);
        // A syntax error is shown with its place and without the header.
        let begins = text.trim_start_matches([' ', '+', '|']).ends_with(HEADER)
            || (!is_open && text.starts_with("  File \"") && text.contains("\", line "));
        if begins {
            open.push(label);
        } else if is_open && is_error(text) {
            open.retain({
                let mut is_first = true;
                move |other| *other != label || !std::mem::take(&mut is_first)
            });
            found.push(Found { label, error: text, origin: origin(text) });
        }
    }
    found
}

/// `[rank1]: `, `[default0]:`, `[1,0]<stderr>: `: whose line it is, and the line.
fn split_label(text: &str) -> (&str, &str) {
    let split = || {
        let (label, rest) = text.strip_prefix('[')?.split_once(']')?;
        let is_label =
            !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b',');
        let rest = rest.strip_prefix("<stderr>").or_else(|| rest.strip_prefix("<stdout>")).unwrap_or(rest);
        let rest = rest.strip_prefix(':').filter(|_| is_label)?;
        Some((label, rest.strip_prefix(' ').unwrap_or(rest)))
    };
    split().unwrap_or(("", text))
}

/// `ValueError: bad sample 42`, `torch.OutOfMemoryError: CUDA out of memory.`, `KeyboardInterrupt`.
fn is_error(text: &str) -> bool {
    let name = text.split_once(": ").map_or(text.trim_end_matches(':'), |(name, _)| name);
    let is_name = |part: &str| {
        !part.is_empty()
            && part.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '<' | '>'))
    };
    let class = name.rsplit('.').next().unwrap_or_default();
    name.split('.').all(is_name) && class.starts_with(|letter: char| letter.is_uppercase() || letter == '_')
}

fn origin(error: &str) -> Origin {
    let name = error.split(':').next().unwrap_or_default();
    if OF_LAUNCHERS.iter().any(|launcher| name.ends_with(launcher)) {
        Origin::Launcher
    } else if OF_PEERS.iter().any(|words| error.contains(words)) {
        Origin::Peer
    } else {
        Origin::Own
    }
}

/// The rank that torchrun saw fail first: `  rank      : 1 (local_rank: 1)`.
fn first_failed_rank(lines: &[Line]) -> Option<u32> {
    let start = lines.iter().rposition(|line| line.text.contains(ROOT_CAUSE))?;
    let rank = lines[start..].iter().find_map(|line| {
        let (name, value) = line.text.split_once(':')?;
        (name.trim() == "rank").then(|| value.trim())
    })?;
    rank.split(' ').next()?.parse().ok()
}

/// PyTorch labels lines with the rank. What torchrun labels with the number in the node tells nothing in a gang.
fn is_label_of(label: &str, rank: u32) -> bool {
    label.strip_prefix("rank").and_then(|number| number.parse().ok()) == Some(rank)
}

#[cfg(test)]
mod tests {
    use muster_link::log::Stream;

    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        text.lines()
            .map(|line| Line { stream: Stream::Stderr, time_micros: 0, text: line.to_owned() })
            .collect()
    }

    fn error(text: &str) -> Option<String> {
        error_of_first_failure(&lines(text)).map(str::to_owned)
    }

    #[test]
    fn a_program_is_named_by_its_last_traceback() {
        let caught_before = "\
Traceback (most recent call last):
  File \"t.py\", line 3, in <module>
    load()
OSError: no cache, going on
epoch 1
Traceback (most recent call last):
  File \"t.py\", line 9, in <module>
    step(42)
KeyError: 42

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File \"t.py\", line 11, in <module>
    raise ValueError('bad sample 42')
ValueError: bad sample 42
bye";
        assert_eq!(error(caught_before).unwrap(), "ValueError: bad sample 42");
    }

    #[test]
    fn under_torchrun_the_error_is_that_of_the_process_that_failed_first() {
        let output = "\
[rank1]: Traceback (most recent call last):
[rank0]: Traceback (most recent call last):
[rank1]:   File \"t.py\", line 5, in <module>
[rank0]:   File \"t.py\", line 7, in <module>
[rank1]: ValueError: bad sample 42
[rank0]: RuntimeError: [../gloo/pair.cc:534] Connection closed by peer [10.0.0.1]:1
E1118 10:00:00.0 123 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 1
Traceback (most recent call last):
  File \"/venv/bin/torchrun\", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
t.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-18_10:00:00
  rank      : 1 (local_rank: 1)
  exitcode  : 1 (pid: 124)
============================================================";
        assert_eq!(error(output).unwrap(), "ValueError: bad sample 42");
        let both_their_own =
            output.replace("RuntimeError: [../gloo/pair.cc:534] Connection closed by peer", "IndexError: 3");
        assert_eq!(error(&both_their_own).unwrap(), "ValueError: bad sample 42");
    }

    #[test]
    fn lines_of_processes_without_labels_may_be_mixed() {
        let output = "\
Traceback (most recent call last):
Traceback (most recent call last):
  File \"t.py\", line 5, in <module>
  File \"t.py\", line 5, in <module>
RuntimeError: Connection reset by peer
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
subprocess.CalledProcessError: Command '['python', 't.py']' returned non-zero exit status 1.";
        assert_eq!(
            error(output).unwrap(),
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        );
    }

    #[test]
    fn what_launchers_and_peers_say_counts_only_alone() {
        let of_peer = "\
Traceback (most recent call last):
  File \"t.py\", line 5, in <module>
torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3000
Traceback (most recent call last):
  File \"/bin/torchrun\", line 8, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:";
        assert_eq!(
            error(of_peer).unwrap(),
            "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:3000"
        );
        let of_launcher = "\
Traceback (most recent call last):
  File \"/bin/accelerate\", line 8, in <module>
subprocess.CalledProcessError: Command '['false']' returned non-zero exit status 1.";
        assert_eq!(error(of_launcher), None);
    }

    #[test]
    fn syntax_errors_groups_and_labels_of_mpirun_are_known() {
        let syntax = "  File \"t.py\", line 1\n    def f(\n         ^\nSyntaxError: '(' was never closed";
        assert_eq!(error(syntax).unwrap(), "SyntaxError: '(' was never closed");
        let group = "  + Exception Group Traceback (most recent call last):\n  |   File \"t.py\", line 1, in <module>\n  | ExceptionGroup: two (2 sub-exceptions)";
        assert_eq!(error(group).unwrap(), "ExceptionGroup: two (2 sub-exceptions)");
        let mpi = "[1,0]<stderr>: Traceback (most recent call last):\n[1,0]<stderr>:   File \"t.py\", line 1\n[1,0]<stderr>: ModuleNotFoundError: No module named 'torhc'";
        assert_eq!(error(mpi).unwrap(), "ModuleNotFoundError: No module named 'torhc'");
    }

    #[test]
    fn other_output_is_no_error() {
        assert_eq!(error("Epoch: 1\nLoss: 0.3\nDone"), None);
        assert_eq!(error("Traceback (most recent call last):\n  File \"t.py\", line 1\nhello there"), None);
    }
}
