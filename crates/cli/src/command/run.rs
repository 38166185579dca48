//! `muster run`: submits a job, and stays with it unless told otherwise.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args as ClapArgs;
use muster_api::client::{self, Client};
use muster_api::model::spec::{JobSpec, Target};
use muster_api::view::{CreateJob, JobDetail, Preview};

use super::state;
use crate::error::{Code, Error};
use crate::given_input;
use crate::interrupt::Interrupts;
use crate::session::Session;
use crate::snapshot::{self, Trust};
use crate::spec::{self, Base, Flags, Here, Request};
use crate::terminal;

mod array;
mod attached;
mod summary;

pub(super) use attached::{Unattended, View, watch};

/// What the shell keeps for itself; in a task it would be wrong.
const SHELLS_OWN: [&str; 4] = ["_", "OLDPWD", "PWD", "SHLVL"];
/// How the names of variables begin that Slurm sets for each job, or reads when one is submitted.
const SLURMS_OWN: [&str; 4] = ["SLURM", "SBATCH_", "SRUN_", "SALLOC_"];
/// What a command exits with that Ctrl-C ended.
const INTERRUPTED: u8 = 130;

/// Run a command as a job, on one task or many
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "muster run [OPTIONS] [--] COMMAND...\n       muster run [OPTIONS] FILE.yaml [OPTIONS]",
    after_help = "\
Examples:
  muster run -- python train.py
  muster run -N 2 --gpus 8 train.py
  muster run -N 2 --gpus 8 --framework deepspeed -- ./train.sh
  muster run -N 4 'python prepare.py && python train.py'
  muster run --array 1-1000%16 -- python sweep.py     once for each $MUSTER_ARRAY_INDEX
  muster run train.yaml --nodes 8 --name big
  JOB=$(muster run --detach --timeout 2h -- ./train.sh)

The current directory is copied to every task, without what .gitignore and .musterignore name. \
On this machine, and on Slurm from its login node, the tasks get the environment of your shell. \
The framework is found from the command and from what the script imports, and its launcher is started. \
Ctrl-C asks whether to stop the job or to leave it running; when there is nobody to ask, it stops the job.

Exit codes:
  0      it succeeded
  N      that of the first task that failed
  124    it ran into its timeout
  126    its command is not executable
  127    its command was not found
  128+N  signal N ended it
  130    it was stopped
  2      what was asked for is wrong
  125    muster itself failed"
)]
pub(crate) struct Args {
    #[command(flatten)]
    pub flags: Flags,
    /// Read the job from a YAML or JSON file (- for stdin); flags go on top of it
    #[arg(short, long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Do not wait for it: print its id
    #[arg(short, long)]
    detach: bool,
    /// Check everything and show what would be submitted
    #[arg(long)]
    dry_run: bool,
    /// Print the job as JSON, at its end or with --detach at once; its output goes to stderr
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let how = How { detach: args.detach, dry_run: args.dry_run, json: args.json };
    from_file(&args.flags, args.file.as_deref(), how).await
}

/// How to go on with a job that is made.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    pub detach: bool,
    pub dry_run: bool,
    pub json: bool,
}

/// Makes a job of flags on top of a file, with the code as it is here.
pub(super) async fn from_file(flags: &Flags, file: Option<&Path>, how: How) -> Result<ExitCode, Error> {
    let here = Here::now()?;
    let request = spec::assemble(flags, Base::read(file, flags, &here)?, &here)?;
    if how.dry_run {
        return preview(flags, &request, how.json).await;
    }
    let session = Arc::new(Session::open().await?);
    let code = upload(&session, flags, &request, Trust::Memory).await?;
    submit(&session, flags, &request, code, how, &here).await
}

