//! Who removes a workspace, and who puts something into it, at the same moment.

use muster_model::account::Workspace;
use muster_store::{AccountChange, SecretRow, Sight};

use super::*;
use crate::accounts::Accounts;

impl Fixture {
    /// A server that people share, with this workspace.
    fn shared(name: &str) -> Self {
        let mut fixture = Self::new();
        let workspace = Workspace {
            name: name.into(),
            display_name: None,
            priority: None,
            max_run_time: None,
            created_at: now(),
        };
        fixture.write(vec![Change::Account(AccountChange::Workspace(workspace))]).unwrap();
        fixture.read_accounts();
        fixture
    }

    /// What is known of people is what is written, as it is once a change is.
    pub(super) fn read_accounts(&mut self) {
        let stored = self.core.parts.readers.accounts().unwrap();
        self.core.parts.accounts = Some(Arc::new(Accounts::new(stored, Vec::new())));
    }

    pub(super) fn write(&mut self, changes: Vec<Change>) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Write(changes, None, reply));
        answer.try_recv().unwrap()
    }
}

type Answer<T> = oneshot::Receiver<Result<T, Problem>>;

fn removal(name: &str) -> (Input, Answer<()>) {
    let (reply, answer) = oneshot::channel();
    (Input::Write(vec![Change::Account(AccountChange::RemoveWorkspace(name.into()))], None, reply), answer)
}

fn submission(workspace: &str, sight: Sight, key: Option<&str>) -> (Input, Answer<JobId>) {
    let (reply, answer) = oneshot::channel();
    let submission = Submission {
        spec: JobSpec::from_value(json!({ "command": ["true"], "workspace": workspace })).unwrap(),
        owner: "ada".into(),
        bundle: None,
        source: None,
        environment: None,
        idempotency: key.map(|key| (key.into(), "digest".into())),
        sight,
    };
    (Input::Submit(Box::new(submission), reply), answer)
}

#[test]
fn a_job_and_the_removal_of_its_workspace_never_both_come_to_be() {
    let mut fixture = Fixture::shared("nlp");
    let (remove, mut removed) = removal("nlp");
    let (submit, mut submitted) = submission("nlp", Sight::All, None);
    fixture.core.turn([submit, remove].into_iter());
    assert!(submitted.try_recv().unwrap().is_ok());
    assert_eq!(removed.try_recv().unwrap().unwrap_err().code, muster_api::Code::InUse);

    let mut fixture = Fixture::shared("nlp");
    let (remove, mut removed) = removal("nlp");
    let (submit, mut submitted) = submission("nlp", Sight::All, None);
    let row = SecretRow {
        workspace: "nlp".into(),
        name: "KEY".into(),
        sealed: vec![1],
        size: 1,
        put_by: "ada".into(),
        put_at: now(),
    };
    let (reply, mut put) = oneshot::channel();
    let secret = Input::Write(vec![Change::Secret(row.clone())], None, reply);
    fixture.core.turn([remove, submit, secret].into_iter());
    assert!(removed.try_recv().unwrap().is_ok());
    let refused = submitted.try_recv().unwrap().unwrap_err();
    assert_eq!(refused.errors[0].field, "workspace");
    assert!(put.try_recv().unwrap().is_err());
    // Nor in a later batch, whatever the request had found when it began.
    fixture.read_accounts();
    let (submit, mut submitted) = submission("nlp", Sight::All, None);
    fixture.turn(submit);
    assert!(submitted.try_recv().unwrap().is_err());
    assert!(fixture.write(vec![Change::Secret(row)]).is_err());
}

#[test]
fn a_workspace_with_a_job_that_is_over_stays() {
    let mut fixture = Fixture::shared("nlp");
    let (submit, mut submitted) = submission("nlp", Sight::All, None);
    fixture.turn(submit);
    let job = submitted.try_recv().unwrap().unwrap();
    let (reply, _) = oneshot::channel();
    fixture.turn(Input::Job(job.clone(), muster_model::job::Event::Stop { grace: None }, reply));
    assert!(!fixture.core.jobs.contains_key(&job), "it is over");
    let (remove, mut removed) = removal("nlp");
    fixture.turn(remove);
    assert!(removed.try_recv().unwrap().unwrap_err().detail.contains(job.as_str()));
    let (reply, _) = oneshot::channel();
    fixture.turn(Input::Remove(job, reply));
    let (remove, mut removed) = removal("nlp");
    fixture.turn(remove);
    assert!(removed.try_recv().unwrap().is_ok());
}

#[test]
fn a_repeated_request_is_answered_only_with_what_its_caller_may_see() {
    let mut fixture = Fixture::shared("nlp");
    let of = |name: &str| Sight::Workspaces([name.to_owned()].into());
    let mut ask = |sight: Sight| {
        let (submit, mut submitted) = submission("nlp", sight, Some("ada/1"));
        fixture.turn(submit);
        submitted.try_recv().unwrap()
    };
    let job = ask(of("nlp")).unwrap();
    assert_eq!(ask(of("nlp")).unwrap(), job);
    let hidden = ask(of("cv")).unwrap_err();
    assert_eq!(hidden.code, muster_api::Code::IdempotencyConflict);
    assert!(!serde_json::to_string(&hidden).unwrap().contains(job.as_str()), "{hidden}");
}
