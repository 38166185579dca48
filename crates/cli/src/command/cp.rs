//! `muster cp`: files and directories, to a running task or from it.
//!
//! What is said over the connection is `muster_bundle::copy`'s. A connection that breaks is made again, and the copy goes on
//! from what is there.

mod side;
mod tally;
mod wire;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args as ClapArgs;
use muster_api::client;
use muster_api::problem::Code as ProblemCode;
use muster_api::view::CopyQuery;
use muster_bundle::copy::{
    self, Ask, Channel, Destination, Expected, Receiver, Source, Surroundings, expand, send,
};
use tokio::runtime::Handle;

use self::side::{Remote, Side};
use self::tally::Tally;
use self::wire::LineWire;
use crate::error::{Code, Error, Format};
use crate::machine;
use crate::session::{Patience, Session};
use crate::threads;

/// Copy files and directories to a running task, or from it
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A task's side is JOB:PATH or JOB/TASK:PATH. The path is meant from the task's working directory; ~ and \
@output are its home and its output directory, and JOB: alone is the working directory. A local name \
with a colon is written ./a:b.

As with cp, what is copied to a directory goes into it; otherwise it gets the new name. Directories \
need no flag. Modes, times and symbolic links are kept; a link that is named itself is followed. \
A file appears when it is whole; until then it is .NAME.muster-part. Copying again skips files \
of the same size and time, and goes on with a file that was cut off.

Examples:
  muster cp data.csv digits:                    # into the working directory of task 0
  muster cp -r configs digits/1:/tmp/           # a directory, into another one
  muster cp 'digits:logs/*.txt' digits:@output/model.pt results/
  muster cp --all vocab.txt digits:             # to every task
  muster cp --all digits:trace.json traces      # from every task: traces/task0/, traces/task1/, ...")]
pub(crate) struct Args {
    /// What to copy: paths here, or JOB[/TASK]:PATH
    #[arg(value_name = "SRC", required = true)]
    from: Vec<OsString>,
    /// Where to: JOB[/TASK]:PATH, or a path here
    #[arg(value_name = "DST")]
    to: OsString,
    /// To every task of the job, from task to task where they reach each other; from every task into DST/task0, DST/task1, ...
    #[arg(short, long)]
    all: bool,
    /// Also files that have the same size and time as what is there
    #[arg(short, long)]
    force: bool,
    /// Nothing: directories are copied anyway
    #[arg(short, long, hide = true)]
    recursive: bool,
    /// Print what was copied as JSON
    #[arg(long)]
    json: bool,
}

impl Args {
    /// A copy with everything else as usual.
    pub fn of(from: Vec<OsString>, to: OsString, all: bool) -> Self {
        Self { from, to, all, force: false, recursive: false, json: false }
    }
}

/// One copy over one connection: to a task, or from it.
#[derive(Debug, Clone)]
struct Leg {
    job: String,
    task: Option<u32>,
    way: Way,
    is_several: bool,
    force: bool,
}

#[derive(Debug, Clone)]
enum Way {
    /// `pass_on`: the task has its peers get it, too.
    Up {
        sources: Vec<Source>,
        to: Vec<u8>,
        pass_on: bool,
    },
    Down {
        paths: Vec<Vec<u8>>,
        to: Destination,
    },
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let wanted = legs(args)?;
    let session = Session::open().await?;
    let began = Instant::now();
    let mut tally = Tally::new(matches!(wanted[0].way, Way::Up { .. }), args.force);
    for leg in wanted {
        // The id of the job: what `last` means may change while files are on their way.
        let (job, task) = machine::job_and_task(&session, &leg.job, leg.task).await?;
        let tasks = if job.attempts.is_empty() { vec![0] } else { machine::reachable(&job) };
        let leg = Leg { job: job.summary.id.to_string(), task, ..leg };
        if !args.all {
            (tally, _) = transfer(&session, leg, tally).await?;
            continue;
        }
        // What all of them get crosses the way to them once, where they can pass it on.
        if tasks.len() > 1 && tasks[0] == 0 && matches!(leg.way, Way::Up { .. }) {
            let passed;
            (tally, passed) = transfer(&session, leg.clone().passed_on(), tally).await?;
            if passed {
                continue;
            }
        }
        for task in tasks {
            tally.begin_task();
            (tally, _) = transfer(&session, leg.clone().of_task(task), tally).await?;
        }
    }
    let failure = tally.report(args.json, began.elapsed())?;
    Ok(match failure {
        None => ExitCode::SUCCESS,
        Some(error) => {
            error.report(if args.json { Format::Json } else { Format::Text });
            ExitCode::FAILURE
        }
    })
}

impl Leg {
    fn of_task(mut self, task: u32) -> Self {
        if let Way::Down { to, .. } = &mut self.way {
            *to = Destination { path: to.path.join(format!("task{task}")), is_directory: true };
        }
        Leg { task: Some(task), ..self }
    }

    /// To the first task, which passes it on.
    fn passed_on(mut self) -> Self {
        if let Way::Up { pass_on, .. } = &mut self.way {
            *pass_on = true;
        }
        Leg { task: Some(0), ..self }
    }

