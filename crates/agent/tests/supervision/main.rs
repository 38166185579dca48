//! Tasks under a real supervisor, with real processes, signals and cgroups.
//!
//! The supervisor is `examples/supervise.rs`, which `cargo test` builds along when it is not told to build this test
//! alone. The tests of kill paths and memory need a machine that has them: root, a cgroup v2 hierarchy, and the freezer
//! and memory controllers of version 1. Where one is missing they fail and say so.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod device;
mod door;
mod element;
mod ending;
mod footprint;
mod harness;
mod launched;
mod loss;
mod memory;
mod output;
mod several;
mod stop;
