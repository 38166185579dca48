//! What Slurm says of a job, and what that means here. Pure: every state and every reason for waiting has its line below.
//!
//! `squeue --json` of many versions knows no filter, and a large site has a hundred thousand jobs of others. So fields are asked
//! for by name, for one user's jobs, with a separator that stands in none of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use muster_model::reason::TimeLimitSource;
use muster_model::{AttemptId, Timestamp};

use super::batch::read_comment;
use super::excerpt::{NODE_LIST, SENTENCE, excerpt};
use crate::{Class, Error, Status, TimeLimit, Verdict, Wait};

/// Between fields.
pub(super) const SEPARATOR: char = '\u{1f}';
/// In this order in every record. The comment is the only one that people may have written.
const FIELDS: [&str; 11] = [
    "JobID",
    "State",
    "Reason",
    "StartTime",
    "EndTime",
    "TimeLimit",
    "PreemptTime",
    "RestartCnt",
    "exit_code",
    "NodeList",
    "Comment",
];
/// Jobs of this server that one account may have with Slurm: twice what Slurm itself takes of all users (`MaxJobCount`, 10,000),
/// unless its operator wants more.
const MOST_JOBS: usize = 20_000;
/// Machines of one job. Slurm writes thousands of names in a dozen characters.
const MOST_HOSTS: usize = 8192;
/// Machines of all jobs that are looked at together.
pub(super) const MOST_HOSTS_OF_ALL: usize = 1_000_000;
/// Slurm counts the minutes of a time limit in 32 bits.
const LONGEST_LIMIT: u64 = 60 * u32::MAX as u64;
/// A job that ends by itself so shortly before its time is up was told that it is: notice is given a while before, for all of the
/// grace, and up to a minute early.
const NOTICE: Duration = Duration::from_secs(130);

/// Everything about one user's jobs that Slurm still has in memory: two calls of the controller, however many there are.
pub(super) fn squeue(user: u32) -> Vec<String> {
    let fields: Vec<_> = FIELDS.iter().map(|name| format!("{name}:{SEPARATOR}")).collect();
    let user = format!("--user={user}");
    let words = ["squeue", "--local", "--noheader", "--states=all", &user, "--Format", &fields.join(",")];
    words.map(String::from).to_vec()
}

/// What the accounting has of jobs that the controller has forgotten. It is no call of the controller.
pub(super) fn sacct(ids: &[String]) -> Vec<String> {
    let (delimiter, ids) = (format!("--delimiter={SEPARATOR}"), format!("--jobs={}", ids.join(",")));
    let format = "--format=JobIDRaw,State,NodeList,Start,End,Timelimit";
    let words = ["sacct", "--parsable2", "--noheader", "--allocations", &delimiter, &ids, format];
    words.map(String::from).to_vec()
}

/// A job of Slurm's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) id: String,
    state: String,
    reason: String,
    starts_at: Option<Timestamp>,
    ends_at: Option<Timestamp>,
    /// How long it may run.
    limit: Option<Duration>,
    /// Slurm has wanted its place for others, whether or not it has waited for that.
    is_preempted: bool,
    /// How often Slurm has begun it again.
    restarts: u32,
    exit_code: u32,
    pub(super) nodes: String,
}

/// The jobs of one account that are for attempts of this server, by attempt.
#[derive(Debug, Default)]
pub(super) struct AttemptJobs(BTreeMap<AttemptId, Vec<Job>>);

impl AttemptJobs {
    /// The job of an attempt that counts: the first that there was.
    pub(super) fn first_of(&self, attempt: &AttemptId) -> Option<&Job> {
        self.of(attempt).first()
    }

    /// All jobs of an attempt, in the order in which they came.
    pub(super) fn of(&self, attempt: &AttemptId) -> &[Job] {
        self.0.get(attempt).map_or(&[], Vec::as_slice)
    }

    /// Jobs that should not be there: those that came of a submission made twice, and of one that was given up.
    pub(super) fn strays(&self, is_closed: impl Fn(&AttemptId) -> bool) -> Vec<String> {
        let strays = self.0.iter().flat_map(|(attempt, jobs)| &jobs[usize::from(!is_closed(attempt))..]);
        strays.filter(|job| !job.is_over()).map(|job| job.id.clone()).collect()
    }

