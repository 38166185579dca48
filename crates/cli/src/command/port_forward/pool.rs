//! SSH connections to a task, one for each connection that goes through: whoever is slow to read holds up nobody else.
//! One that is done is used again, and one that broke is not: the next caller gets another.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use muster_ssh::client::{self as ssh, Client, Ended, pipe};
use tokio::net::TcpStream;

use crate::call::Caller;
use crate::error::Error;
use crate::target::Target;
use crate::terminal;

/// What is waited when a connection cannot be taken for lack of descriptors.
pub(super) const BREATH: Duration = Duration::from_millis(100);
/// Connections that are kept for the next ones: about what a browser opens at once.
const KEPT: usize = 8;

pub(super) struct Pool {
    caller: Caller,
    target: Target,
    idle: RefCell<Vec<Client>>,
    /// What was complained about last, so that a page that tries again and again is told once.
    told: RefCell<Option<String>>,
}

impl Pool {
    pub fn new(caller: Caller, target: Target, first: Client) -> Self {
        Self { caller, target, idle: RefCell::new(vec![first]), told: RefCell::new(None) }
    }

    /// Carries one connection to a port of the task, to its end.
    pub async fn carry(self: Rc<Self>, near: TcpStream, from: SocketAddr, port: u16) {
        let (client, channel) = match self.open(port, from).await {
            Ok(opened) => opened,
            Err(problem) => {
                self.complain(problem);
                // Closed like any other it would look as if there had been an answer, with nothing in it.
                let _ = near.set_zero_linger();
                return;
            }
        };
        self.told.replace(None);
        if pipe(near, channel).await != Ended::Far || !client.is_closed() {
            self.keep(client);
        }
    }

    async fn open(&self, port: u16, from: SocketAddr) -> Result<(Client, ssh::Channel), String> {
        let nobody = || format!("nothing listens on port {port} of task {}", self.target.task.unwrap_or(0));
        loop {
            let idle = self.idle.borrow_mut().pop();
            let is_new = idle.is_none();
            let client = match idle {
                Some(client) => client,
                None => self.caller.call(&self.target, false).await.map_err(|error| words(&error))?,
            };
            match client.open(port, from).await {
                Ok(channel) => return Ok((client, channel)),
                Err(ssh::Error::NobodyListens) => {
                    self.keep(client);
                    return Err(nobody());
                }
                // It broke while nobody looked; a new one will do.
                Err(error) if error.is_lost() && !is_new => {}
                Err(error) => return Err(words(&self.caller.broken(&self.target, error).await)),
            }
        }
    }

    fn keep(&self, client: Client) {
        let mut idle = self.idle.borrow_mut();
        if !client.is_closed() && idle.len() < KEPT {
            idle.push(client);
        }
    }

    fn complain(&self, problem: String) {
        let mut told = self.told.borrow_mut();
        if told.as_ref() != Some(&problem) {
            terminal::note(&problem);
            *told = Some(problem);
        }
    }
}

fn words(error: &Error) -> String {
    error.in_words().0
}
