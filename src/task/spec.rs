//! A task as JSON: reads one and names every fault at once, writes one back.

use serde::Serialize;

use super::{Lane, Task};
use crate::clock::Timestamp;

/// One thing wrong with a task, in the form of `errors` in a problem document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fault {
    /// JSON pointer to the value that is wrong; empty for the whole document.
    pub pointer: String,
    /// What kind of fault it is; stable.
    pub code: &'static str,
    /// What was found and what is expected.
    pub detail: String,
}

/// What a task may be at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of payload, after base64; default 512 KiB.
    pub payload: usize,
    /// Number of headers; default 64.
    pub headers: usize,
    /// Bytes of all header names and values together; default 16 KiB.
    pub header_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { payload: 512 * 1024, headers: 64, header_bytes: 16 * 1024 }
    }
}

/// Reads a task from JSON, at `now` (for `end` before the first due, gaps and the like).
///
/// `expect_id`: whether a member `id` is part of the document (batch lines) or refused as unknown (the path names it).
///
/// # Errors
/// Every fault of the document, each with its pointer.
pub fn read(json: &[u8], limits: &Limits, expect_id: bool, now: Timestamp) -> Result<Read, Vec<Fault>> {
    let _ = (json, limits, expect_id, now);
    todo!()
}

/// A task that was read, not yet resolved against lanes that exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The `id` of a batch line.
    pub id: Option<super::TaskId>,
    /// The lane, `default` where none was named.
    pub lane: Lane,
    /// The task.
    pub task: Task,
}

/// The task as JSON in the form that [`read`] takes, with `lane`; payloads byte for byte.
#[must_use]
pub fn write(task: &Task, lane: &Lane) -> Box<serde_json::value::RawValue> {
    let _ = (task, lane);
    todo!()
}
