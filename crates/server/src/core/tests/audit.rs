//! That nothing is written whose record is not.

use muster_store::{AuditFilter, NewAudit, Sight};

use super::*;

fn entry(target: &str) -> Input {
    let at = now();
    Input::Audit(Box::new(NewAudit { target: target.into(), ..NewAudit::removal(at, at, 0) }))
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

fn recorded(fixture: &Fixture) -> Vec<String> {
    let rows = fixture.core.parts.readers.audit(&AuditFilter::default(), 100).unwrap();
    rows.into_iter().rev().map(|row| row.entry.target).collect()
}

#[test]
fn the_record_of_a_batch_that_failed_is_written_with_the_next() {
    let mut fixture = Fixture::new();
    let (submit, mut submitted) = submission();
    fixture.core.turn([entry("first"), submit, impossible()].into_iter());
    assert!(submitted.try_recv().unwrap().is_err());
    assert_eq!(recorded(&fixture), [""; 0], "one with the other, or neither");
    assert!(fixture.core.parts.commits.are_failing(), "from now on nobody is taken at their word");

    // The first record was heard before what is now done, and is not lost.
    let (submit, mut submitted) = submission();
    fixture.core.turn([entry("second"), submit].into_iter());
    assert!(submitted.try_recv().unwrap().is_ok());
    assert_eq!(recorded(&fixture), ["first", "second"]);
    assert!(!fixture.core.parts.commits.are_failing());
    fixture.core.turn(std::iter::empty());
    assert_eq!(recorded(&fixture).len(), 2, "once");
}
