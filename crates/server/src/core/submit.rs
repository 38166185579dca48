//! Accepting jobs and bundles, and removing jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_api::problem::{Code, Problem};
use muster_api::view::Why;
use muster_link::message::ToAgent;
use muster_model::job::{Job, Policy, State};
use muster_model::spec::{FieldCode, FieldError, JobSpec, Kind};
use muster_model::{BundleId, JobId, Timestamp};
use muster_scheduler::{Explanation, Need, Request, Shape, Tier};
use muster_store::{Change, NewJob};
use serde_json::json;

use super::Core;
use super::allocation::target_of;
use super::apply::{name_taken, title};
use super::batch::{Answer, Batch, Touched};
use super::input::{Reply, Submission};
use super::live::Live;
use super::schedule::{millis, span};
use super::why::{About, Question};
use super::workspace::workspace_of;
use crate::delegate::{GangTarget, Word};

/// The workspace of a job that names none.
pub(crate) const DEFAULT_WORKSPACE: &str = "default";

impl Core {
    pub(super) fn on_submit(
        &mut self,
        submission: Submission,
        reply: Reply<JobId>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        match self.repeated(&submission, batch) {
            Ok(Some(job)) => return batch.answers.push(Answer::Job(reply, job)),
            Ok(None) => {}
            Err(problem) => return drop(reply.send(Err(problem))),
        }
        if let Err(problem) = self
            .check_workspace(&submission.spec, batch)
            .and_then(|()| self.check(&submission.owner, &submission.spec, now))
            .and_then(|()| self.check_bundle(&submission, batch))
        {
            self.look_again(&submission.spec);
            return drop(reply.send(Err(problem)));
        }
        let id = self.accept(submission, batch, now);
        batch.answers.push(Answer::Job(reply, id));
    }

    /// The job an earlier request with the same key made.
    fn repeated(&self, submission: &Submission, batch: &Batch) -> Result<Option<JobId>, Problem> {
        let Some((key, digest)) = &submission.idempotency else { return Ok(None) };
        let earlier = match batch.keys.get(key) {
            Some(earlier) => Some(earlier.clone()),
            None => {
                let stored =
                    self.parts.readers.idempotent(key).map_err(|error| super::query::internal(&error))?;
                stored.map(|row| (row.request_digest, row.job))
            }
        };
        let hidden = match &earlier {
            Some((_, job)) => !self.is_in_sight(job, submission)?,
            None => false,
        };
        match earlier {
            // Whoever made it may have lost sight of it since, or may come with a token that is good elsewhere alone.
            Some(_) if hidden => Err(Problem::new(
                Code::IdempotencyConflict,
                "the Idempotency-Key was already used, for a job that you cannot see",
            )
            .hint("use a new key for a new request")),
            Some((earlier, job)) if earlier == *digest => Ok(Some(job)),
            Some((_, job)) => Err(Problem::new(
                Code::IdempotencyConflict,
                format!("the Idempotency-Key was already used for {job}, with another request"),
            )
            .hint("use a new key for a new request")),
            None => Ok(None),
        }
    }

    fn is_in_sight(&self, job: &JobId, submission: &Submission) -> Result<bool, Problem> {
        if let Some(live) = self.jobs.get(job) {
            return Ok(submission.sight.has(workspace_of(&live.spec)));
        }
        let found = self.parts.readers.belongs(job).map_err(|error| super::query::internal(&error))?;
        Ok(found.is_some_and(|belongs| submission.sight.has(&belongs.workspace)))
    }

