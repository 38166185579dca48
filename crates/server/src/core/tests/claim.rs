//! Agents that claim to be more than they are.

use muster_model::node::Account;

use super::*;

/// Whether the keeper was told that an agent was refused, and why.
fn refusal(fixture: &mut Fixture) -> Option<String> {
    std::iter::from_fn(|| fixture.words.try_recv().ok()).find_map(|word| match word {
        Word::Refused { why, .. } => Some(why),
        _ => None,
    })
}

#[test]
fn an_agent_that_claims_more_than_its_login_gets_no_job() {
    let mut fixture = Fixture::with_ada();
    let host = fixture.pool_host();
    // The engine of this pool logs in as `bob`.
    for (claimed, uid) in [("root", 0), ("ada", 1001), ("bob", 0)] {
        let account = Account { name: claimed.into(), uid, ..Account::default() };
        let mut messages = fixture.connect_account(&host, account, false);
        let why = refusal(&mut fixture).expect("it is refused");
        assert!(why.contains("`bob`") && why.contains(claimed), "{why}");
        assert!(messages.try_recv().is_err() && messages.is_closed(), "it is cut off without a word");
        assert!(fixture.core.nodes[&host].connection.is_none());
        let gone = Input::AgentGone { connection: ConnectionId(fixture.connection), node: host.clone() };
        fixture.turn(gone);
        assert!(fixture.core.refused.is_empty());
    }
    let job = fixture.submit_as_ada(json!({ "on": "ssh/gpu" }));
    assert_eq!(fixture.state(&job), State::Queued);
    let bob = Account { name: "bob".into(), uid: 1002, ..Account::default() };
    let mut messages = fixture.connect_account(&host, bob.clone(), true);
    assert!(refusal(&mut fixture).unwrap().contains("TCP"), "a token alone is not enough");
    assert!(messages.try_recv().is_err());
    let mut messages = fixture.connect_account(&host, bob, false);
    assert!(refusal(&mut fixture).is_none());
    let sent = all(&mut messages);
    assert!(matches!(sent[..], [ToAgent::Welcome { .. }]), "bob's agent gets nothing of ada's: {sent:?}");
    assert_eq!(fixture.state(&job), State::Queued);
}
