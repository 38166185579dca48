//! That nothing is written whose record is not.

use muster_store::{AuditFilter, NewAudit, Sight};

use super::*;
use crate::audit::Record;

fn record(target: &str) -> Arc<Record> {
    Record::new(NewAudit { target: target.into(), ..NewAudit::new(now(), "create_job", "started") })
}

fn recorded(record: &Arc<Record>, input: Input) -> Input {
    Input::Recorded(record.clone(), Box::new(input))
}

fn submission() -> (Input, oneshot::Receiver<Result<JobId, Problem>>) {
    let (reply, answer) = oneshot::channel();
    let submission = Submission {
        spec: JobSpec::from_value(json!({ "command": ["true"] })).unwrap(),
        owner: "ada".into(),
        bundle: None,
        source: None,
        environment: None,
        idempotency: None,
        sight: Sight::All,
    };
    (Input::Submit(Box::new(submission), reply), answer)
}

/// A batch with this in it is not written: there is no such job.
fn impossible() -> Input {
    let rename = Change::Rename { job: JobId::from_random(7), generation: 3, name: "x".into() };
    Input::Write(vec![rename], None, oneshot::channel().0)
}

fn entries(fixture: &Fixture) -> Vec<(String, String)> {
    let rows = fixture.core.parts.readers.audit(&AuditFilter::default(), 100).unwrap();
    rows.into_iter().rev().map(|row| (row.entry.target, row.entry.outcome)).collect()
}

fn done(target: &str) -> (String, String) {
    (target.into(), "done".into())
}

#[test]
fn an_entry_is_written_with_its_effect_or_neither_is() {
    let mut fixture = Fixture::new();
    let first = record("first");
    let (submit, mut submitted) = submission();
    fixture.core.turn([recorded(&first, submit), impossible()].into_iter());
    assert!(submitted.try_recv().unwrap().is_err());
    assert_eq!(entries(&fixture), [], "one with the other, or neither");
    assert!(!first.is_written(), "the guard records that it failed");

    let second = record("second");
    let (submit, mut submitted) = submission();
    fixture.core.turn([recorded(&second, submit)].into_iter());
    let job = submitted.try_recv().unwrap().unwrap();
    assert_eq!(entries(&fixture), [done("second")]);
    assert!(second.is_written());
    let rows = fixture.core.parts.readers.audit(&AuditFilter::default(), 1).unwrap();
    assert_eq!(rows[0].entry.job.as_ref(), Some(&job), "the entry names the job that was made");
    fixture.core.turn(std::iter::empty());
    assert_eq!(entries(&fixture).len(), 1, "once");
}

#[test]
fn a_request_that_the_core_refuses_writes_nothing_and_one_with_two_effects_writes_once() {
    let mut fixture = Fixture::new();
    let refused = record("refused");
    let (reply, mut answer) = oneshot::channel();
    let rename = Input::Rename(JobId::from_random(7), "x".into(), reply);
    fixture.core.turn([recorded(&refused, rename)].into_iter());
    assert!(answer.try_recv().unwrap().is_err());
    assert!(!refused.is_written() && entries(&fixture).is_empty());

    let twice = record("twice");
    let (one, _one) = submission();
    let (other, _other) = submission();
    let read = Input::Nodes(oneshot::channel().0);
    fixture.core.turn([read, one, other].map(|input| recorded(&twice, input)).into_iter());
    assert_eq!(entries(&fixture), [done("twice")]);
}
