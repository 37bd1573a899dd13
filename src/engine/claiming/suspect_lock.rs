//! Lets an instance hold one claim with suspected poison messages at a time. When such a message kills the instance,
//! the crash count of every occurrence in flight goes up; with two suspects at once the innocent one would be blamed
//! too.
//!
//! Claimers queue for the permit, first come first served. Each claimer has one place in the queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::engine::claiming::wake_signal::WakeSignal;

/// After this long another lane may claim suspects too, so that one unanswered publish does not block them all.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the permit is reserved for the next claimer. It may not come, because its lane pauses or its sink is
/// unavailable.
const OFFER_TIMEOUT: Duration = Duration::from_secs(1);

/// The permit, and the claimers that wait for it.
#[derive(Default)]
pub(in crate::engine) struct SuspectLock(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    /// When the permit was taken; `None` if it is free.
    taken: Option<Instant>,
    /// The claimers that wait, by the signals that wake them.
    waiting: VecDeque<Arc<WakeSignal>>,
    /// Since when the permit is reserved for the first of them.
    offered: Option<Instant>,
}

/// A permit to hold suspects. It ends when this is dropped, or after [`PERMIT_TIMEOUT`].
pub(in crate::engine) struct SuspectPermit {
    suspect_lock: Arc<SuspectLock>,
    taken: Instant,
}

impl SuspectLock {
    /// Takes the permit if it is free and this claimer is the first in the queue. Otherwise the claimer waits in the
    /// queue, and `signal` wakes it when it is next. A repeated call keeps its place.
    pub(in crate::engine) fn take(self: &Arc<SuspectLock>, signal: &Arc<WakeSignal>) -> Option<SuspectPermit> {
        let (mut queue, now) = (self.0.lock(), Instant::now());
        queue.join(signal);
        if !queue.is_next(signal, now) {
            return None;
        }
        queue.leave(signal);
        queue.taken = Some(now);
        Some(SuspectPermit { suspect_lock: Arc::clone(self), taken: now })
    }

    /// Joins the queue and returns at once: whether [`take`](SuspectLock::take) would grant the permit now.
    pub(in crate::engine) fn join(&self, signal: &Arc<WakeSignal>) -> bool {
        let mut queue = self.0.lock();
        queue.join(signal);
        queue.is_next(signal, Instant::now())
    }

    /// Leaves the queue, because the claimer has seen no suspects, or because its lane is paused.
    pub(in crate::engine) fn leave(&self, signal: &Arc<WakeSignal>) {
        let mut queue = self.0.lock();
        queue.leave(signal);
        queue.offer(Instant::now());
    }
}

impl Queue {
    fn join(&mut self, signal: &Arc<WakeSignal>) {
        if !self.waiting.iter().any(|one| Arc::ptr_eq(one, signal)) {
            self.waiting.push_back(Arc::clone(signal));
        }
    }

    fn leave(&mut self, signal: &Arc<WakeSignal>) {
        if self.waiting.front().is_some_and(|first| Arc::ptr_eq(first, signal)) {
            self.offered = None;
        }
        self.waiting.retain(|one| !Arc::ptr_eq(one, signal));
    }

    /// Whether this claimer is next for a free permit, which is then reserved for it; otherwise the first in the queue
    /// is woken. If a reservation has timed out, its claimer loses its place in the queue.
    fn is_next(&mut self, signal: &Arc<WakeSignal>, now: Instant) -> bool {
        if self.is_taken(now) {
            return false;
        }
        let late = |offered: Instant| now.duration_since(offered) >= OFFER_TIMEOUT;
        if self.offered.is_some_and(late) && !self.waiting.front().is_some_and(|first| Arc::ptr_eq(first, signal)) {
            self.waiting.pop_front();
            self.offered = None;
        }
        let next = self.waiting.front().is_some_and(|first| Arc::ptr_eq(first, signal));
        if next {
            self.offered.get_or_insert(now);
        } else {
            self.offer(now);
        }
        next
    }

    /// Tells the first in the queue, once, that the permit is free.
    fn offer(&mut self, now: Instant) {
        if self.is_taken(now) || self.offered.is_some() {
            return;
        }
        if let Some(first) = self.waiting.front() {
            self.offered = Some(now);
            first.look();
        }
    }

    fn is_taken(&self, now: Instant) -> bool {
        self.taken.is_some_and(|taken| now.duration_since(taken) < PERMIT_TIMEOUT)
    }
}

impl Drop for SuspectPermit {
    fn drop(&mut self) {
        let mut queue = self.suspect_lock.0.lock();
        // Another claim may have taken the permit after ours timed out.
        if queue.taken == Some(self.taken) {
            queue.taken = None;
            queue.offer(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signals() -> [Arc<WakeSignal>; 3] {
        [(); 3].map(|()| Arc::default())
    }

    #[tokio::test(start_paused = true)]
    async fn the_suspect_lock_has_one_permit_and_a_long_held_one_passes_to_others() {
        let (suspect_lock, [a, b, _]) = (Arc::<SuspectLock>::default(), signals());
        let first = suspect_lock.take(&a).expect("nobody has it");
        assert!(suspect_lock.take(&b).is_none());
        drop(first);
        let long = suspect_lock.take(&b).expect("nobody has it");
        tokio::time::advance(PERMIT_TIMEOUT - Duration::from_millis(1)).await;
        assert!(suspect_lock.take(&a).is_none());
        tokio::time::advance(Duration::from_millis(1)).await;
        let next = suspect_lock.take(&a).expect("it was long enough");
        drop(long);
        assert!(!suspect_lock.join(&b), "a permit that had timed out does not free the permit of another claimer");
        drop(next);
        assert!(suspect_lock.join(&b));
    }

    #[tokio::test(start_paused = true)]
    async fn the_suspect_lock_goes_to_the_first_waiter_and_notifies_only_that_one() {
        let (suspect_lock, [a, b, c]) = (Arc::<SuspectLock>::default(), signals());
        let mut turn = suspect_lock.take(&a);
        assert!(suspect_lock.take(&b).is_none() && suspect_lock.take(&c).is_none() && suspect_lock.take(&b).is_none());
        assert!(suspect_lock.take(&a).is_none(), "it stands behind the others now");
        for next in [&b, &c, &a] {
            drop(turn.take().expect("it is its turn"));
            let notified = [&a, &b, &c].map(|signal| signal.take().is_some());
            assert_eq!(notified, [&a, &b, &c].map(|signal| Arc::ptr_eq(signal, next)), "it alone");
            assert!([&a, &b, &c].iter().all(|one| Arc::ptr_eq(one, next) || !suspect_lock.join(one)));
            turn = suspect_lock.take(next);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_suspect_lock_skips_a_waiter_that_times_out_or_has_left() {
        let (suspect_lock, [a, b, c]) = (Arc::<SuspectLock>::default(), signals());
        let turn = suspect_lock.take(&a);
        assert!(suspect_lock.take(&b).is_none() && suspect_lock.take(&c).is_none());
        drop(turn);
        tokio::time::advance(OFFER_TIMEOUT - Duration::from_millis(1)).await;
        assert!(suspect_lock.take(&c).is_none(), "it is kept");
        tokio::time::advance(Duration::from_millis(1)).await;
        let turn = suspect_lock.take(&c);
        assert!(turn.is_some() && suspect_lock.take(&a).is_none() && suspect_lock.take(&b).is_none());
        suspect_lock.leave(&a);
        drop(turn);
        assert!(b.take().is_some() && suspect_lock.take(&b).is_some());
    }
}
