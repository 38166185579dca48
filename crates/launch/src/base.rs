//! What every task is given: who it is, and where rank 0 listens.

use std::collections::BTreeMap;

use crate::Gang;

/// Used when rank 0's node reserved no port; PyTorch's customary one.
const FALLBACK_PORT: u16 = 29500;

/// The variables of one rank.
pub fn environment(gang: &Gang, rank: u32) -> BTreeMap<String, String> {
    let nodes = gang.members.len();
    let hosts: Vec<String> = gang.members.iter().map(|member| member.ip.to_string()).collect();
    let port = gang.members.first().and_then(|member| member.ports.first()).copied().unwrap_or(FALLBACK_PORT);
    let pairs = [
        ("MUSTER_JOB_ID", gang.attempt.job.to_string()),
        ("MUSTER_JOB_NAME", gang.job_name.clone()),
        ("MUSTER_TASK_ID", gang.attempt.task(rank).to_string()),
        ("MUSTER_ATTEMPT", gang.attempt.number.to_string()),
        ("MUSTER_NODES", nodes.to_string()),
        ("MUSTER_HOSTS", hosts.join(",")),
        ("MASTER_ADDR", hosts.first().cloned().unwrap_or_default()),
        ("MASTER_PORT", port.to_string()),
        ("RANK", rank.to_string()),
        ("WORLD_SIZE", nodes.to_string()),
        ("LOCAL_RANK", "0".into()),
    ];
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use muster_model::{AttemptId, JobId};

    use super::*;
    use crate::Member;

    #[test]
    fn every_member_agrees_on_rank_0_and_knows_itself() {
        let member = |last, port| Member { ip: [127, 64, 0, last].into(), ports: vec![port] };
        let gang = Gang {
            attempt: AttemptId { job: JobId::from_random(7), number: 2 },
            job_name: "bert".into(),
            members: vec![member(1, 4001), member(2, 4002), member(3, 4003)],
        };
        let parts = crate::parts(&gang);
        for (rank, part) in parts.iter().enumerate() {
            let get = |name: &str| part.env[name].as_str();
            assert_eq!(get("RANK"), rank.to_string());
            assert_eq!((get("WORLD_SIZE"), get("MUSTER_NODES")), ("3", "3"));
            assert_eq!((get("MASTER_ADDR"), get("MASTER_PORT")), ("127.64.0.1", "4001"));
            assert_eq!(get("MUSTER_HOSTS"), "127.64.0.1,127.64.0.2,127.64.0.3");
            assert_eq!(get("MUSTER_TASK_ID"), gang.attempt.task(rank as u32).to_string());
            assert_eq!(get("MUSTER_ATTEMPT"), "2");
        }
    }
}
