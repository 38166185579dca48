//! What an agent is told when it is started.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use muster_link::dial::Server;
use muster_model::NodeId;

use crate::device::{Declared, Lent};
use crate::network::Network;
use crate::tree::Preference;

/// How long an agent on a person's own machine outlives its last task and its server: as long as the private server
/// itself stays with nothing to do, so that neither is left behind by the other.
pub const LOCAL_ORPHAN_EXIT: Duration = Duration::from_secs(15 * 60);

/// How often is measured, where nothing else is said.
pub const MEASURE_EVERY: Duration = Duration::from_secs(5);

/// When a working directory is an overlay, on a machine that can have them. All but `Auto` are for tests and for operators
/// who know their machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlays {
    /// Where it is worth it: the kernel writes the whole disk's data down when one goes, which a few small files are
    /// not worth.
    #[default]
    Auto,
    Always,
    Never,
}

/// A place that somebody else's scheduler has lent for one task: the agent and all that it has started end with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tenure {
    /// The place is gone, and with it all that ran; the agent only tells what is left to tell.
    pub is_salvage: bool,
    /// How long the task has to end by itself when the place is taken back.
    pub grace: Duration,
    /// How long the place is kept for a server that is not there to say what is to run; as for one that is, if absent.
    pub patience: Option<Duration>,
    /// A file that appears when nothing is to run here any more, for whoever cannot be reached.
    pub closed: Option<PathBuf>,
    /// What that scheduler calls the machine.
    pub host: Option<String>,
    /// The devices that it has lent.
    pub devices: Lent,
    /// The variables that tell of the place; tasks have them, too.
    pub variables: BTreeMap<String, String>,
    /// Where one can be cut off with it and not know.
    pub fence: Option<Fence>,
    /// Where its files go with it: how long it is kept for a server that does not come, if what is owed is too much to print.
    pub hold: Option<Duration>,
}

/// When an agent takes itself to be cut off: others then believe that it is gone, and may start again elsewhere what it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// After so long without a sign of its server and of the scheduler.
    pub after: Duration,
    /// Where the scheduler is, as `host:port`. One that never answered is no sign of anything.
    pub scheduler: Vec<String>,
    /// Where its hand on this machine is. While that is dead the scheduler gives the machine up, although it can be heard.
    pub hand: Option<String>,
}

/// What an agent is told when it is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its own directory, for nobody else's eyes. Made if it is not there.
    pub dir: PathBuf,
    /// The node it serves.
    pub node: NodeId,
    /// Where it dials.
    pub server: Server,
    /// The file with the token that it shows. Read anew at every dial, so that a token can be changed.
    pub token_file: PathBuf,
    /// The binary that is started as `supervise DIR` for each task.
    pub exe: PathBuf,
    /// Devices declared instead of those that are really there.
    pub devices: Vec<Declared>,
    /// What the node offers, where that is not what the machine has.
    pub cpu_millis: Option<u64>,
    pub memory_bytes: Option<u64>,
    pub slots: Option<u32>,
    /// Which addresses its tasks have.
    pub network: Network,
    /// When a working directory is an overlay instead of a copy.
    pub overlays: Overlays,
    /// Tasks have the variables of a login, where nothing else was said: the machine is not the submitter's own.
    pub login: bool,
    /// How the processes of a task are held together and ended.
    pub tree: Preference,
    /// How often the use of the machine and of its tasks is measured while tasks run; never, if absent.
    pub measure_every: Option<Duration>,
    /// After how long without a live task and without a server it ends; never, if absent.
    pub orphan_exit: Option<Duration>,
    /// Where the machine is somebody else's to give; none where it is the agent's for as long as it is there.
    pub tenure: Option<Tenure>,
    /// Which binary this is, by the metadata of its file.
    pub build: String,
    /// The version, for people.
    pub version: String,
}

impl Options {
    /// Everything that is not named here as the machine is.
    pub fn new(dir: PathBuf, node: NodeId, server: Server, token_file: PathBuf, exe: PathBuf) -> Options {
        Options {
            dir,
            node,
            server,
            token_file,
            exe,
            devices: Vec::new(),
            cpu_millis: None,
            memory_bytes: None,
            slots: None,
            network: Network::Loopback,
            overlays: Overlays::Auto,
            login: false,
            tree: Preference::Auto,
            measure_every: Some(MEASURE_EVERY),
            orphan_exit: None,
            tenure: None,
            build: String::new(),
            version: String::new(),
        }
    }
}
