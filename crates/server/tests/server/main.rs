//! A whole server, spoken to as clients and nodes do.

#![expect(clippy::unwrap_used, reason = "a test: a panic is how it fails")]

mod audit;
mod bundles;
mod delegating;
mod fixture;
mod link;
mod lockout;
mod people;
mod pools;
mod speaking;
mod team;
mod uploads;
mod walls;
