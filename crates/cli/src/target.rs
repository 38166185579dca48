//! Which task of which job: `JOB`, `JOB/TASK`, or as a host or a machine is called, `taskN.JOB`.

use std::fmt;
use std::str::FromStr;

/// A task as a user names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// A selector: an id, the beginning of it, a name, or `last`.
    pub job: String,
    /// The task's rank; none if the job alone was named.
    pub task: Option<u32>,
}

impl Target {
    /// What plain `ssh` is given: `task0.JOB`.
    pub fn from_host(name: &str) -> Result<Self, String> {
        let rank = |host: &str| host.strip_prefix("task").and_then(|rank| rank.parse().ok());
        match name.split_once('.').map(|(host, job)| (rank(host), job)) {
            Some((Some(task), job)) if !job.is_empty() => Ok(Self { job: job.to_owned(), task: Some(task) }),
            _ => Err(format!("`{name}` is not the name of a task; write task0.JOB")),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (job, task) = match text.rsplit_once('/') {
            Some((job, rank)) => {
                let wrong = || format!("`{rank}` is not the number of a task; write JOB/0, JOB/1, …");
                (job, Some(rank.parse().map_err(|_| wrong())?))
            }
            None => match Self::from_host(text) {
                Ok(host) => return Ok(host),
                Err(_) => (text, None),
            },
        };
        Ok(Self { job: crate::command::selector(job)?, task })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.task {
            Some(task) => write!(f, "{}/{task}", self.job),
            None => f.write_str(&self.job),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(job: &str, task: Option<u32>) -> Target {
        Target { job: job.into(), task }
    }

    #[test]
    fn a_task_is_named_by_its_job_and_its_number() {
        assert_eq!("bert".parse(), Ok(target("bert", None)));
        assert_eq!("bert/3".parse(), Ok(target("bert", Some(3))));
        assert_eq!("task3.bert".parse(), Ok(target("bert", Some(3))));
        assert_eq!("task3".parse(), Ok(target("task3", None)));
        for wrong in ["", "/0", "bert/", "bert/x", "bert/-1"] {
            assert!(wrong.parse::<Target>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_task_is_a_host_to_ssh() {
        assert_eq!(Target::from_host("task12.bert.v2"), Ok(target("bert.v2", Some(12))));
        for wrong in ["bert", "task.bert", "task0", "task0.", "node1.example.com"] {
            assert!(Target::from_host(wrong).is_err(), "{wrong}");
        }
    }
}
