//! How long a call can still take effect: the time after which Redis refuses it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::{Clock, Timestamp};

/// Added to each wait for `not_after`, because scripts and timestamps round times down to milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// Upper bound of the extra wait when the estimate of the server's clock is uncertain.
const DOUBT_MAX: Duration = Duration::from_secs(5);

/// A call is sent at least this long before its `not_after`, so that its reply can arrive in time.
const REPLY_TIME: Duration = Duration::from_millis(100);

/// When a call may be sent for the last time.
pub(super) fn last_send(clock: &dyn Clock, not_after: Timestamp) -> Instant {
    Instant::now() + not_after.plus(ROUNDING).since(clock.now()).saturating_sub(REPLY_TIME)
}

/// Waits until a call can no longer take effect.
pub(super) struct CallExpiry {
    clock: Arc<dyn Clock>,
    not_after: Timestamp,
    // Ends the wait in any case, even if the estimate of the server's clock is wrong.
    bound: Instant,
}

impl CallExpiry {
    pub(super) fn new(clock: Arc<dyn Clock>, not_after: Timestamp) -> CallExpiry {
        let not_after = not_after.plus(ROUNDING);
        let doubt = clock.uncertainty().saturating_mul(2).min(DOUBT_MAX) + Duration::from_secs(1);
        let bound = Instant::now() + not_after.since(clock.now()) + doubt;
        CallExpiry { clock, not_after, bound }
    }

    /// Waits until `not_after` has passed on the server's clock.
    pub(super) async fn surely_past(&self) {
        while !self.clock.surely_past(self.not_after) {
            let target = self.not_after.plus(self.clock.uncertainty()).plus(ROUNDING);
            tokio::select! {
                () = tokio::time::sleep_until(self.bound) => return,
                // The pause prevents a busy loop if the estimate became less certain during the wait.
                () = async { tokio::join!(self.clock.sleep_until(target), tokio::time::sleep(ROUNDING)); } => {}
            }
        }
    }
}
