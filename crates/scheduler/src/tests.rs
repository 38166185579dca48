//! The scheduler's rules: small clusters by hand, and random ones by property.

mod explain;
mod property;
mod rules;
mod world;
