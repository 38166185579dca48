//! `scontrol`, as far as scripts need it to find their nodes. All else is for the real one, where there is one.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use muster_model::hostlist;

use super::job::Job;

const NAME: &str = "scontrol";

pub(super) fn run(words: &[String]) -> ExitCode {
    let plain: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match plain[..] {
        ["show" | "sho" | "sh", what, ref rest @ ..] if "hostnames".starts_with(what) && what.len() > 4 => {
            names(rest).map(|names| names.iter().map(|name| format!("{name}\n")).collect())
        }
        ["show" | "sho" | "sh", "hostlist" | "hostlistsorted", ref rest @ ..] => match rest {
            [] => Err("show hostlist: which names?".to_owned()),
            given => {
                let split = given.iter().flat_map(|list| list.split([',', '\n', ' ']));
                let mut names: Vec<String> =
                    split.filter(|name| !name.is_empty()).map(str::to_owned).collect();
                if plain[1] == "hostlistsorted" {
                    names.sort();
                }
                Ok(hostlist::print(&names) + "\n")
            }
        },
        _ => return real(words),
    };
    match done
        .and_then(|text: String| io::stdout().write_all(text.as_bytes()).map_err(|error| error.to_string()))
    {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            super::say(NAME, &format!("error: {message}"));
            ExitCode::FAILURE
        }
    }
}

/// The names in a list. Those of the job's own nodes are given as programs can use them.
fn names(lists: &[&str]) -> Result<Vec<String>, String> {
    let job = Job::here();
    let lists = match lists {
        [] => return job.map(|job| (0..job.nodes.len()).map(|node| job.reachable(node)).collect()),
        lists => lists.join(","),
    };
    let names = hostlist::parse(&lists).map_err(|error| error.to_string())?;
    let Ok(job) = job else { return Ok(names) };
    let place = |name: &String| job.nodes.iter().position(|node| node == name);
    Ok(names.into_iter().map(|name| place(&name).map_or(name, |node| job.reachable(node))).collect())
}

/// Runs the site's own, where there is one.
fn real(words: &[String]) -> ExitCode {
    let message = match super::real::command(NAME) {
        Some(mut program) => program.args(words).exec().to_string(),
        None => format!(
            "`{}` needs a real Slurm; in a job of muster's there are `show hostnames` and `show hostlist`",
            words.join(" ")
        ),
    };
    super::say(NAME, &format!("error: {message}"));
    ExitCode::FAILURE
}
