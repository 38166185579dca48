//! SSH into a task: where no sshd runs, and without touching anybody's `~/.ssh`.
//!
//! The [`server`] is a process inside the task, so whatever it starts has the task's variables, directory, mounts and
//! limits, and ends with the task. [`keys`] are made of a secret that the members of one attempt share: nobody else's
//! key is accepted, and they are worth nothing after it. [`door`] is the files that tell the server where to listen,
//! and an ordinary `ssh` how to get there.

#![warn(missing_docs)]

pub mod door;
pub mod keys;
pub mod server;
