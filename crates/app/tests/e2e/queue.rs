//! What people expect of a queue: jobs that wait for others, jobs that are held and let go.

use crate::{home, until};

#[test]
fn a_job_starts_when_others_have_ended_as_they_should() {
    let home = home();
    let line = |end: &str| format!("{}; {end}", until("go"));
    let good = home.submit(&["--name", "good", "--", "sh", "-c", &line("true")]);
    let bad = home.submit(&["--name", "bad", "--", "sh", "-c", &line("exit 3")]);
    let submit = |name: &str, after: &[&str]| {
        let words: Vec<&str> = after.iter().flat_map(|after| ["--after", after]).collect();
        home.submit(&[&["--name", name], &words[..], &["--", "true"]].concat())
    };
    let both = submit("both", &["good", "bad:failed"]);
    let whatever = submit("whatever", &["bad:any"]);
    let never = submit("never", &["good", "bad"]);
    // What can never start takes along what waits for it.
    let chain = submit("chain", &["never"]);
    let last = submit("last-of-all", &["chain:any"]);
    let why = home.json(["why", &both, "--json"]);
    assert_eq!(why["code"], "dependency", "{why}");
    assert!(why["summary"].as_str().unwrap().contains("(good) to succeed, and for 1 more"), "{why}");
    assert_eq!(home.job(&both)["spec"]["after"][0]["job"], good.as_str(), "names are settled at once");

    // Nobody has forgotten it when the server comes back.
    home.kill("server");
    home.touch("go");
    for (job, state) in [(&both, "succeeded"), (&whatever, "succeeded"), (&last, "succeeded")] {
        home.wait_for_state(job, state);
    }
    for job in [&never, &chain] {
        let failed = home.wait_for_state(job, "failed");
        assert_eq!(failed["reason"]["code"], "dependency_failed", "{failed}");
        assert_eq!(failed["attempts"], serde_json::json!([]), "{failed}");
    }
    assert!(home.job(&never)["message"].as_str().unwrap().contains(&format!("{bad} has failed")));

    // What is over already is met at once, or said at once.
    assert_eq!(home.run(["run", "--after", "good", "--", "true"]).code(), 0);
    let refused = home.run(["run", "--after", "good", "--after", "bad", "--", "true"]);
    assert_eq!(refused.code(), 2);
    for word in ["after[1]", "has failed, and was to succeed", &format!("{bad}:any")] {
        assert!(refused.err().contains(word), "{word}: {}", refused.err());
    }
    let unknown = home.run(["run", "--after", "goood:ok", "--after", "x:soon", "--", "true"]);
    assert_eq!(unknown.code(), 2);
    assert!(unknown.err().contains("must be JOB, JOB:ok, JOB:any or JOB:failed"), "{}", unknown.err());
    let unknown = home.run(["run", "--after", "goood", "--", "true"]);
    assert!(unknown.err().contains("did you mean `good`?"), "{}", unknown.err());
    // Those that were waited for can be removed, and nobody minds.
    home.ok(["rm", &good, &bad]);
    assert_eq!(home.job(&both)["state"], "succeeded");
}

#[test]
fn a_job_is_held_and_let_go() {
    let home = home();
    let job = home.submit(&["--hold", "--", "true"]);
    assert_eq!(home.json(["why", &job, "--json"])["code"], "held");
    home.kill("server");
    assert_eq!(home.json(["why", &job, "--json"])["code"], "held");
    home.ok(["release", &job]);
    home.wait_for_state(&job, "succeeded");
    let other = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&other, "running");
    let refused = home.run(["hold", &other]);
    assert!(refused.code() != 0 && refused.err().contains("muster suspend"), "{}", refused.err());
    home.touch("go");
    home.wait_for_state(&other, "succeeded");
}

#[test]
fn where_one_of_several_is_not_there_nothing_is_changed() {
    let home = home();
    let jobs = [home.submit(&["--hold", "--", "true"]), home.submit(&["--hold", "--", "true"])];
    for command in ["release", "stop", "rm"] {
        let refused = home.run([command, &jobs[0], "nosuch", &jobs[1]]);
        assert!(refused.code() != 0 && refused.err().contains("nosuch"), "{}", refused.err());
        for job in &jobs {
            assert_eq!(home.json(["why", job, "--json"])["code"], "held", "after {command}");
        }
    }
}
