//! People who leave while their jobs wait, run and are tried again; and what their names lead to before an admin has said who
//! they are.

use muster_model::Reason;
use muster_model::account::{Membership, Role, User, UserState, Workspace};
use muster_model::node::Account;
use muster_store::{AccountChange, SecretRow};

use super::*;

const SECRET: &str = "TOKEN";

impl Fixture {
    /// A server on which `ada` is a member of the workspace `nlp`, which has a secret.
    pub(super) fn with_ada() -> Self {
        let mut fixture = Self::new();
        let at = now();
        let workspace = Workspace {
            name: "nlp".into(),
            display_name: None,
            priority: None,
            max_run_time: None,
            created_at: at,
        };
        fixture.write(vec![Change::Account(AccountChange::Workspace(workspace))]).unwrap();
        fixture.set_ada(UserState::Active, Some("ada"));
        fixture.set_role(Some(Role::Member));
        fixture.put_secret("first");
        fixture
    }

    pub(super) fn set_ada(&mut self, state: UserState, account: Option<&str>) {
        let user = User {
            name: "ada".into(),
            display_name: None,
            state,
            is_admin: false,
            password: None,
            account: account.map(str::to_owned),
            created_at: now(),
        };
        self.write(vec![Change::Account(AccountChange::User(user))]).unwrap();
        self.read_accounts();
    }

    fn set_role(&mut self, role: Option<Role>) {
        let (workspace, user) = ("nlp".to_owned(), "ada".to_owned());
        let change = match role {
            Some(_) => AccountChange::Membership(Membership { workspace, user, role, since: now() }),
            None => AccountChange::RemoveMembership { workspace, user },
        };
        self.write(vec![Change::Account(change)]).unwrap();
        self.read_accounts();
    }

    fn put_secret(&mut self, value: &str) {
        let sealed = self.core.parts.vault.seal("nlp", SECRET, value.as_bytes()).unwrap();
        let row = SecretRow {
            workspace: "nlp".into(),
            name: SECRET.into(),
            sealed,
            size: value.len() as u64,
            put_by: "lead".into(),
            put_at: now(),
        };
        self.write(vec![Change::Secret(row)]).unwrap();
    }

    /// The local agent, which says that it is this account's.
    pub(super) fn connect_account(
        &mut self,
        node: &NodeId,
        account: Account,
        is_tcp: bool,
    ) -> mpsc::Receiver<ToAgent> {
        self.connection += 1;
        let (outbox, messages) = mpsc::channel(100);
        let hello = Hello { account, ..self.hello(node, "build", "a", Vec::new()) };
        let connection = ConnectionId(self.connection);
        self.turn(Input::AgentConnected { connection, hello: Box::new(hello), outbox, is_tcp });
        messages
    }

    fn connect_local(&mut self) -> mpsc::Receiver<ToAgent> {
        self.connect_account(&node(), own("ada"), false)
    }

    pub(super) fn submit_as_ada(&mut self, more: serde_json::Value) -> JobId {
        let mut spec = json!({ "command": ["true"], "workspace": "nlp", "secrets": [{ "name": SECRET, "env": SECRET }] });
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        self.try_submit_as("ada", spec, None).unwrap()
    }

    fn fail(&mut self, job: &JobId, attempt: u32) {
        self.say(ended(task(job, attempt, 0), Some(Reason::exited(1))));
        self.core.turn(std::iter::empty());
    }

    fn report_ready(&mut self, job: &JobId, attempt: u32) {
        self.say(ToServer::Ready { task: task(job, attempt, 0), address: address(1) });
    }

    fn why_of(&mut self, job: &JobId) -> muster_api::view::Why {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Why(job.clone(), reply));
        answer.try_recv().unwrap().unwrap().unwrap().answer(MAX_PRIORITY, |id| Some(id.to_string()))
    }

    fn row(&self, job: &JobId) -> muster_model::Job {
        self.core.parts.readers.job(job).unwrap().unwrap().job
    }

    fn assert_not_allowed(&self, job: &JobId, attempts: u32) {
        let row = self.row(job);
        let is_it = matches!(row.reason, Some(Reason::OwnerNotAllowed { .. }));
        assert!(is_it && row.state == State::Failed && row.attempt == attempts, "{row:?}");
    }
}

