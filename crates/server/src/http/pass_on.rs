//! Changes to a job that waits at another scheduler: that scheduler is told of them, or the request is refused. A change that only
//! this server knows would have no effect.

use std::sync::Arc;
use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_engine::{Class, Error, GangChange};
use muster_model::JobId;
use tokio::time::timeout;

use crate::audit;
use crate::core::{Input, WaitingGang};
use crate::keeper::{silent, words};
use crate::state::Shared;

/// How long another scheduler may take for a change: a user waits for it.
const ANSWER: Duration = Duration::from_secs(20);

/// Passes a change on to the scheduler that has the job in its queue, and returns the gang there. `None`: no other scheduler has
/// it, and nothing was done.
pub(super) async fn pass_on(
    shared: &Arc<Shared>,
    id: &JobId,
    change: GangChange,
) -> Result<Option<WaitingGang>, Problem> {
    let Some(gang) = shared.core.ask(|reply| Input::WaitingGang(id.clone(), reply)).await? else {
        return Ok(None);
    };
    // The other scheduler acts outside of the transaction that has the entry of the effect.
    audit::write_start(&shared.core).await?;
    let changed = async {
        let name = gang.target.engine();
        let engine = shared.engines.get(name);
        let engine =
            engine.ok_or_else(|| Error::terminal(format!("this server has no {name} engine any more")))?;
        let late = |_| Err(Error::retryable("tell the scheduler", silent()));
        timeout(ANSWER, engine.change(&gang.key(), change)).await.unwrap_or_else(late)
    };
    changed.await.map_err(|error| problem(&gang, &error))?;
    Ok(Some(gang))
}

fn problem(gang: &WaitingGang, error: &Error) -> Problem {
    match error.class {
        Class::Terminal | Class::NotFound => Problem::new(Code::InvalidState, words(error)).hint(format!(
            "the job waits on {}; `muster suspend JOB` takes it back from there",
            gang.target.target
        )),
        Class::Retryable => {
            let detail =
                format!("it is not known whether {} made the change: {}", gang.target.target, words(error));
            Problem::new(Code::Unavailable, detail).hint("try again in a moment")
        }
    }
}
