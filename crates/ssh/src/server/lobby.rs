//! Those who have connected and not shown a key yet.
//!
//! Anyone on the network can connect, and say nothing. There is room for many such, and when it is full the one that has been there
//! longest has to go: a member is through in a moment, so even a flood of others does not keep it out.

use std::collections::VecDeque;

use tokio::sync::watch;
use tokio::task::AbortHandle;

/// More than any launcher opens at the same moment.
const MAX_STRANGERS: usize = 512;

#[derive(Default)]
pub(super) struct Lobby(VecDeque<Stranger>);

struct Stranger {
    connection: AbortHandle,
    is_known: watch::Receiver<bool>,
}

impl Lobby {
    pub fn enter(&mut self, connection: AbortHandle, is_known: watch::Receiver<bool>) {
        self.0.retain(|one| !one.connection.is_finished() && !*one.is_known.borrow());
        if self.0.len() >= MAX_STRANGERS {
            self.send_away();
        }
        self.0.push_back(Stranger { connection, is_known });
    }

    /// Whether there was anyone to send away.
    pub fn send_away(&mut self) -> bool {
        while let Some(oldest) = self.0.pop_front() {
            if !oldest.connection.is_finished() && !*oldest.is_known.borrow() {
                oldest.connection.abort();
                return true;
            }
        }
        false
    }
}
