//! The words of Muster as types: what a job is, what it asks for, what may happen to it.
//!
//! Everything here is pure and synchronous. This crate never reads a file, a clock or a socket, and depends on no
//! other crate of the workspace, so that a rule is written once and the server, the agent, the API and the tests
//! all obey the same one.

#![warn(missing_docs)]

pub mod account;
pub mod array;
pub mod bundle;
pub mod catalogue;
pub mod display_name;
pub mod error_line;
pub mod file;
pub mod framework;
pub mod hostlist;
pub mod id;
pub mod job;
pub mod launch;
pub mod metrics;
pub mod node;
pub mod pool;
pub mod printable;
pub mod quantity;
pub mod quota;
pub mod ranges;
pub mod reason;
pub mod session;
pub mod signal;
pub mod slurm;
pub mod spec;
pub mod task;

pub use error_line::ErrorLine;
pub use framework::{CommandOn, Face, Framework};
pub use id::{AttemptId, BundleId, ChunkId, JobId, NodeId, TaskId};
pub use jiff::Timestamp;
pub use job::{Effect, Ending, Event, Invalid, Job, Policy, State};
pub use reason::Reason;
pub use spec::JobSpec;
pub use task::{Outputs, Task, TaskEnd, TaskPhase};
