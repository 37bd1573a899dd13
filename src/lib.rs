//! punctual publishes messages on time.
pub mod clock;
pub mod engine;
pub mod metrics;
pub mod task;
pub mod timeline;
