//! `muster explain`: what an error code means, and what to do about it.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::spec::nearest;

use crate::catalogue::{self, Explained};
use crate::error::{Code, Error};
use crate::table::{Cell, Table};
use crate::terminal::{self, Colour};

/// Explain an error code, or list all of them
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster explain workdir_missing
  muster explain                    all codes
  muster explain --json | jq -r '.[].code'")]
pub(crate) struct Args {
    /// The code, as it stands in `error[CODE]` or as the reason of a job
    #[arg(value_name = "CODE")]
    code: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print the reference page
    #[arg(long, hide = true, conflicts_with_all = ["code", "json"])]
    markdown: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    if args.markdown {
        terminal::to_stdout(&catalogue::page())?;
        return Ok(ExitCode::SUCCESS);
    }
    let all = catalogue::all();
    match &args.code {
        Some(code) => {
            let found = find(&all, code)?;
            if args.json {
                terminal::say_json(found)?
            } else {
                terminal::to_stdout(&format!("{}\n", text(found)))?
            }
        }
        None if args.json => terminal::say_json(&all)?,
        None => {
            let table = table(&all).render(terminal::width(), terminal::stdout_has_colours());
            terminal::to_stdout(&table)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The entry of a code; also as people copy it: `error[usage]:`.
fn find<'a>(all: &'a [Explained], code: &str) -> Result<&'a Explained, Error> {
    let bare = code.trim().trim_start_matches("error").trim_matches(['[', ']', ':']).to_lowercase();
    let bare = bare.replace('-', "_");
    if let Some(found) = all.iter().find(|it| it.entry.code == bare) {
        return Ok(found);
    }
    let known: Vec<&str> = all.iter().map(|it| it.entry.code).collect();
    let shown: String = code.chars().take(60).collect();
    let error = Error::new(Code::NoSuchError, format!("there is no error `{shown}`"));
    Err(match nearest(&bare, &known) {
        Some(near) => error.hint(format!("did you mean `{near}`? `muster explain` lists all codes")),
        None => error,
    })
}

fn text(it: &Explained) -> String {
    let code = terminal::paint(it.entry.code, Colour::Red, terminal::stdout_has_colours());
    let mut lines = vec![
        code,
        format!("  {}", it.entry.meaning),
        format!("  What to do:   {}", it.entry.remedy),
        format!("  Exit code:    {}", it.exit_words()),
    ];
    if let Some(status) = it.http_status {
        lines.push(format!("  HTTP status:  {status}"));
    }
    if let Some(retried) = it.retried {
        lines.push(format!(
            "  Retried:      {}",
            if retried { "yes, if the job has retries left" } else { "no" }
        ));
    }
    lines.join("\n")
}

fn table(all: &[Explained]) -> Table {
    let mut table = Table::new(&["CODE", "EXIT", "MEANING"]);
    for it in all {
        let exit = it.exit_code.map_or("-".into(), |code| code.to_string());
        table.row(vec![it.entry.code.into(), Cell::from(exit), it.entry.meaning.into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_found_however_it_was_copied() {
        let all = catalogue::all();
        for written in ["job_not_found", "error[job_not_found]:", "error[job_not_found]", "Job-Not-Found"] {
            assert_eq!(find(&all, written).unwrap().entry.code, "job_not_found", "{written}");
        }
    }

    #[test]
    fn a_mistyped_code_is_answered_with_the_right_one() {
        let all = catalogue::all();
        let error = find(&all, "job_not_fund").unwrap_err();
        assert_eq!(error.code(), "no_such_error");
        assert!(format!("{error:?}").contains("did you mean `job_not_found`?"), "{error:?}");
    }
}
