//! Tells a claimer that its lane's head became earlier, or that it is time to look.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Timestamp;

/// What was told since it was last taken; one per shard and lane.
#[derive(Default)]
pub(super) struct Signal {
    told: Mutex<Told>,
    notify: Notify,
}

/// What a claimer is told between two claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// The earliest due that was told.
    pub(super) due: Option<Timestamp>,
    /// It is time to claim, whatever the head is.
    pub(super) look: bool,
    /// The next claim begins at the oldest: something may stand there that nobody told of.
    pub(super) anew: bool,
}

impl Signal {
    /// Tells of a due; wakes the claimer if it is earlier than what was told before.
    pub(super) fn raise(&self, due: Timestamp) {
        let mut told = self.told.lock();
        if told.due.is_none_or(|known| due < known) {
            told.due = Some(due);
            self.notify.notify_one();
        }
    }

    /// Tells that it is time to claim.
    pub(super) fn look(&self) {
        self.told.lock().look = true;
        self.notify.notify_one();
    }

    /// Tells that it is time to claim from the oldest on.
    pub(super) fn look_anew(&self) {
        let mut told = self.told.lock();
        (told.look, told.anew) = (true, true);
        self.notify.notify_one();
    }

    /// Takes what was told, if anything was: what comes from now on is new.
    pub(super) fn take(&self) -> Option<Told> {
        let told = std::mem::take(&mut *self.told.lock());
        (told != Told::default()).then_some(told)
    }

    /// Returns once something was told since the last call.
    pub(super) async fn told(&self) {
        self.notify.notified().await;
    }
}
