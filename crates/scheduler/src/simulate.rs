//! Work replayed through the very same scheduler in a time of its own: what a policy does, before anybody has to live with it.
//!
//! A trace is nodes, workspaces and jobs, from a file or made up from a seed. Nothing here decides anything: it tells the scheduler what
//! happens when, and measures. It must never read a clock, so that the same trace always has the same report.

mod play;
mod report;
mod synthetic;
mod trace;

pub use play::play;
pub use report::{NeverStarted, Report, Waits, WorkspaceReport};
pub use synthetic::Synthetic;
pub use trace::{JobLine, Line, NodeLine, Trace, TraceError, WorkspaceLine};
