//! The time of the timeline: [`Timestamp`], the [`Clock`] trait, and its three implementations.
//!
//! The wall clock of an instance decides nothing. [`RedisClock`] estimates the server's clock from the monotonic clock
//! and from every reply. [`LocalClock`] serves the timeline in memory, [`ManualClock`] serves tests.

mod backoff;
mod boot;
mod sharp;

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

pub(crate) use backoff::Backoff;
pub(crate) use boot::since_boot;

/// A point in time in milliseconds since the epoch, as used in dues, scores and keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(i64);

impl Timestamp {
    /// The earliest valid due.
    pub const MIN_DUE: Timestamp = Timestamp(1);
    /// The latest valid due: the last millisecond of the year 9999.
    pub const MAX_DUE: Timestamp = Timestamp(253_402_300_799_999);

    /// The time `ms` milliseconds after the epoch.
    #[must_use]
    pub const fn from_millis(ms: i64) -> Timestamp {
        Timestamp(ms)
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This time plus `span`, in whole milliseconds, saturating.
    #[must_use]
    pub fn plus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_add(millis(span)))
    }

    /// This time minus `span`, in whole milliseconds, saturating.
    #[must_use]
    pub fn minus(self, span: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(millis(span)))
    }

    /// The beginning of its second: for a time that is known by how long ago it was, and shown again and again.
    #[must_use]
    pub fn whole_second(self) -> Timestamp {
        Timestamp(self.0 - self.0.rem_euclid(1000))
    }

    /// How much later this time is than `earlier`; zero if it is not later.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Whether it is a valid due: from [`MIN_DUE`](Self::MIN_DUE) to [`MAX_DUE`](Self::MAX_DUE).
    #[must_use]
    pub fn is_valid_due(self) -> bool {
        Timestamp::MIN_DUE <= self && self <= Timestamp::MAX_DUE
    }
}

impl fmt::Display for Timestamp {
    /// RFC 3339 in UTC with milliseconds; the plain number if it is outside of the calendar.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Uses the civil calendar, because jiff's own timestamps end a day before the last due.
        let epoch = jiff::civil::datetime(1970, 1, 1, 0, 0, 0, 0);
        match epoch.checked_add(jiff::SignedDuration::from_millis(self.0)) {
            Ok(time) => write!(f, "{time:.3}Z"),
            Err(_) => write!(f, "{}", self.0),
        }
    }
}

/// The whole milliseconds of a duration.
fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// Tells the time of the timeline and waits for a time.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// The timeline's time now, rounded down to the millisecond.
    fn now(&self) -> Timestamp;

    /// The maximum error of [`now`](Clock::now), in either direction.
    fn uncertainty(&self) -> Duration;

    /// Returns once [`now`](Clock::now) has reached `due`, even if the clock jumps in the meantime.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    async fn sleep_until(&self, due: Timestamp);

    /// The wall clock of this machine minus this clock, in microseconds; `None` if they are the same or this clock is not
    /// known well enough.
    fn wall_difference_micros(&self) -> Option<i64> {
        None
    }

    /// Whether `time` has passed even if the estimate has its maximum error.
    fn surely_past(&self, time: Timestamp) -> bool {
        self.now().minus(self.uncertainty()) > time
    }
}

/// An estimate of the Redis server's clock, corrected by every reply.
///
/// A reply with the server time `server_micros` was under way for at most the round trip, so the server's clock is
/// known to half of that. The clock keeps the sample with the shortest round trip. Its error grows with age (quartz
/// drifts up to 50 us a second, counted as 100), until a new sample is as good. A sample that contradicts it means that
/// the server's clock was set; the new sample then replaces it at once.
pub struct RedisClock {
    zero: Instant,
    sample: watch::Sender<Sample>,
}

/// Smaller corrections of the server's clock are no steps.
const MIN_STEP_MICROS: i64 = 1_000_000;

/// The server's clock was set: what it showed would have been `before`, and was `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep {
    /// The time by the former clock.
    pub before: Timestamp,
    /// The time by the new clock.
    pub after: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Server time minus time since `zero`, in microseconds.
    offset: i64,
    /// Half the round trip, in microseconds.
    error: i64,
    /// Time of the sample since `zero`, in microseconds.
    taken: i64,
}

