//! `muster agent --gang DIR`: the agent of one rank of a gang that another scheduler has started, and `--salvage --rank R`: one
//! that is started again where the files of such an agent are.
//!
//! DIR is the attempt's, made by the gate. Who is one too many finds out here and ends: a gang runs once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use muster_agent::device::Lent;
use muster_agent::{Network, Options, Tenure};
use muster_engine::local::Local;
use muster_engine::pod::Seats;
use muster_engine::slurm::gate::{CLOSED, HOME};
use muster_engine::ssh::carry;
use muster_link::dial::Server;

/// What the scheduler that has started us says of the job.
const JOB: &str = "SLURM_JOB_ID";
const RANK: &str = "SLURM_PROCID";
const RESTARTS: &str = "SLURM_RESTART_COUNT";

/// How the agent is to be, or none if there is nothing for it to do.
pub fn options(dir: &Path, words: &[OsString]) -> anyhow::Result<Option<Options>> {
    let is_salvage = words.iter().any(|word| word == "--salvage");
    let variables: BTreeMap<String, String> = std::env::vars().collect();
    if !is_salvage && !is_wanted(dir, &variables)? {
        return Ok(None);
    }
    let rank = rank(words, &variables, RANK)?;
    let seats = Seats::read(dir).context("its seat")?;
    let home = dir.parent().context("it has a home")?.join(HOME);
    let mut options = seated(&seats, rank, dir.join(rank.to_string()), Server::Posted(home))?;
    // The interface that leads to others, or none of them where there is only this machine.
    options.network = Network::Named(dir.join("address"));
    options.login = true;
    options.build = carry::build()?;
    options.tenure = Some(Tenure {
        is_salvage,
        grace: Duration::from_millis(seats.grace_ms),
        patience: seats.patience_ms.map(Duration::from_millis),
        closed: (!is_salvage).then(|| dir.join(CLOSED)),
        host: variables.get("SLURMD_NODENAME").cloned(),
        devices: if is_salvage { Lent::default() } else { Lent::of_variables(&variables, seats.model) },
        variables: variables.into_iter().filter(|(name, _)| is_of_place(name)).collect(),
        fence: None,
        hold: None,
    });
    Ok(Some(options))
}

/// Which of the gang's agents this is: by its words, or by what its scheduler says.
pub fn rank(words: &[OsString], variables: &BTreeMap<String, String>, name: &str) -> anyhow::Result<usize> {
    match crate::option(words, "--rank") {
        Some(rank) => rank.to_str().and_then(|text| text.parse().ok()).context("--rank is no number"),
        None => {
            Ok(variables.get(name).map_or(Ok(0), |text| text.parse()).with_context(|| name.to_owned())?)
        }
    }
}

/// The agent of this rank, with a directory of its own.
pub fn seated(seats: &Seats, rank: usize, own: PathBuf, server: Server) -> anyhow::Result<Options> {
    let seat = seats.seats.get::<usize>(rank).with_context(|| format!("there is no seat {rank}"))?;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&own);
    made.with_context(|| own.display().to_string())?;
    let token_file = Local::token_file(&own);
    write_private(&token_file, &seat.token)?;
    let mut options = Options::new(own, seat.node.clone(), server, token_file, "/proc/self/exe".into());
    options.version = crate::version();
    Ok(options)
}

/// Whether this job is the one that runs the gang. The first that comes is.
fn is_wanted(dir: &Path, variables: &BTreeMap<String, String>) -> anyhow::Result<bool> {
    if is_closed(dir) {
        return Ok(false);
    }
    if variables.get(RESTARTS).is_some_and(|count| count != "0") {
        tracing::warn!("a gang is not begun again under the same name");
        return Ok(false);
    }
    let Some(job) = variables.get(JOB) else { bail!("{JOB} is not set: it is started by Slurm alone") };
    for name in ["job", "claim"] {
        if name == "claim" {
            claim(dir, job)?;
        }
        match fs::read_to_string(dir.join(name)) {
            Ok(known) if known.trim() != job => {
                tracing::warn!(job, known = known.trim(), "this attempt has another job");
                return Ok(false);
            }
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error).context("its job"),
            _ => {}
        }
    }
    // Whoever closes it looks for a claim afterwards: one of both sees the other.
    Ok(!is_closed(dir))
}

fn is_closed(dir: &Path) -> bool {
    let is_closed = dir.join(CLOSED).exists();
    if is_closed {
        tracing::info!("this attempt is over");
    }
    is_closed
}

/// Writes down whose attempt it is, unless somebody else has.
fn claim(dir: &Path, job: &str) -> anyhow::Result<()> {
    let own = dir.join(format!("claim-{}-{}", job, std::process::id()));
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let own = own.with_extension(host.replace('/', "-"));
    fs::write(&own, job)?;
    // A link appears whole, for one alone, on every file system that machines share.
    let linked = fs::hard_link(&own, dir.join("claim"));
    fs::remove_file(&own)?;
    match linked {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error).context("claim the attempt"),
        _ => Ok(()),
    }
}

pub fn write_private(path: &Path, text: &str) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(path)?;
    Ok(file.write_all(text.as_bytes())?)
}

/// What tasks are told of their place. Not what belongs to the step that we are: programs of theirs would take themselves for it.
fn is_of_place(name: &str) -> bool {
    let of_step =
        ["SLURM_STEP", "SLURM_SRUN", "SLURM_LAUNCH", "SLURM_CPU_BIND", "SLURM_EXPORT", "SLURM_GTIDS"];
    let is_slurm = name.starts_with("SLURM_") || name == "SLURMD_NODENAME";
    is_slurm && !of_step.iter().any(|beginning| name.starts_with(beginning)) && name != "SLURM_TASK_PID"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn the_first_job_of_an_attempt_runs_it_and_no_other_does() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path();
        let first = of(&[(JOB, "17"), (RANK, "0")]);
        assert!(is_wanted(dir, &first).unwrap());
        assert!(is_wanted(dir, &of(&[(JOB, "17"), (RANK, "1")])).unwrap(), "all of a gang have one job");
        assert!(!is_wanted(dir, &of(&[(JOB, "18")])).unwrap());
        assert!(!is_wanted(dir, &of(&[(JOB, "17"), (RESTARTS, "1")])).unwrap());
        fs::write(dir.join("closed"), "").unwrap();
        assert!(!is_wanted(dir, &first).unwrap());
        assert!(is_wanted(dir, &of(&[])).is_ok_and(|wanted| !wanted));
    }

    #[test]
    fn a_job_that_the_gate_knows_is_the_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("job"), "17").unwrap();
        assert!(!is_wanted(folder.path(), &of(&[(JOB, "18")])).unwrap());
        assert!(is_wanted(folder.path(), &of(&[(JOB, "17")])).unwrap());
        assert!(is_wanted(folder.path(), &of(&[])).is_err());
    }

    #[test]
    fn tasks_are_told_of_the_job_and_not_of_the_step() {
        for name in ["SLURM_JOB_ID", "SLURM_NODEID", "SLURMD_NODENAME", "SLURM_JOB_NODELIST"] {
            assert!(is_of_place(name), "{name}");
        }
        for name in
            ["SLURM_STEP_ID", "SLURM_SRUN_COMM_PORT", "SLURM_CPU_BIND_TYPE", "PATH", "CUDA_VISIBLE_DEVICES"]
        {
            assert!(!is_of_place(name), "{name}");
        }
    }
}
