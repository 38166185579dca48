//! For tests only: a muster of its own for each test, driven through the built binary as a user does, and cleaned up
//! whatever happens. Nothing here waits by the clock: conditions are waited for, with a deadline.

pub mod cgroup;
mod home;
pub mod hosts;
pub mod http;
mod process;
mod running;
mod terminal;
mod wait;

pub use home::{Finished, Home};
pub use hosts::{Account, Host, Hosts};
pub use process::{Process, executable, is_alive, kill, peak_memory_kb, with_word};
pub use running::Running;
pub use terminal::Terminal;
pub use wait::{DEADLINE, wait_for, wait_for_some};
