//! Pauses and resumes tasks and lanes, triggers and skips tasks, and changes all tasks that match a filter. Each
//! request that changes something is logged with the target `punctual::audit`.

mod bulk;
mod moves;
mod pauses;

pub use bulk::{TaskAction, TasksChange, TasksResult};
pub use moves::{SkipError, Skipped};
pub use pauses::SteerError;