impl Sample {
    /// The error of this sample at `at`, including a drift of 100 us a second.
    fn error_at(&self, at: i64) -> i64 {
        self.error.saturating_add((at - self.taken).max(0) / 10_000)
    }
}

impl RedisClock {
    /// A clock that uses the wall clock until the first reply is [observed](Self::observe).
    #[must_use]
    pub fn new() -> RedisClock {
        let sample = Sample { offset: wall_micros(), error: i64::from(u32::MAX) * 1000, taken: 0 };
        RedisClock { zero: Instant::now(), sample: watch::Sender::new(sample) }
    }

    /// Adds a sample: the call was sent at `sent`, answered by `received`, and its reply contained the server's time in
    /// microseconds. Returns a step if the server's clock was set by a second or
    /// more.
    pub fn observe(&self, sent: Instant, received: Instant, server_micros: i64) -> Option<ClockStep> {
        let mut step = None;
        let (sent, received) = (self.micros(sent), self.micros(received));
        let fresh =
            Sample { offset: server_micros - (sent + received) / 2, error: (received - sent) / 2 + 1, taken: received };
        self.sample.send_if_modified(|kept| {
            let known = kept.error_at(received);
            let by = (fresh.offset - kept.offset).abs();
            let jumped = by > known + fresh.error;
            let better = fresh.error <= known;
            if !(jumped || better) {
                return false;
            }
            // Before the first sample there was only the wall clock.
            if jumped && by >= MIN_STEP_MICROS && kept.taken > 0 {
                let at = |offset: i64| Timestamp((received + offset).div_euclid(1000));
                step = Some(ClockStep { before: at(kept.offset), after: at(fresh.offset) });
            }
            *kept = fresh;
            // Sleepers only need to wake up for a change that they could notice.
            jumped
        });
        step
    }

    /// The estimated server time at a local moment, in microseconds.
    #[must_use]
    pub fn micros_at(&self, at: Instant) -> i64 {
        self.micros(at).saturating_add(self.sample.borrow().offset)
    }

    fn micros(&self, at: Instant) -> i64 {
        i64::try_from(at.saturating_duration_since(self.zero).as_micros()).unwrap_or(i64::MAX)
    }
}

impl Default for RedisClock {
    fn default() -> Self {
        RedisClock::new()
    }
}

#[async_trait]
impl Clock for RedisClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.micros_at(Instant::now()).div_euclid(1000))
    }

    fn uncertainty(&self) -> Duration {
        let error = self.sample.borrow().error_at(self.micros(Instant::now()));
        Duration::from_micros(u64::try_from(error).unwrap_or(0))
    }

    fn wall_difference_micros(&self) -> Option<i64> {
        let taken = self.sample.borrow().taken;
        let is_known = taken > 0 && self.uncertainty() < Duration::from_secs(1);
        is_known.then(|| wall_micros() - self.micros_at(Instant::now()))
    }

    async fn sleep_until(&self, due: Timestamp) {
        let mut changes = self.sample.subscribe();
        loop {
            let offset = changes.borrow_and_update().offset;
            let left = due.0.saturating_mul(1000) - offset - self.micros(Instant::now());
            let Ok(left @ 1..) = u64::try_from(left) else { return };
            tokio::select! {
                () = sharp::sleep_towards(Duration::from_micros(left)) => {}
                _ = changes.changed() => {}
            }
        }
    }
}

/// The clock of this process, for timelines in its memory: the wall clock at the start, monotonic afterwards.
pub struct LocalClock {
    zero: Instant,
    start_micros: i64,
}

impl LocalClock {
    /// A clock that starts at the wall clock's time and never jumps.
    #[must_use]
    pub fn new() -> LocalClock {
        LocalClock { zero: Instant::now(), start_micros: wall_micros() }
    }
}

impl Default for LocalClock {
    fn default() -> Self {
        LocalClock::new()
    }
}

#[async_trait]
impl Clock for LocalClock {
    fn now(&self) -> Timestamp {
        let micros = i64::try_from(self.zero.elapsed().as_micros()).unwrap_or(i64::MAX);
        Timestamp(self.start_micros.saturating_add(micros).div_euclid(1000))
    }

