//! What a task is given to start with, beside its variables: processes, files, and the way to its peers.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

/// What a task does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Run these, all at once; the task ends when all have, or the first fails.
    Run(Vec<Process>),
    /// Wait to be told to stop: others start what runs here.
    Wait,
}

/// A process of a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// What to run.
    pub argv: Vec<String>,
    /// Variables of its own, on top of the task's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// A directory of its own below the working directory, made if it is not there and filled with links to what is
    /// in the working directory.
    #[serde(default)]
    pub dir: Option<String>,
}

impl Process {
    /// A process with nothing of its own but its words.
    pub fn new(argv: Vec<String>) -> Self {
        Self { argv, env: BTreeMap::new(), dir: None }
    }
}

/// A function for a script in `sh` that stands in front of another program of its name: `next NAME` prints where the shell
/// finds that program when it passes over the script's own folder, and fails where there is none.
pub const NEXT_ON_PATH: &str = r#"next() (
    own="$(cd "${0%/*}" && pwd)"
    rest=
    IFS=:
    set -f
    for folder in $PATH; do
        [ "$folder" = "$own" ] || rest="${rest:+$rest:}$folder"
    done
    PATH="$rest"
    command -v "$1"
)
"#;

/// A file that a launch contract has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchFile {
    /// Where the contract has it: an absolute path. Where nothing can be mounted, it lies below a directory of the
    /// task's, and the variables that name it say so.
    pub path: String,
    /// What is in it.
    pub content: String,
    /// Whether it is a program.
    #[serde(default)]
    pub executable: bool,
}

/// How many processes of a task its log tells apart.
pub const MOST_LOGGED_PROCESSES: u8 = 127;

/// Where a machine with a home directory of its own has it: that of the account that machines of a cloud are used under.
pub const OWN_HOME: &str = "/root";

/// What a platform's tasks find around them beside files. Paths are the platform's, as those of files are.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Surroundings {
    /// Directories that come first in a variable that is a list of them, such as `PATH` and `PYTHONPATH`.
    pub front: BTreeMap<String, Vec<String>>,
    /// Where the task's working directory is found as well.
    pub workdir: Vec<String>,
    /// Directories of the task's own that are to be there, empty and writable.
    pub directories: Vec<String>,
    /// Files that set the task's variables when a shell reads them. Only the node has all of these, so it writes them.
    pub environment: Vec<String>,
    /// Names that are to be known, beside those that the host knows.
    pub hosts: Vec<Host>,
    /// Programs of muster's own that come first on the `PATH`, by the names they are called by.
    pub programs: Vec<String>,
    /// Variables that say where the working directory is.
    pub workdir_in: Vec<String>,
    /// How many processes a launcher starts in the task, each of which gets output streams of its own; 0 if they share the
    /// task's.
    #[serde(skip_serializing_if = "is_zero")]
    pub launched_processes: u32,
    /// Where the task has a home directory of its own, which is its working directory as well. An agent that cannot show it
    /// leaves the task the home of its account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub home: Option<String>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A line of a table of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    /// The address.
    pub ip: IpAddr,
    /// Its names.
    pub names: Vec<String>,
}

/// How members of a gang start processes on each other.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// Known to the members of this attempt alone; their keys are made of it.
    pub secret: String,
    /// Every member, by rank.
    pub members: Vec<Peer>,
}

impl fmt::Debug for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Peers").field("members", &self.members).finish_non_exhaustive()
    }
}

/// A member of a gang, as the others reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The names it has: `worker-0`, `task0.JOB`.
    pub names: Vec<String>,
    /// Its address.
    pub ip: IpAddr,
    /// The port it listens on for them.
    pub port: u16,
}