    /// Speaks over one connection, to the end of either.
    fn go(&self, wire: LineWire, tally: &mut Tally) -> Result<(), copy::Error> {
        let mut channel = Channel::new(wire);
        match &self.way {
            Way::Up { sources, to, pass_on } => {
                channel.ask(&Ask::Put { to: to.clone(), force: self.force, pass_on: *pass_on })?;
                send(&mut channel, sources, self.is_several, tally)
            }
            Way::Down { paths, to } => {
                channel.ask(&Ask::Get { paths: paths.clone() })?;
                let mut to = to.clone();
                to.is_directory |= self.is_several;
                let expected = Expected::of(paths.iter().map(Vec::as_slice));
                Receiver { channel: &mut channel, to, expected, force: self.force, watch: tally }.run()
            }
        }
    }
}

/// What is to be copied from where to where.
fn legs(args: &Args) -> Result<Vec<Leg>, Error> {
    let from: Vec<Side> = args.from.iter().map(|text| Side::read(text)).collect::<Result<_, _>>()?;
    let to = Side::read(&args.to)?;
    let is_several = from.len() > 1;
    let leg = |remote: &Remote, way| {
        if args.all && remote.target.task.is_some() {
            let message = format!("{} is one task, and --all means every one", remote.target);
            return Err(Error::new(Code::Usage, message).hint("name the job alone, or leave out --all"));
        }
        let (job, task) = (remote.target.job.clone(), remote.target.task);
        Ok(Leg { job, task, way, is_several, force: args.force })
    };
    match &to {
        Side::Remote(remote) => {
            let mut sources = Vec::new();
            for side in &from {
                let Side::Local(path) = side else { return Err(both(side, &to)) };
                let found = expand(path.as_bytes(), &Surroundings::default());
                sources.extend(found.map_err(|reason| {
                    Error::new(Code::CopyFailed, format!("{}: {reason}", path.display()))
                })?);
            }
            Ok(vec![leg(remote, Way::Up { sources, to: remote.path.clone(), pass_on: false })?])
        }
        Side::Local(path) => {
            let to = Destination::new(path.as_bytes(), PathBuf::from(path));
            let mut legs: Vec<(&Remote, Vec<Vec<u8>>)> = Vec::new();
            for side in &from {
                let Side::Remote(remote) = side else { return Err(neither()) };
                match legs.last_mut().filter(|(other, _)| other.target == remote.target) {
                    Some((_, paths)) => paths.push(remote.path.clone()),
                    None => legs.push((remote, vec![remote.path.clone()])),
                }
            }
            let ways = legs.into_iter();
            ways.map(|(remote, paths)| leg(remote, Way::Down { paths, to: to.clone() })).collect()
        }
    }
}

fn neither() -> Error {
    Error::new(Code::Usage, "neither side is a task's")
        .hint("write JOB:PATH or JOB/TASK:PATH for the task's side; `cp` copies here")
}

fn both(from: &Side, to: &Side) -> Error {
    let (Side::Remote(from), Side::Remote(to)) = (from, to) else { return neither() };
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    let name =
        Path::new(&shown(&from.path)).file_name().map_or("FILE".into(), |name| name.display().to_string());
    let message = "both sides are tasks', and one of them must be here";
    let (one, other) = (shown(&from.path), shown(&to.path));
    Error::new(Code::Usage, message).hint(format!(
        "copy it here first: `muster cp {}:{one} . && muster cp {name} {}:{other}`",
        from.target, to.target
    ))
}

/// Copies until all is there, over as many connections as it takes. Nothing is copied, and that is said, if the task was to
/// pass it on and cannot.
async fn transfer(session: &Session, leg: Leg, mut tally: Tally) -> Result<(Tally, bool), Error> {
    let query = CopyQuery { task: leg.task };
    let mut patience = Patience::default();
    loop {
        let opened = session
            .call(async |client| client.copy(&leg.job, &query).await.map_err(|error| with_hint(error, &leg)));
        let wire = LineWire::new(opened.await?, Handle::current());
        let (used, mut counted) = (leg.clone(), tally);
        let speaking = threads::run(move || {
            let ended = used.go(wire, &mut counted);
            (counted, ended)
        });
        let ended;
        (tally, ended) = speaking.await?;
        match ended {
            Ok(()) => return Ok((tally, true)),
            Err(copy::Error::Peer(reason)) if reason == copy::NO_PEERS => return Ok((tally, false)),
            Err(copy::Error::Lost(_)) => {
                // As long as it gets on, it may break as often as it likes.
                if tally.restart() {
                    patience.restore();
                }
                session.recover(&mut patience, client::Error::Lost { source: None }).await?;
            }
            Err(error @ (copy::Error::Peer(_) | copy::Error::Here(_) | copy::Error::Protocol(_))) => {
                return Err(Error::new(Code::CopyFailed, error.to_string()));
            }
        }
    }
}

/// A task that is over has its files for a while, though nobody answers there any more.
fn with_hint(error: client::Error, leg: &Leg) -> client::Error {
    match (error, &leg.way) {
        (client::Error::Problem(mut problem), Way::Down { .. })
            if problem.code == ProblemCode::InvalidState =>
        {
            problem.hint = Some(format!("`muster get {} PATH` copies files of a task that is over", leg.job));
            client::Error::Problem(problem)
        }
        (error, _) => error,
    }
}
