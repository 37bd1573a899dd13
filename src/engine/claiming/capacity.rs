//! Limits occurrences and bytes in flight, with one capacity per lane and one per sink, so that no slow sink takes all.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

/// A claim waits until this many KiB are free, so that it does not take a few records at a time.
const MIN_FREE_KIB: usize = 256;

/// How long a claim waits for capacity for a full batch, or for a quarter of all capacity if that is less. Many small
/// claims would cost Redis and the sink more calls. A sink with 5000 messages per second frees a full batch in a tenth
/// of a second.
const PLENTY_TIMEOUT: Duration = Duration::from_millis(250);

/// After a wait that did not help, claims skip this wait for this long, because part of the capacity is stuck.
const NO_WAIT_TIME: Duration = Duration::from_secs(1);

/// The wait helped if at least this part of the awaited occurrences is free, here an eighth: the sink is slow but makes
/// progress.
const HELPFUL_DIVISOR: u32 = 8;

/// Capacity for occurrences in flight.
pub(in crate::engine) struct Capacity {
    occurrences: Arc<Semaphore>,
    kib: Arc<Kib>,
    /// One claim waits at a time, so that freed capacity is not split into small parts. Holds the time until which claims
    /// do not wait for plenty.
    no_wait_until: Mutex<Option<Instant>>,
    /// A quarter of the capacity. No claim waits for more, even if it asked for more.
    plenty: u32,
}

/// The capacity that a claim holds. Dropping it frees the capacity that the claim still holds.
pub(in crate::engine) struct CapacityShare {
    occurrences: OwnedSemaphorePermit,
    kib: Arc<Kib>,
    taken: usize,
}

/// Capacity in KiB. The first record of a claim is taken whatever its size, so `taken` may exceed `whole`. Then no
/// claim gets capacity until enough is free again.
struct Kib {
    whole: usize,
    taken: parking_lot::Mutex<usize>,
    freed: Notify,
}

impl Capacity {
    /// Capacity for `occurrences` and `bytes`.
    pub(in crate::engine) fn new(occurrences: usize, bytes: usize) -> Capacity {
        let kib =
            Kib { whole: (bytes / 1024).max(MIN_FREE_KIB), taken: parking_lot::Mutex::default(), freed: Notify::new() };
        Capacity {
            occurrences: Arc::new(Semaphore::new(occurrences.clamp(1, Semaphore::MAX_PERMITS))),
            kib: Arc::new(kib),
            no_wait_until: Mutex::default(),
            plenty: u32::try_from(occurrences / 4).unwrap_or(u32::MAX).max(1),
        }
    }

    /// Waits until some capacity is free, and a little longer for plenty, then takes up to `occurrences` and `bytes`.
    /// Returns `None` once the capacity is closed.
    pub(in crate::engine) async fn take(&self, occurrences: usize, bytes: usize) -> Option<CapacityShare> {
        let occurrences = u32::try_from(occurrences).unwrap_or(u32::MAX).max(1);
        let mut no_wait_until = self.no_wait_until.lock().await;
        let waits = no_wait_until.is_none_or(|until| until <= Instant::now());
        let plenty = up_to(&self.occurrences, occurrences.min(self.plenty), occurrences);
        let found = match timeout(if waits { PLENTY_TIMEOUT } else { Duration::ZERO }, plenty).await {
            Ok(found) => found?,
            Err(_) => {
                let free = u32::try_from(self.occurrences.available_permits()).unwrap_or(u32::MAX);
                if waits && free < occurrences.min(self.plenty).div_ceil(HELPFUL_DIVISOR) {
                    *no_wait_until = Some(Instant::now() + NO_WAIT_TIME);
                }
                up_to(&self.occurrences, 1, occurrences).await?
            }
        };
        let taken = self.kib.take((bytes / 1024).max(MIN_FREE_KIB)).await;
        Some(CapacityShare { occurrences: found, kib: Arc::clone(&self.kib), taken })
    }
}

impl CapacityShare {
    /// Number of occurrences in this share.
    pub(in crate::engine) fn occurrences(&self) -> usize {
        self.occurrences.num_permits()
    }

    /// Number of bytes in this share.
    pub(in crate::engine) fn bytes(&self) -> usize {
        self.taken * 1024
    }

    /// Reduces the share to `occurrences` of `bytes`. If the first record of the claim is larger than the share, the
    /// share grows and the capacity has a debt.
    pub(in crate::engine) fn fit_to(&mut self, occurrences: usize, bytes: usize) {
        let spare = self.occurrences.num_permits().saturating_sub(occurrences);
        drop(self.occurrences.split(spare));
        let needed = bytes.div_ceil(1024);
        self.kib.change(self.taken, needed);
        self.taken = needed;
    }
}

impl Drop for CapacityShare {
    fn drop(&mut self) {
        self.kib.change(self.taken, 0);
    }
}

impl Kib {
    /// Waits until [`MIN_FREE_KIB`] are free, then takes up to `most` KiB. Only one caller may wait at a time.
    async fn take(&self, most: usize) -> usize {
        loop {
            if let Some(taken) = self.try_take(most) {
                return taken;
            }
            self.freed.notified().await;
        }
    }

    fn try_take(&self, most: usize) -> Option<usize> {
        let mut taken = self.taken.lock();
        let free = self.whole.saturating_sub(*taken);
        let found = (free >= MIN_FREE_KIB).then(|| free.min(most))?;
        *taken += found;
        Some(found)
    }

