//! Decides which waiting job starts, on which nodes and devices, and who makes room for it.
//!
//! Pure and synchronous: it is told what happens, and asked for a plan. It never does I/O, never reads a clock, and the same events
//! always have the same plan, so the server and the simulator share it.

mod alternative;
mod balance;
mod fit;
mod known;
mod listing;
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
mod sorted;
mod state;
#[cfg(test)]
mod tests;
mod trial;
mod why;
mod words;

pub use alternative::Alternative;
pub use balance::{Balance, Balances};
pub use fit::{Need, Serves};
pub use listing::Queued;
pub use outlook::{Available, Estimate};
pub use policy::{Backfill, Millis, Order, Policy, priority_from_apulis, priority_from_dlc};
pub use quota::{Quota, Resource};
pub use request::{
    Cause, Change, Fate, Plan, Preemption, Request, Running, Shape, Standing, Start, Usage, User, Workspace,
};
pub use room::{NodeState, Used};
pub use state::Scheduler;
pub use why::{Explanation, Tier};
