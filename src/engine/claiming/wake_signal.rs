//! Wakes a claimer because the head of its lane became earlier, or because it should claim now.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::clock::Timestamp;
use crate::engine::instances::OwnRank;

/// Why a claimer has to wake up; one per shard and lane.
#[derive(Default)]
pub(in crate::engine) struct WakeSignal {
    reasons: Mutex<WakeReasons>,
    notify: Notify,
    rank: OwnRank,
}

/// The content of a signal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct WakeReasons {
    /// The earliest due.
    pub(in crate::engine) due: Option<Timestamp>,
    /// Claim now, whatever the head is.
    pub(in crate::engine) look: bool,
    /// Start the next claim at the oldest, because a wake-up may have been missed there.
    pub(in crate::engine) from_oldest: bool,
}

impl WakeSignal {
    /// How soon this instance asks for the due tasks of this lane and shard.
    pub(in crate::engine) fn rank(&self) -> &OwnRank {
        &self.rank
    }

    /// Notes a due. Wakes the claimer only if this due is earlier than the noted one.
    pub(in crate::engine) fn raise(&self, due: Timestamp) {
        let mut reasons = self.reasons.lock();
        if reasons.due.is_none_or(|known| due < known) {
            reasons.due = Some(due);
            self.notify.notify_one();
        }
    }

    /// Tells the claimer to claim now.
    pub(in crate::engine) fn look(&self) {
        self.reasons.lock().look = true;
        self.notify.notify_one();
    }

    /// Tells the claimer to claim now, from the oldest on.
    pub(in crate::engine) fn look_from_oldest(&self) {
        let mut reasons = self.reasons.lock();
        (reasons.look, reasons.from_oldest) = (true, true);
        self.notify.notify_one();
    }

    /// Takes the content, if there is any.
    pub(in crate::engine) fn take(&self) -> Option<WakeReasons> {
        let reasons = std::mem::take(&mut *self.reasons.lock());
        (reasons != WakeReasons::default()).then_some(reasons)
    }

    /// Waits for the next signal.
    pub(in crate::engine) async fn notified(&self) {
        self.notify.notified().await;
    }
}
