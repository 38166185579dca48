//! `muster ssh-proxy HOST`: standard input and output as the bytes of an SSH connection to a task, for `ssh`'s
//! ProxyCommand.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::view::SshQuery;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::error::{Code, Error};
use crate::identity::Identity;
use crate::machine;
use crate::remote::Stdin;
use crate::session::Session;
use crate::target::Target;

/// Carry an SSH connection to a task
#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    /// task0.JOB; NAME.muster for a machine that has a name of its own
    #[arg(value_name = "HOST", value_parser = host)]
    host: Target,
}

/// A machine's own name says nothing of its number.
fn host(name: &str) -> Result<Target, String> {
    match name.strip_suffix(".muster").filter(|name| !name.is_empty()) {
        Some(own) if Target::from_host(name).is_err() => Ok(Target { job: own.to_owned(), task: None }),
        _ => Target::from_host(name),
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let key = Identity::of_user()?.line()?;
    let session = Session::open().await?;
    let mut host = args.host.clone();
    if host.task.is_none() {
        let Some(found) = machine::by_own_name(&session, &host.job).await? else {
            let message = format!("no machine has the name `{}` of its own", host.job);
            return Err(Error::new(Code::MachineNotFound, message).hint("`muster machine ls` lists them"));
        };
        host = Target { job: found.job.id.to_string(), task: found.rank };
    }
    let query = SshQuery { task: host.task, key };
    let line = session.call(async |client| client.ssh(&host.job, &query).await).await?;
    let (mut from, mut to) = tokio::io::split(line);
    let failed = |error| Error::io(Code::SystemFailed, "carry the connection", &error);
    let (mut stdin, mut stdout) = (Stdin::open().map_err(failed)?, tokio::io::stdout());
    let out = async {
        let mut piece = vec![0; 64 << 10];
        loop {
            match from.read(&mut piece).await.map_err(failed)? {
                0 => return Ok::<(), Error>(()),
                count => {
                    stdout.write_all(&piece[..count]).await.map_err(failed)?;
                    stdout.flush().await.map_err(failed)?;
                }
            }
        }
    };
    let input = async {
        while let Some(piece) = stdin.next().await {
            to.write_all(&piece).await.map_err(failed)?;
            to.flush().await.map_err(failed)?;
        }
        Ok::<(), Error>(())
    };
    // Whichever end has had enough: an SSH connection has no half.
    tokio::select! {
        ended = out => ended?,
        ended = input => ended?,
    }
    Ok(ExitCode::SUCCESS)
}
