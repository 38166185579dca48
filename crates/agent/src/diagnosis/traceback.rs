//! Python tracebacks in a log, also where several processes write to it at once.
//!
//! A launcher ends with a traceback of its own, and the peers of a process that failed end with errors about a lost connection.
//! Neither is why the job failed: they count only where there is nothing else. A program that catches an error may print it and go
//! on: an error counts only where little comes after it from its process.

use std::ops::RangeTo;

use muster_link::log::Stream;

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

/// How muster begins to say that one of several processes has failed.
const PROCESS_ENDED: &str = "muster: process ";
/// Words of launchers, muster's own among them, about a process that has failed. Those that still run are told to end then.
const NOTICES: &[&str] = &[
    "torch/distributed/elastic",
    "torch.distributed.elastic",
    PROCESS_ENDED,
    "Primary job  terminated",
    "MPI_ABORT was invoked",
    "mpirun noticed",
    "mpirun detected",
    "prterun detected",
    "exit with status code",
    "Killing subprocess",
];
/// How lines begin with which programs and shells comment on an end.
const EPILOGUES: &[&str] = &[
    "wandb:",
    "make:",
    "make[",
    "srun:",
    "slurmstepd:",
    "Exception ignored in",
    "During handling",
    "The above exception",
];
/// A process that has printed more lines after an error, or later ones, has gone on.
const MOST_LINES_AFTER: usize = 3;
const EPILOGUE_MICROS: u64 = 10_000_000;
/// The message of an error may have many lines, which are written at once.
const MOST_LINES_OF_MESSAGE: usize = 60;
const MESSAGE_MICROS: u64 = 1_000_000;
/// Lines that are looked at behind an error; tracebacks of many processes fit.
const MOST_LINES_LOOKED_AT: usize = 2_000;

/// How an error came about, the most telling last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Origin {
    Launcher,
    Peer,
    Own,
}

/// The last line of a traceback.
#[derive(Debug, Clone, Copy)]
pub(super) struct TracebackError<'a> {
    /// The process, as its launcher or PyTorch labels its lines; empty without a label.
    label: &'a str,
    pub error: &'a str,
    pub origin: Origin,
    /// Its line.
    at: usize,
    pub time_micros: u64,
}

/// The tracebacks of a log.
pub(super) struct Tracebacks<'a> {
    lines: &'a [Line],
    /// What each of the lines is.
    marks: Vec<LineMark<'a>>,
    /// In the order in which they end.
    found: Vec<TracebackError<'a>>,
}

/// What a line is.
struct LineMark<'a> {
    label: &'a str,
    /// A launcher says that a process has failed.
    is_notice: bool,
    /// It belongs to a traceback.
    is_part: bool,
    /// It says nothing about whether a program goes on.
    is_idle: bool,
}

impl<'a> LineMark<'a> {
    fn of(line: &'a Line) -> Self {
        let (label, text) = split_label(&line.text);
        let is_comment = EPILOGUES.iter().any(|words| text.starts_with(words));
        Self {
            label,
            is_notice: NOTICES.iter().any(|notice| text.contains(notice)),
            is_part: false,
            is_idle: is_comment || !text.contains(|letter: char| letter.is_alphanumeric()),
        }
    }
}

impl<'a> Tracebacks<'a> {
    pub fn of(lines: &'a [Line]) -> Self {
        let marks = lines.iter().map(LineMark::of).collect();
        let mut tracebacks = Self { lines, marks, found: Vec::new() };
        tracebacks.read();
        tracebacks
    }