    /// Replaces the amount that a share holds.
    fn change(&self, from: usize, to: usize) {
        let mut taken = self.taken.lock();
        *taken = (*taken + to).saturating_sub(from);
        if to < from {
            self.freed.notify_one();
        }
    }
}

/// Waits for `least` permits, then takes as many free ones as possible, up to `most`.
async fn up_to(semaphore: &Arc<Semaphore>, least: u32, most: u32) -> Option<OwnedSemaphorePermit> {
    let mut permit = Arc::clone(semaphore).acquire_many_owned(least).await.ok()?;
    let free = u32::try_from(semaphore.available_permits()).unwrap_or(u32::MAX).min(most.saturating_sub(least));
    if let Ok(more) = Arc::clone(semaphore).try_acquire_many_owned(free) {
        permit.merge(more);
    }
    Some(permit)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    async fn take(capacity: &Capacity, occurrences: usize) -> CapacityShare {
        capacity.take(occurrences, 1024).await.expect("the capacity is open")
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_waits_briefly_until_its_whole_need_or_a_quarter_of_capacity_is_free() {
        let capacity = Arc::new(Capacity::new(64, 1 << 30));
        let mut held = take(&capacity, 64).await;
        let (other, begun) = (Arc::clone(&capacity), Instant::now());
        let waiting = tokio::spawn(async move { (take(&other, 40).await, begun.elapsed()) });
        tokio::time::sleep(10 * MS).await;
        held.fit_to(49, 0);
        tokio::time::sleep(10 * MS).await;
        assert!(!waiting.is_finished(), "15 are not worth a claim yet");
        held.fit_to(48, 0);
        let (quarter, waited) = waiting.await.expect("it ends");
        assert_eq!((quarter.occurrences(), waited), (16, 20 * MS), "a quarter of the capacity");
        held.fit_to(46, 0);
        for _ in 0..2 {
            let begun = Instant::now();
            let two = take(&capacity, 40).await;
            assert_eq!(
                (two.occurrences(), begun.elapsed()),
                (2, PLENTY_TIMEOUT),
                "what there is after a while: it moves"
            );
        }
        let two = take(&capacity, 2).await;
        held.fit_to(45, 0);
        let begun = Instant::now();
        assert_eq!(
            (take(&capacity, 40).await.occurrences(), begun.elapsed()),
            (1, PLENTY_TIMEOUT),
            "hardly anything moves"
        );
        let begun = Instant::now();
        assert_eq!(
            (take(&capacity, 40).await.occurrences(), begun.elapsed()),
            (1, Duration::ZERO),
            "nobody waits for it"
        );
        tokio::time::sleep(NO_WAIT_TIME).await;
        let begun = Instant::now();
        assert_eq!(
            (take(&capacity, 40).await.occurrences(), begun.elapsed()),
            (1, PLENTY_TIMEOUT),
            "it may move again"
        );
        drop((quarter, two));
    }

    #[tokio::test(start_paused = true)]
    async fn a_record_over_the_free_capacity_is_paid_for_before_other_claims_get_any() {
        const MIB: usize = 1 << 20;
        let capacity = Arc::new(Capacity::new(100, 12 * MIB));
        let mut first = capacity.take(1, 4 * MIB).await.expect("the capacity is open");
        let mut second = capacity.take(1, 8 * MIB).await.expect("the capacity is open");
        assert_eq!((first.bytes(), second.bytes()), (4 * MIB, 8 * MIB));
        first.fit_to(1, 11 * MIB);
        second.fit_to(1, MIB);
        let mut others = [5, 5].map(|_| {
            let capacity = Arc::clone(&capacity);
            tokio::spawn(async move { capacity.take(1, 4 * MIB).await.expect("the capacity is open") })
        });
        tokio::time::sleep(3 * PLENTY_TIMEOUT).await;
        assert!(others.iter().all(|other| !other.is_finished()), "all is taken");
        second.fit_to(1, 20 * MIB);
        first.fit_to(1, MIB);
        tokio::time::sleep(3 * PLENTY_TIMEOUT).await;
        assert!(others.iter().all(|other| !other.is_finished()), "9 MiB are owed");
        drop(second);
        for (other, bytes) in others.iter_mut().zip([4 * MIB, 4 * MIB]) {
            assert_eq!(other.await.expect("it ends").bytes(), bytes);
        }
        drop(first);
        assert_eq!(
            capacity.take(1, 99 * MIB).await.expect("the capacity is open").bytes(),
            12 * MIB,
            "all is paid back"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn claims_wait_in_order_and_a_cancelled_wait_blocks_no_other_claim() {
        let capacity = Arc::new(Capacity::new(4, 1 << 30));
        let held = take(&capacity, 4).await;
        assert!(timeout(10 * MS, take(&capacity, 4)).await.is_err(), "all is taken");
        let waiting = ["a", "b"].map(|_| {
            let capacity = Arc::clone(&capacity);
            tokio::spawn(async move { take(&capacity, 1).await.occurrences() })
        });
        tokio::time::sleep(3 * PLENTY_TIMEOUT).await;
        drop(held);
        for one in waiting {
            assert_eq!(one.await.expect("it ends"), 1);
        }
        assert_eq!(take(&capacity, 9).await.occurrences(), 4, "nothing is left behind");
    }
}
