//! Pools, and nodes that come, go and are drained.
//!
//! A pool is a wish: it is written down first, and nodes follow it afterwards. A node that is nobody's any more stays until
//! what ran there has been told to end, so that nothing goes on out of sight; then its agent is stopped.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_engine::Machine;
use muster_link::message::ToAgent;
use muster_model::job::{Event, State};
use muster_model::node::Capacity;
use muster_model::pool::{Host, Pool, PoolSpec};
use muster_model::spec::{FieldCode, FieldError, Target, nearest};
use muster_model::task::TaskEnd;
use muster_model::{JobId, NodeId, Reason, Timestamp};
use muster_store::Change;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::{Put, Reply};
use super::live::Node;
use crate::keeper::Word;

/// How long a node that goes may take to say that what ran there has ended.
const LEAVE: Duration = Duration::from_secs(5);
/// How many jobs are named that stand in the way of something.
const NAMED: usize = 5;

impl Core {
    pub(super) fn on_put_pool(
        &mut self,
        spec: PoolSpec,
        how: Put,
        batch: &mut Batch,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let errors = spec.check();
        if !errors.is_empty() {
            return Err(Problem::fields(errors));
        }
        let before = self.pools.get(&spec.name);
        before.map_or(Ok(()), |pool| self.refuse_configured(pool))?;
        let pool = match (before, how) {
            (Some(pool), Put::More) => pool.with(spec.hosts, spec.shared),
            (before, Put::Whole | Put::More) => Pool::new(spec, before, false),
        };
        for node in gone(before, &pool) {
            self.refuse_busy(&node)?;
        }
        self.change_pool(pool, batch, now);
        Ok(())
    }

    pub(super) fn on_remove_pool(
        &mut self,
        name: &str,
        force: bool,
        batch: &mut Batch,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let pool = self.pools.get(name).ok_or_else(|| self.no_pool(name))?.clone();
        self.refuse_configured(&pool)?;
        // What waits would wait for ever, so not even force leaves it behind.
        let is_in_the_way = |state: State| !force || matches!(state, State::Queued | State::Suspended);
        let jobs = self.jobs_on(&pool.name, is_in_the_way);
        if !jobs.is_empty() {
            let what = format!("pool {name} has jobs that are not over: {}", named(&jobs));
            return Err(Problem::new(Code::InUse, what).hint(format!("`muster stop {}` first", jobs[0])));
        }
        self.remove_pool(pool, batch, now);
        Ok(())
    }

    pub(super) fn on_remove_node(
        &mut self,
        text: &str,
        force: bool,
        batch: &mut Batch,
        now: Timestamp,
    ) -> Result<(), Problem> {
        let id = self.find_node(text)?;
        let Some(pool) = self.pools.values().find(|pool| pool.hosts.iter().any(|host| host.node == id))
        else {
            let what = format!("{id} is not a host of a pool, and cannot be removed");
            let hint = format!("`muster nodes drain {id}` keeps new tasks from it");
            return Err(Problem::new(Code::InvalidState, what).hint(hint));
        };
        self.refuse_configured(pool)?;
        if !force {
            self.refuse_busy(&id)?;
        }
        self.change_pool(pool.without(&id), batch, now);
        Ok(())
    }

    /// Makes the pools what the configuration says. It is the server's start, so nobody can be asked: what still has
    /// tasks stays until the next one.
    pub(super) fn on_configure(&mut self, specs: Vec<PoolSpec>, batch: &mut Batch, now: Timestamp) {
        let former = self.pools.values().filter(|pool| pool.configured).cloned();
        let dropped: Vec<Pool> =
            former.filter(|pool| specs.iter().all(|spec| spec.name != pool.name)).collect();
        for pool in dropped {
            if self.jobs_on(&pool.name, |_| true).is_empty() {
                self.remove_pool(pool, batch, now);
            } else {
                tracing::warn!(
                    pool = pool.name,
                    "not in config.toml any more, but its jobs are not over; it stays"
                );
                self.change_pool(Pool { configured: false, ..pool }, batch, now);
            }
        }
        for spec in specs {
            let before = self.pools.get(&spec.name);
            let mut pool = Pool::new(spec, before, true);
            let busy = |host: &&Host| {
                let is_busy = self.nodes.get(&host.node).is_some_and(|node| !node.tasks.is_empty());
                is_busy && pool.hosts.iter().all(|kept| kept.node != host.node)
            };
            let stay: Vec<Host> = before.iter().flat_map(|pool| &pool.hosts).filter(busy).cloned().collect();
            for host in &stay {
                tracing::warn!(node = %host.node, "not in config.toml any more, but it has tasks; it stays");
            }
            pool.hosts.extend(stay);
            self.change_pool(pool, batch, now);
        }
    }

