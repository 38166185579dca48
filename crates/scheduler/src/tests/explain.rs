//! Reasons, and what is offered instead.
