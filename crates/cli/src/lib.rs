//! The commands a user types. They know the server by its API alone, and start the private one when none is named.
//!
//! One file for each command below `command`; what several of them need is in the modules beside it. Nothing here
//! ends the process or decides what a job may do: a command returns its exit code, and the server decides.

mod amount;
mod call;
mod catalogue;
mod command;
mod contexts;
mod display;
mod duration;
mod entry;
mod error;
mod face;
mod follow;
mod given_input;
mod home;
mod identity;
mod interrupt;
mod label;
mod machine;
mod moment;
mod password;
mod place;
mod private;
mod progress;
mod quote;
mod remote;
mod session;
mod snapshot;
mod spec;
mod table;
mod target;
mod terminal;
mod threads;

pub use entry::{Hooks, NotRestored, Restored, ServerOptions, Setting, Trees, main};
