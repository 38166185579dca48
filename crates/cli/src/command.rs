//! The commands, one file each, and what their arguments have in common.

use clap::Args;

pub(crate) mod attach;
pub(crate) mod audit;
pub(crate) mod clone;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod elements;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod exit_codes;
pub(crate) mod explain;
pub(crate) mod files;
pub(crate) mod gc;
pub(crate) mod get;
pub(crate) mod hold;
pub(crate) mod init;
pub(crate) mod login;
pub(crate) mod logs;
pub(crate) mod machine;
pub(crate) mod nodes;
pub(crate) mod pool;
pub(crate) mod port_forward;
pub(crate) mod priority;
pub(crate) mod ps;
pub(crate) mod queue;
pub(crate) mod quota;
pub(crate) mod release;
pub(crate) mod resume;
pub(crate) mod rm;
pub(crate) mod run;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod session;
pub(crate) mod show;
pub(crate) mod sim;
pub(crate) mod ssh;
pub(crate) mod ssh_config;
pub(crate) mod ssh_proxy;
pub(crate) mod state;
pub(crate) mod stop;
pub(crate) mod submit;
pub(crate) mod suspend;
pub(crate) mod token;
pub(crate) mod top;
pub(crate) mod user;
pub(crate) mod version;
pub(crate) mod wait;
pub(crate) mod why;
pub(crate) mod workspace;

/// The one job a command is about.
#[derive(Debug, Args)]
pub(crate) struct OneJob {
    /// Its id, the beginning of it, its name, or `last`
    #[arg(value_name = "JOB", value_parser = selector)]
    pub job: String,
}

/// The jobs a command is about.
#[derive(Debug, Args)]
pub(crate) struct Jobs {
    /// Their ids, the beginnings of them, their names, or `last`
    #[arg(value_name = "JOB", required = true, value_parser = selector)]
    pub jobs: Vec<String>,
}

/// An empty one, from a shell variable that is not set, would name the list of all jobs.
pub(crate) fn selector(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("a job is named by its id, the beginning of it, its name, or `last`".into());
    }
    Ok(text.to_owned())
}
