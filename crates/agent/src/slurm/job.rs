//! The job that a program finds itself in, from its variables.

use std::fs;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use muster_model::{hostlist, slurm};
use muster_ssh::gang::Gang;

use super::TASK_DIR;

/// The job, as the script sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Job {
    pub id: String,
    /// Its nodes' names, in the order of the gang's ranks.
    pub nodes: Vec<String>,
    /// Where each is reached; empty where there is only one.
    pub members: Vec<SocketAddr>,
    /// Which of them this is.
    pub own: usize,
    /// The CPUs of each.
    pub cpus: Vec<u32>,
    /// The GPUs of each.
    pub gpus: u32,
    /// The directory of the task on this node.
    pub dir: PathBuf,
    /// Whether it is a job of a real Slurm's.
    pub is_real: bool,
}

impl Job {
    pub fn here() -> Result<Job, String> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let not_in_job = "not within a job: it is for scripts that `muster submit` runs";
        let dir = PathBuf::from(variable(TASK_DIR).ok_or(not_in_job)?);
        let list = variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST")).ok_or(not_in_job)?;
        let nodes = hostlist::parse(&list).map_err(|error| format!("SLURM_JOB_NODELIST: {error}"))?;
        // A gang of one has no such file, and needs none.
        let members = Gang::members(&dir.join("ssh")).unwrap_or_default();
        if nodes.is_empty() || nodes.len() > 1 && members.len() != nodes.len() {
            return Err(format!(
                "SLURM_JOB_NODELIST names {} nodes, and the job has {}",
                nodes.len(),
                members.len().max(1)
            ));
        }
        let own =
            variable("MUSTER_RANK").and_then(|rank| rank.parse().ok()).filter(|rank| *rank < nodes.len());
        let cpus = variable("SLURM_JOB_CPUS_PER_NODE").and_then(|text| slurm::read_counts(&text));
        let cpus = cpus.filter(|cpus| cpus.len() == nodes.len()).unwrap_or_else(|| vec![1; nodes.len()]);
        Ok(Job {
            id: variable("SLURM_JOB_ID").or_else(|| variable("SLURM_JOBID")).unwrap_or_default(),
            own: own.unwrap_or(0),
            cpus,
            gpus: variable("SLURM_GPUS_ON_NODE").and_then(|count| count.parse().ok()).unwrap_or(0),
            is_real: variable("SLURM_CLUSTER_NAME").is_some_and(|name| name != "muster"),
            nodes,
            members,
            dir,
        })
    }

    /// What programs are told a node is called: its name where that leads to it, else its address. Names are shown in the
    /// task's own table of hosts, which cannot be everywhere.
    pub fn reachable(&self, node: usize) -> String {
        let name = &self.nodes[node];
        match self.members.get(node) {
            Some(member) if !self.resolves(name) => member.ip().to_string(),
            _ => name.clone(),
        }
    }

    /// Nobody else than the table is asked, since a name server that is not there is waited for; but a real Slurm's nodes are
    /// known to its site.
    fn resolves(&self, name: &str) -> bool {
        let table = fs::read_to_string("/etc/hosts").unwrap_or_default();
        is_listed(&table, name)
            || self.is_real && (name, 0).to_socket_addrs().is_ok_and(|mut found| found.next().is_some())
    }

    /// The address of a node.
    pub fn address(&self, node: usize) -> Option<IpAddr> {
        self.members.get(node).map(SocketAddr::ip)
    }
}

fn is_listed(table: &str, name: &str) -> bool {
    let lines = table.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.into_iter().any(|line| line.split_whitespace().skip(1).any(|one| one == name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_listed_where_it_has_an_address() {
        let table = "127.0.0.1 localhost\n10.0.0.1\tn1 n1.site # n3\n# 10.0.0.2 n2\nn4\n";
        assert!(is_listed(table, "n1") && is_listed(table, "n1.site"));
        for name in ["n2", "n3", "n4", "10.0.0.1", ""] {
            assert!(!is_listed(table, name), "{name}");
        }
    }
}
