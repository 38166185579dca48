//! When is measured, and where it goes.
//!
//! Only while somebody listens: without a server nothing is measured. While tasks run, as often as the options say;
//! otherwise once a minute, so that an idle machine is left alone and still seen. A measurement is never waited for: one for
//! which there is no room on the way to the server is dropped, and the next one says as much.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_link::message::ToServer;
use muster_model::TaskId;
use muster_model::metrics::Sample;
use muster_model::node::Device;
use tokio::time::Instant;

use super::{Event, Service};
use crate::disk;
use crate::metrics::{Sampler, Subject};
use crate::supervisor::notice;

/// How often an idle machine is measured.
const IDLE: Duration = Duration::from_secs(60);
/// How soon after a task's start it is measured first, and after a connection's the machine. What is over earlier was
/// not worth it.
const FIRST: Duration = Duration::from_secs(1);
/// Measuring may take this part of the time: on a machine with very many tasks it is done less often.
const SHARE: u32 = 20;

/// When to measure next, and with what.
#[derive(Debug)]
pub(super) struct Sampling {
    /// How often while tasks run; never, if absent.
    every: Option<Duration>,
    devices: Arc<[Device]>,
    /// Made when it is first needed, and away while it measures.
    sampler: Option<Box<Sampler>>,
    is_away: bool,
    due: Option<Instant>,
    /// The next measurement is as far off as it is for want of tasks.
    is_idle: bool,
    /// When tasks last said that they had saved, as far as the server knows it.
    saved: HashMap<TaskId, Timestamp>,
}

/// What came of a measurement.
#[derive(Debug)]
pub(super) struct Sampled {
    sampler: Box<Sampler>,
    /// None from one that was only made: rates need two looks.
    sample: Option<Box<Sample>>,
    /// When those of its tasks that ever did last said that they had saved.
    saved: HashMap<TaskId, Timestamp>,
    took: Duration,
}

impl Sampling {
    pub(super) fn new(every: Option<Duration>, devices: &[Device]) -> Sampling {
        Sampling {
            every,
            devices: devices.into(),
            sampler: None,
            is_away: false,
            due: None,
            is_idle: true,
            saved: HashMap::new(),
        }
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.is_away)
    }

    /// There is a server that listens.
    pub(super) fn begin(&mut self) {
        self.due = self.every.map(|every| Instant::now() + every.min(FIRST));
        self.saved.clear();
    }

    /// Nobody listens any more, or nobody understands.
    pub(super) fn end(&mut self) {
        self.due = None;
    }

    /// A task has started: on a machine that was idle, that is worth an early look. On one that is not, a look comes
    /// soon enough, and thousands of short tasks must not make for thousands of looks.
    pub(super) fn on_task(&mut self) {
        if let (true, Some(due), Some(every)) = (self.is_idle, self.due, self.every) {
            self.due = Some(due.min(Instant::now() + every.min(FIRST)));
            self.is_idle = false;
        }
    }

    fn is_listened_to(&self) -> bool {
        self.due.is_some()
    }

    /// The pause until the next measurement.
    fn pause(&mut self, has_tasks: bool, sampled: &Sampled) {
        let Some(every) = self.every.filter(|_| self.is_listened_to()) else { return };
        let pause = match &sampled.sample {
            None => every.min(FIRST),
            Some(_) if has_tasks => every,
            Some(_) => every.max(IDLE),
        };
        self.is_idle = sampled.sample.is_some() && !has_tasks;
        self.due = Some(Instant::now() + pause.max(sampled.took * SHARE));
    }
}

impl Service {
    /// It is time to measure.
    pub(super) fn on_sample_due(&mut self) {
        self.sampling.is_away = true;
        let (sampler, devices) = (self.sampling.sampler.take(), Arc::clone(&self.sampling.devices));
        let subjects = self.subjects();
        self.work.spawn(async move {
            let sampled = disk::work(move || Ok::<_, io::Error>(measure(sampler, &devices, &subjects))).await;
            Event::Sampled(sampled.ok().map(Box::new))
        });
    }

    fn subjects(&self) -> Vec<Subject> {
        let old_enough = Timestamp::now() - self.sampling.every.unwrap_or(FIRST).min(FIRST) / 2;
        let running = self.tasks.iter().filter_map(|task| Some((task, task.life.running_since()?)));
        let subject = |(task, started_at): (&super::table::Task, Timestamp)| Subject {
            task: task.record.prepare.task.clone(),
            dir: task.dir.path().to_owned(),
            devices: task.record.prepare.devices.clone(),
            started_at,
        };
        running.filter(|(_, started_at)| *started_at <= old_enough).map(subject).collect()
    }

    pub(super) fn on_sampled(&mut self, sampled: Option<Sampled>) {
        self.sampling.is_away = false;
        let Some(sampled) = sampled else {
            // It can only have broken. The next one is made anew, and not at once.
            self.sampling.due = self.sampling.due.map(|_| Instant::now() + IDLE);
            return;
        };
        let has_tasks = self.tasks.iter().any(|task| task.life.running_since().is_some());
        self.sampling.pause(has_tasks, &sampled);
        self.sampling.sampler = Some(sampled.sampler);
        self.tell_saved(sampled.saved);
        let Some(sample) = sampled.sample else { return };
        for task in &sample.tasks {
            self.tasks.note_usage(&task.task, &task.usage);
        }
        if let Some(outbound) = self.outbound.as_ref().filter(|_| self.sampling.is_listened_to()) {
            let _ = outbound.try_send(ToServer::Metrics(sample));
        }
    }
}

impl Service {
    /// Tells the server of work that was saved since it last heard of it.
    fn tell_saved(&mut self, saved: HashMap<TaskId, Timestamp>) {
        let Some(outbound) = self.outbound.as_ref().filter(|_| self.sampling.is_listened_to()) else {
            return;
        };
        for (task, at) in &saved {
            if self.sampling.saved.get(task) != Some(at) {
                let _ = outbound.try_send(ToServer::Saved { task: task.clone(), at: *at });
            }
        }
        self.sampling.saved = saved;
    }
}

fn measure(sampler: Option<Box<Sampler>>, devices: &[Device], subjects: &[Subject]) -> Sampled {
    let Some(mut sampler) = sampler else {
        let sampler = Box::new(Sampler::open(devices));
        return Sampled { sampler, sample: None, saved: HashMap::new(), took: Duration::ZERO };
    };
    let begun = std::time::Instant::now();
    let saved = |subject: &Subject| Some((subject.task.clone(), notice::saved_at(&subject.dir)?));
    let saved = subjects.iter().filter_map(saved).collect();
    let sample = Box::new(sampler.sample(subjects, Timestamp::now()));
    Sampled { sampler, sample: Some(sample), saved, took: begun.elapsed() }
}
