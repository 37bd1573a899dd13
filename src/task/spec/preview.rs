//! A preview: when a schedule would be due, computed by the code that serves tasks.

use super::object::{self, Field};
use super::time::{self, Rounding};
use super::{Fault, schedule};
use crate::clock::Timestamp;
use crate::task::{Schedule, TaskId};

/// Default number of dues in a preview.
const DEFAULT_COUNT: u64 = 5;

/// Maximum number of dues in a preview.
const MAX_COUNT: u64 = 100;

/// A request for the first dues of a task with this schedule, put at `from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// When it is due.
    pub schedule: Schedule,
    /// The id of the task, which determines its spread.
    pub id: Option<TaskId>,
    /// The time of the put. Recurring schedules are due later than this.
    pub from: Timestamp,
    /// Maximum number of dues, 1 to 100.
    pub count: usize,
}

/// Parses `{"schedule", "id"?, "from"?, "count"?}`; the default of `from` is `now`. `zone` is that of a cron schedule that
/// names none.
///
/// # Errors
/// Every fault of the document, in the same words as for a put.
pub fn read_preview(json: &[u8], now: Timestamp, zone: Option<&str>) -> Result<Preview, Vec<Fault>> {
    object::read(json, "preview", |field| document(field, now, zone))
}

fn document(field: Field<'_, '_>, now: Timestamp, zone: Option<&str>) -> Option<Preview> {
    let mut object = field.object()?;
    // Rounds up, like `start`, so that all dues are later than the requested time.
    let from = object.optional("from", |field| time::read(field, Rounding::Up)).unwrap_or(now);
    let count = object.optional("count", |field| field.number(1, MAX_COUNT)).unwrap_or(DEFAULT_COUNT);
    let has_id = object.has("id");
    let id = object.optional("id", super::id);
    let schedule = object.required("schedule", |field| schedule::read(field, from, zone));
    let spread = schedule.as_ref().is_some_and(|schedule| schedule.spread.is_some());
    if spread && !has_id {
        field.path.note(no_id());
    }
    object.end();
    Some(Preview { schedule: schedule?, id, from, count: usize::try_from(count).unwrap_or(1) })
}

fn no_id() -> Fault {
    let detail = "`id` is missing: the delay of `spread` depends on it";
    Fault { pointer: "/id".into(), code: "missing_field", detail: detail.into() }
}

impl Preview {
    /// The dues, in ascending order; never empty.
    ///
    /// # Errors
    /// If there is no due, or the spread needs an id that is missing.
    pub fn dues(&self) -> Result<Vec<Timestamp>, Fault> {
        let id = match &self.id {
            Some(id) => id.clone(),
            None if self.schedule.spread.is_some() => return Err(no_id()),
            // Only the spread depends on the id.
            None => "preview".parse().expect("it is a good id"),
        };
        let fault = |code, detail| Fault { pointer: "/schedule".to_owned(), code, detail };
        let bad_cron = |error: super::ScheduleError| fault("bad_cron", error.to_string());
        let Some(first) = self.schedule.first(&id, self.from).map_err(bad_cron)? else {
            return Err(fault("never_due", "the schedule has no occurrence".to_owned()));
        };
        let later =
            self.schedule.dues_after(&id, self.from, first, 0, self.count.saturating_sub(1)).map_err(bad_cron)?;
        Ok(std::iter::once(first).chain(later).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::samples::NOW;

    fn dues(json: &str) -> Result<Vec<String>, String> {
        let describe = |faults: Vec<Fault>| {
            let detail = faults.iter().map(|fault| format!("{} {}", fault.pointer, fault.code));
            detail.collect::<Vec<_>>().join(", ")
        };
        let preview = read_preview(json.as_bytes(), NOW, None).map_err(describe)?;
        let dues = preview.dues().map_err(|fault| describe(vec![fault]))?;
        Ok(dues.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_preview_shows_the_dues_of_a_put_at_the_given_time() {
        let cron =
            r#"{"schedule":{"cron":"30 2 * * *","zone":"Europe/Berlin"},"from":"2027-03-27T00:00:00Z","count":3}"#;
        let shown = dues(cron).unwrap();
        // On the 28th there is no 02:30, so it is due right after the gap.
        assert_eq!(shown, ["2027-03-27T01:30:00.000Z", "2027-03-28T01:00:00.000Z", "2027-03-29T00:30:00.000Z"]);
        let every =
            r#"{"schedule":{"every":"1h","start":"2026-01-01T00:10:00Z","limit":2},"from":"2026-05-01T00:00:00Z"}"#;
        assert_eq!(dues(every).unwrap(), ["2026-05-01T00:10:00.000Z", "2026-05-01T01:10:00.000Z"]);
        let at = r#"{"schedule":{"at":"2020-01-01T00:00:00Z"}}"#;
        assert_eq!(dues(at).unwrap(), ["2020-01-01T00:00:00.000Z"]);
        let after = format!("{}", NOW.plus(std::time::Duration::from_secs(60)));
        assert_eq!(dues(r#"{"schedule":{"in":"1m"}}"#).unwrap(), [after]);
        assert_eq!(dues(r#"{"schedule":{"every":"1s"}}"#).unwrap().len(), 5);
    }

    #[test]
    fn a_preview_with_an_id_shows_the_dues_of_that_task() {
        let json = |id: &str| format!(r#"{{"schedule":{{"every":"1h","spread":"50m"}},"id":"{id}"}}"#);
        let id = "order-1".parse().unwrap();
        let preview = read_preview(json("order-1").as_bytes(), NOW, None).unwrap();
        assert_eq!(preview.dues().unwrap()[0], preview.schedule.first(&id, NOW).unwrap().unwrap());
        assert_ne!(dues(&json("order-1")), dues(&json("order-2")));
        assert_eq!(dues(r#"{"schedule":{"every":"1h","spread":"50m"}}"#), Err("/id missing_field".to_owned()));
    }

    #[test]
    fn every_fault_of_a_preview_is_named_at_once() {
        let json = r#"{"schedule":{"cron":"x","zone":"y"},"id":"a b","from":"soon","count":101,"z":1}"#;
        let named = dues(json).unwrap_err();
        for fault in [
            "/schedule/cron bad_cron",
            "/schedule/zone bad_zone",
            "/id bad_id",
            "/from bad_time",
            "/count out_of_range",
            "/z unknown_field",
        ] {
            assert!(named.contains(fault), "no {fault} in {named}");
        }
        assert_eq!(dues(r#"{"schedule":{"cron":"0 0 30 2 *"}}"#), Err("/schedule/cron never_due".to_owned()));
        assert_eq!(dues("{}"), Err("/schedule missing_field".to_owned()));
        assert_eq!(dues("{"), Err(" not_json".to_owned()));
    }
}
