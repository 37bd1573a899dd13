//! Logs events that can come a million at once: with counts, and with a bounded number of lines a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::claiming::judge::Reason;

/// The pause between two log lines about the same thing.
pub(super) const LOG_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of log lines in a minute about first events: deaths of a lane, failing destinations of a sink.
const MAX_FIRST_LINES: usize = 5;

/// Maximum number of log lines that sum up a minute, for each lane. With more destinations there is one for each reason.
const MAX_SUMS: usize = 10;

/// Maximum number of destinations that a summary names.
const MAX_NAMED: usize = 10;

/// Maximum number of pairs of reason and destination whose deaths are counted apart. Further deaths are counted together for each
/// reason.
const MAX_DEATH_KINDS: usize = 1000;

/// Counts events of one kind, and says at most once a minute how many there were since the last time.
#[derive(Debug, Default)]
pub(super) struct EventCount {
    unlogged: u64,
    last: Option<Instant>,
}

impl EventCount {
    /// Adds events. Returns the number to log, if it is time.
    pub(super) fn add(&mut self, events: u64, now: Instant) -> Option<u64> {
        self.unlogged += events;
        self.take_count(now, false)
    }

    /// Returns the number to log, if there are events, and it is time or `at_once`.
    pub(super) fn take_count(&mut self, now: Instant, at_once: bool) -> Option<u64> {
        let is_time = at_once || self.last.is_none_or(|last| now.duration_since(last) >= LOG_PAUSE);
        if self.unlogged == 0 || !is_time {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Allows a few log lines a minute, and counts the others.
#[derive(Debug, Default)]
pub(super) struct LineBudget {
    since: Option<Instant>,
    lines: usize,
    unlogged: u64,
}

impl LineBudget {
    /// Whether another line may be logged; if so, the number of lines that were not logged since the last one.
    pub(super) fn add(&mut self, now: Instant) -> Option<u64> {
        if self.since.is_none_or(|since| now.duration_since(since) >= LOG_PAUSE) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines >= MAX_FIRST_LINES {
            self.unlogged += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.unlogged))
    }

    /// The number of lines that were not logged, once their minute is over and no other line has said it.
    pub(super) fn rest(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.since.is_some_and(|since| now.duration_since(since) >= LOG_PAUSE);
        if self.unlogged == 0 || !is_over {
            return None;
        }
        (self.since, self.lines) = (Some(now), 1);
        Some(std::mem::take(&mut self.unlogged))
    }
}

/// Deaths to log in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deaths {
    pub(super) reason: Reason,
    /// Number of occurrences.
    pub(super) count: u64,
    /// Number of destinations; those that were not counted apart are one.
    pub(super) destinations: usize,
    /// The first of them, separated by commas.
    pub(super) named: String,
    /// The last error text.
    pub(super) detail: String,
}

/// The deaths of one lane that are not logged yet.
#[derive(Debug, Default)]
pub(super) struct DeathLog {
    /// Start of the current minute.
    since: Option<Instant>,
    /// Log lines about first deaths in it.
    first_lines: usize,
    unlogged: BTreeMap<(&'static str, String), Unlogged>,
}

#[derive(Clone, Debug)]
struct Unlogged {
    reason: Reason,
    count: u64,
    detail: String,
}

impl DeathLog {
    /// Notes a death. Returns it if it is to be logged at once: it is the first one in a minute with this reason and
    /// destination, and fewer than [`MAX_FIRST_LINES`] were logged in this minute.
    pub(super) fn add(&mut self, reason: Reason, destination: &str, detail: &str, now: Instant) -> Option<Deaths> {
        self.since.get_or_insert(now);
        let is_full = self.unlogged.len() >= MAX_DEATH_KINDS;
        let key = (reason.as_str(), destination.to_owned());
        let key = if is_full && !self.unlogged.contains_key(&key) { (key.0, "others".to_owned()) } else { key };
        if let Some(known) = self.unlogged.get_mut(&key) {
            known.count += 1;
            detail.clone_into(&mut known.detail);
            return None;
        }
        let is_logged = self.first_lines < MAX_FIRST_LINES;
        self.first_lines += usize::from(is_logged);
        let count = u64::from(!is_logged);
        self.unlogged.insert(key, Unlogged { reason, count, detail: detail.to_owned() });
        is_logged.then(|| Deaths {
            reason,
            count: 1,
            destinations: 1,
            named: destination.to_owned(),
            detail: detail.to_owned(),
        })
    }

