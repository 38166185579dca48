//! `muster doctor`: looks at everything a job stands on, and says what would help.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::client::build;
use muster_api::doctor::{Check, Doctor, Health};
use muster_api::model::Timestamp;
use muster_api::model::printable;
use muster_api::view::ServerView;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::duration::shown;
use crate::entry::Hooks;
use crate::error::{Code, Error};
use crate::place::Place;
use crate::session::Session;
use crate::terminal::{self, Colour};

mod configuration;
mod machine;

/// What it exits with when something is broken.
const BROKEN: u8 = 1;
/// An agent that has just been started connects within milliseconds; on a busy machine it takes longer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Other schedulers are asked each time.
const POLL: Duration = Duration::from_millis(250);
/// More than this, and times of two machines in one log are out of order.
const SKEW: Duration = Duration::from_secs(2);

/// Check this machine, the configuration, the server, its engines and nodes
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster doctor
  muster doctor --json | jq '.checks[] | select(.status != \"ok\")'
  MUSTER_SERVER=http://head:7070 muster doctor

✓ is well, ! works but could be better, ✗ is broken; each of these comes with a remedy. \
The private server is started for it, as by every command.

Exit codes:
  0    nothing is broken
  1    something is broken
  125  the server does not answer")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Checks that belong together.
pub(super) struct Group {
    pub name: &'static str,
    pub checks: Vec<Check>,
}

pub(crate) async fn run(args: &Args, hooks: &Hooks) -> Result<ExitCode, Error> {
    let place = Place::from_environment();
    let mut groups = vec![
        Group { name: "this machine", checks: machine::checks(hooks) },
        Group { name: "configuration", checks: configuration::checks(place.as_ref(), hooks) },
    ];
    let mut silence = None;
    if let Ok(place) = place {
        let checks = server(place).await.unwrap_or_else(|error| {
            let check = unreachable(&error);
            silence = Some(error).filter(|error| error.code() == Code::ServerSilent.entry().code);
            vec![check]
        });
        groups.push(Group { name: "server", checks });
    }
    let found = report(&groups, args.json)?;
    Ok(silence.map_or(found, |silence| silence.exit_code()))
}

/// Prints what was found; the exit code says whether anything is broken.
pub(super) fn report(groups: &[Group], json: bool) -> Result<ExitCode, Error> {
    let worst = groups.iter().flat_map(|group| &group.checks).map(|check| check.status).max();
    if json {
        terminal::say_json(&document(groups, worst))?;
    } else {
        terminal::to_stdout(&text(groups, terminal::stdout_has_colours()))?;
    }
    Ok(match worst {
        Some(Health::Broken) => ExitCode::from(BROKEN),
        _ => ExitCode::SUCCESS,
    })
}

/// What the server is like; an error, where it cannot be reached.
async fn server(place: Place) -> Result<Vec<Check>, Error> {
    let session = match place {
        Place::Named(named) => Session::named(&named).await?,
        Place::Private(_) => Session::open().await?,
    };
    let server = session.call(async |client| client.server().await).await?;
    let mut checks = vec![
        Check::ok(
            "reachable",
            format!("process {}, version {}, data in {}", server.pid, server.version, server.home),
        ),
        same_build(&server, build::of_current_exe().ok().as_deref(), session.home().is_some()),
    ];
    match examined(&session).await {
        Ok((doctor, clock)) => {
            checks.push(clock);
            checks.extend(doctor.checks);
        }
        // A server of before this command has none to tell.
        Err(error) => {
            checks.push(Check::warning(
                "server's own checks",
                error.in_words().0,
                "update the server to this version",
            ));
        }
    }
    Ok(checks)
}

/// What the server says of itself, once a node that has just been started had its time; and of its clock.
async fn examined(session: &Session) -> Result<(Doctor, Check), Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let asked = Timestamp::now();
        let doctor = session.call(async |client| client.doctor().await).await?;
        let clock = clock(asked, doctor.at, Timestamp::now());
        let waits =
            doctor.checks.iter().any(|check| check.name.starts_with("node ") && check.status != Health::Ok);
        if !waits || Instant::now() >= deadline {
            return Ok((doctor, clock));
        }
        sleep(POLL).await;
    }
}

fn unreachable(error: &Error) -> Check {
    let (message, remedy) = error.in_words();
    Check::broken("reachable", message, remedy)
}

fn same_build(server: &ServerView, own: Option<&str>, is_private: bool) -> Check {
    let version = env!("CARGO_PKG_VERSION");
    let name = "same version";
    if server.version != version {
        let detail = format!("the server has version {}, this command {version}", server.version);
        return Check::warning(name, detail, "install the same version on both sides");
    }
    match own {
        Some(own) if own != server.build && is_private => Check::warning(
            name,
            "the private server runs another binary than this one",
            "`muster server stop`; the next command starts this one",
        ),
        Some(own) if own != server.build => {
            Check::ok(name, format!("both have version {version}, in different builds"))
        }
        _ => Check::ok(name, format!("both have version {version}")),
    }
}

