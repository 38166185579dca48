//! `muster server backup`: all that a running server knows, as one file.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Download;
use muster_api::model::Timestamp;
use muster_api::model::quantity::format_bytes;
use serde_json::json;

use crate::error::{Code, Error};
use crate::progress::Counter;
use crate::session::Session;
use crate::terminal;

/// Write a backup of the server, while it runs, to a file
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A backup holds jobs, logs, code, outputs, the configuration and the server's secrets: whoever can read it can act as the server. \
The file is for you alone, and has its name only once it is complete. What is over is in it as it was; of what was not over, \
`muster server restore --help` says what becomes.

Examples:
  muster server backup muster.backup
  muster server backup /mnt/backups             a name with the time in it
  muster server backup - | ssh vault 'cat > muster.backup'")]
pub(crate) struct Args {
    /// The file, a directory to put it into, or - for standard output
    #[arg(value_name = "FILE")]
    to: PathBuf,
    /// Replace a file that is there
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let is_stdout = args.to == Path::new("-");
    let target = if args.to.is_dir() { args.to.join(name(Timestamp::now())) } else { args.to.clone() };
    if !is_stdout && !args.force && target.symlink_metadata().is_ok() {
        return Err(Error::new(Code::FileExists, format!("{} is there already", target.display())));
    }
    let session = Session::open().await?;
    let download = session.call(async |client| client.back_up().await).await?;
    if is_stdout {
        receive(download, terminal::exact_to_stdout).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let bytes = save(download, &target, args.force).await?;
    if args.json {
        terminal::say_json(&json!({ "file": target.display().to_string(), "bytes": bytes }))?;
    } else {
        terminal::say(&format!("{} ({})", target.display(), format_bytes(bytes)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn name(now: Timestamp) -> String {
    format!("muster-{}.backup", now.strftime("%Y%m%dT%H%M%SZ"))
}

/// Writes the file beside its place, and gives it its name once it is on disk: what has the name is a whole backup.
async fn save(download: Download, target: &Path, force: bool) -> Result<u64, Error> {
    let folder = target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wrong =
        |error: &io::Error| Error::io(Code::FileUnwritable, format!("write {}", target.display()), error);
    let mut file = tempfile::Builder::new()
        .prefix(".muster-backup-")
        .tempfile_in(folder)
        .map_err(|error| wrong(&error))?;
    let bytes = receive(download, |piece| file.write_all(piece).map_err(|error| wrong(&error))).await?;
    file.as_file().sync_all().map_err(|error| wrong(&error))?;
    let kept = if force { file.persist(target) } else { file.persist_noclobber(target) };
    kept.map_err(|error| wrong(&error.error))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| wrong(&error))?;
    Ok(bytes)
}

async fn receive(
    mut download: Download,
    mut put: impl FnMut(&[u8]) -> Result<(), Error>,
) -> Result<u64, Error> {
    let mut counter = Counter::new("receiving");
    let mut bytes = 0;
    while let Some(piece) = download.next().await? {
        put(&piece)?;
        bytes += piece.len() as u64;
        counter.add(piece.len() as u64);
    }
    Ok(bytes)
}
