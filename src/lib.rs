//! punctual publishes messages on time.
//!
//! A task says what to publish and when. Tasks wait in a timeline (Redis, or the memory of this process). Any number of
//! equal engines claim the due ones, publish each one under its idempotency key to a sink, and write the next due back.
//!
//! # Layout
//!
//! From the bottom up; each module knows only those before it:
//!
//! - [`clock`] tells the time of the timeline.
//! - [`task`] defines tasks and computes when they are due: pure values, no I/O; it reads no clock.
//! - [`timeline`] stores tasks: the trait, its Redis implementation and its twin in memory.
//! - [`engine`] claims, publishes, judges and settles. It also contains the write API for tasks.
//! - [`doors`] reads tasks from messages.
//! - [`http`] is the HTTP API.
//! - [`config`] and [`cli`] put the parts together.
//!
//! [`metrics`] and [`telemetry`] are called by all modules and call none. The sinks are a crate of their own,
//! `punctual_sinks`. The crate `punctual-lab` attacks and measures running instances. `examples/embedded.rs` shows
//! everything in one small program.

#[macro_use]
mod string_enum;

#[cfg(feature = "cli")]
pub mod cli;
pub mod clock;
#[cfg(feature = "cli")]
pub mod config;
pub mod doors;
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
