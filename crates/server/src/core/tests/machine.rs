//! Machines: jobs that hold nodes, are parked and come back, and are known by their names.

use muster_api::Code;
use muster_model::launch::Work;

use super::*;

impl Fixture {
    fn ask(
        &mut self,
        input: impl FnOnce(oneshot::Sender<Result<(), Problem>>) -> Input,
    ) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(input(reply));
        answer.try_recv().unwrap()
    }

    fn apply(&mut self, job: &JobId, event: Event) -> Result<(), Problem> {
        self.ask(|reply| Input::Job(job.clone(), event, reply))
    }

    fn rename(&mut self, job: &JobId, name: &str) -> Result<(), Problem> {
        self.ask(|reply| Input::Rename(job.clone(), name.into(), reply))
    }

    fn free(&self) -> (u32, u64, u32) {
        let node = &self.core.nodes[&node()];
        let used = self.core.scheduler.used(&node.id);
        let tasks = node.tasks.len() as u32;
        (node.capacity.slots - used.slots, node.capacity.cpu_millis - used.cpu_millis, tasks)
    }

    fn run(&mut self, job: &JobId, attempt: u32) {
        let id = task(job, attempt, 0);
        self.say(ToServer::Ready { task: id.clone(), address: address(1) });
        self.say(ToServer::Started { task: id, at: now() });
    }
}

fn machine(name: &str) -> serde_json::Value {
    json!({ "kind": "machine", "name": name, "exclusive": true })
}

use muster_model::job::Event;
use muster_model::spec::Target;

#[test]
fn a_machine_only_waits_has_its_node_alone_and_gives_all_back_once() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let whole = fixture.free();
    let job = fixture.submit(machine("m"));
    fixture.run(&job, 1);
    let sent = all(&mut messages);
    assert!(sent.iter().any(|m| matches!(m, ToAgent::Prepare(p) if p.goes_on && p.bundle.is_none())));
    let launched = sent.iter().find_map(|m| if let ToAgent::Launch(l) = m { Some(l) } else { None });
    let launched = launched.unwrap();
    assert_eq!((&launched.work, launched.env.get("WORLD_SIZE")), (&Work::Wait, None));
    let other = fixture.submit(json!({ "command": ["true"] }));
    assert_eq!((fixture.state(&job), fixture.state(&other)), (State::Running, State::Queued));
    assert_eq!(fixture.free(), (0, 0, 1));
    fixture.apply(&job, Event::Suspend).unwrap();
    assert_eq!(fixture.apply(&job, Event::Resume).unwrap_err().code, Code::InvalidState);
    fixture.say(ended(task(&job, 1, 0), None));
    assert_eq!((fixture.state(&job), fixture.state(&other)), (State::Suspended, State::Starting));
    // What is said twice counts once.
    fixture.say(ended(task(&job, 1, 0), None));
    fixture.say(ended(task(&other, 1, 0), None));
    assert_eq!(fixture.free(), whole);
    fixture.apply(&job, Event::Resume).unwrap();
    assert_eq!((fixture.state(&job), fixture.free()), (State::Starting, (0, 0, 1)));
    fixture.run(&job, 2);
    fixture.apply(&job, Event::Resume).unwrap();
    assert_eq!((fixture.state(&job), fixture.core.jobs[&job].job.attempt), (State::Running, 2), "it runs");
    fixture.apply(&job, Event::Stop { grace: None }).unwrap();
    fixture.say(ended(task(&job, 2, 0), None));
    assert_eq!((fixture.state(&job), fixture.free()), (State::Stopped, whole));
}

#[test]
fn a_suspended_machine_survives_the_server_and_holds_nothing_but_its_name() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let whole = fixture.free();
    let job = fixture.submit(machine("m"));
    fixture.apply(&job, Event::Suspend).unwrap();
    fixture.say(ended(task(&job, 1, 0), None));
    let mut fixture = fixture.restart();
    let _messages = fixture.connect("a", vec![]);
    assert_eq!((fixture.state(&job), fixture.free()), (State::Suspended, whole));
    assert_eq!(fixture.ask_unfinished(), 0, "nobody need stay for it");
    assert_eq!(fixture.try_submit(machine("m"), None).unwrap_err().code, Code::NameTaken);
    fixture.apply(&job, Event::Resume).unwrap();
    assert_eq!(fixture.state(&job), State::Starting);
}

