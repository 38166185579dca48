//! The only crate that knows SQL. The database is the truth; everything in memory can be rebuilt from it.
//!
//! One [`Writer`] turns batches of [`Change`]s into transactions: all of a batch is on disk, or none of it. A few
//! [`Readers`] answer questions beside it and never make it wait. Everything is synchronous: the server owns the
//! threads. The store never decides anything: it refuses a write whose fence does not hold, and says so.

mod change;
mod connection;
mod copy;
mod error;
mod mark;
mod migration;
mod read;
mod row;
mod store;
mod write;

#[cfg(test)]
mod fixture;

pub use change::{
    AccountChange, AllocationRow, Change, Committed, NewAudit, NewEvent, NewJob, NodeRow, SecretRow, UsageRow,
};
pub use error::{Class, Error, Result};
pub use read::Readers;
pub use read::account::{Accounts, AuditFilter, AuditRow};
pub use read::bundle::BundleRow;
pub use read::event::EventRow;
pub use read::job::{AttemptRow, Belongs, JobRow};
pub use read::list::{JobFilter, JobSummaryRow};
pub use read::quota::Quotas;
pub use read::removal::OwedRemovals;
pub use read::request::IdempotentRow;
pub use read::resolve::Resolution;
pub use read::retention::{Debt, KeptRow};
pub use read::sight::Sight;
pub use store::Store;
pub use write::Writer;
