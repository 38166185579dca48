//! Decides which waiting job starts, on which nodes and devices, and who makes room for it.
//!
//! Pure and synchronous: it is told what happens, and asked for a plan. It never does I/O, never reads a clock, and the same events
//! always have the same plan, so the server and the simulator share it. [`Scheduler`] remembers between passes; [`plan`] is
//! the older, smaller question about one snapshot.

mod alternative;
mod explain;
mod fit;
mod once;
mod outlook;
mod pass;
mod place;
mod policy;
mod preempt;
mod queue;
mod quota;
mod request;
mod reserve;
mod room;
mod run;
mod share;
pub mod simulate;
mod slab;
mod state;
#[cfg(test)]
mod tests;
mod why;

pub use alternative::Alternative;
pub use explain::{Obstacle, explain};
pub use fit::{Free, Need, Serves, fits_ever};
pub use once::{Admission, Waiting, plan};
pub use outlook::{Available, Estimate};
pub use policy::{Backfill, Millis, Order, Policy, priority_from_apulis, priority_from_dlc};
pub use quota::{Quota, Resource};
pub use request::{
    Cause, Change, Fate, Plan, Preemption, Request, Running, Shape, Standing, Start, Usage, User, Workspace,
};
pub use room::NodeState;
pub use state::Scheduler;
pub use why::{Explanation, Tier};
