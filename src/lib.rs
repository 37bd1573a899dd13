//! punctual publishes messages on time.
pub mod clock;
pub mod metrics;
pub mod engine;
pub mod task;
pub mod timeline;
