//! Limits the unanswered messages of a sink and of each destination, so that a client library holds only a moment's
//! work and a destination that never answers does not block the others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as WindowTurns, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Permits for messages under way, in units of some bytes. Each message takes at least one unit.
pub(crate) struct Window {
    whole: Arc<Semaphore>,
    destinations: Mutex<HashMap<String, Weak<DestinationWindow>>>,
    unit: usize,
    share_units: usize,
}

/// A publish with at most this many messages does not wait for its turn: it mixes little, and behind a backlog it would
/// wait for whole batches.
const MAX_FEW_MESSAGES: usize = 32;

/// The permits that a message holds until this is dropped, in the share of its destination and in the whole window.
pub(crate) struct WindowPermit {
    _own: OwnedSemaphorePermit,
    _whole: OwnedSemaphorePermit,
    /// Keeps the share of the destination alive as long as a part of it is in use.
    _destination: Arc<DestinationWindow>,
}

/// The share of one destination over all publishes: a quarter of the window.
struct DestinationWindow {
    units: Arc<Semaphore>,
    /// Held by the publish whose messages are handed over.
    turns: Arc<WindowTurns<()>>,
}

/// Access of one publish to the share of its destination. Publishes with more than [`MAX_FEW_MESSAGES`] hand over their
/// messages one publish after the other. If they were mixed, all would be answered late and at about the same time. The
/// turn begins with the first message and ends when this is dropped.
pub(crate) struct WindowShare {
    destination: Arc<DestinationWindow>,
    takes_turns: bool,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Window {
    /// A window of `units` units of `unit` bytes.
    pub(crate) fn new(units: usize, unit: usize) -> Window {
        let whole = Arc::new(Semaphore::new(units));
        Window { whole, destinations: Mutex::default(), unit, share_units: units / 4 }
    }

    /// The share of a destination for one publish of `messages` messages.
    pub(crate) fn share(&self, destination: &str, messages: usize) -> WindowShare {
        WindowShare { destination: self.destination(destination), takes_turns: messages > MAX_FEW_MESSAGES, turn: None }
    }

    fn destination(&self, destination: &str) -> Arc<DestinationWindow> {
        let mut destinations = self.destinations.lock();
        if let Some(destination) = destinations.get(destination).and_then(Weak::upgrade) {
            return destination;
        }
        // Remove unused destinations before the map grows.
        if destinations.len() == destinations.capacity() {
            destinations.retain(|_, destination| destination.strong_count() > 0);
        }
        let new =
            Arc::new(DestinationWindow { units: Arc::new(Semaphore::new(self.share_units)), turns: Arc::default() });
        destinations.insert(destination.to_owned(), Arc::downgrade(&new));
        new
    }

    /// Waits for the turn of this publish, then for permits for a message of this size.
    pub(crate) async fn acquire(&self, share: &mut WindowShare, bytes: usize) -> WindowPermit {
        let units = bytes.div_ceil(self.unit).clamp(1, self.share_units);
        let units = u32::try_from(units).expect("at most the window");
        let acquire = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_many_owned(units);
        if share.takes_turns && share.turn.is_none() {
            share.turn = Some(Arc::clone(&share.destination.turns).lock_owned().await);
        }
        let own = acquire(&share.destination.units).await.expect("the window is never closed");
        let whole = acquire(&self.whole).await.expect("the window is never closed");
        WindowPermit { _own: own, _whole: whole, _destination: Arc::clone(&share.destination) }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_destination_uses_at_most_a_quarter_of_the_window() {
        let window = Window::new(16, 100);
        let (mut a, mut b) = (window.share("a", 1), window.share("b", 1));
        let large = window.acquire(&mut a, 1_000_000).now_or_never().expect("permits for what takes all that one may");
        assert!(window.acquire(&mut a, 1).now_or_never().is_none(), "its share is used up");
        drop(a);
        let mut a = window.share("a", 1);
        assert!(
            window.acquire(&mut a, 1).now_or_never().is_none(),
            "and stays so although the call has handed over all"
        );
        let others: Vec<WindowPermit> = (0..4).filter_map(|_| window.acquire(&mut b, 1).now_or_never()).collect();
        assert_eq!(others.len(), 4);
        drop(large);
        assert!(window.acquire(&mut a, 400).now_or_never().is_some());
    }

    #[test]
    fn large_calls_hand_over_their_messages_one_call_at_a_time() {
        let window = Window::new(16, 100);
        let (mut first, mut second) =
            (window.share("a", MAX_FEW_MESSAGES + 1), window.share("a", MAX_FEW_MESSAGES + 1));
        let permit = window.acquire(&mut first, 1).now_or_never().expect("it is the first");
        assert!(window.acquire(&mut second, 1).now_or_never().is_none(), "it is another's turn");
        let mut few = window.share("a", MAX_FEW_MESSAGES);
        assert!(window.acquire(&mut few, 1).now_or_never().is_some(), "few need none");
        // Its messages are still under way.
        drop(first);
        assert!(window.acquire(&mut second, 1).now_or_never().is_some());
        drop(permit);
    }
}