/// Makes sure that the server has the code, if the job wants a copy of it.
pub(super) async fn upload(
    session: &Session,
    flags: &Flags,
    request: &Request,
    trust: Trust,
) -> Result<Option<snapshot::Code>, Error> {
    let Some(workdir) = request.code() else { return Ok(None) };
    // What is refused is refused before any of its code is sent, however much that is.
    let may_send = async || check(session, flags, request).await.map(drop);
    Ok(Some(snapshot::upload(&workdir.path, session, trust, may_send).await?))
}

/// Makes the job, and stays with it unless told otherwise.
pub(super) async fn submit(
    session: &Arc<Session>,
    flags: &Flags,
    request: &Request,
    mut code: Option<snapshot::Code>,
    how: How,
    here: &Here,
) -> Result<ExitCode, Error> {
    let environment = environment(&request.spec, here, session);
    // As late as possible: what is to be piped in may need a moment to come.
    given_input::refuse()?;
    // From here on there may be a job to answer for.
    let mut interrupts = if how.detach { None } else { Some(Interrupts::listen()?) };
    let job = loop {
        let create = CreateJob {
            spec: request.value.clone(),
            bundle: code.as_ref().map(|code| code.bundle.clone()),
            source: code.as_ref().and_then(|code| code.source.clone()),
            environment: environment.clone(),
        };
        let is_assumed = code.as_ref().is_some_and(|code| code.is_assumed);
        match create_job(flags, session, &create).await {
            Err(Refusal { is_code_missing: true, .. }) if is_assumed => {
                // There is no job yet, so an interrupt means what it says.
                let again = upload(session, flags, request, Trust::Nothing);
                code = match &mut interrupts {
                    None => again.await?,
                    Some(interrupts) => tokio::select! {
                        code = again => code?,
                        _ = interrupts.next() => return Ok(ExitCode::from(INTERRUPTED)),
                    },
                };
            }
            other => break other.map_err(|refusal| refusal.error)?,
        }
    };
    let remembering = code.map(snapshot::Code::remember);
    let lines = request.reasons.lines(&job.spec, job.launch.as_ref());
    let done = match interrupts {
        None => detached(&job, &lines, how.json),
        Some(interrupts) => watch(session, &job, View::of_new(&lines, how.json), interrupts).await,
    };
    if let Some(remembering) = remembering {
        remembering.await;
    }
    if given_input::is_waiting() {
        terminal::note("what came by standard input was not passed to the job");
    }
    done
}

/// Why a job was not made.
struct Refusal {
    error: Error,
    /// The server does not have the code, or no longer.
    is_code_missing: bool,
}

async fn create_job(flags: &Flags, session: &Session, create: &CreateJob) -> Result<JobDetail, Refusal> {
    let key = idempotency_key().map_err(|error| Refusal { error, is_code_missing: false })?;
    let is_code_missing = Cell::new(false);
    let submit = async |client: &Client| {
        client.create_job(create, &key).await.map_err(|error| {
            is_code_missing.set(is_about_code(&error));
            flags.in_users_words(error)
        })
    };
    let made = session.call(submit).await;
    made.map_err(|error| Refusal { error, is_code_missing: is_code_missing.get() })
}

/// Whether a job was refused because the server lacks its bundle or its diff.
fn is_about_code(error: &client::Error) -> bool {
    let client::Error::Problem(problem) = error else { return false };
    problem.code == muster_api::Code::BundleIncomplete
        || problem.errors.iter().any(|error| error.field == "source.diff")
}

