//! The control plane: one process that owns jobs, talks to agents, and answers the API.
//!
//! [`core`] decides and persists; everything else is a thin shell around it: `http` turns requests into inputs,
//! `link` carries agents' words, `keeper` has engines start agents, `delegate` speaks with other schedulers, `log_store` and `chunk_store` keep bytes.
//! Handlers never have an engine change anything, and never write to the database themselves.

mod accounts;
mod audit;
mod auth;
mod backup;
mod bundle;
mod check;
mod chunk_store;
mod core;
mod delegate;
mod disk;
mod doctor;
mod engines;
mod http;
mod keeper;
mod limits;
mod link;
mod log_store;
mod manifest;
mod memory;
mod metrics;
mod outputs;
mod port;
mod random;
mod reload;
mod retention;
mod service;
mod starts;
mod state;
mod tls;
mod upload;
mod usage;
mod vault;
mod view;
mod volume;

pub use accounts::Entrance;
pub use backup::{RestoreError, Restored, restore};
pub use check::check;
pub use engines::Engines;
pub use http::openapi;
pub use limits::Limits;
pub use memory::share_heap;
pub use muster_scheduler::Policy;
pub use reload::{Fresh, ReadAgain};
pub use retention::{Keep, Limit};
pub use service::{Error, Listen, Options, run};
pub use tls::{Certificate, Error as CertificateError};
pub use volume::Volume;
