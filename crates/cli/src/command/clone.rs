//! `muster clone`: a job again, as it was or with changes.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args as ClapArgs;
use muster_api::client::Client;
use muster_api::model::spec::{FieldCode, FieldError};
use muster_api::model::{BundleId, Framework, State};
use muster_api::view::{JobDetail, ListJobs};
use serde_json::json;

use super::run::{self, How};
use super::{OneJob, elements};
use crate::error::Error;
use crate::session::Session;
use crate::snapshot::{Code, Trust};
use crate::spec::{self, Base, Flags, Here, Request};
use crate::terminal;

mod diff;

/// How many clones of one name are told apart before somebody should think of another name.
const MAX_NUMBER: u32 = 1000;
/// The longest name there may be.
const MAX_NAME: usize = 63;

/// Submit a job again, as it was or with changes
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "muster clone JOB [OPTIONS] [-- COMMAND...]",
    after_help = "\
Examples:
  muster clone last                       once more
  muster clone big --nodes 4 --gpus 8     with changes
  muster clone big --fresh -- python train.py --lr 0.1
  muster clone big --unset timeout --unset env.DEBUG
  muster clone sweep --failed             the elements of an array that failed
  muster clone sweep --unfinished         those and the ones that a stop kept from running
  muster clone big --nodes 4 --dry-run    only what would change

The new job has the code of the old one as it was then; --fresh takes the code directory as it is now. \
The environment is that of your shell, as with `muster run`. \
What differs is shown field by field before it is submitted. \
A name that is still in use gets a number.

Exit codes: those of `muster run`; with --detach and --dry-run, 0 when it is well."
)]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    #[command(flatten)]
    flags: Flags,
    /// Take the code directory as it is now (--workdir does that, too)
    #[arg(long, help_heading = "Environment")]
    fresh: bool,
    /// Of an array, only the elements that failed
    #[arg(long, conflicts_with = "array")]
    failed: bool,
    /// Of an array that is over, the elements that failed, were cut short or never ran
    #[arg(long, conflicts_with_all = ["array", "failed"])]
    unfinished: bool,
    /// Take away a field of the old job: timeout, env.NAME, resources.gpus
    #[arg(long, value_name = "FIELD")]
    unset: Vec<String>,
    /// Do not wait for it: print its id
    #[arg(short, long)]
    detach: bool,
    /// Check everything and show what would change
    #[arg(long)]
    dry_run: bool,
    /// Print the job as JSON, at its end or with --detach at once; its output goes to stderr
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let here = Here::now()?;
    let session = Arc::new(Session::open().await?);
    let old = session.call(async |client| client.job(&args.job.job).await).await?;
    let base = base(args, &session, &old, &here).await?;
    let request = request(args, base, &old, &here)?;
    if args.dry_run {
        return preview(args, &session, &old, &request).await;
    }
    let code = match request.workdir {
        Some(_) => run::upload(&session, &args.flags, &request, Trust::Memory).await?,
        None => old.bundle.clone().map(|bundle| Code::of_job(bundle, old.source.clone())),
    };
    if !args.json {
        let code = code_change(old.bundle.as_ref(), code.as_ref().map(|code| &code.bundle));
        terminal::to_stderr(&diff::text(&old, &request.spec, code, terminal::stderr_has_colours()));
    }
    let how = How { detach: args.detach, dry_run: false, json: args.json };
    run::submit(&session, &args.flags, &request, code, how, &here).await
}

/// The old job's fields, less those that are not wanted, under a name that is free.
async fn base(args: &Args, session: &Session, old: &JobDetail, here: &Here) -> Result<Base, Error> {
    let mut base = Base::of_job(&old.spec, here)?;
    if let Some(name) = old.spec.name.as_ref().filter(|_| args.flags.name.is_none()) {
        base.set_name(free_name(session, name).await?);
    }
    if args.failed || args.unfinished {
        base.set("array", json!(elements::failed(session, old, args.unfinished).await?));
    }
    // What the old code left open, the new code may answer.
    let has_new_code = args.fresh || args.flags.workdir.is_some();
    if has_new_code && old.spec.framework == Some(Framework::Plain) {
        base.unset("framework");
    }
    if has_new_code && old.spec.faces.as_ref().is_some_and(Vec::is_empty) {
        base.unset("faces");
    }
    for field in &args.unset {
        if !base.unset(field) {
            let message = format!("{} has no `{field}`", old.summary.id);
            return Err(Error::fields(&[FieldError::new("--unset", FieldCode::UnknownField, message)])
                .hint(format!("`muster show {} --json | jq .spec` has its fields", old.summary.id)));
        }
    }
    Ok(base)
}

