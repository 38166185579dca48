//! The node side of Muster: it starts tasks, keeps their files and logs, and tells the server what became of them.
//!
//! The agent decides nothing about jobs: the server says what to prepare, start and stop. What the agent owns is the
//! node: processes, directories, addresses and devices, and their truth on disk, from which everything in its memory
//! can be rebuilt. A task belongs to its supervisor and not to the agent, so that the agent may die at any moment.

mod account;
mod address;
mod bulk;
mod bundle;
mod callers;
mod calls;
mod child;
mod control;
pub mod device;
mod diagnosis;
mod dialer;
mod disk;
mod environment;
#[cfg(test)]
mod far_end;
mod files;
mod identity;
mod leftover;
mod login;
mod machine;
mod metrics;
mod network;
mod options;
mod outcome;
mod overlay;
mod peers;
mod prepare;
mod process;
pub mod processes;
mod programs;
mod record;
mod secret;
mod service;
mod shelf;
mod ship;
pub mod slurm;
pub mod stage;
mod start;
pub mod supervisor;
pub mod task;
pub mod tree;
mod trusted;
mod volume;
mod watcher;
mod words;

pub use network::Network;
pub use options::{Fence, LOCAL_ORPHAN_EXIT, MEASURE_EVERY, Options, Overlays, Tenure};
pub use process::{EXIT_ALREADY_RUNNING, run};
pub use record::check_records;

use words::words;
