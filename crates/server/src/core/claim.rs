//! Whose tasks an agent may run.
//!
//! An agent says which account it runs under, and anybody with the node's token can say the same and more: one that claims to be
//! root's would be given everybody's jobs. So a claim counts only within the account that the engine knows, and can make it
//! less but never more. An agent that claims more is not let in, and `muster nodes` says why.

use muster_engine::AgentAccount;
use muster_link::message::Hello;
use muster_model::node::Account;
use muster_model::spec::Target;

use super::Core;
use super::input::ConnectionId;
use crate::keeper::Word;

/// The first version of the protocol in which an agent of root's becomes the account that it is told to.
const BECOMES_OTHERS: u32 = 3;
const ROOT: &str = "root";

impl Core {
    /// The one account whose tasks an agent may run, `None` for everybody's; or why it is not let in.
    pub(super) fn check_claim(
        &self,
        target: &Target,
        hello: &Hello,
        is_tcp: bool,
    ) -> Result<Option<String>, String> {
        let claimed = &hello.account;
        // Nothing but its own gang is ever placed on a node of somebody else's scheduler.
        if self.is_delegated(target) {
            return Ok(Some(claimed.name.clone()));
        }
        // The server calls agents of hosts itself, and its own machine's comes by the socket.
        if is_tcp {
            return Err(
                "its agent came over TCP, which agents of hosts never do: the node's token may be stolen"
                    .into(),
            );
        }
        let own = |is_root: bool| (!is_root || hello.protocol < BECOMES_OTHERS).then(|| claimed.name.clone());
        // One person's own server has nobody to tell apart.
        if self.parts.accounts.is_none() {
            return Ok(own(claimed.uid == 0));
        }
        let engine = self.parts.engines.get(target.engine());
        let known = engine.map(|engine| engine.agent_account(&hello.node));
        let known = known.unwrap_or_else(|| AgentAccount::Unknown("there is no such engine".into()));
        within(&known, claimed).map(own)
    }

    /// Ends the connection of an agent that claims too much.
    pub(super) fn refuse_agent(&mut self, connection: ConnectionId, hello: &Hello, why: String) {
        self.refused.insert(connection);
        self.tell_keeper(Word::Refused { node: hello.node.clone(), why });
    }
}

/// Whether a claim is root's, if it is within what is known.
fn within(known: &AgentAccount, claimed: &Account) -> Result<bool, String> {
    let Account { name, uid, .. } = claimed;
    let is_root = *uid == 0;
    let is_within = match known {
        AgentAccount::Uid(0) => true,
        AgentAccount::Login(login) if login == ROOT => true,
        AgentAccount::Uid(known) => uid == known,
        AgentAccount::Login(login) => name == login && !is_root,
        AgentAccount::Unknown(why) => {
            return Err(format!("the account that the server logs in as there is not known: {why}"));
        }
    };
    if is_within {
        return Ok(is_root);
    }
    let login = match known {
        AgentAccount::Uid(known) => format!("the server starts it as uid {known}"),
        AgentAccount::Login(login) => format!("the server logs in there as `{login}`"),
        AgentAccount::Unknown(_) => String::new(),
    };
    Err(format!(
        "its agent says that it runs as `{name}` (uid {uid}), and {login}; write the host as ACCOUNT@HOST with the account's own \
         name, or see who else has the node's token"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str, uid: u32) -> Account {
        Account { name: name.into(), uid, ..Account::default() }
    }

    #[test]
    fn a_claim_makes_an_agents_rights_smaller_and_never_larger() {
        let login = |name: &str| AgentAccount::Login(name.into());
        let cases = [
            (login("root"), account("root", 0), Some(true)),
            (login("root"), account("ada", 1000), Some(false)),
            (login("ada"), account("ada", 1000), Some(false)),
            (login("ada"), account("root", 0), None),
            (login("ada"), account("ada", 0), None),
            (login("ada"), account("bob", 1001), None),
            (AgentAccount::Uid(0), account("root", 0), Some(true)),
            (AgentAccount::Uid(0), account("ada", 1000), Some(false)),
            (AgentAccount::Uid(1000), account("ada", 1000), Some(false)),
            (AgentAccount::Uid(1000), account("root", 0), None),
            (AgentAccount::Unknown("no ssh".into()), account("root", 0), None),
            (AgentAccount::Unknown("no ssh".into()), account("ada", 1000), None),
        ];
        for (known, claimed, expected) in cases {
            let found = within(&known, &claimed);
            assert_eq!(found.as_ref().ok().copied(), expected, "{known:?} {claimed:?}: {found:?}");
        }
    }
}
