//! Who looks after one session: gives its shell the next command when the one before is over, and notes the shell's end.

use std::sync::Arc;
use std::time::Duration;

use muster_model::Timestamp;
use tokio::time::{Instant, sleep};

use super::Session;
use super::changes::Changes;
use super::process::{Look, is_shell};
use super::script;
use super::shell::{Life, Shell};
use super::store::Over;
use crate::complain;

/// How often to look whether a shell is still itself, and whether it is in the foreground: the kernel tells nobody.
const LOOK: Duration = Duration::from_millis(500);
/// The same while a command waits for a terminal that something else has: at first it is the shell's own way back to its prompt.
const LOOK_OFTEN: [Duration; 2] = [Duration::from_millis(3), Duration::from_millis(100)];
/// How long that may take.
const WAY_BACK: Duration = Duration::from_secs(1);
/// The same without a command. It need not be at all: whatever matters is told.
const AT_REST: Duration = Duration::from_secs(60);
/// After this time a line is typed again. A shell that was starting may not have got it; one that did ignores the second.
const AGAIN: Duration = Duration::from_secs(5);

pub(super) struct Keeper {
    session: Arc<Session>,
    shell: Shell,
    changes: Changes,
    /// What was typed last, and when.
    typed: Option<(u32, Instant)>,
    /// The command whose turn it was the last time.
    current: Option<u32>,
}

impl Keeper {
    pub(super) fn new(session: Arc<Session>, shell: Shell) -> Keeper {
        let changes = Changes::of_directory(session.store.dir());
        Keeper { session, shell, changes, typed: None, current: None }
    }

    /// Until the shell is no more.
    pub(super) async fn run(mut self, mut life: Life) {
        let over = loop {
            let pause = match self.turn().await {
                Turn::Wait(pause) => pause,
                Turn::Replaced(number) => {
                    self.shell.close().await;
                    let reason = format!(
                        "command {number} put another shell in the place of the session's own, with `exec`"
                    );
                    break Over { reason, status: None, at: Timestamp::now() };
                }
            };
            self.session.tell();
            tokio::select! {
                status = life.ended() => break self.ended(status),
                () = self.changes.next() => {}
                () = self.session.poke.notified() => {}
                () = sleep(pause) => {}
            }
        };
        if let Shell::Tmux(tmux, pane) = &self.shell {
            tmux.close(pane).await;
        }
        self.session.end(over);
    }

    /// Looks at everything, and does what is to be done.
    async fn turn(&mut self) -> Turn {
        let before = std::mem::replace(&mut self.current, self.session.advance());
        let Some(number) = self.current else { return Turn::Wait(AT_REST) };
        let Ok(look) = Look::at(self.shell.pid()) else { return Turn::Wait(LOOK) };
        if self.session.store.has_begun(number) {
            let begun = self.session.store.beginner(number);
            if begun.is_some_and(|begun| !look.is_same_program(&begun)) && is_shell(self.shell.pid()) {
                return Turn::Replaced(number);
            }
            return Turn::Wait(LOOK);
        }
        // What is typed belongs to whatever is in the foreground; an attached person may have started something there. A shell
        // that has just ended our own command is on its way to its prompt.
        let is_next = before.is_some_and(|before| before + 1 == number);
        if look.foreground != self.shell.pid() && !is_next {
            let is_back_soon = self.typed.is_some_and(|(_, at)| at.elapsed() < WAY_BACK);
            return Turn::Wait(LOOK_OFTEN[usize::from(!is_back_soon)]);
        }
        if self.typed.is_some_and(|(typed, at)| typed == number && at.elapsed() < AGAIN) {
            return Turn::Wait(AGAIN);
        }
        let path = self.session.store.path(number, "run");
        if let Err(error) = self.shell.type_line(&script::line(&path.to_string_lossy())).await {
            complain("cannot type into a session", &error);
        }
        self.typed = Some((number, Instant::now()));
        Turn::Wait(AGAIN)
    }

    fn ended(&self, status: Option<i32>) -> Over {
        let how = match status {
            Some(status @ 129..) => format!("was killed by signal {}", status - 128),
            Some(status) => format!("exited with status {status}"),
            None => "was ended".to_owned(),
        };
        let running = self.session.advance().filter(|number| self.session.store.has_begun(*number));
        let reason = match running {
            Some(number) => format!("its shell {how} in command {number}"),
            None => format!("its shell {how} while no command ran"),
        };
        Over { reason, status, at: Timestamp::now() }
    }
}

enum Turn {
    /// Nothing to do before something happens, or this time has passed.
    Wait(Duration),
    /// The command that runs has put another shell in the place of ours.
    Replaced(u32),
}
