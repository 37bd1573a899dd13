//! Limits how much of a lane's room the failing destinations hold with messages that wait for a retry, over all shards.
//!
//! A destination at fault holds at most a quarter of the room, and all failing destinations together hold at most three
//! quarters. So the other destinations always have room, and they show whether the sink still accepts messages. The
//! same limits hold for the room of a sink, so that many lanes with one bad destination each cannot fill it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// A number of occurrences and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    occurrences: usize,
    bytes: usize,
}

/// What failing destinations hold of one room.
pub(super) struct RetryRoom {
    /// The limit of one destination at fault.
    one: Amount,
    /// The limit of all failing destinations together.
    all: Amount,
    taken: Mutex<HeldAmounts>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct HeldAmounts {
    all: Amount,
    by_destination: HashMap<String, Amount>,
}

/// The parts of the lane's and the sink's room that one occurrence holds until this is dropped.
pub(super) struct RetryShare {
    of_lane: ShareOfRoom,
    of_sink: ShareOfRoom,
}

/// The part of one room that one occurrence holds.
struct ShareOfRoom {
    held: Arc<RetryRoom>,
    destination: String,
    bytes: usize,
}

impl Amount {
    /// `n` quarters of a room, but at least one occurrence.
    fn quarters(n: usize, occurrences: usize, bytes: usize) -> Amount {
        Amount { occurrences: (occurrences / 4 * n).max(1), bytes: bytes / 4 * n }
    }

    /// Whether one more fits. The first one fits whatever its size.
    fn admits(self, taken: Amount, bytes: usize) -> bool {
        taken.occurrences == 0 || (taken.occurrences < self.occurrences && taken.bytes + bytes <= self.bytes)
    }

    /// Whether the limit is respected. A single occurrence always is.
    fn covers(self, taken: Amount) -> bool {
        taken.occurrences <= 1 || (taken.occurrences <= self.occurrences && taken.bytes <= self.bytes)
    }

    fn add(&mut self, bytes: usize) {
        self.occurrences += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.occurrences = self.occurrences.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

impl RetryRoom {
    /// An empty account of a room of this size.
    pub(super) fn new(occurrences: usize, bytes: usize) -> Arc<RetryRoom> {
        let (one, all) = (Amount::quarters(1, occurrences, bytes), Amount::quarters(3, occurrences, bytes));
        Arc::new(RetryRoom { one, all, taken: Mutex::default() })
    }

    /// Takes a part of one room for one occurrence, if it fits.
    fn take(self: &Arc<RetryRoom>, destination: &str, bytes: usize, at_fault: bool) -> Option<ShareOfRoom> {
        let mut taken = self.taken.lock();
        let own = taken.by_destination.get(destination).copied().unwrap_or_default();
        if !self.all.admits(taken.all, bytes) || (at_fault && !self.one.admits(own, bytes)) {
            return None;
        }
        taken.all.add(bytes);
        match taken.by_destination.get_mut(destination) {
            Some(own) => own.add(bytes),
            None => taken.by_destination.entry(destination.to_owned()).or_default().add(bytes),
        }
        Some(ShareOfRoom { held: Arc::clone(self), destination: destination.to_owned(), bytes })
    }
}

impl RetryShare {
    /// Takes parts of both rooms for one occurrence, if it fits in both.
    pub(super) fn take(
        lane: &Arc<RetryRoom>,
        sink: &Arc<RetryRoom>,
        destination: &str,
        bytes: usize,
        at_fault: bool,
    ) -> Option<RetryShare> {
        let of_sink = sink.take(destination, bytes, at_fault)?;
        let of_lane = lane.take(destination, bytes, at_fault)?;
        Some(RetryShare { of_lane, of_sink })
    }

    /// Whether the destination, which is at fault, holds no more than its limit. It may hold more if it was only
    /// failing before.
    pub(super) fn is_within(&self) -> bool {
        self.of_lane.is_within() && self.of_sink.is_within()
    }
}

impl ShareOfRoom {
    fn is_within(&self) -> bool {
        let taken = self.held.taken.lock();
        taken.by_destination.get(&self.destination).is_none_or(|own| self.held.one.covers(*own))
    }
}

impl Drop for ShareOfRoom {
    fn drop(&mut self) {
        let mut taken = self.held.taken.lock();
        taken.all.remove(self.bytes);
        if let Some(own) = taken.by_destination.get_mut(&self.destination) {
            own.remove(self.bytes);
            if own.occurrences == 0 {
                taken.by_destination.remove(&self.destination);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(held: &Arc<RetryRoom>, destination: &str, count: usize, bytes: usize, at_fault: bool) -> Vec<ShareOfRoom> {
        (0..count).map_while(|_| held.take(destination, bytes, at_fault)).collect()
    }

    #[test]
    fn one_destination_at_fault_holds_a_quarter_and_all_that_fail_three() {
        let held = RetryRoom::new(100, 1 << 20);
        let a = take(&held, "a", 100, 1, true);
        assert_eq!(a.len(), 25);
        let b = take(&held, "b", 100, 1, true);
        assert_eq!(b.len(), 25, "each has its own quarter");
        let c = take(&held, "c", 100, 1, false);
        assert_eq!(c.len(), 25, "three quarters are held");
        assert!(held.take("d", 1, true).is_none(), "the last is for those that do not fail");
        drop(a);
        assert_eq!(take(&held, "d", 100, 1, false).len(), 25);
        drop((b, c));
        assert_eq!(take(&held, "c", 100, 1, true).len(), 25);
        assert_eq!(*held.taken.lock(), HeldAmounts::default(), "nothing is left behind");
    }

    #[test]
    fn many_lanes_leave_something_of_their_sinks_room() {
        let (lanes, sink) = ([(); 8].map(|()| RetryRoom::new(100, 1 << 20)), RetryRoom::new(200, 2 << 20));
        let take = |lane: &Arc<RetryRoom>, destination: &str| RetryShare::take(lane, &sink, destination, 1, true);
        let mut holds = Vec::new();
        for (n, lane) in lanes.iter().enumerate() {
            holds.extend(std::iter::from_fn(|| take(lane, &format!("bad{n}"))));
        }
        assert_eq!(holds.len(), 150, "three quarters of the sink's room");
        assert!(holds.iter().all(RetryShare::is_within));
        let seventh = lanes[6].taken.lock().all;
        assert_eq!(seventh, Amount::default(), "what the sink has no room for, its lane does not hold");
        drop(holds);
        assert_eq!(*sink.taken.lock(), HeldAmounts::default(), "nothing is left behind");
    }

    #[test]
    fn bytes_count_too_and_the_first_is_let_in_whatever_its_size() {
        let held = RetryRoom::new(100, 4000);
        let large = held.take("a", 10_000, true).expect("the first");
        assert!(held.take("a", 1, true).is_none() && held.take("b", 1, true).is_none());
        assert!(large.is_within(), "one is never too much");
        drop(large);
        assert_eq!(take(&held, "a", 100, 400, true).len(), 2);
    }

    #[test]
    fn one_that_turns_out_at_fault_holds_too_much_until_enough_have_gone() {
        let held = RetryRoom::new(100, 1 << 20);
        let mut failing = take(&held, "a", 100, 1, false);
        assert_eq!(failing.len(), 75);
        while failing.last().is_some_and(|hold| !hold.is_within()) {
            failing.pop();
        }
        assert_eq!(failing.len(), 25);
    }
}
