//! `muster machine create`.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::list;
use crate::command::run::environment;
use crate::error::Error;
use crate::machine::{self, Waited};
use crate::session::Session;
use crate::spec::{self, Flags, Here};
use crate::terminal;

/// Take machines and keep them
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine create dev
  muster machine create v100 -N 2 --on ssh/gpu
  muster machine create a100 --on ssh/gpu --gpus A100:8 --label project=bert
  muster machine create half --on ssh/gpu --gpus 4 --shared

It waits until the machines are there; Ctrl-C gives them back. \
On a pool each is a whole host; --shared takes only what --gpus, --cpus and --memory ask for. \
With --own-home, what one writes below /root stays its own, and what is in your home directory is seen there.")]
pub(crate) struct Args {
    /// What they are called: task0.NAME, task1.NAME, ...
    name: String,
    /// How many (1 if absent)
    #[arg(short = 'N', long, value_name = "N")]
    nodes: Option<String>,
    /// Where from: local, ssh/POOL
    #[arg(long, value_name = "PLACE")]
    on: Option<String>,
    /// Accelerators that each must have: 8, H100:8, ascend:8
    #[arg(long, value_name = "[KIND:]N")]
    gpus: Option<String>,
    /// CPUs that each must have
    #[arg(long, value_name = "N")]
    cpus: Option<String>,
    /// Memory that each must have: 16GB
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Something to find or remember them by
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A whole host for each, also where that is not usual
    #[arg(long, conflicts_with = "shared")]
    exclusive: bool,
    /// Only a part of a host for each
    #[arg(long)]
    shared: bool,
    /// Set a variable; without =VALUE, pass on the one that is set here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]")]
    env: Vec<OsString>,
    /// Give them a secret of the workspace, as a variable of its name, or as what is said
    #[arg(long = "secret", value_name = "NAME[=env:VARIABLE|=file:FILE]")]
    secrets: Vec<String>,
    /// Do not give them the environment of this shell
    #[arg(long)]
    clean_env: bool,
    /// Each has a home directory of its own, at /root (on local only)
    #[arg(long)]
    own_home: bool,
    /// Give them back after this time: 8h, 2d
    #[arg(long, value_name = "TIME")]
    timeout: Option<String>,
    /// From 0 to 1000; higher goes first (500 if absent)
    #[arg(long, value_name = "N")]
    priority: Option<String>,
    /// Do not wait until they are there
    #[arg(long)]
    no_wait: bool,
    /// Print the machines as JSON
    #[arg(long)]
    json: bool,
}

/// `project=bert`.
pub(crate) fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a label is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Args {
    fn flags(&self) -> Flags {
        Flags {
            name: Some(self.name.clone()),
            nodes: self.nodes.clone(),
            on: self.on.clone(),
            gpus: self.gpus.clone(),
            cpus: self.cpus.clone(),
            memory: self.memory.clone(),
            env: self.env.clone(),
            secrets: self.secrets.clone(),
            clean_env: self.clean_env,
            own_home: self.own_home,
            timeout: self.timeout.clone(),
            priority: self.priority.clone(),
            ..Flags::default()
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let here = Here::now()?;
    let flags = args.flags();
    let exclusive = if args.exclusive || args.shared { Some(args.exclusive) } else { None };
    let request = spec::assemble_machine(&flags, &args.labels, exclusive, &here)?;
    let session = Session::open().await?;
    let environment = environment(&request.spec, &here, &session);
    let job = machine::create(&session, &flags, request.value, environment).await?;
    let id = job.summary.id.as_str();
    if !args.no_wait {
        match machine::until_ready(&session, id).await? {
            Waited::Ready(ready) => machine::all_or_none(&session, &ready).await?,
            Waited::Interrupted(signal) => {
                machine::kill(&session, id).await?;
                terminal::note(&format!("`{}` was given back", job.summary.name));
                return Ok(ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(130)));
            }
        }
    }
    let rows = machine::rows(&session, std::slice::from_ref(&job.summary)).await?;
    list::show(&rows, args.json)?;
    Ok(ExitCode::SUCCESS)
}