    /// The lines that belong to none.
    pub fn others(&self) -> Vec<&'a Line> {
        self.lines.iter().zip(&self.marks).filter(|(_, mark)| !mark.is_part).map(|(line, _)| line).collect()
    }

    /// The last error of the process that failed first.
    pub fn first_failure(&self) -> Option<TracebackError<'a>> {
        let root_cause = RootCause::of(self.lines);
        if let Some(cause) = root_cause.as_ref().and_then(|root_cause| root_cause.error)
            && cause.origin == Origin::Own
        {
            return Some(cause);
        }
        // Processes that end after muster has named the one that failed were told to.
        let notice = self.lines.iter().rposition(|line| line.text.starts_with(PROCESS_ENDED));
        let before = self.last_errors(..notice.unwrap_or(self.lines.len()));
        let found = if before.is_empty() { self.last_errors(..self.lines.len()) } else { before };
        let most =
            found.iter().map(|found| found.origin).max().filter(|origin| *origin > Origin::Launcher)?;
        let candidates = || found.iter().filter(|found| found.origin == most);
        if let Some(root_cause) = root_cause
            && let Some(named) = candidates().rfind(|found| root_cause.is_labelled(found.label))
        {
            return Some(*named);
        }
        // Every process counts with its last error, since one that went on has caught the others. The first of these is wanted.
        let is_last_of_its_process = |at: &usize| {
            let mut later = found[at + 1..].iter();
            !later.any(|later| later.origin == most && later.label == found[*at].label)
        };
        (0..found.len())
            .filter(|at| found[*at].origin == most)
            .find(is_last_of_its_process)
            .map(|at| found[at])
    }

    /// The errors in these lines after which their processes did not go on.
    fn last_errors(&self, lines: RangeTo<usize>) -> Vec<TracebackError<'a>> {
        let found = self.found.iter().filter(|found| lines.contains(&found.at));
        found.filter(|found| !self.goes_on_after(found)).copied().collect()
    }

    /// Whether the process of an error went on, as its lines show.
    fn goes_on_after(&self, found: &TracebackError) -> bool {
        // PyTorch labels the errors that nothing has caught, and no other line.
        if rank_of_label(found.label).is_some() {
            return false;
        }
        let is_own = |mark: &LineMark| mark.label == found.label && !mark.is_part && !mark.is_idle;
        let looked_at = self.lines.iter().zip(&self.marks).skip(found.at + 1).take(MOST_LINES_LOOKED_AT);
        let after: Vec<&Line> = looked_at
            .take_while(|(_, mark)| !mark.is_notice)
            .filter(|(_, mark)| is_own(mark))
            .map(|(line, _)| line)
            .take(MOST_LINES_OF_MESSAGE + 1)
            .collect();
        let is_within = |micros: u64| {
            after.iter().all(|line| line.time_micros <= found.time_micros.saturating_add(micros))
        };
        // It prints what it goes on with, and then why it ends.
        let ends_anew =
            after.windows(2).any(|pair| (pair[0].stream, pair[1].stream) == (Stream::Stdout, Stream::Stderr));
        let is_epilogue = after.len() <= MOST_LINES_AFTER && is_within(EPILOGUE_MICROS) && !ends_anew;
        let is_message = after.len() <= MOST_LINES_OF_MESSAGE
            && is_within(MESSAGE_MICROS)
            && after.iter().all(|line| line.stream == Stream::Stderr);
        !is_epilogue && !is_message
    }

    fn read(&mut self) {
        // Labels of tracebacks that have begun and not ended, with their lines. Where lines have no label, several may have begun.
        let mut open: Vec<(&str, Vec<usize>)> = Vec::new();
        let lines = self.lines;
        for (at, line) in lines.iter().enumerate() {
            let (label, text) = split_label(&line.text);
            let text = text.strip_prefix("  | ").unwrap_or(text);
            let mine = open.iter().position(|(other, _)| *other == label);
            // A syntax error is shown with its place and without the header.
            let begins = text.trim_start_matches([' ', '+', '|']).ends_with(HEADER)
                || (mine.is_none() && text.starts_with("  File \"") && text.contains("\", line "));
            if begins {
                open.push((label, vec![at]));
            } else if let Some(mine) = mine {
                open[mine].1.push(at);
                if is_error(text) {
                    for part in open.remove(mine).1 {
                        self.marks[part].is_part = true;
                    }
                    let (origin, time_micros) = (origin(text), line.time_micros);
                    self.found.push(TracebackError { label, error: text, origin, at, time_micros });
                }
            }
        }
    }
}

