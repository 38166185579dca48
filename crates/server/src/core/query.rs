//! Questions about what is in memory: why a job waits, what nodes have.

use muster_api::pool::{HostView, PoolView};
use muster_api::problem::{Code, Problem};
use muster_api::view::{DeviceView, NodeView, Why};
use muster_model::job::State;
use muster_model::pool::{Host, HostSpec, Pool};
use muster_model::quantity::format_duration;
use muster_model::spec::Target;
use muster_model::task::TaskPhase;
use muster_model::{JobId, NodeId, Reason, Timestamp};

use super::Core;
use super::allocation::Allocation;
use super::live::{Live, Node};
use super::why::{About, Question};

impl Core {
    /// Why a job that is not over is where it is; `None` once it is.
    pub(super) fn why(&mut self, id: &JobId, now: Timestamp) -> Option<Question> {
        let live = self.jobs.get(id)?;
        if live.job.state == State::Queued {
            return Some(match self.why_set_aside(live, now) {
                Some(why) => Question::Answered(Box::new(why)),
                None => {
                    let target = live.target().clone();
                    self.question(About::Job(id.clone()), &target, now)
                }
            });
        }
        Some(Question::Answered(Box::new(match live.job.state {
            State::Starting => {
                let ready = live.job.ranks(|task| task.phase != TaskPhase::Assigned).len();
                let nodes = live.job.policy.nodes;
                plain("starting", format!("its gang gathers: {ready} of {nodes} tasks are ready"))
            }
            State::Running => plain("running", format!("running, attempt {}", live.job.attempt)),
            State::Stopping => plain("stopping", "its tasks are being stopped".into()),
            State::Suspended => Why {
                help: Reason::Suspended.hint(live.job.attempt).map(str::to_owned),
                ..plain("suspended", "paused by its user".into())
            },
            State::Queued | State::Succeeded | State::Failed | State::Stopped => return None,
        })))
    }

    /// Why a job that waits is not considered, or who else considers it.
    fn why_set_aside(&self, live: &Live, now: Timestamp) -> Option<Why> {
        if live.job.is_handed_over() {
            return Some(self.why_handed_over(live));
        }
        if let Some(reason) = self.start_obstacle(live) {
            let summary = format!("it will not start and fails when its turn comes: {}", reason.message());
            return Some(Why { help: reason.hint(1).map(str::to_owned), ..plain(reason.code(), summary) });
        }
        if live.job.hold {
            return Some(Why {
                constraint: Some(
                    "somebody holds it; or the server was restored from a backup, and it may have run since"
                        .into(),
                ),
                help: Some("let it go: `muster release JOB`; or end it: `muster stop JOB`".into()),
                ..plain("held", "held in the queue".into())
            });
        }
        if let Some(after) = live.after.first() {
            let more = match live.after.len() - 1 {
                0 => String::new(),
                more => format!(", and for {more} more"),
            };
            let name = after.job.parse().ok().and_then(|id: JobId| self.jobs.get(&id)).map(|one| &one.name);
            let name = name.map_or_else(String::new, |name| format!(" ({name})"));
            return Some(Why {
                help: Some(format!("see how that is: `muster why {}`", after.job)),
                ..plain("dependency", format!("waits for {}{name} to {}{more}", after.job, after.on.verb()))
            });
        }
        if let Some(at) = live.job.eligible_at.filter(|at| *at > now) {
            let pause = std::time::Duration::try_from(at.duration_since(now)).unwrap_or_default();
            return Some(plain("backoff", format!("tried again in {}", format_duration(pause))));
        }
        if let Some(allocation) = self.open_allocation(&live.job.id) {
            let what = format!("waits until {} has taken its last attempt back", live.target());
            return Some(Why { constraint: allocation.lingers.clone(), ..plain("closing", what) });
        }
        None
    }

