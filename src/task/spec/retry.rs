//! The member `retry`.

use serde_json::value::RawValue;

use super::object::{self, Faults, Object, Place};
use crate::clock::Timestamp;
use crate::task::{RetryPolicy, Task};

/// Reads a policy; what it leaves out is as in the default.
pub(super) fn read(raw: &RawValue, place: &Place<'_>, faults: &mut Faults) -> Option<RetryPolicy> {
    let before = faults.count();
    let mut object = Object::read(raw, place, faults)?;
    let max = object.may("max", place, faults, |raw, place, faults| {
        object::number(raw, 0, u64::from(u32::MAX), place, faults).and_then(|max| u32::try_from(max).ok())
    });
    let interval =
        object.may("interval", place, faults, |raw, place, faults| object::duration(raw, false, place, faults));
    let jitter = object.may("jitter", place, faults, |raw, place, faults| object::duration(raw, true, place, faults));
    object.end(place, faults);
    let default = RetryPolicy::DEFAULT;
    let policy = RetryPolicy {
        max: max.unwrap_or(default.max),
        interval: interval.unwrap_or(default.interval),
        jitter: jitter.unwrap_or(default.jitter),
    };
    let worst = policy.worst_case();
    if faults.count() == before && worst > RetryPolicy::LONGEST {
        let (worst, longest) = (worst.as_millis(), RetryPolicy::LONGEST.as_millis());
        let detail = format!("the retries may take {worst} ms together, {longest} ms are allowed");
        return faults.add(place, "retry_too_long", detail);
    }
    Some(policy)
}

/// That a policy the user wrote ends before the next occurrence can be due.
pub(super) fn check_room(task: &Task, root: &Place<'_>, now: Timestamp, faults: &mut Faults) {
    let Some(policy) = task.retry else { return };
    let Ok(Some(room)) = task.schedule.retry_room(now, now) else { return };
    let worst = policy.worst_case();
    if worst >= room {
        let (worst, room) = (worst.as_millis(), room.as_millis());
        let less = if task.schedule.spread.is_some() { ", less the spread" } else { "" };
        let detail = format!(
            "the retries may take {worst} ms together, not less than the shortest gap between occurrences{less}: {room} ms"
        );
        faults.add::<()>(&root.member("retry"), "retry_too_long", detail);
    }
}
