//! The member `retry`.

use super::object::{Field, Path};
use crate::clock::Timestamp;
use crate::task::{RetryPolicy, Task, duration};

/// The longest time of a policy that an error shows: a year, in ms.
const MAX_SHOWN_MS: u128 = 365 * 24 * 60 * 60 * 1000;

/// Parses a policy. Missing members have their defaults.
pub(super) fn read(field: Field<'_, '_>) -> Option<RetryPolicy> {
    let before = field.path.count();
    let mut object = field.object()?;
    let max = object.optional("max", |field| field.number(0, u64::from(u32::MAX)));
    let max = max.and_then(|max| u32::try_from(max).ok());
    let interval = object.optional("interval", |field| field.duration());
    let jitter = object.optional("jitter", |field| field.duration_or_zero());
    object.end();
    let default = RetryPolicy::DEFAULT;
    let policy = RetryPolicy {
        max: max.unwrap_or(default.max),
        interval: interval.unwrap_or(default.interval),
        jitter: jitter.unwrap_or(default.jitter),
    };
    let worst = policy.worst_case();
    if field.path.count() == before && worst > RetryPolicy::MAX_WAIT {
        let longest = duration::format(RetryPolicy::MAX_WAIT);
        let worst = match worst.as_millis() <= MAX_SHOWN_MS {
            true => duration::format(worst),
            false => "more than a year".to_owned(),
        };
        let detail = format!("all retries together may take {longest}; these take up to {worst}");
        return field.path.fault("retry_too_long", detail);
    }
    Some(policy)
}

/// Checks that a user's policy ends before the next occurrence can be due.
pub(super) fn check_room(task: &Task, root: Path<'_>, now: Timestamp) {
    let Some(policy) = task.retry else { return };
    let Ok(Some(gap)) = task.schedule.retry_time(now, now) else { return };
    let worst = policy.worst_case();
    if worst >= gap {
        let (worst, gap) = (worst.as_millis(), gap.as_millis());
        let less = if task.schedule.spread.is_some() { ", less the spread" } else { "" };
        let detail = format!(
            "the retries may take {worst} ms together, not less than the shortest gap between occurrences{less}: {gap} ms"
        );
        root.member("retry").fault::<()>("retry_too_long", detail);
    }
}
