//! The whole agent as a process, against a made-up server on a real link, with real supervisors and real tasks.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the way tests do")]

mod crash;
mod files;
mod lent;
mod life;
mod link;
mod logs;
mod node;
mod overlay;
mod retention;
mod server;
mod stage;
