//! What Slurm says of a job, and what that means here. Pure: every state and every reason for waiting has its line below.
//!
//! `squeue --json` of many versions knows no filter, and a large site has a hundred thousand jobs of others. So fields are asked
//! for by name, for one user's jobs, with a separator that stands in none of them.

use std::time::Duration;

use muster_model::reason::TimeLimitSource;
use muster_model::{AttemptId, Timestamp};

use super::batch::read_comment;
use crate::{Status, TimeLimit, Verdict, Wait};

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
    comment: String,
}

/// The jobs that `squeue` has listed. A line that cannot be read is somebody else's.
pub(super) fn read_squeue(output: &str) -> Vec<Job> {
    output.lines().filter_map(read_line).collect()
}

fn read_line(line: &str) -> Option<Job> {
    let mut fields = line.splitn(FIELDS.len(), SEPARATOR).map(str::trim);
    let mut next = || fields.next();
    let job = Job {
        id: next()?.to_owned(),
        state: next()?.to_owned(),
        reason: next()?.to_owned(),
        starts_at: time(next()?),
        ends_at: time(next()?),
        limit: limit(next()?),
        is_preempted: time(next()?).is_some(),
        restarts: next()?.parse().unwrap_or(0),
        exit_code: next()?.parse().unwrap_or(0),
        nodes: next()?.to_owned(),
        comment: next()?.trim_end_matches(SEPARATOR).to_owned(),
    };
    is_id(&job.id).then_some(job)
}

/// The jobs that `sacct` has listed.
pub(super) fn read_sacct(output: &str) -> Vec<Job> {
    let read = |line: &str| {
        let mut fields = line.split(SEPARATOR).map(str::trim);
        let (id, state, nodes) = (fields.next()?, fields.next()?, fields.next()?);
        let mut time_of = || fields.next().and_then(time);
        let (starts_at, ends_at) = (time_of(), time_of());
        let nodes = if nodes == "None assigned" { "" } else { nodes };
        is_id(id).then(|| Job {
            id: id.to_owned(),
            state: state.to_owned(),
            reason: String::new(),
            starts_at,
            ends_at,
            limit: fields.next().and_then(limit),
            is_preempted: false,
            restarts: 0,
            exit_code: 0,
            nodes: nodes.to_owned(),
            comment: String::new(),
        })
    };
    output.lines().filter_map(read).collect()
}

/// What Slurm calls a job: a number.
pub(super) fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() < 12 && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// `[DAYS-]HOURS:MINUTES:SECONDS`, `MINUTES:SECONDS`, or a word where there is none.
pub(super) fn limit(text: &str) -> Option<Duration> {
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0;
    for part in clock.split(':') {
        seconds = seconds * 60 + part.parse::<u64>().ok()?;
    }
    Some(Duration::from_secs(days.parse::<u64>().ok()? * 86_400 + seconds))
}

/// Slurm was asked for the time of nowhere in particular.
fn time(text: &str) -> Option<Timestamp> {
    format!("{text}Z").parse().ok()
}

impl Job {
    /// Which attempt of this server's it is for.
    pub(super) fn attempt(&self, server: &str) -> Option<AttemptId> {
        read_comment(&self.comment, server)
    }

    /// Its number, for putting jobs in the order in which they came.
    pub(super) fn number(&self) -> u64 {
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

    /// Its machines, in the order of ranks.
    pub(super) fn hosts(&self) -> Vec<String> {
        muster_model::hostlist::parse(&self.nodes).unwrap_or_default()
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

    fn said() -> Vec<Job> {
        read_squeue(&SAID.replace('|', &SEPARATOR.to_string()))
    }

    /// The end of a job that Slurm has let run so many minutes.
    fn time_limit(minutes: u64) -> Verdict {
        let span = Duration::from_secs(60 * minutes);
        Verdict::TimeLimit { limit: Some(TimeLimit { span, set_by: TimeLimitSource::Cluster }) }
    }

    fn status(comment: &str) -> Status {
        let jobs = said();
        let job = jobs.iter().find(|job| job.comment == comment);
        job.unwrap_or_else(|| panic!("there is {comment}")).status()
    }

    #[test]
    fn every_job_that_was_listed_is_read() {
        let jobs = said();
        assert_eq!(jobs.len(), SAID.lines().count());
        let running = jobs.iter().find(|job| job.comment == "lowsrun").unwrap();
        assert_eq!((is_id(&running.id), running.nodes.as_str()), (true, "n[1-2]"));
        assert_eq!(read_squeue("slurm_load_jobs error: Unable to contact slurm controller\n\n"), []);
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
        let of = |state: &str| Job { state: state.into(), ..said()[0].clone() }.status();
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
        let again = Job { state: "PENDING".into(), restarts: 1, ..said()[0].clone() };
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
        for none in ["UNLIMITED", "INVALID", "NOT_SET", ""] {
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
        let jobs = read_sacct(&said.replace('|', &SEPARATOR.to_string()));
        assert_eq!(jobs.len(), 6);
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
