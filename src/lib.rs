//! punctual publishes messages on time.
pub mod clock;
pub mod task;
pub mod timeline;
