//! The timeline's time, asked of Redis, as an interval that it surely lies in.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How much later than its upper bound an answer is taken to be at most: dues are whole ms, rounded down.
const MARGIN: i64 = 2;

/// The server's clock on top of the monotonic one.
pub(super) struct Clock {
    zero: Instant,
    sample: Mutex<Sample>,
}

/// Server micros minus micros since `zero`: at least, at most, as it was known then.
#[derive(Clone, Copy)]
struct Sample {
    low: i64,
    high: i64,
    taken: i64,
}

impl Sample {
    fn width_at(self, now: i64) -> i64 {
        // Clocks drift apart by 100 us a second at most.
        self.high - self.low + (now - self.taken) / 5000
    }
}

impl Clock {
    /// A clock that was told the time once: the call was sent then, and is answered now.
    pub(super) fn new(sent: Instant, server_micros: i64) -> Clock {
        let taken = micros(sent.elapsed());
        Clock { zero: sent, sample: Mutex::new(Sample { low: server_micros - taken, high: server_micros, taken }) }
    }

    /// Takes in another answer.
    pub(super) fn observe(&self, sent: Instant, server_micros: i64) {
        let (sent, now) = (micros(sent - self.zero), micros(self.zero.elapsed()));
        let fresh = Sample { low: server_micros - now, high: server_micros - sent, taken: now };
        let mut kept = self.sample.lock();
        let jumped = fresh.low > kept.high + 1000 || fresh.high < kept.low - 1000;
        if jumped || fresh.high - fresh.low <= kept.width_at(now) {
            *kept = fresh;
        }
    }

    /// About now, in ms: for planning only.
    pub(super) fn now(&self) -> i64 {
        let (sample, now) = self.read();
        (now + i64::midpoint(sample.low, sample.high)).div_euclid(1000)
    }

    /// Not before now, in ms.
    pub(super) fn at_latest(&self) -> i64 {
        let (sample, now) = self.read();
        (now + sample.high + (now - sample.taken) / 10_000).div_euclid(1000) + MARGIN
    }

    /// When it will be `at` ms, about.
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