    /// Attempts with a job that is not over.
    pub(super) fn live(&self) -> impl Iterator<Item = &AttemptId> {
        self.0.iter().filter(|(_, jobs)| jobs.iter().any(|job| !job.is_over())).map(|(attempt, _)| attempt)
    }
}

/// This server's jobs among those that `squeue` has listed. A line that cannot be parsed belongs to another program's job.
pub(super) fn read_squeue(output: &str, server: &str) -> Result<AttemptJobs, Error> {
    let (mut jobs, mut count) = (BTreeMap::<_, Vec<Job>>::new(), 0);
    for fields in output.lines().filter_map(fields_of) {
        let Some(attempt) = read_comment(comment_of(&fields), server) else { continue };
        let Some(job) = read_fields(&fields) else { continue };
        count += 1;
        if count > MOST_JOBS {
            let what = format!(
                "Slurm lists more than {MOST_JOBS} jobs of this server for one account; cancel some with scancel"
            );
            return Err(Error { what, class: Class::Retryable, source: None });
        }
        jobs.entry(attempt).or_default().push(job);
    }
    for jobs in jobs.values_mut() {
        jobs.sort_by_key(Job::number);
        // A job that is listed twice is no stray of itself.
        jobs.dedup_by(|job, last| job.id == last.id);
    }
    Ok(AttemptJobs(jobs))
}

type Fields<'a> = [&'a str; FIELDS.len()];

fn fields_of(line: &str) -> Option<Fields<'_>> {
    let mut fields = [""; FIELDS.len()];
    let mut said = line.splitn(FIELDS.len(), SEPARATOR).map(str::trim);
    for field in &mut fields {
        *field = said.next()?;
    }
    Some(fields)
}

fn comment_of<'a>(fields: &Fields<'a>) -> &'a str {
    fields[FIELDS.len() - 1].trim_end_matches(SEPARATOR)
}

fn read_fields(fields: &Fields) -> Option<Job> {
    let [id, state, reason, starts, ends, limited, preempted, restarts, exit_code, nodes, _] = fields;
    is_id(id).then(|| Job {
        id: (*id).to_owned(),
        state: excerpt(state, SENTENCE),
        reason: excerpt(reason, SENTENCE),
        starts_at: time(starts),
        ends_at: time(ends),
        limit: limit(limited),
        is_preempted: time(preempted).is_some(),
        restarts: restarts.parse().unwrap_or(0),
        exit_code: exit_code.parse().unwrap_or(0),
        nodes: node_list(nodes),
    })
}

/// A list of nodes as Slurm writes it. Half of one would name the wrong nodes, so one that is too long, or is no list, counts as
/// unknown.
fn node_list(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && text.len() <= NODE_LIST { text.to_owned() } else { String::new() }
}

/// The jobs that `sacct` has listed, of those that it was asked about, by id.
pub(super) fn read_sacct(output: &str, asked: &[String]) -> BTreeMap<String, Job> {
    let asked: BTreeSet<&str> = asked.iter().map(String::as_str).collect();
    let mut jobs = BTreeMap::new();
    let read = |line: &str| {
        let mut fields = line.split(SEPARATOR).map(str::trim);
        let (id, state, nodes) = (fields.next()?, fields.next()?, fields.next()?);
        let mut time_of = || fields.next().and_then(time);
        let (starts_at, ends_at) = (time_of(), time_of());
        let nodes = if nodes == "None assigned" { "" } else { nodes };
        (is_id(id) && asked.contains(id)).then(|| Job {
            id: id.to_owned(),
            state: excerpt(state, SENTENCE),
            reason: String::new(),
            starts_at,
            ends_at,
            limit: fields.next().and_then(limit),
            is_preempted: false,
            restarts: 0,
            exit_code: 0,
            nodes: node_list(nodes),
        })
    };
    for job in output.lines().filter_map(read) {
        jobs.entry(job.id.clone()).or_insert(job);
    }
    jobs
}

/// What Slurm calls a job: a number.
pub(super) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() < 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `[DAYS-]HOURS:MINUTES:SECONDS`, `MINUTES:SECONDS`, or a word where there is none.
pub(super) fn limit(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0_u64;
    for part in clock.split(':') {
        seconds = u64::from(part.parse::<u32>().ok()?).checked_add(u64::checked_mul(seconds, 60)?)?;
    }
    let seconds = (u64::from(days.parse::<u32>().ok()?) * 86_400).checked_add(seconds)?;
    (seconds <= LONGEST_LIMIT).then(|| Duration::from_secs(seconds))
}

