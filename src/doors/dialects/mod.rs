//! What messages say: each dialect is a function from a message to an [`Instruction`], or to the reason why there is none.

mod own;

use punctual_sinks::source::Incoming;

use super::{Dialect, Door};
use crate::clock::Timestamp;
use crate::engine::Intake;
use crate::engine::intake::NewTask;
use crate::task::{Fault, TaskId};

/// Maximum length of a detail, in bytes.
const MAX_DETAIL_BYTES: usize = 1024;

/// What to do for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// Put this task.
    Put(Box<PutInstruction>),
    /// Cancel the task with this id.
    Cancel(TaskId),
    /// Acknowledge it: it is the copy of a message that a door rejected.
    Skip,
}

/// A task to put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PutInstruction {
    pub(super) new: NewTask,
    /// Whether the message names the id. Otherwise no other message has this id.
    pub(super) names_id: bool,
    /// The first due; `None` if there is none.
    pub(super) due: Option<Timestamp>,
}

/// Why a message is rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rejection {
    /// Stable, as in the API.
    pub(super) code: &'static str,
    /// What was found and what is expected.
    pub(super) detail: String,
}

impl Rejection {
    pub(super) fn new(code: &'static str, detail: impl Into<String>) -> Rejection {
        let mut detail: String = detail.into();
        if detail.len() > MAX_DETAIL_BYTES {
            let end = (0..=MAX_DETAIL_BYTES).rev().find(|end| detail.is_char_boundary(*end)).unwrap_or(0);
            detail.truncate(end);
        }
        Rejection { code, detail }
    }

    /// All faults of a message; the code is that of the first one. A pointer is the name of a header.
    fn of(faults: &[Fault]) -> Rejection {
        let text = |fault: &Fault| match fault.pointer.as_str() {
            "" => fault.detail.clone(),
            header => format!("{header}: {}", fault.detail),
        };
        let detail: Vec<String> = faults.iter().map(text).collect();
        Rejection::new(faults.first().map_or("bad_value", |fault| fault.code), detail.join("; "))
    }
}

/// Reads a message at `now`.
///
/// # Errors
/// Why it is rejected.
pub(super) fn read(door: &Door, intake: &Intake, message: &Incoming, now: Timestamp) -> Result<Instruction, Rejection> {
    match door.dialect {
        Dialect::Own => own::read(door, intake, message, now),
    }
}

/// The id of the task of a message that names none.
///
/// # Errors
/// If the place cannot be a part of an id.
fn id_of_place(door: &Door, message: &Incoming) -> Result<TaskId, Fault> {
    let id = format!("{}{}.{}", door.allowed.prefix.as_str(), door.name, message.place);
    id.parse().map_err(|bad| Fault { pointer: String::new(), code: "bad_id", detail: format!("`{id}`: {bad}") })
}

/// The id that a message names.
///
/// # Errors
/// If it is no id.
fn id_of_name(door: &Door, header: &str, name: &str) -> Result<TaskId, Fault> {
    let id = format!("{}{name}", door.allowed.prefix.as_str());
    id.parse().map_err(|bad: crate::task::id::BadName| Fault {
        pointer: header.to_owned(),
        code: "bad_id",
        detail: bad.to_string(),
    })
}

#[cfg(test)]
mod tests;