/// An account with this name, and the uid that this process has.
fn own(name: &str) -> Account {
    Account { name: name.into(), uid: rustix::process::getuid().as_raw(), ..Account::default() }
}

/// The values that tasks were given.
fn values(messages: &mut mpsc::Receiver<ToAgent>) -> Vec<String> {
    let launches = all(messages).into_iter().filter_map(|message| match message {
        ToAgent::Launch(launch) => Some(launch),
        _ => None,
    });
    let given = launches.flat_map(|launch| launch.secrets);
    given.map(|given| String::from_utf8(given.value.0.clone()).unwrap()).collect()
}

#[test]
fn no_attempt_starts_once_its_owner_is_disabled_or_has_left_the_workspace() {
    let leave: [fn(&mut Fixture); 3] = [
        |fixture| fixture.set_ada(UserState::Disabled, Some("ada")),
        |fixture| fixture.set_role(None),
        |fixture| fixture.set_role(Some(Role::Viewer)),
    ];
    for leave in leave {
        let mut fixture = Fixture::with_ada();
        let mut messages = fixture.connect_local();
        let job = fixture.submit_as_ada(json!({ "retries": 2 }));
        fixture.report_ready(&job, 1);
        assert_eq!(values(&mut messages), ["first"]);
        let queued = fixture.submit_as_ada(json!({ "hold": true }));
        leave(&mut fixture);
        fixture.put_secret("rotated");
        assert_eq!(fixture.row(&job).state, State::Starting, "what runs goes on");
        let why = fixture.why_of(&queued);
        assert_eq!(why.code, "owner_not_allowed", "{why:?}");
        fixture.fail(&job, 1);
        fixture.assert_not_allowed(&job, 1);
        let (reply, _answer) = oneshot::channel();
        fixture.turn(Input::Job(queued.clone(), muster_model::job::Event::Release, reply));
        fixture.assert_not_allowed(&queued, 0);
        assert!(values(&mut messages).is_empty());
    }
}

#[test]
fn a_restarted_server_starts_nothing_for_an_owner_who_left() {
    let mut fixture = Fixture::with_ada();
    let job = fixture.submit_as_ada(json!({ "retries": 2 }));
    fixture.set_ada(UserState::Disabled, Some("ada"));
    let mut fixture = fixture.restart();
    fixture.read_accounts();
    let mut messages = fixture.connect_local();
    fixture.assert_not_allowed(&job, 0);
    assert!(values(&mut messages).is_empty());
}

#[test]
fn a_task_that_was_prepared_before_its_owner_left_gets_no_secret() {
    let mut fixture = Fixture::with_ada();
    let mut messages = fixture.connect_local();
    let job = fixture.submit_as_ada(json!({ "retries": 2 }));
    assert_eq!(fixture.state(&job), State::Starting);
    fixture.set_role(None);
    fixture.put_secret("rotated");
    fixture.report_ready(&job, 1);
    let sent = all(&mut messages);
    let launch = sent.iter().find_map(|message| match message {
        ToAgent::Launch(launch) => Some(launch),
        _ => None,
    });
    let launch = launch.expect("a launch that fails on the node, with the reason");
    assert!(launch.secrets.is_empty(), "{launch:?}");
    assert!(launch.withheld.as_ref().unwrap().contains("not a member"), "{launch:?}");
}

#[test]
fn an_owner_who_comes_back_runs_jobs_again() {
    let mut fixture = Fixture::with_ada();
    let mut messages = fixture.connect_local();
    let job = fixture.submit_as_ada(json!({ "hold": true }));
    fixture.set_ada(UserState::Disabled, Some("ada"));
    fixture.set_ada(UserState::Active, Some("ada"));
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), muster_model::job::Event::Release, reply));
    fixture.report_ready(&job, 1);
    assert_eq!(values(&mut messages), ["first"]);
}