    pub(super) fn on_drain(
        &mut self,
        text: &str,
        drained: bool,
        reply: Reply<NodeId>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let id = match self.find_node(text) {
            Ok(id) => id,
            Err(problem) => return drop(reply.send(Err(problem))),
        };
        if let Some(node) = self.nodes.get_mut(&id) {
            batch.drained_before.insert(0, (id.clone(), node.drained));
            node.drained = drained;
            node.refresh();
        }
        self.untold.nodes.insert(id.clone());
        self.dirty = true;
        batch.first.push(Change::Drain { node: id.clone(), since: drained.then_some(now) });
        batch.answers.push(Answer::Node(reply, id));
    }

    /// Whether a job may name this pool.
    pub(super) fn check_pool(&self, target: &Target) -> Option<FieldError> {
        let Target::Ssh(pool) = target else { return None };
        if self.pools.contains_key(pool) {
            return None;
        }
        let known: Vec<&str> = self.pools.keys().map(String::as_str).collect();
        let remedy = match (nearest(pool, &known), known.as_slice()) {
            (Some(near), _) => format!("did you mean `ssh/{near}`?"),
            (None, []) => format!("make it: `muster pool add {pool} USER@HOST`"),
            (None, known) => format!("there is: {}", known.join(", ")),
        };
        let message = format!("there is no pool `{pool}`; {remedy}");
        Some(FieldError::new("on", FieldCode::InvalidValue, message))
    }

    /// Writes a pool down as it is to be. Nodes that it does not have any more begin to leave.
    fn change_pool(&mut self, pool: Pool, batch: &mut Batch, now: Timestamp) {
        batch.pools_before.get_or_insert_with(|| self.pools.clone());
        batch.first.push(Change::Pool(pool.clone()));
        batch.spoken_of.extend(pool.hosts.iter().map(|host| host.node.clone()));
        for node in gone(self.pools.get(&pool.name), &pool) {
            self.leave(&node, batch, now);
        }
        self.pools.insert(pool.name.clone(), pool);
    }

    fn remove_pool(&mut self, pool: Pool, batch: &mut Batch, now: Timestamp) {
        batch.pools_before.get_or_insert_with(|| self.pools.clone());
        batch.first.push(Change::RemovePool(pool.name.clone()));
        self.pools.remove(&pool.name);
        for host in pool.hosts {
            self.leave(&host.node, batch, now);
        }
    }

    /// A node is nobody's any more: its tasks are lost to their jobs, and told to end.
    fn leave(&mut self, id: &NodeId, batch: &mut Batch, now: Timestamp) {
        batch.first.push(Change::RemoveNode(id.clone()));
        batch.spoken_of.remove(id);
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.leaves_at = Some(now + LEAVE);
        // That it was drained goes with it: one that comes back is a new one.
        batch.drained_before.insert(0, (id.clone(), std::mem::take(&mut node.drained)));
        node.stale.extend(node.tasks.iter().cloned());
        node.refresh();
        let tasks = node.tasks.clone();
        self.timers.insert(now + LEAVE);
        self.leaving.insert(id.clone());
        self.untold.nodes.insert(id.clone());
        for task in tasks {
            batch
                .messages
                .push((id.clone(), ToAgent::Stop { task: task.clone(), grace_ms: 0, reason: String::new() }));
            let end = TaskEnd::new(Some(Reason::NodeLost { node: id.to_string() }), None);
            let event = Event::TaskEnded { attempt: task.attempt.number, rank: task.rank, end, at: now };
            self.apply_quietly(&task.attempt.job, event, batch, now);
        }
    }

