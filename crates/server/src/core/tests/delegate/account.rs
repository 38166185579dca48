//! Gangs that are handed over under the Unix accounts of their owners.

use super::*;

impl Fixture {
    /// A server whose cluster runs gangs as their owners, of whom `ada` is one.
    fn of_owners(account: Option<&str>) -> Self {
        let mut fixture = Self::with_ada();
        fixture.core.parts.engines =
            Arc::new(Engines::new(vec![Arc::new(crate::delegate::tests::Cluster::of_owners())]));
        fixture.set_ada(UserState::Active, account);
        fixture
    }

    /// What the delegate was told, and under which account.
    fn asked_under(&mut self) -> Vec<(&'static str, Option<String>)> {
        let short = |word| match word {
            Task::HandOver { target, .. } => Some(("hand over", target.account)),
            Task::Watch { target, .. } => Some(("watch", target.account)),
            Task::TakeBack { target, .. } => Some(("take back", target.account)),
            Task::Salvage { target, .. } => Some(("salvage", target.account)),
            Task::Closed { target, .. } => Some(("closed", target.account)),
            Task::Remove { .. } | Task::Look(_) => None,
        };
        std::iter::from_fn(|| self.delegated.try_recv().ok()).filter_map(short).collect()
    }

    fn kept_for(&self) -> Vec<Option<String>> {
        let rows = self.core.parts.readers.open_allocations().unwrap();
        rows.into_iter().map(|row| row.account).collect()
    }
}

#[test]
fn a_gang_stays_under_the_account_that_it_was_handed_over_under() {
    let mut fixture = Fixture::of_owners(Some("ada.l"));
    let under = |account: &str| Some(account.to_owned());
    let job = fixture.submit_as_ada(json!({ "on": "slurm/gpu", "retries": 1 }));
    assert_eq!(fixture.kept_for(), [under("ada.l")], "it is written down before anything is done");
    assert_eq!(fixture.asked_under(), [("hand over", under("ada.l"))]);

    // Another account is for what comes next, also after a restart.
    fixture.set_ada(UserState::Active, Some("ada.x"));
    fixture.turn(Input::Renew("ada".into()));
    let mut fixture = fixture.restart();
    fixture.read_accounts();
    assert_eq!(fixture.asked_under(), [("hand over", under("ada.l"))]);
    let attempt = AttemptId { job: job.clone(), number: 1 };
    fixture.hear(&attempt, News::Accepted { external: Some("17".into()) });
    let mut fixture = fixture.restart();
    fixture.read_accounts();
    assert_eq!(fixture.asked_under(), [("watch", under("ada.l"))]);

    // Whoever may run nothing any more can still be taken back.
    fixture.set_ada(UserState::Disabled, Some("ada.x"));
    let (reply, _answer) = oneshot::channel();
    fixture.turn(Input::Job(job, Event::Stop { grace: None }, reply));
    fixture.again();
    assert_eq!(fixture.asked_under(), [("take back", under("ada.l"))]);
    fixture.hear(&attempt, News::TakenBack);
    assert_eq!(fixture.asked_under(), [("closed", under("ada.l"))]);
    assert_eq!(fixture.kept_for(), []);
}

#[test]
fn a_job_whose_owner_has_no_account_is_refused_where_gangs_are_their_owners() {
    let mut fixture = Fixture::of_owners(None);
    let spec = json!({ "command": ["true"], "workspace": "nlp", "on": "slurm/gpu" });
    let refused = fixture.try_submit_as("ada", spec, None).unwrap_err();
    assert_eq!(refused.errors[0].field, "on");
    assert!(refused.errors[0].message.contains("muster user set NAME --account"), "{refused:?}");
    // The operator needs none, and is the account that the engine has for all.
    fixture.submit(json!({ "command": ["true"], "workspace": "nlp", "on": "slurm/gpu" }));
    assert_eq!(fixture.asked_under(), [("hand over", None)]);
    assert_eq!(fixture.kept_for(), [None]);
}
