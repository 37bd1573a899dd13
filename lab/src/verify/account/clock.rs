//! The timeline's time, read from Redis, as an interval that certainly contains it.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Added to the bounds, because dues are whole ms, rounded down.
const MARGIN: i64 = 2;

/// The server's clock, based on the monotonic clock.
pub(super) struct Clock {
    zero: Instant,
    sample: Mutex<Sample>,
}

/// Lower and upper bound of server time minus time since `zero`, in microseconds, at the time of the sample.
#[derive(Clone, Copy)]
struct Sample {
    low: i64,
    high: i64,
    taken: i64,
}

impl Sample {
    fn width_at(self, now: i64) -> i64 {
        // Clocks drift apart by at most 100 us a second.
        self.high - self.low + (now - self.taken) / 5000
    }
}

impl Clock {
    /// A clock with one sample: the call was sent at `sent` and is answered now.
    pub(super) fn new(sent: Instant, server_micros: i64) -> Clock {
        let taken = micros(sent.elapsed());
        Clock { zero: sent, sample: Mutex::new(Sample { low: server_micros - taken, high: server_micros, taken }) }
    }

    /// Adds a sample.
    pub(super) fn observe(&self, sent: Instant, server_micros: i64) {
        let (sent, now) = (micros(sent - self.zero), micros(self.zero.elapsed()));
        let fresh = Sample { low: server_micros - now, high: server_micros - sent, taken: now };
        let mut kept = self.sample.lock();
        let jumped = fresh.low > kept.high + 1000 || fresh.high < kept.low - 1000;
        if jumped || fresh.high - fresh.low <= kept.width_at(now) {
            *kept = fresh;
        }
    }

    /// Approximate time in ms, for planning only.
    pub(super) fn now(&self) -> i64 {
        let (sample, now) = self.read();
        (now + i64::midpoint(sample.low, sample.high)).div_euclid(1000)
    }

    /// A time in ms that is certainly not in the past.
    pub(super) fn at_latest(&self) -> i64 {
        let (sample, now) = self.read();
        (now + sample.high + (now - sample.taken) / 10_000).div_euclid(1000) + MARGIN
    }

    /// A time in ms that is certainly not in the future.
    pub(super) fn at_earliest(&self) -> i64 {
        let (sample, now) = self.read();
        (now + sample.low - (now - sample.taken) / 10_000).div_euclid(1000) - MARGIN
    }

    /// When it will be `at` ms, approximately.
    pub(super) fn until(&self, at: i64) -> Instant {
        let left = u64::try_from(at - self.now()).unwrap_or(0);
        Instant::now() + Duration::from_millis(left)
    }

    fn read(&self) -> (Sample, i64) {
        (*self.sample.lock(), micros(self.zero.elapsed()))
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
