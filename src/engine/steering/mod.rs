//! Steers what waits: pauses and resumes tasks and lanes, triggers and skips tasks. Each change is logged with the target
//! `punctual::audit`.

mod moves;
mod pauses;

pub use moves::{SkipError, Skipped};
pub use pauses::SteerError;
