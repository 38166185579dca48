//! Waiting until a group is where it should be, by what the server says happened rather than by asking again and again.

use std::time::Duration;

use muster_api::client::{self, EventItem};
use muster_api::model::State;
use muster_api::view::{EventsQuery, JobDetail, JobSummary};
use tokio::time::timeout;

use crate::command::state;
use crate::error::{Code, Error};
use crate::interrupt::{Interrupts, Received};
use crate::progress::Spinner;
use crate::session::Session;

/// What is over sooner needs no words.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits until a job is in a state that will do, or over.
pub(crate) async fn until(
    session: &Session,
    id: &str,
    will_do: impl Fn(State) -> bool,
) -> Result<JobSummary, Error> {
    let query = EventsQuery { after: None, follow: true };
    session
        .call(async |client| {
            let now = async || client.job(id).await.map(|job| job.summary);
            let summary = now().await?;
            if will_do(summary.state) {
                return Ok(summary);
            }
            let mut events = client.events(id, &query).await?;
            while let Some(item) = events.next().await? {
                match item {
                    EventItem::End(end) => return Ok(end.job),
                    EventItem::Event(event) if event.kind.parse().is_ok_and(&will_do) => {
                        // It may be one of long ago.
                        let summary = now().await?;
                        if will_do(summary.state) {
                            return Ok(summary);
                        }
                    }
                    EventItem::Event(_) => {}
                }
            }
            Err(client::Error::Lost { source: None })
        })
        .await
}

/// What came of waiting for machines.
pub(crate) enum Waited {
    Ready(Box<JobDetail>),
    /// The user had enough of it.
    Interrupted(Received),
}

/// Waits until a group runs, and says what it waits for where that takes long.
pub(crate) async fn until_ready(session: &Session, id: &str) -> Result<Waited, Error> {
    let mut interrupts = Interrupts::listen()?;
    let mut spinner = Spinner::default();
    let ready = until(session, id, |state| matches!(state, State::Running | State::Suspended));
    tokio::pin!(ready);
    loop {
        tokio::select! {
            summary = timeout(PATIENCE, &mut ready) => match summary {
                Ok(summary) => {
                    spinner.clear();
                    let summary = summary?;
                    if summary.state != State::Running {
                        return Err(over(&summary));
                    }
                    let job = session.call(async |client| client.job(id).await).await?;
                    return Ok(Waited::Ready(Box::new(job)));
                }
                Err(_) => {
                    if let Ok(why) = session.client().why(id).await {
                        spinner.show(&why.summary);
                    }
                }
            },
            received = interrupts.next() => return Ok(Waited::Interrupted(received)),
        }
    }
}

fn over(summary: &JobSummary) -> Error {
    let message = format!("`{}` is not ready: {}", summary.name, state::words(summary));
    Error::new(Code::TaskNotRunning, message).hint(format!("`muster why {}` says more", summary.id))
}