fn request(args: &Args, base: Base, old: &JobDetail, here: &Here) -> Result<Request, Error> {
    let is_in_place = old.spec.in_place || args.flags.in_place;
    if !(args.fresh || args.flags.workdir.is_some() || is_in_place) {
        return spec::assemble_without_code(&args.flags, base, &old.spec, here);
    }
    let request = spec::assemble(&args.flags, base, here);
    match args.fresh && args.flags.workdir.is_none() {
        true => request.map_err(|error| {
            error.hint("without --fresh the job gets the code as it was; --workdir names another directory")
        }),
        false => request,
    }
}

async fn preview(
    args: &Args,
    session: &Session,
    old: &JobDetail,
    request: &Request,
) -> Result<ExitCode, Error> {
    let bundle = if request.workdir.is_some() { None } else { old.bundle.clone() };
    let create =
        muster_api::view::CreateJob { spec: request.value.clone(), bundle, source: None, environment: None };
    let check = async |client: &Client| {
        client.preview_job(&create).await.map_err(|error| args.flags.in_users_words(error))
    };
    let preview = session.call(check).await?;
    let code = request.workdir.as_ref().map(|workdir| format!("as it is now in {}", workdir.text));
    if args.json {
        let changes = diff::changes(&old.spec, &preview.spec);
        terminal::say_json(&json!({
            "job": old.summary.id, "changes": changes, "fresh": code.is_some(), "preview": preview,
        }))?;
    } else {
        let text = diff::text(old, &preview.spec, code, terminal::stdout_has_colours());
        terminal::to_stdout(&text)?;
        terminal::remark(&format!("{} on {}: {}", preview.name, preview.spec.on, preview.why.summary));
    }
    Ok(ExitCode::SUCCESS)
}

/// What to say of the code, if it is not what it was.
fn code_change(old: Option<&BundleId>, new: Option<&BundleId>) -> Option<String> {
    if old == new {
        return None;
    }
    Some(new.map_or_else(|| "the directory itself".to_owned(), ToString::to_string))
}

/// The name, or with a number behind it if a job that is not over has it.
async fn free_name(session: &Session, name: &str) -> Result<String, Error> {
    let unfinished: Vec<&str> =
        State::ALL.into_iter().filter(|state| !state.is_terminal()).map(|state| state.as_str()).collect();
    let mut candidate = name.to_owned();
    for number in 2..MAX_NUMBER {
        let query = ListJobs {
            state: Some(unfinished.join(",")),
            name: Some(candidate.clone()),
            limit: Some(1),
            ..ListJobs::default()
        };
        if session.call(async |client| client.jobs(&query).await).await?.items.is_empty() {
            return Ok(candidate);
        }
        candidate = numbered(name, number);
    }
    let message = format!("every name from `{name}` to `{candidate}` is in use; choose another");
    Err(Error::fields(&[FieldError::new("--name", FieldCode::NameInUse, message)]))
}

/// `train-2`, and after that `train-3` rather than `train-2-2`; within the length of a name.
fn numbered(name: &str, number: u32) -> String {
    let stem = match name.rsplit_once('-') {
        Some((stem, last))
            if !stem.is_empty() && !last.is_empty() && last.bytes().all(|b| b.is_ascii_digit()) =>
        {
            stem
        }
        _ => name,
    };
    let ending = format!("-{number}");
    // Names are ASCII: the model sees to that.
    format!("{}{ending}", &stem[..stem.len().min(MAX_NAME - ending.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_use_gets_a_number_and_stays_short_enough() {
        assert_eq!(numbered("train", 2), "train-2");
        assert_eq!(numbered("train-2", 3), "train-3");
        assert_eq!(numbered("lr-0x", 2), "lr-0x-2");
        assert_eq!(numbered(&"a".repeat(MAX_NAME), 12).len(), MAX_NAME);
    }

    #[test]
    fn code_is_spoken_of_only_when_it_changes() {
        let id: BundleId = format!("bundle_{}", "0".repeat(64)).parse().unwrap();
        assert_eq!(code_change(Some(&id), Some(&id)), None);
        assert_eq!(code_change(None, Some(&id)), Some(id.to_string()));
        assert_eq!(code_change(Some(&id), None).as_deref(), Some("the directory itself"));
    }
}
