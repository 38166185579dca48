//! `muster server reload`: a changed configuration, without a restart.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::printable;
use muster_api::view::ServerReload;

use crate::error::Error;
use crate::session::Session;
use crate::terminal;

/// Have the server read its config.toml anew
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
What can change while the server runs does, and what needs a restart is named. A configuration with an error changes nothing. SIGHUP
does the same, and says what came of it in the server's log.

Examples:
  muster server reload
  muster server reload --json | jq .needs_restart")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let report = session.call(async |client| client.reload().await).await?;
    if args.json {
        terminal::say_json(&report)?;
    } else {
        terminal::to_stdout(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(report: &ServerReload) -> String {
    let line = |what: &str, keys: &[String]| match keys {
        [] => String::new(),
        keys => format!("{what}: {}\n", printable::inline(&keys.join(", "))),
    };
    match (report.changed.is_empty(), report.needs_restart.is_empty()) {
        (true, true) => "nothing has changed\n".into(),
        _ => line("changed", &report.changed) + &line("needs a restart", &report.needs_restart),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_and_what_does_not_yet_are_told_apart() {
        let mut report = ServerReload::default();
        assert_eq!(text(&report), "nothing has changed\n");
        report.changed = vec!["keep.logs".into(), "pools.gpu".into()];
        report.needs_restart = vec!["local.slots".into()];
        assert_eq!(text(&report), "changed: keep.logs, pools.gpu\nneeds a restart: local.slots\n");
    }
}