    /// After a commit: nodes follow the pools that are on disk now.
    pub(super) fn follow_pools(&mut self, batch: &Batch) {
        for pool in self.pools.values().filter(|_| batch.pools_before.is_some()) {
            for host in &pool.hosts {
                let target = || Target::Ssh(pool.name.clone());
                let node = self.nodes.entry(host.node.clone());
                let node =
                    node.or_insert_with(|| Node::new(host.node.clone(), target(), Capacity::default()));
                // It may have been on its way out and be wanted again.
                if node.leaves_at.take().is_some() {
                    self.leaving.remove(&host.node);
                    node.refresh();
                }
                self.untold.nodes.insert(host.node.clone());
            }
        }
        batch.spoken_of.iter().for_each(|node| self.join(node));
    }

    /// After a commit that failed: the pools are as they were, and so is who leaves.
    pub(super) fn restore_pools(&mut self, before: BTreeMap<String, Pool>) {
        for host in before.values().flat_map(|pool| &pool.hosts) {
            if self.leaving.remove(&host.node)
                && let Some(node) = self.nodes.get_mut(&host.node)
            {
                node.leaves_at = None;
                // What still runs there is not known here any more; on reconnecting, its agent says it again.
                node.connection = None;
            }
        }
        self.pools = before;
    }

    /// Has an agent kept on a node; one that is away is tried at once.
    pub(super) fn join(&self, id: &NodeId) {
        let Some(node) = self.nodes.get(id) else { return };
        if node.connection.is_none() {
            self.parts.starts.begin(id);
        }
        let engine = node.target.engine();
        self.tell_keeper(Word::Join { node: id.clone(), engine, machine: self.machine(id, &node.target) });
    }

    fn machine(&self, id: &NodeId, target: &Target) -> Option<Machine> {
        let Target::Ssh(pool) = target else { return None };
        let host = self.pools.get(pool)?.hosts.iter().find(|host| host.node == *id)?;
        let spec = host.spec.clone();
        Some(Machine {
            node: id.clone(),
            destination: spec.destination,
            port: spec.port,
            key: spec.key.map(Into::into),
            address: spec.address,
        })
    }

    pub(super) fn tell_keeper(&self, word: Word) {
        // Whoever starts agents may be gone, when the server stops.
        drop(self.parts.words.send(word));
    }

    /// Lets go of the nodes that leave and have nothing left, or no time.
    pub(super) fn finish_leaving(&mut self, now: Timestamp) {
        let is_over = |node: &Node| {
            node.connection.is_none() || node.stale.is_empty() || node.leaves_at.is_some_and(|at| at <= now)
        };
        let over = |id: &&NodeId| self.nodes.get(*id).is_none_or(is_over);
        let over: Vec<NodeId> = self.leaving.iter().filter(over).cloned().collect();
        for id in over {
            self.leaving.remove(&id);
            // It is also stopped from outside, but this server may not live to see that.
            if let Some(mut node) = self.nodes.remove(&id) {
                node.send(ToAgent::Shutdown);
            }
            self.ended.retain(|_, ended| ended.node != id);
            self.parts.starts.close(&id);
            self.tell_keeper(Word::Leave(id));
        }
    }

    /// Answers those who wait for the nodes of a server that has just started.
    pub(super) fn settle(&mut self, now: Timestamp) {
        let is_there = |node: &Node| node.connection.is_some() || node.allocation.is_some();
        if !self.settling.is_empty() && (now >= self.settles_at || self.nodes.values().all(is_there)) {
            self.settling.drain(..).for_each(|reply| drop(reply.send(Ok(()))));
        }
    }