    /// Why another scheduler has not begun it, as far as that has said so.
    pub(super) fn why_handed_over(&self, live: &Live) -> Why {
        let target = live.target();
        let allocation = self.allocations.get(&live.job.attempt_id());
        let said = allocation.and_then(|allocation| allocation.wait.clone());
        let mut why = said.unwrap_or_else(|| match allocation.and_then(|one| one.row.external.as_ref()) {
            Some(id) => plain("handed_over", format!("handed over to {target}, as {id}")),
            None => plain("handed_over", format!("handed over to {target}")),
        });
        // What it said last may not be so any more.
        let handed_to = allocation.map(Allocation::target);
        if let Some(trouble) = handed_to.and_then(|target| self.parts.troubles.get(&target)) {
            why.constraint = Some(format!("{target} does not answer now: {trouble}"));
        }
        if why.starts_at.is_none() {
            why.no_estimate = Some(format!("{target} has not said when"));
        }
        why
    }

    pub(super) fn node_views(&self) -> Vec<NodeView> {
        let shown = self.nodes.iter().filter(|(_, node)| node.is_shown());
        shown.map(|(id, node)| self.node_view(id, node)).collect()
    }

    pub(super) fn pool_views(&self) -> Vec<PoolView> {
        let view = |pool: &Pool| PoolView {
            name: pool.name.clone(),
            on: Target::Ssh(pool.name.clone()).to_string(),
            configured: pool.configured,
            shared: pool.shared.clone(),
            hosts: pool.hosts.iter().filter_map(|host| self.host_view(host)).collect(),
        };
        self.pools.values().map(view).collect()
    }

    fn host_view(&self, host: &Host) -> Option<HostView> {
        let node = self.nodes.get(&host.node)?;
        let HostSpec { destination, port, key, address } = host.spec.clone();
        Some(HostView { destination, port, key, address, node: self.node_view(&host.node, node) })
    }

    fn node_view(&self, id: &NodeId, node: &Node) -> NodeView {
        let (used, capacity) = (self.scheduler.used(id), &node.capacity);
        NodeView {
            id: id.clone(),
            engine: node.target.engine().into(),
            pool: match &node.target {
                Target::Ssh(pool) => Some(pool.clone()),
                Target::Local | Target::Slurm(_) | Target::Kubernetes(_) => None,
            },
            host: node.host.clone(),
            connected: node.connection.is_some(),
            drained: node.drained,
            labels: node.labels.clone(),
            error: self.parts.starts.error(id).filter(|_| node.connection.is_none()),
            agent_pid: node.connection.as_ref().map(|connection| connection.pid),
            agent_version: node.connection.as_ref().map(|connection| connection.version.clone()),
            cpu_millis: capacity.cpu_millis,
            cpu_millis_used: used.cpu_millis,
            memory_bytes: capacity.memory_bytes,
            memory_bytes_used: used.memory_bytes,
            slots: capacity.slots,
            slots_used: used.slots,
            now: None,
            devices: capacity
                .devices
                .iter()
                .map(|device| DeviceView {
                    device: device.clone(),
                    job: self.holder(node, device.index),
                    in_use: self.scheduler.is_taken(id, device.index),
                    now: None,
                })
                .collect(),
        }
    }

    fn holder(&self, node: &Node, device: u32) -> Option<JobId> {
        let holds = |task: &&muster_model::TaskId| {
            self.jobs
                .get(&task.attempt.job)
                .and_then(|live| live.job.tasks.get(task.rank as usize))
                .is_some_and(|task| task.placement.devices.contains(&device))
        };
        node.tasks.iter().find(holds).map(|task| task.attempt.job.clone())
    }
}

fn plain(code: &str, summary: String) -> Why {
    Why { code: code.into(), summary, ..Why::default() }
}

/// A failure of the store, as a caller may see it.
pub(crate) fn internal(error: &muster_store::Error) -> Problem {
    tracing::error!(error = %error, "the store failed");
    Problem::new(Code::Internal, "the server could not read its database")
}
