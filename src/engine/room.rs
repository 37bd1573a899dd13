//! Bounds what is in flight, in occurrences and bytes: one room per lane and one per sink, so that no slow sink takes all.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A claim waits until this many KiB are free, rather than take a handful of records at a time.
const LEAST_KIB: u32 = 256;

/// What may be in flight at once.
pub(super) struct Room {
    occurrences: Arc<Semaphore>,
    kib: Arc<Semaphore>,
}

/// A claim's share of a room; what is left of it is free again when it is dropped.
pub(super) struct Share {
    occurrences: OwnedSemaphorePermit,
    kib: OwnedSemaphorePermit,
}

impl Room {
    /// A room for `occurrences` and `bytes`.
    pub(super) fn new(occurrences: usize, bytes: usize) -> Room {
        let kib = (bytes / 1024).clamp(LEAST_KIB as usize, Semaphore::MAX_PERMITS);
        Room {
            occurrences: Arc::new(Semaphore::new(occurrences.clamp(1, Semaphore::MAX_PERMITS))),
            kib: Arc::new(Semaphore::new(kib)),
        }
    }

    /// Waits until something is free, then takes up to `occurrences` and `bytes` of it. `None` once the room is closed.
    pub(super) async fn take(&self, occurrences: usize, bytes: usize) -> Option<Share> {
        let kib = u32::try_from(bytes / 1024).unwrap_or(u32::MAX).max(LEAST_KIB);
        let occurrences = u32::try_from(occurrences).unwrap_or(u32::MAX).max(1);
        Some(Share {
            occurrences: up_to(&self.occurrences, 1, occurrences).await?,
            kib: up_to(&self.kib, LEAST_KIB, kib).await?,
        })
    }
}

impl Share {
    /// How many occurrences fit.
    pub(super) fn occurrences(&self) -> usize {
        self.occurrences.num_permits()
    }

    /// How many bytes fit.
    pub(super) fn bytes(&self) -> usize {
        self.kib.num_permits() * 1024
    }

    /// Keeps only what `occurrences` of `bytes` need. A claim's first record is taken whatever its size, so it may
    /// need more than was free; then it keeps what it has.
    pub(super) fn shrink_to(&mut self, occurrences: usize, bytes: usize) {
        let spare = self.occurrences.num_permits().saturating_sub(occurrences);
        drop(self.occurrences.split(spare));
        let spare = self.kib.num_permits().saturating_sub(bytes.div_ceil(1024));
        drop(self.kib.split(spare));
    }
}

/// Waits for `least` permits and takes more, up to `most`, as far as they are free.
async fn up_to(semaphore: &Arc<Semaphore>, least: u32, most: u32) -> Option<OwnedSemaphorePermit> {
    let mut permit = Arc::clone(semaphore).acquire_many_owned(least).await.ok()?;
    let free = u32::try_from(semaphore.available_permits()).unwrap_or(u32::MAX).min(most.saturating_sub(least));
    if let Ok(more) = Arc::clone(semaphore).try_acquire_many_owned(free) {
        permit.merge(more);
    }
    Some(permit)
}
