//! The member `schedule`.

use std::time::Duration;

use super::object::{self, Field, Object, Path};
use super::time::{self, Rounding};
use super::zone;
use crate::clock::Timestamp;
use crate::task::cron::Timetable;
use crate::task::duration::format;
use crate::task::schedule::ScheduleError;
use crate::task::task_dues::TaskDues;
use crate::task::{Schedule, When};

/// The members that select the kind of a schedule. Exactly one is required.
const KINDS: [&str; 4] = ["at", "in", "every", "cron"];

/// Maximum length of a cron expression in bytes. A list of every value has 356 in five fields, and 526 in six.
const MAX_CRON_BYTES: usize = 512;

/// The largest limit: the largest integer that every JSON parser keeps exact.
const MAX_LIMIT: u64 = (1 << 53) - 1;

/// Parses a schedule that is put at `now`. `default_zone` is the zone of a cron schedule that names none.
pub(super) fn read(field: Field<'_, '_>, now: Timestamp, default_zone: Option<&str>) -> Option<Schedule> {
    let path = field.path;
    let before = path.count();
    let mut object = field.object()?;
    check_members(&object);
    let at = object.optional("at", |field| time::read(field, Rounding::Up)).map(When::At);
    let after = object.optional("in", |field| field.duration_or_zero()).map(When::In);
    let gap = object.optional("every", |field| field.duration());
    let expression = object.optional("cron", |field| field.text());
    let zone = object.optional("zone", |field| field.text());
    let start = object.optional("start", |field| time::read(field, Rounding::Up));
    let end = object.optional("end", |field| time::read(field, Rounding::Down));
    let limit = object.optional("limit", |field| field.number(1, MAX_LIMIT));
    let spread = object.optional("spread", |field| field.duration());
    object.end();
    check_cron(expression.as_deref(), zone.as_deref(), path);
    let every = gap.map(|gap| When::Every { gap, start });
    let zone = zone.map(|zone| zone.into_owned()).or_else(|| default_zone.map(str::to_owned));
    let cron = expression.map(|expression| When::Cron { expression: expression.into_owned(), zone, start });
    let when = at.or(after).or(every).or(cron)?;
    let schedule = Schedule { when, end, limit, spread };
    if path.count() == before {
        check_dues(&schedule, path, now);
    }
    Some(schedule)
}

/// Checks that there is exactly one kind, and no member that does not apply to it.
fn check_members(object: &Object<'_, '_>) {
    let path = object.path;
    let kinds: Vec<&str> = KINDS.into_iter().filter(|kind| object.has(kind)).collect();
    match kinds.as_slice() {
        [] => {
            path.fault::<()>("missing_field", "one of `at`, `in`, `every` and `cron` is needed");
            return;
        }
        [_] => {}
        several => {
            let several = several.join("`, `");
            path.fault::<()>("exclusive_fields", format!("only one of `{several}` is allowed"));
        }
    }
    let cron = object.has("cron");
    let recurring = cron || object.has("every");
    let misplaced = [
        ("zone", cron, "`cron`"),
        ("start", recurring, "`every` and `cron`"),
        ("end", recurring, "`every` and `cron`"),
        ("limit", recurring, "`every` and `cron`"),
        ("spread", recurring, "`every` and `cron`"),
    ];
    for (name, applies, to) in misplaced {
        if object.has(name) && !applies {
            path.member(name).fault::<()>("not_applicable", format!("`{name}` goes with {to} only"));
        }
    }
}

/// Checks expression and zone separately, so that a fault of one does not hide one of the other.
fn check_cron(expression: Option<&str>, zone: Option<&str>, path: Path<'_>) {
    if let Some(expression) = expression.filter(|text| text.len() > MAX_CRON_BYTES) {
        let detail = format!("the expression has {} bytes, {MAX_CRON_BYTES} are allowed", expression.len());
        path.member("cron").fault::<()>("too_large", detail);
        return;
    }
    let known = expression.is_some_and(|expression| Timetable::of(expression, zone).is_ok());
    if known {
        return;
    }
    if let Some(expression) = expression
        && let Err(ScheduleError::Cron(detail)) = Timetable::of(expression, None)
    {
        let shown = object::shown(expression);
        let detail = format!("`{shown}` is not a cron expression of five fields, or six with seconds first: {detail}");
        path.member("cron").fault::<()>("bad_cron", detail);
    }
    if let Some(zone) = zone {
        zone::check(zone, path);
    }
}

/// Checks that there is a due, and that `end` and `spread` fit.
fn check_dues(schedule: &Schedule, path: Path<'_>, now: Timestamp) {
    // Every part was checked before, so it can be parsed.
    let Ok(dues) = TaskDues::unspread(schedule, now) else { return };
    let Some(first) = dues.without_end().first() else {
        let (name, code) = match schedule.when {
            When::At(_) => ("at", "out_of_range"),
            When::In(_) => ("in", "out_of_range"),
            When::Every { .. } => ("every", "out_of_range"),
            When::Cron { .. } => ("cron", "never_due"),
        };
        let detail = match schedule.when {
            When::Cron { .. } => {
                "this expression has no occurrence within 41 years, or clock changes skip its times".to_owned()
            }
            _ => format!("the first occurrence would be due after {}", Timestamp::MAX_DUE),
        };
        path.member(name).fault::<()>(code, detail);
        return;
    };
    // The delay of this task depends on its id, which may be unknown yet, so assume the whole spread.
    let latest = first.plus(schedule.spread.unwrap_or_default().saturating_sub(Duration::from_millis(1)));
    if let Some(end) = schedule.end.filter(|end| *end < latest) {
        let detail = format!("the end, {end}, comes before the first occurrence, due {latest}");
        path.member("end").fault::<()>("end_before_first", detail);
    }
    let Some(spread) = schedule.spread else { return };
    // For cron this takes a hundred searches, so only if needed.
    let gap = match schedule.when {
        When::Every { gap, .. } => Some(gap),
        _ => schedule.shortest_gap(now, now).ok().flatten(),
    };
    if let Some(gap) = gap
        && spread >= gap
    {
        let (spread, gap) = (format(spread), format(gap));
        let detail = format!("the spread, {spread}, is not shorter than the shortest gap between occurrences, {gap}");
        path.member("spread").fault::<()>("spread_too_long", detail);
    }
}
