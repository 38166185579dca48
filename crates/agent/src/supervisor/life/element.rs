//! Elements of an array, one after the other in one task: its command, run once for each.
//!
//! An element costs little more than its process. What it wrote lies in the log between two marks, exactly: before the next
//! begins, what it left running is ended and its pipes are emptied. The mark that says how one ended is written together with
//! the mark of the next, and at once where there is no next.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use muster_link::log::{Header, SegmentDir};
use muster_model::Reason;
use muster_model::array::{Grant, Mark};
use muster_model::spec::Array;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Signal, kill_process_group};

use super::super::file::{ELEMENTS, LOG, Launch, Outcome, Status};
use super::super::notice;
use super::super::spawn::{Born, Program, Starter};
use super::{Life, Running, from_now, tree};
use crate::account::{self, Person};
use crate::diagnosis::{ErrorFileVersion, element_error_line};
use crate::outcome;
use crate::record;
use crate::tree::Process;

/// An element that runs longer is written down with its process, for whoever may have to end it without us.
const NOTED_AFTER: Duration = Duration::from_millis(100);
/// What is different for each element.
const INDEX: &str = "MUSTER_ARRAY_INDEX";
const SLURM_INDEX: &str = "SLURM_ARRAY_TASK_ID";
const OUTPUT: &str = "MUSTER_OUTPUT_DIR";

/// The element that runs.
pub(super) struct Element {
    /// Children of ours that were there before it, and stay.
    kept: Vec<Process>,
}

/// What the lane has to do.
struct List {
    array: Array,
    file: PathBuf,
    /// How much of the file was read.
    read: u64,
    /// The numbers of the grants that came.
    seen: BTreeSet<u32>,
    queue: VecDeque<Grant>,
    /// The number of the last grant, once that is known.
    last: Option<u32>,
}

impl List {
    fn new(dir: &Path, array: Array, grants: Vec<Grant>) -> List {
        let file = dir.join(ELEMENTS);
        let mut list =
            List { array, file, read: 0, seen: BTreeSet::new(), queue: VecDeque::new(), last: None };
        grants.into_iter().for_each(|grant| list.add(grant));
        list
    }

    fn add(&mut self, grant: Grant) {
        if self.seen.insert(grant.number) {
            self.last = self.last.or(grant.last.then_some(grant.number));
            self.queue.push_back(grant);
        }
    }

    /// Take what was added to the file. A line that is not whole yet is read the next time.
    fn look(&mut self) -> io::Result<()> {
        let mut file = match File::open(&self.file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            file => file?,
        };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(self.read))?;
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.read += whole as u64;
        let lines = bytes[..whole].split(|byte| *byte == b'\n');
        lines.filter_map(|line| serde_json::from_slice(line).ok()).for_each(|grant| self.add(grant));
        Ok(())
    }

    /// The index of the next element.
    fn next(&mut self) -> Option<u32> {
        loop {
            let grant = self.queue.front_mut()?;
            match grant.places.take(1).min() {
                Some(place) => return self.array.index(place),
                None => drop(self.queue.pop_front()),
            }
        }
    }

    /// Whether nothing more comes.
    fn is_done(&self) -> bool {
        self.last.is_some_and(|last| self.seen.len() as u64 >= u64::from(last))
    }
}

/// The command, and what of it differs from element to element.
struct Work {
    program: Program,
    starter: Starter,
    slots: [Option<usize>; 3],
    outputs: Outputs,
}

/// Where elements leave what they make: each has a directory of its own. One that was not used becomes that of the next, which
/// costs a tenth of removing it and making another, and there may be a million.
struct Outputs {
    root: PathBuf,
    /// Whose they are.
    person: Option<Person>,
    spare: Option<PathBuf>,
    /// How a new one is, by mode, owner and group.
    fresh: Option<(u32, u32, u32)>,
}

impl Outputs {
    fn give(&mut self, index: u32) -> io::Result<PathBuf> {
        let output = self.root.join(index.to_string());
        if let Some(spare) = self.spare.take() {
            // There may be one already, from an earlier try or made by the setup, and it is not to be replaced.
            match renameat_with(CWD, &spare, CWD, &output, RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(output),
                Err(_) => drop(fs::remove_dir(spare)),
            }
        }
        // As their owner: the directory around it is theirs, and they may replace whatever is in it at any moment.
        match account::act_as(self.person.as_ref(), || fs::create_dir(&output))? {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Err(_) => {}
            Ok(()) => self.fresh = Some(look_of(&output)?),
        }
        Ok(output)
    }

