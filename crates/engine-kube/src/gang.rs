//! All pods of a gang or none: gates of our own, the native API, Kueue, Volcano.
//!
//! Where the cluster has somebody who places gangs whole and the job names a queue there, it gets the gang. Everywhere else
//! pods are made gated, [`plan`] decides whose gates are removed, and [`doing`] removes them.

mod doing;
mod gathering;
mod ground;
mod hall;
pub(crate) mod needs;
mod plan;
mod queues;
#[cfg(test)]
mod real;
mod tending;
#[cfg(test)]
mod tests;
mod view;
mod words;

pub(crate) use gathering::Gathering;
pub(crate) use hall::Hall;
