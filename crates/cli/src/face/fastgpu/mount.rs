//! `fastgpu mount`: the directory that the hosts of a pool share, where scripts expect it.

use std::process::ExitCode;

use muster_api::view::JobSummary;
use muster_ssh::client::Command;

use super::{Generation, source};
use crate::call::Caller;
use crate::command::exec;
use crate::error::{Code, Error};
use crate::machine::{self, Named};
use crate::quote;
use crate::target::Target;
use crate::terminal;

/// A link is all it takes: whoever configured the pool has mounted the volume. `$1` is the volume, `$2` the place.
const LINK: &str = r#"
[ -d "$1" ] || { echo "$1 is not there on $(hostname): the pool says that its hosts share it" >&2; exit 1; }
if [ "$(readlink -f "$2")" != "$(readlink -f "$1")" ]; then
  if [ -e "$2" ] || [ -L "$2" ]; then echo "$2 is there already, and is not $1" >&2; exit 1; fi
  ln -s "$1" "$2" 2>/dev/null || sudo -n ln -s "$1" "$2" 2>/dev/null || {
    echo "$2 cannot be made by $(id -un); as root: ln -s $1 $2" >&2; exit 1; }
fi
mkdir -p "$2/runs" 2>/dev/null && chmod 777 "$2/runs" 2>/dev/null
echo "$2 is $1"
"#;

pub(super) async fn run(generation: Generation, named: &Named) -> Result<ExitCode, Error> {
    let caller = Caller::open().await?;
    let machine::Meant { job, rank } = machine::find(&caller.session, named).await?;
    let Some(shared) = shared(&caller, &job).await? else { return Err(nothing(generation, &job)) };
    link(&caller, generation, &job, rank, &shared).await
}

/// For machines that were just made: nothing to mount is no mistake, unless it was asked for.
pub(super) async fn if_there_is_one(
    caller: &Caller,
    generation: Generation,
    job: &JobSummary,
    is_asked_for: bool,
) -> Result<(), Error> {
    match shared(caller, job).await? {
        Some(shared) => drop(link(caller, generation, job, None, &shared).await?),
        None if is_asked_for => terminal::note(&nothing(generation, job).to_string()),
        None => {}
    }
    Ok(())
}

/// The directory that the hosts of the job's pool share.
async fn shared(caller: &Caller, job: &JobSummary) -> Result<Option<String>, Error> {
    let pools = source::pools(&caller.session).await?;
    let name = job.on.strip_prefix("ssh/");
    Ok(pools.into_iter().find(|pool| Some(pool.name.as_str()) == name).and_then(|pool| pool.shared))
}

async fn link(
    caller: &Caller,
    generation: Generation,
    job: &JobSummary,
    rank: Option<u32>,
    shared: &str,
) -> Result<ExitCode, Error> {
    let place = format!("/{}", generation.package());
    let line = Some(quote::line(["sh", "-c", LINK, "sh", shared, &place]));
    let target = Target { job: job.id.to_string(), task: rank };
    let whom = exec::Whom { target, all: rank.is_none(), wait: false, stdin: false };
    exec::run_in(caller, &whom, &Command { line, ..Command::default() }, false).await
}

fn nothing(generation: Generation, job: &JobSummary) -> Error {
    let package = generation.package();
    let error = Error::new(Code::NoSharedDirectory, format!("the machines on {} share no directory", job.on));
    match job.on.strip_prefix("ssh/") {
        Some(pool) => error.hint(format!(
            "mount a volume on the hosts, then say where: `muster pool add {pool} HOST --shared DIR`; \
             until then run directories are on each machine, and logdir says where"
        )),
        None => error.hint(format!(
            "on this machine /{package} is a directory like any other; logdir says where runs are"
        )),
    }
}