    /// An element is over: where it has left nothing, nothing is kept.
    fn take_back(&mut self, output: PathBuf) {
        let is_unused = fs::read_dir(&output).is_ok_and(|mut entries| entries.next().is_none());
        if is_unused && look_of(&output).ok() == self.fresh {
            self.spare = Some(output);
        } else {
            let _ = fs::remove_dir(output);
        }
    }
}

impl Drop for Outputs {
    fn drop(&mut self) {
        if let Some(spare) = &self.spare {
            let _ = fs::remove_dir(spare);
        }
    }
}

fn look_of(output: &Path) -> io::Result<(u32, u32, u32)> {
    fs::symlink_metadata(output).map(|it| (it.mode(), it.uid(), it.gid()))
}

impl Work {
    /// `root` is the directory for the output of the whole task. The environment may say something else by now: the setup is the
    /// task's own.
    fn new(launch: &mut Launch, root: PathBuf, step: usize) -> io::Result<Work> {
        launch.env.insert(OUTPUT.into(), String::new());
        launch.env.insert(INDEX.into(), String::new());
        if launch.env.contains_key("SLURM_ARRAY_JOB_ID") {
            launch.env.insert(SLURM_INDEX.into(), String::new());
        }
        let program = Program::new(launch, &launch.steps[step])?;
        let slots = [INDEX, SLURM_INDEX, OUTPUT].map(|name| program.slot(name));
        let outputs = Outputs { root, person: launch.person.clone(), spare: None, fresh: None };
        Ok(Work { program, starter: Starter::new(&launch.tree)?, slots, outputs })
    }

    /// Make all ready for an element.
    fn ready(&mut self, index: u32) -> io::Result<PathBuf> {
        let output = self.outputs.give(index)?;
        let values = [index.to_string(), index.to_string(), output.display().to_string()];
        for ((slot, name), value) in self.slots.iter().zip([INDEX, SLURM_INDEX, OUTPUT]).zip(values) {
            if let Some(slot) = slot {
                self.program.set(*slot, CString::new(format!("{name}={value}"))?);
            }
        }
        Ok(output)
    }
}

impl Life {
    /// Run what the lane is given, until nothing more comes or it is to end.
    pub(super) fn run_elements(&mut self, step: usize) -> io::Result<Outcome> {
        let Some(elements) = self.launch.elements.clone() else { return Ok(Outcome::NotStarted) };
        let mut list = List::new(&self.dir, elements.array, elements.grants);
        let mut work = Work::new(&mut self.launch, record::output_in(&self.dir), step)?;
        self.started.started_at = Timestamp::now();
        self.started.step = step;
        self.keep_started();
        list.look()?;
        let mut ended = Vec::new();
        loop {
            let orders = self.watch.orders();
            orders.into_iter().for_each(|order| self.on_order(order));
            if std::mem::take(&mut self.has_grants) {
                list.look()?;
            }
            let next = if self.stop.is_some() { None } else { list.next() };
            match next {
                Some(index) => self.run_element(index, &mut work, step, &mut ended)?,
                None => {
                    self.flush(&mut ended)?;
                    if self.stop.is_some() || list.is_done() {
                        return Ok(Outcome::Exited { code: 0 });
                    }
                    self.turn(None)?;
                }
            }
        }
    }

    fn flush(&mut self, ended: &mut Vec<u8>) -> io::Result<()> {
        if !ended.is_empty() {
            self.watch.mark(ended)?;
            ended.clear();
        }
        Ok(())
    }

    /// Run one. `ended` is what is still to be written of the one before, and then of this one.
    fn run_element(
        &mut self,
        index: u32,
        work: &mut Work,
        step: usize,
        ended: &mut Vec<u8>,
    ) -> io::Result<()> {
        let kept = if self.has_children { tree::children() } else { Vec::new() };
        self.element = Some(Element { kept });
        ended.extend(Header::mark(&Mark::Began { element: index }, now_micros()));
        self.flush(ended)?;
        let from = self.watch.log_end();
        let error_file = ErrorFileVersion::of(&self.dir);
        let starved = self.launch.tree.oom_kills();
        let mut left = None;
        let outcome = match work.ready(index) {
            Ok(output) => {
                let outcome = self.start_and_wait(work, step, starved);
                left = Some(output);
                outcome
            }
            Err(error) => {
                let message = format!("the directory for its output: {error}");
                Outcome::LaunchFailed { message }
            }
        };
        self.end_element()?;
        left.into_iter().for_each(|output| work.outputs.take_back(output));
        let mut failure = outcome::failure(&outcome, self.launch.timeout_ms);
        // One that was told to end has not failed.
        if let Some(Reason::ExitCode { error, .. }) = failure.as_mut().filter(|_| !self.stopped) {
            let (log, output) = (SegmentDir::new(self.dir.join(LOG)), from..self.watch.log_end());
            *error = element_error_line(&self.dir, error_file.as_ref(), &log, output);
        }
        let mark = Mark::Ended { element: index, failure, stopped: self.stopped };
        ended.extend(Header::mark(&mark, now_micros()));
        Ok(())
    }