/// What torchrun says of the process that failed first.
struct RootCause<'a> {
    /// `  rank      : 1 (local_rank: 1)`.
    rank: Option<u32>,
    local_rank: Option<u32>,
    /// The error that the process has written down.
    error: Option<TracebackError<'a>>,
}

impl<'a> RootCause<'a> {
    fn of(lines: &'a [Line]) -> Option<Self> {
        let start = lines.iter().rposition(|line| line.text.contains(ROOT_CAUSE))?;
        let mut cause = Self { rank: None, local_rank: None, error: None };
        let mut is_traceback = false;
        for (at, line) in lines.iter().enumerate().skip(start + 1) {
            if is_traceback && !line.text.is_empty() {
                // Everything in it is indented by two. The last error was raised while the others were handled.
                let Some(text) = line.text.strip_prefix("  ") else { break };
                if is_error(text) {
                    let (origin, time_micros) = (origin(text), line.time_micros);
                    cause.error = Some(TracebackError { label: "", error: text, origin, at, time_micros });
                }
                continue;
            }
            let Some((name, value)) = line.text.split_once(':') else { continue };
            match name.trim() {
                "rank" => {
                    let mut numbers = value.split(|letter: char| !letter.is_ascii_digit());
                    let mut next = || numbers.by_ref().find_map(|number| number.parse().ok());
                    (cause.rank, cause.local_rank) = (next(), next());
                }
                "traceback" => is_traceback = value.ends_with(HEADER),
                _ => {}
            }
        }
        Some(cause)
    }

