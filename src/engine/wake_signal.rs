//! Tells a claimer that the head of its lane became earlier, or that it should look.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Timestamp;

/// What a claimer was told since it last took it; one per shard and lane.
#[derive(Default)]
pub(super) struct WakeSignal {
    told: Mutex<WakeReasons>,
    notify: Notify,
}

/// The content of a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WakeReasons {
    /// The earliest due.
    pub(super) due: Option<Timestamp>,
    /// Claim now, whatever the head is.
    pub(super) look: bool,
    /// Start the next claim at the oldest, because a wake-up may have been missed there.
    pub(super) anew: bool,
}

impl WakeSignal {
    /// Tells a due, and wakes the claimer if it is earlier than the last one.
    pub(super) fn raise(&self, due: Timestamp) {
        let mut told = self.told.lock();
        if told.due.is_none_or(|known| due < known) {
            told.due = Some(due);
            self.notify.notify_one();
        }
    }

    /// Tells the claimer to claim now.
    pub(super) fn look(&self) {
        self.told.lock().look = true;
        self.notify.notify_one();
    }

    /// Tells the claimer to claim now, from the oldest on.
    pub(super) fn look_anew(&self) {
        let mut told = self.told.lock();
        (told.look, told.anew) = (true, true);
        self.notify.notify_one();
    }

    /// Takes the content, if there is any.
    pub(super) fn take(&self) -> Option<WakeReasons> {
        let told = std::mem::take(&mut *self.told.lock());
        (told != WakeReasons::default()).then_some(told)
    }

    /// Waits for the next signal.
    pub(super) async fn told(&self) {
        self.notify.notified().await;
    }
}