#[test]
fn a_name_is_given_once_and_can_be_changed() {
    let mut fixture = Fixture::new();
    let first = fixture.submit(machine("a"));
    let second = fixture.submit(machine("b"));
    assert_eq!(fixture.rename(&second, "a").unwrap_err().code, Code::NameTaken);
    fixture.rename(&first, "c").unwrap();
    fixture.rename(&first, "c").unwrap();
    fixture.rename(&second, "a").unwrap();
    let mut fixture = fixture.restart();
    let name = |fixture: &Fixture, job| fixture.core.parts.readers.job(job).unwrap().unwrap().name;
    assert_eq!((name(&fixture, &first), name(&fixture, &second)), ("c".into(), "a".into()));
    fixture.submit(machine("b"));
    fixture.apply(&first, Event::Stop { grace: None }).unwrap();
    assert_eq!(fixture.rename(&first, "d").unwrap_err().code, Code::InvalidState);
    fixture.submit(machine("c"));
}

#[test]
fn a_machine_of_a_pool_is_used_as_if_one_had_logged_in() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(machine("m"));
    let mut live = fixture.core.jobs[&job].clone();
    assert_eq!(fixture.core.directory(&live, &node()), None);
    let on_a_pool = JobSpec { on: Target::Ssh("gpu".into()), ..(*live.spec).clone() };
    live.spec = Arc::new(on_a_pool);
    assert_eq!(fixture.core.directory(&live, &node()).as_deref(), Some("/"), "its account's home");
}

impl Fixture {
    fn ask_unfinished(&mut self) -> u64 {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Unfinished(reply));
        answer.try_recv().unwrap().unwrap()
    }
}

impl Fixture {
    fn rename_task(&mut self, job: &JobId, rank: u32, name: &str) -> Result<(), Problem> {
        self.ask(|reply| Input::RenameTask { job: job.clone(), rank, name: name.into(), reply })
    }

    fn machine_names(&self, job: &JobId) -> Vec<(u32, String)> {
        let row = self.core.parts.readers.job(job).unwrap().unwrap();
        row.machine_names.into_iter().collect()
    }
}

fn group(name: &str) -> serde_json::Value {
    json!({ "kind": "machine", "name": name, "nodes": 2 })
}

#[test]
fn a_machine_of_a_group_has_a_name_of_its_own() {
    let mut fixture = Fixture::new();
    let first = fixture.submit(group("a"));
    let second = fixture.submit(group("b"));
    fixture.rename_task(&first, 1, "eval").unwrap();
    fixture.rename_task(&first, 1, "eval").unwrap();
    for taken in ["a", "b", "eval", "task0.a", "task7.nobody"] {
        let refused = fixture.rename_task(&second, 0, taken).unwrap_err();
        assert_eq!(refused.code, Code::NameTaken, "{taken}");
    }
    assert_eq!(fixture.rename(&second, "eval").unwrap_err().code, Code::NameTaken);
    assert_eq!(fixture.try_submit(machine("eval"), None).unwrap_err().code, Code::NameTaken);
    // It outlives the server, and the name of its group.
    let mut fixture = fixture.restart();
    fixture.rename(&first, "c").unwrap();
    assert_eq!(fixture.machine_names(&first), [(1, "eval".to_owned())]);
    assert_eq!(fixture.rename_task(&second, 1, "eval").unwrap_err().code, Code::NameTaken);
    fixture.rename_task(&first, 1, "task1.c").unwrap();
    assert_eq!(fixture.machine_names(&first), []);
    fixture.rename_task(&second, 0, "task0.b").unwrap();
    fixture.rename_task(&second, 0, "eval").unwrap();
    // A group that is over leaves its names to others.
    fixture.apply(&second, Event::Stop { grace: None }).unwrap();
    assert_eq!(fixture.rename_task(&second, 0, "other").unwrap_err().code, Code::InvalidState);
    fixture.rename_task(&first, 0, "eval").unwrap();
    let alone = fixture.submit(machine("alone"));
    assert_eq!(fixture.rename_task(&alone, 0, "x").unwrap_err().code, Code::InvalidState);
}
