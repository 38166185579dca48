//! The HTTP interface of a muster server: wire types, error codes, and a client.
//!
//! Whatever talks to a server from outside sees this crate or the OpenAPI document made from it, and nothing else.
//! It contains no server code and never decides what a request means.

#![warn(missing_docs)]

pub mod account;
pub mod client;
pub mod cluster;
pub mod doctor;
pub mod element;
pub mod metrics;
pub mod pool;
pub mod problem;
pub mod quota;
pub mod secret;
pub mod view;

pub use muster_link::own_dir;
pub use muster_model as model;
pub use problem::{Code, Problem};