    /// What can only be checked against the present: names in use, and whether the gang could ever fit.
    fn check(&mut self, owner: &str, spec: &JobSpec, now: Timestamp) -> Result<(), Problem> {
        let mut errors = Vec::new();
        if let Some(name) = spec.name.as_ref().filter(|name| self.names.contains_key(&title(spec, name))) {
            if spec.kind == Kind::Machine {
                return Err(name_taken(name));
            }
            let message = format!(
                "`{name}` is the name of a job that is not over; choose another, or `muster stop {name}`"
            );
            errors.push(FieldError::new("name", FieldCode::NameInUse, message));
        }
        errors.extend(self.check_after(spec));
        errors.extend(self.check_pool(&spec.on));
        if let Err(wrong) = self.parts.vault.given(&self.parts.readers, spec) {
            let wrong = wrong.into_iter();
            errors.extend(
                wrong.map(|(i, why)| FieldError::new(format!("secrets[{i}]"), FieldCode::InvalidValue, why)),
            );
        }
        let request = self.request_of(owner, spec, now);
        errors.extend(self.check_volumes(spec));
        errors.extend(self.check_choice(spec));
        let unmapped = || {
            let why = self.personal_volume_obstacle(owner, spec)?;
            Some(FieldError::new("volumes", FieldCode::NotSupported, why))
        };
        errors.extend(self.check_served(&spec.on, &request.need).or_else(unmapped));
        // A node that has not said what it has yet may have anything.
        let is_known = self.nodes_of(&spec.on).all(|node| node.capacity.slots > 0);
        if errors.is_empty() && is_known {
            errors.extend(self.check_room(request));
        }
        if errors.is_empty() { Ok(()) } else { Err(Problem::fields(errors)) }
    }

    /// What is wrong with a job that waiting would not help. Whether somebody else's machines have enough is theirs to say.
    fn check_room(&mut self, request: Request) -> Option<FieldError> {
        let fields = [
            ("resources.gpus", Need { devices: request.need.devices.clone(), ..Need::default() }),
            ("resources.cpus", Need { cpu_millis: request.need.cpu_millis, ..Need::default() }),
            ("resources.memory", Need { memory_bytes: request.need.memory_bytes, ..Need::default() }),
        ];
        let is_refusal = |found: &Explanation| matches!(found.tier, Tier::NeverFits | Tier::NeverAllowed);
        let found = self.scheduler.refusal(request.clone()).filter(is_refusal)?;
        let message = format!("{}; {}", found.constraint, found.help);
        let wrong = |field: &str| FieldError::new(field, FieldCode::NotEnoughResources, message.clone());
        // With other nodes to choose from it would fit: then what it asks of each is not to blame.
        let open = Request { exclude: Vec::new(), ..request.clone() };
        if !self.scheduler.refusal(open.clone()).is_some_and(|it| is_refusal(&it)) {
            return Some(wrong("exclude"));
        }
        let open = Request { labels: BTreeMap::new(), ..open };
        if !self.scheduler.refusal(open).is_some_and(|it| is_refusal(&it)) {
            return Some(wrong("node_labels"));
        }
        let one = Request { shape: Shape::Gang(1), ..request };
        let mut is_too_much = |need: &Need| {
            let alone = Request { need: need.clone(), ..one.clone() };
            self.scheduler.refusal(alone).is_some_and(|it| is_refusal(&it))
        };
        let field = match is_too_much(&one.need) {
            true => fields.iter().find(|(_, need)| is_too_much(need)).map_or("resources", |(field, _)| field),
            false => "nodes",
        };
        Some(wrong(field))
    }

    /// A job that nobody has submitted yet, as the scheduler would be told of it.
    pub(super) fn request_of(&mut self, owner: &str, spec: &JobSpec, now: Timestamp) -> Request {
        let pool = spec.on.to_string();
        self.tell_nodes();
        self.scheduler.set_pool(&pool, self.is_delegated(&spec.on));
        Request {
            priority: spec.priority,
            preemptible: spec.preemptible,
            submitted_at: millis(now),
            place: u64::MAX,
            expected: spec.timeout.map(span),
            shape: Shape::Gang(spec.nodes),
            need: self.need_of(owner, spec),
            exclude: self.excluded(spec),
            labels: spec.node_labels.clone(),
            ..Request::new(JobId::from_random(0), workspace_of(spec), owner, &pool)
        }
    }

    fn check_bundle(&self, submission: &Submission, batch: &Batch) -> Result<(), Problem> {
        let Some(id) = submission.bundle.as_ref().filter(|id| !batch.bundles.contains(*id)) else {
            return Ok(());
        };
        let stored = self.parts.readers.bundle_used_at(id).map_err(|error| super::query::internal(&error))?;
        // Bundles are removed by this thread alone, and last in a batch, so one that is there stays until the job that
        // names it is, too.
        if stored.is_some() {
            return Ok(());
        }
        Err(crate::bundle::absent(id))
    }