#[test]
fn an_array_starts_no_lane_for_an_owner_who_left() {
    let mut fixture = Fixture::with_ada();
    let mut messages = fixture.connect_local();
    let job = fixture.submit_as_ada(json!({ "array": "0-99%1", "retries": 2 }));
    fixture.report_ready(&job, 1);
    assert_eq!(values(&mut messages), ["first"]);
    fixture.set_role(None);
    fixture.put_secret("rotated");
    fixture.say(ended(task(&job, 1, 0), Some(Reason::NodeLost { node: "n".into() })));
    (0..3).for_each(|_| fixture.core.turn(std::iter::empty()));
    fixture.assert_not_allowed(&job, 1);
    assert!(values(&mut messages).is_empty());
}

#[test]
fn a_machine_is_not_started_again_for_an_owner_who_left() {
    let mut fixture = Fixture::with_ada();
    let mut messages = fixture.connect_local();
    let spec = json!({ "kind": "machine", "name": "dev", "workspace": "nlp" });
    let job = fixture.try_submit_as("ada", spec, None).unwrap();
    fixture.report_ready(&job, 1);
    fixture.say(ToServer::Started { task: task(&job, 1, 0), at: now() });
    let (reply, _) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), muster_model::job::Event::Suspend, reply));
    fixture.say(ended(task(&job, 1, 0), None));
    fixture.set_ada(UserState::Disabled, Some("ada"));
    all(&mut messages);
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), muster_model::job::Event::Resume, reply));
    fixture.core.turn(std::iter::empty());
    fixture.assert_not_allowed(&job, 1);
    assert!(
        all(&mut messages).iter().all(|message| !matches!(message, ToAgent::Prepare(_) | ToAgent::Launch(_)))
    );
}

#[test]
fn the_operator_needs_no_account() {
    let mut fixture = Fixture::with_ada();
    let _messages = fixture.connect_local();
    let job = fixture.submit(json!({ "command": ["true"], "workspace": "nlp" }));
    assert_eq!(fixture.state(&job), State::Starting);
}

#[test]
fn a_name_leads_to_no_personal_volume_before_an_admin_has_said_whose_it_is() {
    let mut fixture = Fixture::with_ada();
    let volume = |path: &str| Volume::new("people", path, None).unwrap();
    fixture.core.parts.volumes = vec![volume("/people/{user}")];
    fixture.set_ada(UserState::Active, None);
    let spec = |more: serde_json::Value| {
        let mut spec = json!({ "command": ["true"], "workspace": "nlp", "on": "k8s", "image": "python" });
        spec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        spec
    };
    let refused = fixture.try_submit_as("ada", spec(json!({})), None).unwrap_err();
    assert_eq!(refused.errors[0].field, "volumes", "{refused:?}");
    assert!(refused.errors[0].message.contains("muster user set ada --account"), "{refused:?}");
    let without = fixture.try_submit_as("ada", spec(json!({ "without_volumes": true })), None).unwrap();
    assert!(fixture.core.jobs.contains_key(&without));
    // What a workspace shares is its members' by the word of a lead.
    fixture.core.parts.volumes = vec![volume("/share/{workspace}")];
    let shared = fixture.try_submit_as("ada", spec(json!({ "hold": true })), None).unwrap();
    // A job that an older server took does not start with it either.
    fixture.core.parts.volumes = vec![volume("/people/{user}")];
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Job(shared.clone(), muster_model::job::Event::Release, reply));
    let row = fixture.row(&shared);
    assert!(row.state == State::Failed && row.attempt == 0, "{row:?}");
    fixture.set_ada(UserState::Active, Some("ada"));
    let mapped = fixture.try_submit_as("ada", spec(json!({})), None).unwrap();
    assert!(fixture.core.jobs[&mapped].job.is_handed_over());
}
