//! The wire between server and agent.
//!
//! An agent dials the server with a WebSocket upgrade, so that anything that passes HTTP passes the link. Each agent
//! holds two connections: *control* for messages ([`message`], one JSON object a line) and *bulk* for logs and
//! chunks, so that a full send buffer never delays a heartbeat. Both carry flow-controlled streams ([`session`]).
//!
//! What travels as a log is what is stored: [`log`] has the records and segments that agent and server share.
//! This crate knows nothing of jobs' lives; it only carries.

pub mod control;
pub mod descriptor;
pub mod dial;
pub mod frame;
pub mod leftover;
pub mod log;
pub mod memory;
pub mod message;
pub mod own_dir;
pub mod process;
pub mod remove_tree;
pub mod session;
pub mod tls;
pub mod unix;
pub mod websocket;
