use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::json;

use super::*;

/// What an API server of 1.35 has said to Jobs and pods that were wrong in one way each; the webhook's text is made up.
fn recorded() -> BTreeMap<String, Status> {
    serde_json::from_str(include_str!("recorded.json")).unwrap()
}

/// The pod that was sent, as far as paths lead into it.
fn pod() -> Value {
    json!({
        "containers": [{
            "name": "task",
            "env": [{ "name": "WANDB_API_KEY" }],
            "volumeMounts": [{ "name": "volume-1" }, { "name": "volume-1" }],
        }],
        "volumes": [{ "name": "volume-1" }],
    })
}

#[test]
fn every_refusal_is_a_field_of_ours_or_a_reason_to_wait() {
    let mut text = String::new();
    for (name, status) in recorded() {
        match read(&status, &pod()) {
            Refusal::Fields(fields) => {
                for FieldError { field, code, message } in fields {
                    writeln!(text, "{name}: {field} ({code:?}): {message}").unwrap();
                }
            }
            Refusal::Later(why) => writeln!(text, "{name}: LATER {why}").unwrap(),
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn a_quota_that_is_only_used_up_is_waited_for() {
    let message = "pods \"x\" is forbidden: exceeded quota: q, requested: limits.cpu=2,limits.memory=1Gi, used: \
                   limits.cpu=3,limits.memory=512Mi, limited: limits.cpu=4,limits.memory=8Gi";
    let status = Status { code: 403, message: message.into(), ..Status::default() };
    let expected =
        "the quota `q` is used up: limits.cpu=3,limits.memory=512Mi of limits.cpu=4,limits.memory=8Gi";
    assert_eq!(read(&status, &pod()), Refusal::Later(expected.into()));
}

#[test]
fn what_nobody_has_foreseen_is_passed_on_in_its_own_words() {
    let status = Status { code: 418, message: "short and stout".into(), ..Status::default() };
    let error = read(&status, &pod()).into_error();
    assert_eq!(error.class, Class::Terminal);
    assert_eq!(error.what, "Kubernetes does not take it: k8s: short and stout");
    let empty = Status { code: 422, message: "no".into(), ..Status::default() };
    assert_eq!(read(&empty, &pod()).into_error().what, "Kubernetes does not take it: k8s: no");
}