    fn uncertainty(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep_until(&self, due: Timestamp) {
        loop {
            let now =
                self.start_micros.saturating_add(i64::try_from(self.zero.elapsed().as_micros()).unwrap_or(i64::MAX));
            let Ok(left @ 1..) = u64::try_from(due.0.saturating_mul(1000) - now) else { return };
            sharp::sleep_towards(Duration::from_micros(left)).await;
        }
    }
}

/// A clock that stands still until a test moves it.
pub struct ManualClock {
    now: watch::Sender<Timestamp>,
}

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> ManualClock {
        ManualClock { now: watch::Sender::new(now) }
    }

    /// Moves the clock forward by `span` and wakes everything that waits for a time in between.
    pub fn advance(&self, span: Duration) {
        self.now.send_modify(|now| *now = now.plus(span));
    }

    /// Sets the clock, forward or back.
    pub fn set(&self, now: Timestamp) {
        self.now.send_replace(now);
    }
}

#[async_trait]
impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn uncertainty(&self) -> Duration {
        Duration::ZERO
    }

    async fn sleep_until(&self, due: Timestamp) {
        let mut changes = self.now.subscribe();
        while *changes.borrow_and_update() < due {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

/// The wall clock in microseconds: the estimate before the first reply of Redis, and the start of [`LocalClock`].
#[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock; RedisClock replaces the guess")]
fn wall_micros() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A clock with one sample: round trip 2 ms, server time `server` ms.
    async fn observed(server: i64) -> RedisClock {
        let clock = RedisClock::new();
        tokio::time::advance(Duration::from_secs(10)).await;
        assert_eq!(observe(&clock, 2, server), None, "the first sample is no step");
        clock
    }

    /// Adds a reply to a call that was sent `round_trip` ms ago.
    fn observe(clock: &RedisClock, round_trip: u64, server: i64) -> Option<ClockStep> {
        let received = Instant::now();
        clock.observe(received - Duration::from_millis(round_trip), received, server * 1000)
    }

    #[tokio::test(start_paused = true)]
    async fn the_reply_with_the_shortest_round_trip_sets_the_clock() {
        let clock = observed(5_000_000).await;
        assert_eq!(clock.now().as_millis(), 5_000_001, "half of the round trip is added");
        // Within the error of such a slow reply, 5 000 001 is no contradiction.
        observe(&clock, 400, 5_000_000);
        assert_eq!(clock.now().as_millis(), 5_000_001);
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(clock.now().as_millis(), 5_005_001, "it goes on by itself");
    }

    #[tokio::test(start_paused = true)]
    async fn the_difference_to_the_wall_clock_is_known_after_the_first_reply() {
        assert_eq!(RedisClock::new().wall_difference_micros(), None);
        let wall = wall_micros() / 1000;
        let clock = observed(wall + 3 * 3_600_000).await;
        let difference = clock.wall_difference_micros().expect("a difference");
        assert!((difference + 3 * 3_600_000_000).abs() < 1_000_000, "{difference}");
        observe(&clock, 4000, wall);
        assert_eq!(clock.wall_difference_micros(), None, "the reply was under way for too long");
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_the_server_clock_is_followed_at_once() {
        for set in [5_000_000 - 3_600_000, 5_000_000 + 3_600_000] {
            let clock = observed(5_000_000).await;
            let step = observe(&clock, 400, set);
            let (before, after) = (Timestamp(5_000_001), Timestamp(set + 200));
            assert_eq!(step, Some(ClockStep { before, after }));
            assert_eq!(clock.now().as_millis(), set + 200, "however slow the reply");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sleepers_wake_when_the_servers_clock_is_set_past_their_due() {
        let clock = observed(5_000_000).await;
        let due = Timestamp::from_millis(5_000_000 + 3_000_000);
        let before = Instant::now();
        tokio::join!(clock.sleep_until(due), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            observe(&clock, 2, 5_000_000 + 3_600_000);
        });
        assert_eq!(before.elapsed(), Duration::from_secs(1));
    }
}
