//! What it means that one of Slurm's programs has failed.
//!
//! They have one exit status for everything, so their text is read. What matters most is whether a submission may have
//! happened all the same: only what is known here to come before or instead of it counts as not submitted.

use super::excerpt::excerpt;
use crate::{Class, Error};

/// How a program of Slurm's failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Slurm does not take it, and will not.
    Refused,
    /// Nothing has happened, and may later.
    Later,
    /// It may have happened.
    Unknown,
}

/// Slurm was not reached, or turned away at the door.
const LATER: &[&str] = &[
    "Unable to contact slurm controller (connect failure)",
    "Slurm temporarily unable to accept job",
    "Slurm backup controller in standby mode",
    "Slurmctld has been started with",
    "MaxSubmitJob",
    "Resource temporarily unavailable",
    "Munge encode failed",
    "Failed to access",
    "Unable to establish configuration source",
    "Could not establish a configuration source",
];

/// The way was lost after the question had gone out, or Slurm's own memory is in doubt.
const UNKNOWN: &[&str] = &[
    "Socket timed out",
    "Zero Bytes were transmitted or received",
    "Transport endpoint is not connected",
    "Connection reset",
    "Broken pipe",
    "Unexpected message received",
    "Insane message length",
    "Protocol authentication error",
    "Unable to contact slurm controller",
    "I/O error writing script",
];

/// What `sbatch` means that has ended so.
pub(super) fn of_submission(code: Option<i32>, complaints: &str) -> Kind {
    // Whoever is killed says nothing.
    if code.is_none() || complaints.trim().is_empty() {
        return Kind::Unknown;
    }
    let has = |texts: &[&str]| texts.iter().any(|text| complaints.contains(text));
    match (has(LATER), has(UNKNOWN)) {
        (true, _) => Kind::Later,
        (false, true) => Kind::Unknown,
        (false, false) => Kind::Refused,
    }
}

/// The words of a refusal, with what helps where that is known.
pub(super) fn refused(complaints: &str) -> Error {
    let said = words(complaints);
    let help = HELP.iter().find(|(text, _)| said.contains(text)).map(|(_, help)| format!("; {help}"));
    Error::terminal(format!("Slurm does not take it: {said}{}", help.unwrap_or_default()))
}

const HELP: &[(&str, &str)] = &[
    ("nvalid partition", "`sinfo` and `muster nodes` list the partitions; write it as --on slurm/PARTITION"),
    ("Invalid account", "set slurm.account to one that `sacctmgr show assoc user=$USER` lists"),
    ("Invalid qos", "set slurm.qos to one that `sacctmgr show assoc user=$USER` lists"),
    ("node configuration is not available", "`muster nodes` shows what nodes have"),
    ("Node count specification invalid", "`muster nodes` shows how many nodes there are"),
    ("Memory specification can not be satisfied", "`muster nodes` shows what nodes have"),
    ("time limit is invalid", "give it a shorter --timeout; `sinfo` lists the limits of partitions"),
    ("generic resource (gres)", "`sinfo -O gres` lists the types of devices as this site calls them"),
    ("unrecognized option", "check slurm.options against `sbatch --help`"),
];

/// A failure that may pass.
pub(super) fn retryable(what: &str, complaints: &str) -> Error {
    Error { what: format!("{what}: {}", words(complaints)), class: Class::Retryable, source: None }
}

/// What a program complained of, on one line and without its own name.
pub(super) fn words(complaints: &str) -> String {
    let plain = |line: &str| {
        let line = line.trim();
        let line = line.split_once(": error: ").map_or(line, |(_, rest)| rest);
        line.strip_prefix("Batch job submission failed: ").unwrap_or(line).to_owned()
    };
    let lines: Vec<String> = complaints.lines().map(plain).filter(|line| !line.is_empty()).collect();
    let said = lines.join("; ");
    if said.is_empty() { "it said nothing".into() } else { excerpt(&said, 500) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_submission_that_may_have_happened_never_counts_as_refused() {
        let of = |text: &str| {
            of_submission(Some(1), &format!("sbatch: error: Batch job submission failed: {text}\n"))
        };
        for text in [
            "Invalid partition name specified",
            "Invalid account or account/partition combination specified",
            "Requested node configuration is not available",
            "Invalid --nice value",
            "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)",
        ] {
            assert_eq!(of(text), Kind::Refused, "{text}");
        }
        for text in [
            "Socket timed out on send/recv operation",
            "Zero Bytes were transmitted or received",
            "Unable to contact slurm controller (state save in progress)",
            "Unexpected message received",
        ] {
            assert_eq!(of(text), Kind::Unknown, "{text}");
        }
        for text in [
            "Unable to contact slurm controller (connect failure)",
            "Resource temporarily unavailable",
            "Slurm backup controller in standby mode",
        ] {
            assert_eq!(of(text), Kind::Later, "{text}");
        }
        let limit = "sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: Job violates \
                     accounting/QOS policy";
        assert_eq!(of_submission(Some(1), limit), Kind::Later);
        assert_eq!(of_submission(None, "anything"), Kind::Unknown);
        assert_eq!(of_submission(Some(1), ""), Kind::Unknown);
    }

    #[test]
    fn a_refusal_says_what_slurm_said_and_what_helps() {
        let said = "sbatch: error: invalid partition specified: nopart\n\
                    sbatch: error: Batch job submission failed: Invalid partition name specified\n";
        let error = refused(said);
        assert_eq!(error.class, Class::Terminal);
        let expected = "Slurm does not take it: invalid partition specified: nopart; Invalid partition name specified; \
                        `sinfo` and `muster nodes` list the partitions; write it as --on slurm/PARTITION";
        assert_eq!(error.what, expected);
    }
}