/// The environment of this shell, for engines that pass it on. What is not text cannot be sent.
pub(crate) fn environment(
    spec: &JobSpec,
    here: &Here,
    session: &Session,
) -> Option<BTreeMap<String, String>> {
    let is_slurm = matches!(spec.on, Target::Slurm(_));
    // The cluster of a server elsewhere is that server's, and not this shell's.
    let is_passed_on = spec.on == Target::Local || is_slurm && session.home().is_some();
    if spec.clean_env || !is_passed_on {
        return None;
    }
    let mut environment = BTreeMap::new();
    let mut left_out = Vec::new();
    // What is given as a secret is not to be stored as it happens to be set here, too; nor the key of a server's secrets.
    let is_secret = |name: &OsString| {
        name == "MUSTER_SECRETS_KEY"
            || spec.secrets.iter().filter_map(|it| it.env.as_ref()).any(|env| name == env.as_str())
    };
    for (name, value) in here.environment.iter().filter(|(name, _)| !is_secret(name)) {
        match (name.to_str(), value.to_str()) {
            (Some(name), _) if SHELLS_OWN.contains(&name) => {}
            // The shell may itself be in a job of Slurm's. The new job has its own.
            (Some(name), _) if is_slurm && SLURMS_OWN.iter().any(|start| name.starts_with(start)) => {}
            (Some(name), Some(value)) => {
                environment.insert(name.to_owned(), value.to_owned());
            }
            _ => left_out.push(name.to_string_lossy()),
        }
    }
    if !left_out.is_empty() {
        terminal::note(&format!("variables that are not valid UTF-8 are left out: {}", left_out.join(", ")));
    }
    Some(environment)
}

/// A text that nobody has used before: the job is made once, however often its request is repeated.
pub(crate) fn idempotency_key() -> Result<String, Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::new(Code::SystemFailed, format!("the system gives no random numbers: {error}"))
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What the server would do with the job.
async fn check(session: &Session, flags: &Flags, request: &Request) -> Result<Preview, Error> {
    let create = CreateJob { spec: request.value.clone(), bundle: None, source: None, environment: None };
    let check = async |client: &Client| {
        client.preview_job(&create).await.map_err(|error| flags.in_users_words(error))
    };
    session.call(check).await
}

async fn preview(flags: &Flags, request: &Request, json: bool) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let preview = check(&session, flags, request).await?;
    if json {
        let mut shown = serde_json::to_value(&preview).map_err(|error| Error::encoding("JSON", error))?;
        shown["found"] = request.reasons.json();
        terminal::say_json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let yaml = serde_yaml_ng::to_string(&preview.spec).map_err(|error| Error::encoding("YAML", error))?;
    terminal::document(yaml.as_bytes())?;
    if let Some(workdir) = request.code() {
        snapshot::preview(&workdir.path, &session).await?;
    }
    let lines = request.reasons.lines(&preview.spec, preview.launch.as_ref());
    lines.iter().for_each(|line| terminal::remark(line));
    terminal::remark(&format!("{} on {}: {}", preview.name, preview.spec.on, preview.why.summary));
    Ok(ExitCode::SUCCESS)
}

/// Prints the id, for scripts; and what may be wanted next, for people.
fn detached(job: &JobDetail, lines: &[String], json: bool) -> Result<ExitCode, Error> {
    let id = &job.summary.id;
    if json {
        terminal::say_json(job)?;
        return Ok(ExitCode::SUCCESS);
    }
    lines.iter().for_each(|line| terminal::remark(line));
    terminal::say(id.as_str())?;
    if terminal::stderr_is_terminal() {
        let next = [
            ("logs -f", "watch its output"),
            ("show", "its state, tasks and attempts"),
            ("why", "what it waits for"),
            ("stop", "end it"),
        ];
        for (command, meaning) in next {
            terminal::remark(&format!("  {:<32}{meaning}", format!("muster {command} {id}")));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `job_x digits  2 tasks on local`.
fn headline(job: &JobDetail) -> String {
    let summary = &job.summary;
    let size = match &summary.elements {
        Some(counts) if counts.total == 1 => "1 element".into(),
        Some(counts) => format!("{} elements", counts.total),
        None => state::tasks(summary.nodes),
    };
    format!("{} {}  {size} on {}", summary.id, summary.name, summary.on)
}

/// A job's exit code as ours. One that does not fit a byte is never taken for success.
pub(super) fn exit_code(code: Option<i32>) -> ExitCode {
    ExitCode::from(code.map_or(0, |code| u8::try_from(code).unwrap_or(125)))
}
