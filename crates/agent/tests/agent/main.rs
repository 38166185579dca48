//! The whole agent as a process, against a made-up server on a real link, with real supervisors and real tasks.

mod crash;
mod files;
mod life;
mod link;
mod node;
mod server;
