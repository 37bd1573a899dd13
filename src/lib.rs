//! punctual publishes messages on time.
pub mod cli;
pub mod clock;
pub mod config;
pub mod engine;
pub mod http;
pub mod metrics;
pub mod task;
pub mod telemetry;
pub mod timeline;
