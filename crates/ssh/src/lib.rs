//! SSH into a task: where no sshd runs, and without touching anybody's `~/.ssh`.
//!
//! The [`server`] is meant for a process inside the task, so whatever it starts has the task's variables, directory,
//! mounts and limits, and ends with the task; the [`client`] is for whoever comes to it. Members of a gang know each other by [`keys`] made of a secret that they share: nobody else's
//! key is accepted, and they are worth nothing after it. [`gang`] is the files that tell an ordinary `ssh` how to get
//! from one member to another.

#![warn(missing_docs)]

pub mod client;
pub mod gang;
pub mod keys;
pub mod server;