/// Slurm was asked for the time of nowhere in particular.
fn time(text: &str) -> Option<Timestamp> {
    format!("{text}Z").parse().ok()
}

impl Job {
    /// Its number, for putting jobs in the order in which they came.
    fn number(&self) -> u64 {
        self.id.parse().unwrap_or(u64::MAX)
    }

    pub(super) fn is_over(&self) -> bool {
        matches!(self.status(), Status::Ended(_))
    }

    /// Whether nothing of it is left: one that Slurm would begin again is to be ended.
    pub(super) fn is_gone(&self) -> bool {
        let is_requeued = matches!(
            self.state.as_str(),
            "PENDING" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "SPECIAL_EXIT"
        );
        self.is_over() && !is_requeued
    }

    /// Its machines, in the order of ranks; none if there are more than are `left` for all jobs of an answer.
    pub(super) fn hosts(&self, left: &mut usize) -> Vec<String> {
        if *left == 0 {
            return Vec::new();
        }
        let hosts = muster_model::hostlist::parse(&self.nodes).unwrap_or_default();
        *left = left.saturating_sub(hosts.len());
        if hosts.len() <= MOST_HOSTS { hosts } else { Vec::new() }
    }

    /// What its state means.
    pub(super) fn status(&self) -> Status {
        // The accounting says `CANCELLED by 1000`.
        let (state, by) = self.state.split_once(" by ").unwrap_or((&self.state, ""));
        Status::Ended(match state {
            // It has begun once: whatever took its nodes wants it to begin again, and its agents will not.
            "PENDING" if self.restarts > 0 => Verdict::Preempted,
            "PENDING" => return Status::Waiting(wait(&self.reason, &self.id, self.starts_at)),
            // It was told, and did not wait to be ended.
            "COMPLETED" | "CANCELLED" if self.is_preempted => Verdict::Preempted,
            "COMPLETED" if self.is_nearly_late() => self.time_limit(),
            "COMPLETED" => Verdict::Completed,
            "CANCELLED" => Verdict::Cancelled { by: (!by.is_empty()).then(|| by.to_owned()) },
            "TIMEOUT" | "DEADLINE" => self.time_limit(),
            "PREEMPTED" | "REQUEUED" | "REQUEUE_FED" | "REQUEUE_HOLD" | "SPECIAL_EXIT" => Verdict::Preempted,
            "NODE_FAIL" | "BOOT_FAIL" => Verdict::NodeFailed { node: None },
            "OUT_OF_MEMORY" => Verdict::OutOfMemory,
            "FAILED" | "LAUNCH_FAILED" | "RECONFIG_FAIL" => Verdict::Failed { message: self.failure() },
            "REVOKED" => Verdict::Cancelled { by: None },
            // CONFIGURING, RUNNING, SUSPENDED and the like. One that is COMPLETING still has processes, and tells only
            // afterwards how it ended. A state that is not known yet is no reason to give anything up.
            _ => return Status::Running,
        })
    }

    fn time_limit(&self) -> Verdict {
        let limit = self.limit.map(|span| TimeLimit { span, set_by: TimeLimitSource::Cluster });
        Verdict::TimeLimit { limit }
    }

    /// Whether it ended when its time was nearly up.
    fn is_nearly_late(&self) -> bool {
        let (Some(from), Some(to), Some(limit)) = (self.starts_at, self.ends_at, self.limit) else {
            return false;
        };
        let ran = Duration::try_from(to.duration_since(from)).unwrap_or_default();
        ran + NOTICE >= limit
    }

    fn failure(&self) -> String {
        let (code, signal) = (self.exit_code >> 8, self.exit_code & 0x7f);
        let how = match (code, signal) {
            (0, 0) => "its agents did not start".to_owned(),
            (code, 0) => format!("its agents ended with status {code}"),
            (_, signal) => format!("its agents ended with signal {signal}"),
        };
        match self.reason.as_str() {
            "" | "None" | "NonZeroExitCode" => how,
            reason => format!("{how} ({reason})"),
        }
    }
}

