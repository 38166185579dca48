//! For tests only: a muster of its own for each test, driven through the built binary as a user does, and cleaned up
//! whatever happens. Nothing here waits by the clock: conditions are waited for, with a deadline.

mod home;
mod process;
mod wait;

pub use home::{Finished, Home};
pub use process::{Process, is_alive, kill};
pub use wait::{DEADLINE, wait_for, wait_for_some};