    /// Returns the deaths that are not logged yet, once their minute is over; with `at_once` also before. A reason and
    /// destination with a line of its own is not first in the next minute.
    pub(super) fn take_unlogged(&mut self, now: Instant, at_once: bool) -> Vec<Deaths> {
        let is_over = self.since.is_some_and(|since| at_once || now.duration_since(since) >= LOG_PAUSE);
        if !is_over {
            return Vec::new();
        }
        let unlogged = std::mem::take(self).unlogged;
        let unlogged: Vec<_> = unlogged.into_iter().filter(|(_, deaths)| deaths.count > 0).collect();
        if unlogged.len() <= MAX_SUMS {
            self.since = (!unlogged.is_empty()).then_some(now);
            self.unlogged = unlogged.iter().cloned().collect();
            self.unlogged.values_mut().for_each(|deaths| deaths.count = 0);
            let one = |((_, destination), deaths): ((&str, String), Unlogged)| Deaths {
                reason: deaths.reason,
                count: deaths.count,
                destinations: 1,
                named: destination,
                detail: deaths.detail,
            };
            return unlogged.into_iter().map(one).collect();
        }
        let mut sums: Vec<Deaths> = Vec::new();
        for ((_, destination), deaths) in unlogged {
            match sums.last_mut().filter(|sum| sum.reason == deaths.reason) {
                Some(sum) => {
                    sum.count += deaths.count;
                    sum.destinations += 1;
                    if sum.destinations <= MAX_NAMED {
                        sum.named += &format!(", {destination}");
                    }
                }
                None => sums.push(Deaths {
                    reason: deaths.reason,
                    count: deaths.count,
                    destinations: 1,
                    named: destination,
                    detail: deaths.detail,
                }),
            }
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn events_are_summed_up_once_a_minute() {
        let (mut count, start) = (EventCount::default(), Instant::now());
        assert_eq!(count.take_count(start, false), None);
        assert_eq!(count.add(3, start), Some(3), "the first ones at once");
        assert_eq!((count.add(4, after(start, 1)), count.add(5, after(start, 59))), (None, None));
        assert_eq!(
            (count.take_count(after(start, 60), false), count.take_count(after(start, 120), false)),
            (Some(9), None)
        );
    }

    #[test]
    fn a_budget_allows_five_lines_a_minute_and_counts_the_others() {
        let (mut budget, start) = (LineBudget::default(), Instant::now());
        let allowed: Vec<u64> = (0..300).filter_map(|_| budget.add(start)).collect();
        assert_eq!(allowed, [0; MAX_FIRST_LINES]);
        assert_eq!((budget.add(after(start, 59)), budget.add(after(start, 60))), (None, Some(296)));
    }

    #[test]
    fn the_first_death_at_a_destination_is_logged_at_once_and_the_others_with_their_number() {
        let (mut log, start) = (DeathLog::default(), Instant::now());
        let first = log.add(Reason::Destination, "gone", "no such topic", start).expect("a line");
        assert_eq!((first.count, first.named.as_str(), first.detail.as_str()), (1, "gone", "no such topic"));
        for _ in 0..50 {
            assert_eq!(log.add(Reason::Destination, "gone", "still none", after(start, 1)), None);
        }
        assert!(log.add(Reason::Rejected, "gone", "too large", after(start, 2)).is_some(), "another reason");
        assert_eq!(log.take_unlogged(after(start, 59), false), []);
        let (reason, detail) = (Reason::Destination, "still none".to_owned());
        let sum = Deaths { reason, count: 50, destinations: 1, named: "gone".to_owned(), detail };
        assert_eq!(log.take_unlogged(after(start, 60), false), std::slice::from_ref(&sum));
        // They go on: one line a minute.
        for minute in 1..4 {
            (0..50).for_each(|_| {
                assert_eq!(log.add(Reason::Destination, "gone", "still none", after(start, minute * 60 + 1)), None);
            });
            assert_eq!(log.take_unlogged(after(start, minute * 60 + 59), false), []);
            assert_eq!(log.take_unlogged(after(start, minute * 60 + 60), false), std::slice::from_ref(&sum));
        }
        assert_eq!(log.take_unlogged(after(start, 300), true), [], "all is logged");
        assert!(log.add(Reason::Destination, "gone", "no such topic", after(start, 400)).is_some());
    }

    #[test]
    fn three_hundred_deaths_at_as_many_destinations_are_one_line_with_the_first_ten() {
        let (mut log, start) = (DeathLog::default(), Instant::now());
        let add = |n: u32| log.add(Reason::Destination, &format!("queue-{n:03}"), "NO_ROUTE", start);
        assert_eq!((0..300).filter_map(add).count(), MAX_FIRST_LINES);
        let sums = log.take_unlogged(after(start, 60), false);
        assert_eq!((sums.len(), sums[0].count, sums[0].destinations), (1, 295, 295));
        assert_eq!(sums[0].named.split(", ").count(), 10);
        assert!(sums[0].named.starts_with("queue-005, queue-006, "), "{}", sums[0].named);
    }

    /// As many as an instance can meet in a minute, at made-up destinations and for four reasons.
    #[test]
    fn a_hundred_thousand_deaths_in_a_minute_are_at_most_twenty_lines() {
        let (mut log, start, mut lines) = (DeathLog::default(), Instant::now(), 0);
        let mut counted = 0;
        for n in 0..100_000_u64 {
            let reason = [Reason::Destination, Reason::Rejected, Reason::Retries, Reason::Poison][n as usize % 4];
            let logged = log.add(reason, &format!("made-up-{}", n / 4), "no", start + Duration::from_micros(n * 600));
            lines += usize::from(logged.is_some());
            counted += logged.map_or(0, |deaths| deaths.count);
        }
        let sums = log.take_unlogged(after(start, 60), false);
        lines += sums.len();
        counted += sums.iter().map(|sum| sum.count).sum::<u64>();
        assert!(lines <= 20 && counted == 100_000, "{lines} lines, {counted} deaths");
        assert!(log.unlogged.is_empty());
    }
}
