//! The core on its own: a real store, no network.
