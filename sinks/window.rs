//! What may be unanswered at once, of a whole sink and of one destination: what keeps a client library from holding more
//! than a moment's work, and one destination that never answers from holding up the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for messages that are under way, in units of some bytes; each message takes one unit at least.
pub(crate) struct Window {
    whole: Arc<Semaphore>,
    shares: Mutex<HashMap<String, Weak<Semaphore>>>,
    unit: usize,
    share_units: usize,
}

/// What a message takes of the window until it is dropped: of its destination's share, and of the whole.
pub(crate) struct Room {
    _own: OwnedSemaphorePermit,
    _whole: OwnedSemaphorePermit,
}

/// The part of the window that one destination can take, over all calls: a quarter.
pub(crate) struct Share(Arc<Semaphore>);

impl Window {
    /// A window of so many units of so many bytes.
    pub(crate) fn new(units: usize, unit: usize) -> Window {
        let whole = Arc::new(Semaphore::new(units));
        Window { whole, shares: Mutex::default(), unit, share_units: units / 4 }
    }

    /// The share of a destination.
    pub(crate) fn share(&self, destination: &str) -> Share {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(destination).and_then(Weak::upgrade) {
            return Share(share);
        }
        // Those that nobody holds go before there would be room for more.
        if shares.len() == shares.capacity() {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(self.share_units));
        shares.insert(destination.to_owned(), Arc::downgrade(&share));
        Share(share)
    }

    /// Waits for room for a message of so many bytes.
    pub(crate) async fn room(&self, share: &Share, bytes: usize) -> Room {
        let units = bytes.div_ceil(self.unit).clamp(1, self.share_units);
        let units = u32::try_from(units).expect("at most the window");
        let acquire = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_many_owned(units);
        let own = acquire(&share.0).await.expect("the window is never closed");
        let whole = acquire(&self.whole).await.expect("the window is never closed");
        Room { _own: own, _whole: whole }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_destination_has_a_quarter_and_leaves_the_rest_to_the_others() {
        let window = Window::new(16, 100);
        let (a, b) = (window.share("a"), window.share("b"));
        let large = window.room(&a, 1_000_000).now_or_never().expect("room for what takes all that one may");
        assert!(window.room(&window.share("a"), 1).now_or_never().is_none(), "its share is used up");
        let others: Vec<Room> = (0..4).filter_map(|_| window.room(&b, 1).now_or_never()).collect();
        assert_eq!(others.len(), 4);
        drop(large);
        assert!(window.room(&a, 400).now_or_never().is_some());
    }
}
