//! Naming jobs: by id, its beginning, a name, or `last`.

use serde_json::json;

use crate::{home, until};

#[test]
fn jobs_are_named_by_id_beginning_name_and_last() {
    let home = home();
    let alpha = home.submit(&["--name", "alpha", "--", "sh", "-c", &until("go")]);
    let beta = home.submit(&["--name", "beta", "--", "true"]);
    let id_of = |selector: &str| home.json(["show", selector, "--json"])["id"].clone();
    assert_eq!(id_of(&alpha), json!(alpha));
    assert_eq!(id_of("alpha"), json!(alpha));
    assert_eq!(id_of("last"), json!(beta));
    let shared = alpha.bytes().zip(beta.bytes()).take_while(|(a, b)| a == b).count();
    assert_eq!(id_of(&alpha[..=shared]), json!(alpha));
    assert_eq!(id_of(alpha[..=shared].trim_start_matches("job_")), json!(alpha));

    // A name belongs to one job at a time, and to the newest of them afterwards.
    let done = home.run(["run", "--name", "alpha", "--", "true"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("alpha"), "{}", done.err());
    home.wait_for_state(&beta, "succeeded");
    let newer = home.submit(&["--name", "beta", "--", "true"]);
    assert_eq!(id_of("beta"), json!(newer));
    home.touch("go");
    home.wait_for_state(&alpha, "succeeded");
}

#[test]
fn a_selector_that_fits_several_or_none_is_refused_with_words() {
    let home = home();
    let done = home.run(["show", "last"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("no jobs yet"), "{}", done.err());

    // Among so many ids of 32 letters, some begin alike.
    home.ok(["server", "start"]);
    let submit = |_| {
        let body = json!({"spec": {"command": "true", "clean_env": true}});
        home.post("/api/v1/jobs", &body).json()["id"].as_str().expect("an id").to_owned()
    };
    let ids: Vec<String> = (0..40).map(submit).collect();
    let beginning = |id: &str| id["job_".len()..].chars().next();
    let twin =
        ids.iter().find(|id| ids.iter().any(|other| other != *id && beginning(other) == beginning(id)));
    let short = &twin.expect("two of forty ids begin with the same letter")[..="job_".len()];
    let done = home.run(["show", short]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("fits several jobs") && done.err().contains("hint:"), "{}", done.err());

    for command in ["show", "logs", "wait", "stop", "rm", "why"] {
        let done = home.run([command, "no-such-job"]);
        assert_eq!(done.code(), 2, "{command}: {}", done.err());
        assert!(done.err().contains("no-such-job") && done.err().contains("muster ps"), "{}", done.err());
        assert_eq!(home.run([command, ""]).code(), 2, "{command}");
    }
    for id in &ids {
        home.wait_for_state(id, "succeeded");
    }
    assert_eq!(home.json(["ps", "-a", "--json"]).as_array().map(Vec::len), Some(40));
}
