//! Staying with an array: how many elements are done, rather than what a thousand of them write.

use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::attached::Watch;
use crate::command::elements::words;
use crate::error::Error;
use crate::follow::wait_for_end;
use crate::interrupt::Interrupts;
use crate::progress::Tally;

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Shows how far an array is until it is over, and returns its exit code.
pub(super) async fn watch(
    mut watch: Watch<'_>,
    mut interrupts: Interrupts,
    json: bool,
) -> Result<ExitCode, Error> {
    let (session, id) = (watch.session(), watch.id());
    let mut end = pin!(wait_for_end(session, id));
    let mut tally = Tally::new();
    let mut looks = interval_at(Instant::now() + LOOK, LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            end = &mut end => {
                drop(tally);
                return watch.on_end(&end?, json).await;
            }
            received = interrupts.next() => {
                tally.clear();
                if let Some(code) = watch.on_signal(&mut interrupts, received).await? {
                    return Ok(code);
                }
            }
            _ = looks.tick(), if tally.is_wanted() => {
                // That the server is gone is said by whoever waits for the end.
                if let Ok(job) = session.client().job(id).await
                    && let Some(counts) = job.summary.elements
                {
                    let done = counts.succeeded + counts.failed;
                    tally.show(u64::from(done), u64::from(counts.total), &words(&counts));
                }
            }
        }
    }
}
