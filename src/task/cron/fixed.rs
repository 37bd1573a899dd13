//! Fixed times at clock changes. Times in a gap are due once, at the end of the gap. Times in an overlap are due in the
//! first pass. In a gap of more than two hours (a zone that crosses the date line) nothing is due.
//!
//! The search runs on the wall clock, as if the zone never changed. Each time it finds is then converted to the zone.

use jiff::civil::DateTime;
use jiff::tz::{AmbiguousOffset, Offset, TimeZone};
use jiff::{Span, Timestamp, Zoned};

/// Maximum number of clock changes that one search meets before it gives up.
const MAX_CHANGES: usize = 100;

/// The longest gap whose times are due at its end, in seconds.
pub(super) const MAX_GAP: i32 = 2 * 3600;

/// The result of converting a time of the wall clock to a zone.
enum Found {
    /// The time itself, its first pass, or the end of its gap.
    At(Timestamp),
    /// It falls into a gap that is too long; the wall clock continues with this time.
    Skipped(DateTime),
}

/// The first fixed time later than `start`. `next` finds the first time later than a time of the wall clock.
pub(super) fn search(start: &Zoned, next: impl Fn(DateTime) -> Option<DateTime>) -> Option<Zoned> {
    let (zone, second) = (start.time_zone(), Span::new().seconds(1));
    let mut wall = start.datetime();
    for _ in 0..MAX_CHANGES {
        let time = next(wall)?;
        let resumed = match resolve(zone, time)? {
            Found::At(found) if found > start.timestamp() => return Some(found.to_zoned(zone.clone())),
            // `start` is in the second pass of an overlap, so everything up to its end was due before.
            Found::At(found) => wall_end(zone, found)?,
            Found::Skipped(resumed) => resumed,
        };
        wall = resumed.checked_sub(second).ok()?;
    }
    None
}

fn resolve(zone: &TimeZone, time: DateTime) -> Option<Found> {
    let at = |offset: Offset| offset.to_timestamp(time).ok();
    Some(match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } => Found::At(at(offset)?),
        AmbiguousOffset::Fold { before, .. } => Found::At(at(before)?),
        AmbiguousOffset::Gap { before, after } => {
            let end = zone.following(at(after)?).next()?.timestamp();
            match after.seconds() - before.seconds() {
                gap if gap <= MAX_GAP => Found::At(end),
                _ => Found::Skipped(after.to_datetime(end)),
            }
        }
    })
}

/// The wall clock at the end of the first pass that contains this time.
fn wall_end(zone: &TimeZone, first_pass: Timestamp) -> Option<DateTime> {
    let end = zone.following(first_pass).next()?.timestamp();
    Some(zone.to_offset(first_pass).to_datetime(end))
}