    fn accept(&mut self, submission: Submission, batch: &mut Batch, now: Timestamp) -> JobId {
        let Submission { spec, owner, bundle, source, environment, idempotency, sight: _ } = submission;
        let id = JobId::from_random(crate::random::bits());
        let policy = Policy::from(&spec);
        let job = Job { hold: spec.hold, ..Job::new(id.clone(), policy) };
        let name = spec.name.clone().unwrap_or_else(|| spec.default_name());
        if let Some((key, digest)) = &idempotency {
            batch.keys.insert(key.clone(), (digest.clone(), id.clone()));
        }
        batch.first.push(Change::NewJob(Box::new(NewJob {
            job: job.clone(),
            name: name.clone(),
            owner: owner.clone(),
            workspace: workspace_of(&spec).to_owned(),
            spec: spec.clone(),
            parent: None,
            index: None,
            bundle: bundle.clone(),
            source,
            environment,
            idempotency,
            submitted_at: now,
        })));
        batch.event(&id, 0, now, "submitted", json!({ "name": name }));
        batch.jobs.insert(id.clone(), Touched::default());
        self.next_seq += 1;
        let need = Arc::new(self.need_of(&owner, &spec));
        self.adopt(Live {
            job,
            name,
            owner,
            spec: Arc::new(spec),
            bundle,
            need,
            seq: self.next_seq,
            submitted_at: now,
            preempted: Vec::new(),
            after: Vec::new(),
            machine_names: BTreeMap::new(),
        });
        self.untold.jobs.insert(id.clone());
        self.dirty = true;
        id
    }

    pub(super) fn on_put_bundle(
        &mut self,
        id: BundleId,
        manifest: String,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        batch.bundles.insert(id.clone());
        batch.first.push(Change::Bundle { id, manifest, at: now });
        batch.answers.push(Answer::Done(reply));
    }

    /// Only what is over can be removed; its nodes then drop its files.
    pub(super) fn on_remove(&mut self, id: JobId, reply: Reply<()>, batch: &mut Batch) {
        let over = |state: State| state.is_terminal();
        if let Some(live) = self.jobs.get(&id).filter(|live| !over(live.job.state)) {
            let problem = Problem::new(Code::InvalidState, format!("{id} is {}", live.job.state))
                .hint(format!("stop it first: `muster stop {id}`, or `muster rm --force {id}`"));
            return drop(reply.send(Err(problem)));
        }
        if batch.jobs.contains_key(&id) || batch.removed.contains(&id) {
            let problem = Problem::new(Code::InvalidState, format!("{id} is just ending")).hint("try again");
            return drop(reply.send(Err(problem)));
        }
        for node in self.nodes.keys() {
            batch.messages.push((node.clone(), ToAgent::Remove { job: id.clone() }));
        }
        match self.parts.readers.allocations(&id) {
            Ok(rows) => {
                let targets: BTreeSet<GangTarget> = rows.iter().map(target_of).collect();
                if !targets.is_empty() {
                    batch.words.push(Word::Remove { job: id.clone(), targets });
                }
            }
            Err(error) => tracing::warn!(job = %id, %error, "what it had elsewhere cannot be looked up"),
        }
        self.ended.retain(|task, _| task.attempt.job != id);
        batch.removed.push(id);
        batch.answers.push(Answer::Done(reply));
    }

    /// What would happen to a job, if it were submitted now.
    pub(super) fn preview(
        &mut self,
        owner: &str,
        spec: &JobSpec,
        now: Timestamp,
    ) -> Result<Question, Problem> {
        self.check(owner, spec, now)?;
        if self.is_delegated(&spec.on) {
            return Ok(Question::Answered(Box::new(Why {
                code: "delegated".into(),
                summary: format!("{} decides when and where it starts", spec.on),
                help: Some(format!("`muster nodes` shows what {} has", spec.on.engine())),
                ..Why::default()
            })));
        }
        let request = self.request_of(owner, spec, now);
        Ok(self.question(About::New(Box::new(request)), &spec.on, now))
    }
}