    /// Whether a label is this process's: PyTorch's has the rank, torchrun's the number in the node.
    fn is_labelled(&self, label: &str) -> bool {
        let local_rank = label.strip_prefix("default").and_then(|number| number.parse().ok());
        rank_of_label(label).is_some_and(|rank| self.rank == Some(rank))
            || local_rank.is_some_and(|local_rank| self.local_rank == Some(local_rank))
    }
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

/// How an error came about, by its text.
pub(super) fn origin(error: &str) -> Origin {
    let name = error.split(':').next().unwrap_or_default();
    if OF_LAUNCHERS.iter().any(|launcher| name.ends_with(launcher)) {
        Origin::Launcher
    } else if OF_PEERS.iter().any(|words| error.contains(words)) {
        Origin::Peer
    } else {
        Origin::Own
    }
}

/// 1 of `rank1`.
fn rank_of_label(label: &str) -> Option<u32> {
    label.strip_prefix("rank")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<Line> {
        text.lines()
            .map(|line| Line { stream: Stream::Stderr, time_micros: 0, text: line.to_owned() })
            .collect()
    }

    fn error(text: &str) -> Option<String> {
        error_in(&lines(text))
    }

    fn error_in(lines: &[Line]) -> Option<String> {
        Tracebacks::of(lines)
            .first_failure()
            .filter(|found| found.origin > Origin::Launcher)
            .map(|found| found.error.to_owned())
    }

    const CAUGHT: &str = "\
Traceback (most recent call last):
  File \"t.py\", line 3, in <module>
    load()
OSError: no cache
";

    #[test]
    fn an_error_after_which_the_program_went_on_is_not_why_it_ended() {
        let mut printed = lines(CAUGHT);
        let after = |second: u64, stream: Stream, text: &str| Line {
            stream,
            time_micros: second * 1_000_000,
            text: text.to_owned(),
        };
        printed.extend((0..20).map(|epoch| after(0, Stream::Stdout, &format!("epoch {epoch}"))));
        assert_eq!(error_in(&printed), None, "many lines at once");
        assert_eq!(Tracebacks::of(&printed).others().len(), 20);
        let mut later = lines(CAUGHT);
        later.push(after(60, Stream::Stdout, "epoch 1"));
        assert_eq!(error_in(&later), None, "one line, but much later");
        later.extend(lines("Traceback (most recent call last):\n  File \"t.py\", line 9\nKeyError: 7"));
        assert_eq!(error_in(&later).unwrap(), "KeyError: 7");
        let of_peer = lines(
            "[rank0]: Traceback (most recent call last):\n[rank0]:   File \"t.py\", line 9\n[rank0]: RuntimeError: Connection closed by peer",
        );
        printed.extend(of_peer);
        assert_eq!(error_in(&printed).unwrap(), "RuntimeError: Connection closed by peer");
    }

    #[test]
    fn what_comes_at_an_end_does_not_hide_the_error() {
        let message = "CUDA kernel errors might be reported at some other call\n".repeat(40);
        let summary = "wandb: View run at https://example.org\n".repeat(40);
        for epilogue in [
            "training failed, see the log".to_owned(),
            message,
            summary,
            "make: *** [Makefile:2: train] Error 1".to_owned(),
            "Primary job  terminated normally, but 1 process returned a non-zero exit code.\n".to_owned()
                + &"lines of others\n".repeat(100),
        ] {
            assert_eq!(error(&format!("{CAUGHT}{epilogue}")).unwrap(), "OSError: no cache", "{epilogue}");
        }
        let labelled = "[rank1]: Traceback (most recent call last):\n[rank1]:   File \"t.py\", line 5\n[rank1]: ValueError: bad sample\n";
        let others = "step of another process\n".repeat(100);
        assert_eq!(error(&format!("{labelled}{others}")).unwrap(), "ValueError: bad sample");
        let mixed = CAUGHT.replace("\n", "\n[default0]:loss 3\n[default0]:loss 2\n");
        let of_one: String = mixed
            .lines()
            .map(
                |line| {
                    if line.starts_with('[') { format!("{line}\n") } else { format!("[default1]:{line}\n") }
                },
            )
            .collect();
        assert_eq!(error(&of_one).unwrap(), "OSError: no cache");
    }

    #[test]
    fn processes_that_were_told_to_end_are_not_the_cause() {
        let output = format!(
            "{CAUGHT}muster: process 1 of 2 ended with exit code 1; the others are told to end\n{}",
            CAUGHT.replace("OSError: no cache", "RuntimeError: told to end")
        );
        assert_eq!(error(&output).unwrap(), "OSError: no cache");
    }

    #[test]
    fn the_root_cause_that_torchrun_shows_counts_most() {
        let output = format!(
            "{CAUGHT}\
E1118 10:00:00.0 123 torch/distributed/elastic/multiprocessing/api.py:984] failed (exitcode: 1) local_rank: 1
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
t.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-18_10:00:01
  rank      : 2 (local_rank: 0)
  exitcode  : 1 (pid: 125)
  error_file: /tmp/torchelastic/0/error.json
  traceback : Traceback (most recent call last):
    File \"t.py\", line 9, in main
      step()
  IndexError: 3

------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-18_10:00:00
  rank      : 3 (local_rank: 1)
  exitcode  : 1 (pid: 124)
  error_file: /tmp/torchelastic/1/error.json
  traceback : Traceback (most recent call last):
    File \"t.py\", line 7, in main
      step()
  KeyError: 42

  During handling of the above exception, another exception occurred:

  Traceback (most recent call last):
  ValueError: bad sample 42

============================================================"
        );
        assert_eq!(error(&output).unwrap(), "ValueError: bad sample 42");
        let mut without = output.replace(
            "traceback : Traceback (most recent call last):",
            "traceback : To enable traceback see: x",
        );
        without = without.replace(CAUGHT, "");
        let process = |local: u32, error: &str| {
            CAUGHT
                .lines()
                .map(|line| format!("[default{local}]:{}\n", line.replace("OSError: no cache", error)))
                .collect::<String>()
        };
        let labelled = process(0, "IndexError: 3") + &process(1, "ValueError: bad sample 42") + &without;
        assert_eq!(error(&labelled).unwrap(), "ValueError: bad sample 42");
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
