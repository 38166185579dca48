//! The environment of a task: what the server gave it, and what only the node knows.

use std::collections::BTreeMap;
use std::path::Path;

use muster_model::node::Account;
use nix::unistd::User;

/// As login programs set it where nobody else does.
pub(crate) const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Complete an environment. `previous_output` is where the attempt before has left its output, if that is here.
/// `devices` are the variables that say which devices the task may see: they always win, also
/// over what the user had set, because the others belong to other tasks.
pub(crate) fn complete(
    mut env: BTreeMap<String, String>,
    task: &str,
    output: &Path,
    previous_output: Option<&Path>,
    devices: Vec<(String, String)>,
    account: Option<Account>,
) -> BTreeMap<String, String> {
    env.extend(devices);
    // The task's processes are found by it when nothing else holds them together.
    env.insert("MUSTER_TASK_ID".into(), task.to_owned());
    env.insert("MUSTER_OUTPUT_DIR".into(), output.display().to_string());
    // Never that of the submitter, who may be a task as well.
    env.remove("MUSTER_PREVIOUS_OUTPUT_DIR");
    if let Some(previous) = previous_output {
        env.insert("MUSTER_PREVIOUS_OUTPUT_DIR".into(), previous.display().to_string());
    }
    // Python writes to a pipe in large blocks otherwise, and people wait for their first line.
    env.entry("PYTHONUNBUFFERED".into()).or_insert_with(|| "1".into());
    env.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    let account = account.unwrap_or_else(self::account);
    for (name, value) in [("USER", &account.name), ("LOGNAME", &account.name), ("HOME", &account.home)] {
        env.entry(name.into()).or_insert_with(|| value.clone());
    }
    env
}

/// What names the job and its place to the scheduler that has lent it: nothing that muster says of them would be known there.
const NAMES: [&str; 12] = [
    "SLURM_CLUSTER_NAME",
    "SLURM_CONF",
    "SLURM_JOBID",
    "SLURM_JOB_ACCOUNT",
    "SLURM_JOB_ID",
    "SLURM_JOB_NODELIST",
    "SLURM_JOB_PARTITION",
    "SLURM_JOB_QOS",
    "SLURM_NODELIST",
    "SLURM_SUBMIT_HOST",
    "SLURM_TOPOLOGY_ADDR",
    "SLURMD_NODENAME",
];
/// An MPI that finds itself in a job of Slurm's starts its processes with Slurm, past the task that it is in.
const BESIDE: [(&str, &str); 6] = [
    ("OMPI_MCA_plm", "^slurm"),
    ("OMPI_MCA_ras", "^slurm"),
    ("PRTE_MCA_plm", "^slurm"),
    ("PRTE_MCA_ras", "^slurm"),
    ("HYDRA_LAUNCHER", "ssh"),
    ("HYDRA_RMK", "user"),
];

/// What says how agents are spread over the place. The job has tasks of its own, and says itself how those are.
const OF_AGENTS: [&str; 2] = ["SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"];

/// Add the variables of a place that was lent. What the job says itself stays, but for the names of the job and its place.
pub(crate) fn lend(env: &mut BTreeMap<String, String>, lent: &BTreeMap<String, String>) {
    let has_tasks = env.contains_key("SLURM_NTASKS");
    for (name, value) in lent {
        if has_tasks && OF_AGENTS.contains(&name.as_str()) {
            continue;
        }
        if NAMES.contains(&name.as_str()) {
            env.insert(name.clone(), value.clone());
        } else {
            env.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
    if lent.contains_key("SLURM_JOB_ID") {
        for (name, value) in BESIDE {
            env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
        }
    }
}

/// The account that the agent runs under, and with it its tasks.
pub(crate) fn account() -> Account {
    let (uid, gid) = (nix::unistd::getuid(), nix::unistd::getgid());
    let found = User::from_uid(uid).ok().flatten();
    // One that nobody knows by a name: the agent's own environment is all there is.
    let of_agent = |name| std::env::var(name).ok();
    let (name, home) = match found {
        Some(user) => (user.name, user.dir.to_string_lossy().into_owned()),
        None => (
            of_agent("USER").unwrap_or_else(|| uid.to_string()),
            of_agent("HOME").unwrap_or_else(|| "/".into()),
        ),
    };
    Account { name, uid: uid.as_raw(), gid: gid.as_raw(), home }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn what_the_user_set_stays_but_for_the_devices() {
        let given =
            map(&[("HOME", "/h"), ("PATH", "/p"), ("PYTHONUNBUFFERED", ""), ("CUDA_VISIBLE_DEVICES", "0,1")]);
        let env = complete(
            given,
            "task0.job_0123456789.1",
            Path::new("/o"),
            Some(Path::new("/p")),
            vec![("CUDA_VISIBLE_DEVICES".into(), String::new())],
            None,
        );
        for (name, value) in [
            ("HOME", "/h"),
            ("PATH", "/p"),
            ("PYTHONUNBUFFERED", ""),
            ("CUDA_VISIBLE_DEVICES", ""),
            ("MUSTER_OUTPUT_DIR", "/o"),
            ("MUSTER_PREVIOUS_OUTPUT_DIR", "/p"),
            ("MUSTER_TASK_ID", "task0.job_0123456789.1"),
        ] {
            assert_eq!(env[name], value, "{name}");
        }
        assert!(!env.contains_key("TMPDIR"));
    }

    #[test]
    fn an_empty_environment_becomes_one_that_programs_can_live_in() {
        let inherited = map(&[("MUSTER_PREVIOUS_OUTPUT_DIR", "/of/another/job")]);
        let env = complete(inherited, "t", Path::new("/o"), None, Vec::new(), None);
        assert!(!env.contains_key("MUSTER_PREVIOUS_OUTPUT_DIR"));
        assert_eq!(env["PYTHONUNBUFFERED"], "1");
        assert!(env["PATH"].contains("/usr/bin") && !env["HOME"].is_empty());
    }

    #[test]
    fn a_place_that_was_lent_has_its_own_names() {
        let mut env = map(&[("SLURM_JOB_ID", "1"), ("SLURM_NTASKS", "16"), ("OMPI_MCA_plm", "rsh")]);
        let lent = map(&[
            ("SLURM_JOB_ID", "77"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_NTASKS_PER_NODE", "1"),
            ("SLURM_NODEID", "1"),
        ]);
        lend(&mut env, &lent);
        assert!(!env.contains_key("SLURM_NTASKS_PER_NODE"), "that is of the agents");
        assert_eq!((env["SLURM_JOB_ID"].as_str(), env["SLURM_NTASKS"].as_str()), ("77", "16"));
        assert_eq!((env["SLURM_NODEID"].as_str(), env["OMPI_MCA_plm"].as_str()), ("1", "rsh"));
        assert_eq!(env["OMPI_MCA_ras"], "^slurm");
    }
}