    /// The node that people mean: by its id, with or without its beginning, or by its host, if only one is called so.
    pub(super) fn find_node(&self, text: &str) -> Result<NodeId, Problem> {
        let short = |id: &NodeId| id.as_str().trim_start_matches(NodeId::PREFIX).to_owned();
        let shown: Vec<&NodeId> =
            self.nodes.iter().filter(|(_, node)| node.is_shown()).map(|(id, _)| id).collect();
        if let Some(id) = shown.iter().find(|id| id.as_str() == text || short(id) == text) {
            return Ok((*id).clone());
        }
        let is_host = |id: &&&NodeId| short(id).split_once('.').is_some_and(|(_, host)| host == text);
        let given: String = text.chars().take(80).collect();
        match shown.iter().filter(is_host).collect::<Vec<_>>().as_slice() {
            [one] => Ok((**one).clone()),
            [] => {
                let names: Vec<String> = shown.iter().flat_map(|id| [id.to_string(), short(id)]).collect();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let near = nearest(text, &names).map(|near| format!("did you mean `{near}`? "));
                Err(Problem::new(Code::NodeNotFound, format!("there is no node `{given}`"))
                    .hint(format!("{}`muster nodes` lists them", near.unwrap_or_default())))
            }
            several => {
                let names: Vec<String> = several.iter().take(NAMED).map(|id| id.to_string()).collect();
                let what = format!("`{given}` fits several nodes: {}", names.join(", "));
                Err(Problem::new(Code::Ambiguous, what).hint("write the node's id"))
            }
        }
    }

    fn no_pool(&self, name: &str) -> Problem {
        let known: Vec<&str> = self.pools.keys().map(String::as_str).collect();
        let near = nearest(name, &known).map(|near| format!("did you mean `{near}`? "));
        let shown: String = name.chars().take(80).collect();
        Problem::new(Code::PoolNotFound, format!("there is no pool `{shown}`"))
            .hint(format!("{}`muster pool ls` lists them", near.unwrap_or_default()))
    }

    fn refuse_configured(&self, pool: &Pool) -> Result<(), Problem> {
        if !pool.configured {
            return Ok(());
        }
        let (name, file) = (&pool.name, self.parts.home.join("config.toml"));
        Err(Problem::new(Code::Configured, format!("pool {name} is configured in {}", file.display())).hint(
            format!(
                "change [pools.{name}] there, then `muster server stop`; the next command starts it anew"
            ),
        ))
    }

    fn refuse_busy(&self, id: &NodeId) -> Result<(), Problem> {
        let tasks = self.nodes.get(id).into_iter().flat_map(|node| &node.tasks);
        let mut jobs: Vec<JobId> = tasks.map(|task| task.attempt.job.clone()).collect();
        jobs.dedup();
        if jobs.is_empty() {
            return Ok(());
        }
        let hint = format!(
            "`muster nodes drain {id}` keeps new ones away until they are over; --force ends them as node_lost"
        );
        Err(Problem::new(Code::InUse, format!("{id} has tasks of {}", named(&jobs))).hint(hint))
    }

    /// The jobs of a pool that are not over and in such a state, the oldest first.
    fn jobs_on(&self, pool: &str, counts: impl Fn(State) -> bool) -> Vec<JobId> {
        let is_here = |target: &Target| matches!(target, Target::Ssh(name) if name == pool);
        let lives = self.jobs.values().filter(|live| is_here(live.target()) && counts(live.job.state));
        let mut jobs: Vec<_> = lives.map(|live| (live.seq, live.job.id.clone())).collect();
        jobs.sort();
        jobs.into_iter().map(|(_, id)| id).collect()
    }
}

/// The nodes that a pool had and is not to have any more.
fn gone(before: Option<&Pool>, now: &Pool) -> Vec<NodeId> {
    let stays = |node: &NodeId| now.hosts.iter().any(|host| host.node == *node);
    let before = before.into_iter().flat_map(|pool| &pool.hosts).map(|host| &host.node);
    before.filter(|node| !stays(node)).cloned().collect()
}

fn named(jobs: &[JobId]) -> String {
    let names: Vec<&str> = jobs.iter().take(NAMED).map(JobId::as_str).collect();
    match jobs.len().saturating_sub(NAMED) {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}
