//! punctual publishes messages on time.
//!
//! A task says what to publish and when; due tasks wait in a timeline (Redis, or this process' memory); any number of equal
//! engines claim them, publish each under one idempotency key to a sink, and write the next due time back.
//!
//! # Layout
//!
//! From the ground up; each room knows only those before it:
//!
//! - [`task`] is what a task is and when it is due: pure values, no I/O, no clock.
//! - [`clock`] tells the timeline's time.
//! - [`timeline`] is where tasks wait: the trait, its Redis implementation and its twin in memory.
//! - [`engine`] runs: it claims, publishes, judges, settles, and takes tasks in.
//! - [`http`] is the API over it.
//! - [`config`] and [`cli`] put the parts together.
//!
//! [`metrics`] and [`telemetry`] are called by all and call no one. Where messages go is a crate of its own,
//! `punctual_sinks`; what attacks and measures running instances is the crate `punctual-lab`. `examples/embedded.rs` shows all of it in one small program.

#[macro_use]
mod words;

#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
#[cfg(feature = "cli")]
pub mod config;
pub mod engine;
pub mod http;
pub mod metrics;
pub mod task;
#[cfg(feature = "cli")]
pub mod telemetry;
pub mod timeline;

pub use clock::{Clock, Timestamp};
pub use engine::{Engine, Intake};
pub use task::{Lane, Task, TaskId};
pub use timeline::Timeline;