/// Why a job waits, in our words.
fn wait(reason: &str, id: &str, starts_at: Option<Timestamp>) -> Wait {
    let known = REASONS.iter().find(|known| known.words.iter().any(|word| reason.starts_with(word)));
    let (code, summary, help) = match known {
        Some(known) => (known.code, known.summary.to_owned(), known.help),
        None if is_limit(reason) => {
            ("limit", "a limit of its account or quality of service is reached".to_owned(), Some(LIMIT))
        }
        None => ("scheduler", "Slurm has not started it".to_owned(), None),
    };
    let summary = match reason {
        "" | "None" => summary,
        reason => format!("{summary} ({reason})"),
    };
    Wait { code, summary, help: help.map(|text| text.replace("ID", id)), starts_at }
}

const LIMIT: &str = "it starts when jobs of the same account end; `sacctmgr show qos` and `sacctmgr show assoc` list the limits";
const NODES: &str = "see `muster nodes`";

/// `QOSMaxGRESPerUser`, `AssocGrpCpuLimit`, `MaxCpuPerAccount` and their many like.
fn is_limit(reason: &str) -> bool {
    reason.starts_with("QOS")
        || reason.starts_with("Assoc")
        || reason.starts_with("Max")
        || reason.ends_with("Limit")
}

struct Known {
    /// What the reason begins with; some go on with the names of nodes.
    words: &'static [&'static str],
    code: &'static str,
    summary: &'static str,
    help: Option<&'static str>,
}

