//! `muster files`: what a task has in its directories.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::Timestamp;
use muster_api::model::file::{FileEntry, FileKind};
use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_api::view::FilesQuery;

use super::OneJob;
use crate::duration::age;
use crate::error::Error;
use crate::session::Session;
use crate::table::{Cell, Table};
use crate::terminal;

/// List the files of a job's task
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster files last
  muster files last @output
  muster files digits checkpoints -r
  muster files digits --task 1 --attempt 2 --json

Shown is the task's working directory, and as @output what it wrote to $MUSTER_OUTPUT_DIR. \
Files are read on their node while it has them; of a node that is away, those that `outputs:` brought home are shown.")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// A directory or a file in it; @output is the output directory
    #[arg(default_value = "")]
    path: String,
    #[command(flatten)]
    which: Which,
    /// Also what is in the directories below
    #[arg(short, long)]
    recursive: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Whose files.
#[derive(Debug, ClapArgs)]
pub(crate) struct Which {
    /// The task of this rank [default: 0]
    #[arg(long, value_name = "RANK")]
    pub task: Option<u32>,
    /// This attempt instead of the last
    #[arg(long, value_name = "NUMBER")]
    pub attempt: Option<u32>,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let query = FilesQuery {
        path: tidy(&args.path),
        task: args.which.task,
        attempt: args.which.attempt,
        recursive: args.recursive,
    };
    let list = session.call(async |client| client.files(&args.job.job, &query).await).await?;
    if args.json {
        terminal::say_json(&list)?;
        return Ok(ExitCode::SUCCESS);
    }
    let colours = terminal::stdout_has_colours();
    terminal::to_stdout(&table(&list.items, Timestamp::now()).render(terminal::width(), colours))?;
    if list.on == "server" {
        terminal::note("the node is away or has made room; these are the outputs that the server keeps");
    }
    if list.truncated {
        terminal::note("there are more; name a directory to see what is in it");
    }
    Ok(ExitCode::SUCCESS)
}

/// A path as people type it, without the slashes that say nothing.
pub(super) fn tidy(path: &str) -> String {
    let path = path.trim_end_matches('/');
    path.strip_prefix("./").unwrap_or(if path == "." { "" } else { path }).to_owned()
}

fn table(files: &[FileEntry], now: Timestamp) -> Table {
    let mut table = Table::new(&["MODE", "SIZE", "AGE", "PATH"]);
    for file in files {
        let size = if file.kind == FileKind::File { format_bytes(file.bytes) } else { "-".into() };
        table.row([mode(file), size, age(file.modified_at, now), name(file)].map(Cell::from).into());
    }
    table
}

/// As `ls -l` writes it.
fn mode(file: &FileEntry) -> String {
    let kind = match file.kind {
        FileKind::Directory => 'd',
        FileKind::File => '-',
        FileKind::Link => 'l',
        FileKind::Other => '?',
    };
    let bit = |index: u32| {
        if file.mode >> (8 - index) & 1 == 1 { ['r', 'w', 'x'][index as usize % 3] } else { '-' }
    };
    std::iter::once(kind).chain((0..9).map(bit)).collect()
}

fn name(file: &FileEntry) -> String {
    let path = printable::inline(&file.path);
    match (&file.kind, &file.target) {
        (FileKind::Directory, _) => format!("{path}/"),
        (_, Some(target)) => format!("{path} -> {}", printable::inline(target)),
        _ => path.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_shown_as_ls_shows_it() {
        let mut file = FileEntry {
            path: "a\nb".into(),
            kind: FileKind::File,
            bytes: 1,
            mode: 0o751,
            modified_at: Timestamp::UNIX_EPOCH,
            target: None,
        };
        assert_eq!((mode(&file).as_str(), name(&file).as_str()), ("-rwxr-x--x", r"a\nb"));
        file.kind = FileKind::Directory;
        assert_eq!((mode(&file).as_str(), name(&file).as_str()), ("drwxr-x--x", r"a\nb/"));
    }

    #[test]
    fn a_path_may_be_typed_in_the_usual_ways() {
        for (typed, meant) in
            [("", ""), (".", ""), ("./", ""), ("./a/", "a"), ("a/b", "a/b"), ("@output/", "@output")]
        {
            assert_eq!(tidy(typed), meant);
        }
    }
}