    fn start_and_wait(&mut self, work: &mut Work, step: usize, starved: Option<u64>) -> Outcome {
        let Some(ends) = &self.pipe_ends else { return Outcome::NotStarted };
        let pid = match work.starter.start(&work.program, &ends.descriptors(), &self.launch.tree) {
            Ok(Born::Runs(pid)) => pid,
            Ok(Born::Failed(outcome)) => return outcome,
            Err(error) => return Outcome::LaunchFailed { message: error.to_string() },
        };
        self.has_children = true;
        self.timeout_at = self.launch.timeout_ms.map(from_now);
        self.running = Some(Running { pid, step, program: None, report: None, failure: None, status: None });
        let mut note_at = Some(Instant::now() + NOTED_AFTER);
        while self.running.as_ref().is_some_and(|running| running.status.is_none()) {
            let until = [self.next_deadline(), note_at].into_iter().flatten().min();
            if let Err(error) = self.turn(until) {
                return Outcome::LaunchFailed { message: format!("it cannot be waited for: {error}") };
            }
            if note_at.is_some_and(|at| at <= Instant::now()) {
                note_at = None;
                self.write_started();
            }
        }
        self.timeout_at = None;
        self.element_outcome(starved)
    }

    fn element_outcome(&self, starved: Option<u64>) -> Outcome {
        if self.is_element_late() {
            return Outcome::Timeout;
        }
        let status = self.running.as_ref().and_then(|running| running.status);
        let is_starved = !self.stopped && self.launch.tree.oom_kills() > starved;
        match status {
            Some(status) if !status.is_success() && is_starved => Outcome::OutOfMemory,
            Some(Status::Exited(code)) => Outcome::Exited { code },
            Some(Status::Signaled(signal)) => Outcome::Signaled { signal },
            None => Outcome::NotStarted,
        }
    }

    /// Whether the element alone is to end, because its time is over, and the lane goes on.
    pub(super) fn is_element_late(&self) -> bool {
        self.element.is_some() && !self.stopped && self.stop.as_ref().is_some_and(|stop| stop.is_timeout)
    }

    pub(super) fn terminate_element(&self) {
        if let Some(running) = self.running.as_ref().filter(|running| running.status.is_none()) {
            let signal = Signal::from_named_raw(self.launch.stop_signal.number()).unwrap_or(Signal::TERM);
            let told = kill_process_group(running.pid, signal);
            // A group that is gone is as good as told.
            let _ = told.and_then(|()| kill_process_group(running.pid, Signal::CONT));
        }
    }

    pub(super) fn kill_element(&mut self) {
        let kept = self.element.as_ref().map(|element| element.kept.clone()).unwrap_or_default();
        let killed = tree::kill_descendants_but(&kept);
        self.reap();
        if let Some(running) = &mut self.running
            && killed.survivors.contains(&running.pid.as_raw_nonzero().get())
        {
            // It hangs in the kernel, and will die of our signal if it ever wakes.
            running.status = running.status.or(Some(Status::Signaled(libc::SIGKILL)));
        }
    }

    /// End what the element has left running, and keep what it has written.
    fn end_element(&mut self) -> io::Result<()> {
        self.reap();
        // In a stop, all that it has started has the grace.
        while self.stopped && self.has_children && self.stop.as_ref().is_some_and(|stop| !stop.is_killed) {
            self.turn(self.next_deadline())?;
        }
        let kept = self.element.take().map(|element| element.kept).unwrap_or_default();
        if self.has_children && !self.stopped && tree::children().iter().any(|child| !kept.contains(child)) {
            tree::kill_descendants_but(&kept);
            self.reap();
        }
        self.watch.empty();
        if !self.stopped && self.stop.take().is_some() {
            notice::withdraw(&self.dir);
        }
        Ok(())
    }
}

fn now_micros() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}
