//! `muster why`: what a job waits for, or why it ended.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::Timestamp;
use muster_api::model::printable;
use muster_api::view::Why;

use super::OneJob;
use crate::duration::age;
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
        terminal::to_stdout(&text(&why, Timestamp::now(), terminal::stdout_has_colours()))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(why: &Why, now: Timestamp, colours: bool) -> String {
    let mut text = format!("{}\n", printable::inline(&why.summary));
    let after = why.starts_after.as_ref().map(|job| format!(", when {job} ends")).unwrap_or_default();
    let expected = why.starts_at.map(|at| match at > now {
        true => format!("in {} ({at:.0}){after}", age(now, at)),
        false => format!("any moment ({at:.0}){after}"),
    });
    let expected = expected.or_else(|| Some(format!("unknown: {}", why.no_estimate.as_ref()?)));
    let position = why.ahead.map(|ahead| match ahead {
        0 => "it is the next of its queue".into(),
        1 => "1 job is before it".into(),
        ahead => format!("{ahead} jobs are before it"),
    });
    let options = why.options.iter().map(|option| ("option:", Some(option.summary.as_str())));
    let first = [("display name:", why.display_name.as_deref())];
    let first = first
        .into_iter()
        .chain([("constraint:", why.constraint.as_deref()), ("position:", position.as_deref())]);
    let last =
        [("expected:", expected.as_deref()), ("hint:", why.help.as_deref()), ("code:", Some(&*why.code))];
    for (name, value) in first.chain(options).chain(last) {
        if let Some(value) = value {
            let value = printable::inline(value);
            text.push_str(&format!("  {} {value}\n", terminal::paint(name, Colour::Dim, colours)));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use muster_api::view::WhyOption;

    use super::*;

    #[test]
    fn the_answer_comes_first_and_the_code_last() {
        let why = Why {
            code: "no_capacity".into(),
            summary: "waits for 8 devices on one node".into(),
            display_name: Some("训练任务".into()),
            constraint: Some("8 devices asked for, node_local has 2".into()),
            help: Some("ask for --gpus 2".into()),
            starts_at: Some("2026-11-15T10:30:00Z".parse().unwrap()),
            starts_after: Some("bert-7".into()),
            no_estimate: None,
            ahead: Some(2),
            options: vec![WhyOption {
                change: "--gpus 2".into(),
                summary: "starts now with --gpus 2".into(),
            }],
        };
        insta::assert_snapshot!(text(&why, "2026-11-15T10:00:00Z".parse().unwrap(), false), @r"
        waits for 8 devices on one node
          display name: 训练任务
          constraint: 8 devices asked for, node_local has 2
          position: 2 jobs are before it
          option: starts now with --gpus 2
          expected: in 30m (2026-11-15T10:30:00Z), when bert-7 ends
          hint: ask for --gpus 2
          code: no_capacity
        ");
        let unforeseen = Why {
            code: "held".into(),
            summary: "held in the queue".into(),
            no_estimate: Some("it starts only after it is released".into()),
            ..Why::default()
        };
        insta::assert_snapshot!(text(&unforeseen, "2026-11-15T10:00:00Z".parse().unwrap(), false), @r"
        held in the queue
          expected: unknown: it starts only after it is released
          code: held
        ");
    }
}