/// The server's clock is somewhere between the question and the answer, if both clocks agree.
fn clock(asked: Timestamp, server: Timestamp, answered: Timestamp) -> Check {
    let early = asked.duration_since(server);
    let late = server.duration_since(answered);
    let off = Duration::try_from(early).or_else(|_| Duration::try_from(late)).unwrap_or_default();
    if off > SKEW {
        let direction = if server < asked { "behind" } else { "ahead of" };
        return Check::warning(
            "clock",
            format!("the server's clock is {} {direction} this machine's", shown(off)),
            "let both machines get their time from the network (chrony, systemd-timesyncd)",
        );
    }
    Check::ok("clock", "the server's agrees with this machine's")
}

fn document(groups: &[Group], worst: Option<Health>) -> Value {
    let checks: Vec<Value> = groups
        .iter()
        .flat_map(|group| {
            group.checks.iter().map(|check| {
                json!({"group": group.name, "name": check.name, "status": check.status, "detail": check.detail,
                    "remedy": check.remedy})
            })
        })
        .collect();
    json!({"status": worst, "checks": checks})
}

fn text(groups: &[Group], colours: bool) -> String {
    let mut text = String::new();
    let all = groups.iter().flat_map(|group| &group.checks);
    let width = all.clone().map(|check| printable::inline(&check.name).chars().count()).max().unwrap_or(0);
    for group in groups {
        text.push_str(&format!("{}\n", group.name));
        for check in &group.checks {
            let (mark, colour) = match check.status {
                Health::Ok => ("✓", Colour::Green),
                Health::Warning => ("!", Colour::Yellow),
                Health::Broken => ("✗", Colour::Red),
            };
            let mark = terminal::paint(mark, colour, colours);
            let (name, detail) = (printable::inline(&check.name), printable::inline(&check.detail));
            text.push_str(&format!("  {mark} {name:<width$}  {detail}\n"));
            if let Some(remedy) = &check.remedy {
                let arrow = terminal::paint("→", Colour::Cyan, colours);
                text.push_str(&format!("    {:<width$}  {arrow} {}\n", "", printable::inline(remedy)));
            }
        }
    }
    let count = |status| all.clone().filter(|check| check.status == status).count();
    let summary = match (count(Health::Broken), count(Health::Warning)) {
        (0, 0) => "all is well".to_owned(),
        (0, warnings) => format!("nothing is broken; {warnings} could be better"),
        (broken, 0) => format!("{broken} broken"),
        (broken, warnings) => format!("{broken} broken; {warnings} could be better"),
    };
    text.push_str(&format!("{summary}\n"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(version: &str, build: &str) -> ServerView {
        ServerView {
            pid: 1,
            version: version.into(),
            build: build.into(),
            started_at: Timestamp::UNIX_EPOCH,
            fingerprint: None,
            home: "/data".into(),
            unfinished_jobs: 0,
            nodes: Vec::new(),
        }
    }

    #[test]
    fn every_mark_is_shown_with_its_remedy() {
        let groups = [
            Group {
                name: "this machine",
                checks: vec![Check::ok("disk", "fine"), Check::warning("git", "none", "get it")],
            },
            Group { name: "server", checks: vec![Check::broken("reachable", "no", "start it")] },
        ];
        insta::assert_snapshot!(text(&groups, false), @r"
        this machine
          ✓ disk       fine
          ! git        none
                       → get it
        server
          ✗ reachable  no
                       → start it
        1 broken; 1 could be better
        ");
        assert_eq!(document(&groups, Some(Health::Broken))["checks"][2]["group"], "server");
        assert!(text(&groups, true).contains(&terminal::paint("✗", Colour::Red, true)));
    }

    #[test]
    fn another_version_or_another_private_binary_is_noticed() {
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!(same_build(&server(version, "a"), Some("a"), true).status, Health::Ok);
        assert_eq!(same_build(&server(version, "a"), Some("b"), true).status, Health::Warning);
        assert_eq!(same_build(&server(version, "a"), Some("b"), false).status, Health::Ok);
        assert_eq!(same_build(&server("0.0.0", "a"), Some("a"), false).status, Health::Warning);
    }

    #[test]
    fn a_clock_that_is_off_is_noticed_both_ways() {
        let at = |seconds| Timestamp::UNIX_EPOCH + Duration::from_secs(seconds);
        assert_eq!(clock(at(100), at(100), at(101)).status, Health::Ok);
        assert_eq!(clock(at(100), at(99), at(101)).status, Health::Ok);
        assert!(clock(at(100), at(90), at(101)).detail.contains("10.0s behind"));
        assert!(clock(at(100), at(131), at(101)).detail.contains("30.0s ahead of"));
    }

    #[test]
    fn a_server_that_does_not_answer_is_broken_and_its_hint_is_the_remedy() {
        let error = || Error::new(Code::ServerUnreachable, "nobody there").detail("since Monday".into());
        let check = unreachable(&error().hint("start it"));
        assert_eq!((check.status, check.remedy.as_deref()), (Health::Broken, Some("start it")));
        assert_eq!(check.detail, "nobody there; since Monday");
        assert!(unreachable(&error()).remedy.unwrap().contains("MUSTER_SERVER"));
    }
}
