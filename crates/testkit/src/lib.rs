//! For tests only: a muster of its own for each test, driven through the built binary as a user does, and cleaned up
//! whatever happens. Nothing here waits by the clock: conditions are waited for, with a deadline.

mod account;
pub mod cgroup;
mod home;
mod hostile_server;
pub mod hosts;
pub mod http;
mod keeper;
mod kube;
mod process;
mod running;
mod slurm;
mod terminal;
mod wait;

pub use home::{Finished, Home};
pub use hostile_server::{HOSTILE, HostileServer, SHOWN};
pub use hosts::{Account, Host, Hosts, Intruder};
pub use kube::{Kube, KubeOptions};
pub use process::{
    Process, copy_program, executable, freeze, is_alive, kill, peak_memory_kb, thaw, with_word,
};
pub use running::Running;
pub use slurm::{Slurm, SlurmSite};
pub use terminal::Terminal;
pub use wait::{DEADLINE, wait_for, wait_for_some, wait_within};
