//! Tells a claimer that its lane's head became earlier.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::clock::Timestamp;

/// The earliest due that was told since it was last taken; one per shard and lane.
#[derive(Default)]
pub(super) struct Signal {
    earliest: Mutex<Option<Timestamp>>,
    notify: Notify,
}

impl Signal {
    /// Tells of a due; wakes the claimer if it is earlier than what was told before.
    pub(super) fn raise(&self, due: Timestamp) {
        let mut earliest = self.earliest.lock().unwrap_or_else(PoisonError::into_inner);
        if earliest.is_none_or(|known| due < known) {
            *earliest = Some(due);
            self.notify.notify_one();
        }
    }

    /// Takes what was told: what comes from now on is new.
    pub(super) fn take(&self) -> Option<Timestamp> {
        self.earliest.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns once something was told since the last call.
    pub(super) async fn told(&self) {
        self.notify.notified().await;
    }
}