const REASONS: &[Known] = &[
    Known {
        words: &["PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxWallDurationPerJobLimit"],
        code: "never_fits",
        summary: "it asks for more time than jobs may have there",
        help: Some("give it a shorter --timeout, or another partition; `sinfo` lists their limits"),
    },
    Known {
        words: &["PartitionNodeLimit"],
        code: "never_fits",
        summary: "it asks for more nodes than its partition gives a job, or has in service",
        help: Some("ask for fewer nodes, or another partition; see `muster nodes`"),
    },
    Known {
        words: &["BadConstraints", "NodeTypeNotAvail"],
        code: "never_fits",
        summary: "no node of its partition has what it asks for",
        help: Some("see `muster nodes` for what there is"),
    },
    Known {
        words: &["InvalidAccount", "InvalidQOS", "AccountNotAllowed", "QOSNotAllowed", "PartitionConfig"],
        code: "never_fits",
        summary: "its account or quality of service may not use this partition",
        help: Some("set slurm.account and slurm.qos to what `sacctmgr show assoc user=$USER` lists"),
    },
    Known {
        words: &["Resources", "NodesNotAvail"],
        code: "no_capacity",
        summary: "waits for nodes that others use now",
        help: Some(NODES),
    },
    Known {
        words: &["Licenses"],
        code: "no_capacity",
        summary: "waits for licences that others use now",
        help: None,
    },
    Known {
        words: &["Priority"],
        code: "behind_others",
        summary: "jobs with a higher priority in Slurm go first",
        help: Some("`sprio -j ID` shows how Slurm weighs it"),
    },
    Known {
        words: &["ReqNodeNotAvail", "Nodes required for job are DOWN", "NodeDown"],
        code: "no_node",
        summary: "the nodes it needs are down, drained or reserved",
        help: Some(NODES),
    },
    Known {
        words: &["PartitionDown", "PartitionInactive"],
        code: "no_node",
        summary: "its partition is out of service",
        help: Some("ask who runs the cluster, or use another partition"),
    },
    Known {
        words: &["Reservation"],
        code: "no_node",
        summary: "waits for its reservation",
        help: Some("`scontrol show reservation` lists them"),
    },
    Known {
        words: &["JobHeld", "JobHold", "launch failed requeued held", "user env retrieval failed"],
        code: "held",
        summary: "somebody holds it in Slurm",
        help: Some("`muster release JOB` or `scontrol release ID` lets it go on"),
    },
    Known {
        words: &["BeginTime"],
        code: "later",
        summary: "it is not to start before a certain time",
        help: None,
    },
    Known {
        words: &["Dependency"],
        code: "later",
        summary: "another job of Slurm's has to end first",
        help: None,
    },
    Known { words: &["None"], code: "scheduler", summary: "Slurm has not looked at it yet", help: None },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// As Slurm 22.05 has said it, with a bar for the separator.
    const SAID: &str = include_str!("golden/squeue.txt");

    /// All of them, with their comments.
    fn said() -> Vec<(String, Job)> {
        let said = SAID.replace('|', &SEPARATOR.to_string());
        let read = |line| {
            let fields = fields_of(line)?;
            Some((comment_of(&fields).to_owned(), read_fields(&fields)?))
        };
        said.lines().filter_map(read).collect()
    }

    /// The end of a job that Slurm has let run so many minutes.
    fn time_limit(minutes: u64) -> Verdict {
        let span = Duration::from_secs(60 * minutes);
        Verdict::TimeLimit { limit: Some(TimeLimit { span, set_by: TimeLimitSource::Cluster }) }
    }

    fn status(comment: &str) -> Status {
        let jobs = said();
        let job = jobs.iter().find(|(its, _)| its == comment);
        job.unwrap_or_else(|| panic!("there is {comment}")).1.status()
    }

    #[test]
    fn every_job_that_was_listed_is_read() {
        let jobs = said();
        assert_eq!(jobs.len(), SAID.lines().count());
        let (_, running) = jobs.iter().find(|(comment, _)| comment == "lowsrun").unwrap();
        assert_eq!((is_id(&running.id), running.nodes.as_str()), (true, "n[1-2]"));
        let none = read_squeue("slurm_load_jobs error: Unable to contact slurm controller\n\n", "s1");
        assert!(none.unwrap().0.is_empty());
    }

    /// A line of `squeue` about a job in this state.
    fn line(id: impl std::fmt::Display, state: &str, comment: &str) -> String {
        format!("{id}|{state}|None|N/A|N/A|1:00|N/A|0|0|n1|{comment}|\n").replace('|', &SEPARATOR.to_string())
    }

    #[test]
    fn jobs_of_this_server_are_found_by_attempt_and_those_of_others_are_not_kept() {
        let attempt = |number| AttemptId { job: "job_0123456789".parse().unwrap(), number };
        let output = [
            line(21, "PENDING", "muster:s1:job_0123456789.1"),
            line(7, "RUNNING", "muster:s1:job_0123456789.1"),
            line(7, "RUNNING", "muster:s1:job_0123456789.1"),
            line(8, "COMPLETED", "muster:s1:job_0123456789.2"),
            line(9, "RUNNING", "muster:s1:job_0123456789.3"),
            line(1, "RUNNING", "muster:other:job_0123456789.1"),
            line("--all", "RUNNING", "muster:s1:job_0123456789.1"),
            line(2, "RUNNING", "my own"),
        ];
        let jobs = read_squeue(&output.concat(), "s1").unwrap();
        assert_eq!(jobs.first_of(&attempt(1)).map(|job| job.id.as_str()), Some("7"));
        assert_eq!(jobs.of(&attempt(1)).len(), 2);
        assert!(jobs.first_of(&attempt(4)).is_none());
        assert_eq!(jobs.strays(|_| false), ["21"]);
        assert_eq!(jobs.strays(|other| *other == attempt(3)), ["21", "9"]);
        assert_eq!(jobs.strays(|other| *other == attempt(2)), ["21"], "it is over");
        assert!(jobs.live().eq(&[attempt(1), attempt(3)]));
    }

    #[test]
    fn a_list_of_jobs_is_bounded_and_so_is_the_time_it_takes() {
        let own = |count: usize| {
            let one = |id| line(id, "RUNNING", &format!("muster:s1:job_0123456789.{}", id % 2000 + 1));
            (1..=count).map(one).collect::<String>()
        };
        let strays = read_squeue(&own(MOST_JOBS), "s1").unwrap().strays(|_| false);
        assert_eq!(strays.len(), MOST_JOBS - 2000);
        let error = read_squeue(&own(MOST_JOBS + 1), "s1").unwrap_err();
        assert!(error.class == Class::Retryable && error.what.contains("20000"), "{error}");
        let foreign: String = (0..MOST_JOBS * 2).map(|id| line(id, "RUNNING", "mine")).collect();
        assert!(read_squeue(&foreign, "s1").unwrap().0.is_empty());
    }

    #[test]
    fn texts_of_a_job_are_bounded() {
        let of = |state: &str, nodes: &str| {
            let line = line(7, state, "x").replace("n1", nodes);
            read_fields(&fields_of(&line).unwrap()).unwrap()
        };
        let long = "x".repeat(1 << 20);
        let job = of(&format!("CANCELLED by {long}"), &long);
        let Status::Ended(Verdict::Cancelled { by: Some(by) }) = job.status() else { panic!("it is over") };
        assert!(by.len() < SENTENCE && job.nodes.is_empty());
        let mut left = 70_000;
        assert!(job.hosts(&mut left).is_empty());
        assert_eq!(of("RUNNING", "n[1-3]").hosts(&mut left), ["n1", "n2", "n3"]);
        for nodes in ["n[1-65536]", "n[1-8000]", "n1"] {
            // Too many; the last that there is room for; one without room.
            let is_known = nodes == "n[1-8000]";
            assert_eq!(!of("RUNNING", nodes).hosts(&mut left).is_empty(), is_known, "{nodes}");
        }
        assert!(of("RUNNING", "n1\u{1b}[2J").nodes.is_empty());
    }

    #[test]
    fn what_was_seen_on_a_real_slurm_means_what_it_should() {
        let ended = |verdict| Status::Ended(verdict);
        assert_eq!(status("lowsrun"), Status::Running);
        assert_eq!(status("completing"), Status::Running, "it still has processes");
        assert_eq!(status("cancel"), ended(Verdict::Cancelled { by: None }));
        assert_eq!(status("completed"), ended(Verdict::Completed));
        assert_eq!(status("tlimit"), ended(time_limit(1)));
        assert_eq!(
            status("politely"),
            ended(time_limit(1)),
            "it ended when it was told that its time is nearly up"
        );
        assert_eq!(status("lowpolite"), ended(Verdict::Preempted), "it ended when it was told to make way");
        assert_eq!(status("lowbatch"), ended(Verdict::Preempted));
        assert_eq!(status("nodefail"), ended(Verdict::NodeFailed { node: None }));
        let failed = Verdict::Failed { message: "its agents ended with status 7".into() };
        assert_eq!(status("fails"), ended(failed));
    }

    #[test]
    fn every_state_of_slurm_has_its_meaning() {
        let of = |state: &str| Job { state: state.into(), ..said()[0].1.clone() }.status();
        for state in
            "CONFIGURING RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT STOPPED SUSPENDED NEW_ONE".split(' ')
        {
            assert_eq!(of(state), Status::Running, "{state}");
        }
        assert_eq!(of("COMPLETED"), Status::Ended(Verdict::Completed));
        assert_eq!(of("CANCELLED by 1000"), Status::Ended(Verdict::Cancelled { by: Some("1000".into()) }));
        assert_eq!(of("REVOKED"), Status::Ended(Verdict::Cancelled { by: None }));
        assert_eq!(of("OUT_OF_MEMORY"), Status::Ended(Verdict::OutOfMemory));
        for state in ["TIMEOUT", "DEADLINE"] {
            assert_eq!(of(state), Status::Ended(time_limit(365 * 24 * 60)), "{state}");
        }
        for state in ["NODE_FAIL", "BOOT_FAIL"] {
            assert_eq!(of(state), Status::Ended(Verdict::NodeFailed { node: None }), "{state}");
        }
        for state in ["PREEMPTED", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"] {
            assert_eq!(of(state), Status::Ended(Verdict::Preempted), "{state}");
        }
        for state in ["FAILED", "LAUNCH_FAILED", "RECONFIG_FAIL"] {
            assert!(matches!(of(state), Status::Ended(Verdict::Failed { .. })), "{state}");
        }
        let again = Job { state: "PENDING".into(), restarts: 1, ..said()[0].1.clone() };
        assert_eq!(again.status(), Status::Ended(Verdict::Preempted));
    }

    #[test]
    fn every_reason_to_wait_is_put_into_words() {
        for (reason, code) in [
            ("None", "scheduler"),
            ("Resources", "no_capacity"),
            ("Licenses", "no_capacity"),
            ("Priority", "behind_others"),
            ("ReqNodeNotAvail, UnavailableNodes:n4", "no_node"),
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                "no_node",
            ),
            ("PartitionDown", "no_node"),
            ("PartitionInactive", "no_node"),
            ("Reservation", "no_node"),
            ("ReservationDeleted", "no_node"),
            ("PartitionTimeLimit", "never_fits"),
            ("PartitionNodeLimit", "never_fits"),
            ("BadConstraints", "never_fits"),
            ("InvalidAccount", "never_fits"),
            ("InvalidQOS", "never_fits"),
            ("QOSMaxWallDurationPerJobLimit", "never_fits"),
            ("JobHeldUser", "held"),
            ("JobHeldAdmin", "held"),
            ("JobHoldMaxRequeue", "held"),
            ("BeginTime", "later"),
            ("Dependency", "later"),
            ("DependencyNeverSatisfied", "later"),
            ("QOSMaxGRESPerUser", "limit"),
            ("QOSGrpNodeLimit", "limit"),
            ("AssocGrpCpuLimit", "limit"),
            ("AssocMaxJobsLimit", "limit"),
            ("MaxCpuPerAccount", "limit"),
            ("BurstBufferStageIn", "scheduler"),
        ] {
            let wait = wait(reason, "17", None);
            assert_eq!(wait.code, code, "{reason}");
            assert!(reason == "None" || wait.summary.contains(reason), "{}", wait.summary);
        }
        let help = wait("JobHeldUser", "17", None).help.unwrap();
        assert_eq!(help, "`muster release JOB` or `scontrol release 17` lets it go on");
    }

    #[test]
    fn an_estimate_of_the_start_is_passed_on() {
        let Status::Waiting(wait) = status("begin") else { panic!("it waits") };
        assert_eq!(wait.starts_at, "2026-11-20T00:00:00Z".parse().ok());
        let Status::Waiting(wait) = status("held") else { panic!("it waits") };
        assert_eq!(wait.starts_at, None);
    }

    #[test]
    fn times_are_read_as_slurm_writes_them() {
        let seconds = |text: &str| limit(text).map(|span| span.as_secs());
        assert_eq!(seconds("1:00"), Some(60));
        assert_eq!(seconds("2:00:00"), Some(7200));
        assert_eq!(seconds("365-00:00:10"), Some(365 * 86_400 + 10));
        for none in [
            "UNLIMITED",
            "INVALID",
            "NOT_SET",
            "",
            "18446744073709551615",
            "9-9:9999999999:0",
            "4000000000-0",
        ] {
            assert_eq!(limit(none), None, "{none}");
        }
    }

    #[test]
    fn the_accounting_says_the_same_in_its_own_way() {
        // As Slurm 22.05 has said it, with a bar for the separator.
        let said = "7|CANCELLED by 1000|n[1-2]|2026-11-16T03:34:34|2026-11-16T03:34:36|365-00:00:00\n\
                    8|TIMEOUT|None assigned|None|2026-11-16T03:34:50|Partition_Limit\n\
                    9|COMPLETED|n1|2026-11-16T03:00:00|2026-11-16T03:59:30|01:00:00\n\
                    10|PREEMPTED|n1|2026-11-16T03:34:37|2026-11-16T03:34:54|365-00:00:00\n\
                    11|OUT_OF_MEMORY|n3|2026-11-16T03:34:48|2026-11-16T03:34:48|UNLIMITED\n\
                    12|RUNNING|n4|2026-11-16T03:34:48|Unknown|UNLIMITED\nnothing\n";
        let asked: Vec<String> = (7..=12).map(|id: u32| id.to_string()).collect();
        let output = said.replace('|', &SEPARATOR.to_string());
        assert_eq!(read_sacct(&output, &asked[..1]).len(), 1, "it was asked about no other");
        let known = read_sacct(&output, &asked);
        let jobs: Vec<Job> = asked.iter().map(|id| known[id].clone()).collect();
        let verdicts = [time_limit(60), Verdict::Preempted, Verdict::OutOfMemory];
        for (job, verdict) in jobs[2..].iter().zip(verdicts) {
            assert_eq!(job.status(), Status::Ended(verdict), "{}", job.id);
        }
        assert_eq!(jobs[5].status(), Status::Running);
        assert_eq!(jobs[0].status(), Status::Ended(Verdict::Cancelled { by: Some("1000".into()) }));
        assert_eq!(
            (jobs[1].nodes.as_str(), jobs[1].status()),
            ("", Status::Ended(Verdict::TimeLimit { limit: None }))
        );
    }
}
