//! What may be unanswered at once, of a whole sink and of one destination: what keeps a client library from holding more
//! than a moment's work, and one destination that never answers from holding up the others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{Mutex as WindowTurns, OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

/// Room for messages that are under way, in units of some bytes; each message takes one unit at least.
pub(crate) struct Window {
    whole: Arc<Semaphore>,
    destinations: Mutex<HashMap<String, Weak<Destination>>>,
    unit: usize,
    share_units: usize,
}

/// A call of no more messages does not wait for its turn: it mixes little, and those behind a backlog would wait for whole calls.
const FEW: usize = 32;

/// What a message takes of the window until it is dropped: of its destination's share, and of the whole.
pub(crate) struct WindowRoom {
    _own: OwnedSemaphorePermit,
    _whole: OwnedSemaphorePermit,
    /// Its share is the same one as long as anything of it is taken.
    _destination: Arc<Destination>,
}

/// What one destination can take of the window, over all calls: a quarter.
struct Destination {
    units: Arc<Semaphore>,
    /// Whose messages are handed over.
    turns: Arc<WindowTurns<()>>,
}

/// A call's part of a destination's share. Calls hand over one after another: were their messages mixed, all would be
/// answered at about the same time, late, and none could be done with early. The turn is taken with the first message and ends
/// when this is dropped.
pub(crate) struct WindowShare {
    destination: Arc<Destination>,
    takes_turns: bool,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Window {
    /// A window of so many units of so many bytes.
    pub(crate) fn new(units: usize, unit: usize) -> Window {
        let whole = Arc::new(Semaphore::new(units));
        Window { whole, destinations: Mutex::default(), unit, share_units: units / 4 }
    }

    /// The share of a destination, for one call of up to so many messages.
    pub(crate) fn share(&self, destination: &str, messages: usize) -> WindowShare {
        WindowShare { destination: self.destination(destination), takes_turns: messages > FEW, turn: None }
    }

    fn destination(&self, destination: &str) -> Arc<Destination> {
        let mut destinations = self.destinations.lock();
        if let Some(destination) = destinations.get(destination).and_then(Weak::upgrade) {
            return destination;
        }
        // Those that nobody holds go before there would be room for more.
        if destinations.len() == destinations.capacity() {
            destinations.retain(|_, destination| destination.strong_count() > 0);
        }
        let new = Arc::new(Destination { units: Arc::new(Semaphore::new(self.share_units)), turns: Arc::default() });
        destinations.insert(destination.to_owned(), Arc::downgrade(&new));
        new
    }

    /// Waits for the call's turn, then for room for a message of so many bytes.
    pub(crate) async fn room(&self, share: &mut WindowShare, bytes: usize) -> WindowRoom {
        let units = bytes.div_ceil(self.unit).clamp(1, self.share_units);
        let units = u32::try_from(units).expect("at most the window");
        let acquire = |semaphore: &Arc<Semaphore>| Arc::clone(semaphore).acquire_many_owned(units);
        if share.takes_turns && share.turn.is_none() {
            share.turn = Some(Arc::clone(&share.destination.turns).lock_owned().await);
        }
        let own = acquire(&share.destination.units).await.expect("the window is never closed");
        let whole = acquire(&self.whole).await.expect("the window is never closed");
        WindowRoom { _own: own, _whole: whole, _destination: Arc::clone(&share.destination) }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn a_destination_has_a_quarter_and_leaves_the_rest_to_the_others() {
        let window = Window::new(16, 100);
        let (mut a, mut b) = (window.share("a", 1), window.share("b", 1));
        let large = window.room(&mut a, 1_000_000).now_or_never().expect("room for what takes all that one may");
        assert!(window.room(&mut a, 1).now_or_never().is_none(), "its share is used up");
        drop(a);
        let mut a = window.share("a", 1);
        assert!(window.room(&mut a, 1).now_or_never().is_none(), "and stays so although the call has handed over all");
        let others: Vec<WindowRoom> = (0..4).filter_map(|_| window.room(&mut b, 1).now_or_never()).collect();
        assert_eq!(others.len(), 4);
        drop(large);
        assert!(window.room(&mut a, 400).now_or_never().is_some());
    }

    #[test]
    fn calls_hand_over_one_after_another() {
        let window = Window::new(16, 100);
        let (mut first, mut second) = (window.share("a", FEW + 1), window.share("a", FEW + 1));
        let room = window.room(&mut first, 1).now_or_never().expect("it is the first");
        assert!(window.room(&mut second, 1).now_or_never().is_none(), "it is another's turn");
        let mut few = window.share("a", FEW);
        assert!(window.room(&mut few, 1).now_or_never().is_some(), "few need none");
        // What it has handed over is still under way.
        drop(first);
        assert!(window.room(&mut second, 1).now_or_never().is_some());
        drop(room);
    }
}
