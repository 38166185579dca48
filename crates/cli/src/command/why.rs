//! `muster why`: what a job waits for, or why it ended.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::view::Why;

use super::OneJob;
use crate::error::Error;
use crate::session::Session;
use crate::terminal::{self, Colour};

/// Say what a job waits for, or why it ended
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster why last
  muster why digits --json

The last line has a code that stays the same from version to version.")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let why = session.call(async |client| client.why(&args.job.job).await).await?;
    if args.json {
        terminal::say_json(&why)?;
    } else {
        terminal::to_stdout(text(&why, terminal::stdout_has_colours()).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(why: &Why, colours: bool) -> String {
    let mut text = format!("{}\n", why.summary);
    let rows = [
        ("constraint:", why.constraint.as_deref()),
        ("hint:", why.help.as_deref()),
        ("code:", Some(&*why.code)),
    ];
    for (name, value) in rows {
        if let Some(value) = value {
            text.push_str(&format!("  {} {value}\n", terminal::paint(name, Colour::Dim, colours)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_comes_first_and_the_code_last() {
        let why = Why {
            code: "no_capacity".into(),
            summary: "waits for 8 devices on one node".into(),
            constraint: Some("8 devices asked for, node_local has 2".into()),
            help: Some("ask for --gpus 2".into()),
        };
        insta::assert_snapshot!(text(&why, false), @r"
        waits for 8 devices on one node
          constraint: 8 devices asked for, node_local has 2
          hint: ask for --gpus 2
          code: no_capacity
        ");
    }
}
