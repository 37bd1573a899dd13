//! Limits how much of a lane's capacity is held by messages of failing destinations that wait for a retry. The limits
//! count all shards together.
//!
//! All destinations at fault together hold at most a quarter of the capacity, and all failing destinations together at
//! most three quarters. The other destinations always have some capacity left, and their messages show whether the sink
//! still accepts any. A destination that accepted messages before may always hold one occurrence, so that its recovery
//! is noticed even if many others are at fault. While new destinations are at fault, first tries of other new
//! destinations have a separate quarter. So first tries and retries do not block each other. The same limits apply to
//! the capacity of a sink; otherwise many lanes with one bad destination each could fill it.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// A number of occurrences and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amount {
    occurrences: usize,
    bytes: usize,
}

/// The amounts of one capacity that failing destinations hold, and their limits.
pub(in crate::engine) struct FailureQuota {
    /// The limit of all destinations at fault together, and of first tries.
    quarter: Amount,
    /// The limit of all failing destinations together.
    three_quarters: Amount,
    taken: Mutex<HeldAmounts>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct HeldAmounts {
    first_tries: Amount,
    /// Of failing destinations, at fault or not.
    failing: Amount,
    at_fault: Amount,
    /// Number of occurrences by destinations at fault that accepted messages before.
    accepting: HashMap<String, usize>,
}

/// Why an occurrence holds a part of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum QuotaReason {
    /// Its destination never accepted a message, and others of that kind are at fault.
    FirstTry,
    /// Its destination fails.
    Failing,
    /// Its destination is at fault.
    AtFault,
}

/// An occurrence that asks for a part of the capacity.
#[derive(Clone, Copy)]
pub(in crate::engine) struct QuotaRequest<'a> {
    pub(in crate::engine) destination: &'a str,
    /// Size of its record.
    pub(in crate::engine) bytes: usize,
    pub(in crate::engine) reason: QuotaReason,
    /// Whether its destination never accepted a message.
    pub(in crate::engine) is_new: bool,
}

/// The parts of the lane's and the sink's capacity that one occurrence holds until this is dropped.
pub(in crate::engine) struct QuotaShare {
    of_lane: ShareOfOne,
    of_sink: ShareOfOne,
}

/// The part of one quota that one occurrence holds.
struct ShareOfOne {
    held: Arc<FailureQuota>,
    bytes: usize,
    reason: QuotaReason,
    /// Its destination, if that accepted messages before.
    accepting: Option<String>,
}

impl Amount {
    /// `n` quarters of a capacity, but at least one occurrence.
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

impl FailureQuota {
    /// An empty account of a capacity of this size.
    pub(in crate::engine) fn new(occurrences: usize, bytes: usize) -> Arc<FailureQuota> {
        let quarters = |n| Amount::quarters(n, occurrences, bytes);
        Arc::new(FailureQuota { quarter: quarters(1), three_quarters: quarters(3), taken: Mutex::default() })
    }

    /// Takes a part of one quota for one occurrence, if it fits.
    fn take(self: &Arc<FailureQuota>, request: QuotaRequest<'_>) -> Option<ShareOfOne> {
        let QuotaRequest { destination, bytes, reason, is_new } = request;
        let mut taken = self.taken.lock();
        let is_only = || !is_new && !taken.accepting.contains_key(destination);
        let fits = match reason {
            QuotaReason::FirstTry => self.quarter.admits(taken.first_tries, bytes),
            QuotaReason::Failing => self.three_quarters.admits(taken.failing, bytes),
            QuotaReason::AtFault => {
                self.three_quarters.admits(taken.failing, bytes)
                    && (self.quarter.admits(taken.at_fault, bytes) || is_only())
            }
        };
        if !fits {
            return None;
        }
        let accepting = (!is_new).then(|| destination.to_owned());
        taken.add(reason, bytes, accepting.as_deref());
        Some(ShareOfOne { held: Arc::clone(self), bytes, reason, accepting })
    }
}

impl HeldAmounts {
    fn add(&mut self, reason: QuotaReason, bytes: usize, accepting: Option<&str>) {
        match reason {
            QuotaReason::FirstTry => self.first_tries.add(bytes),
            QuotaReason::Failing => self.failing.add(bytes),
            QuotaReason::AtFault => {
                self.failing.add(bytes);
                self.at_fault.add(bytes);
                if let Some(destination) = accepting {
                    *self.accepting.entry(destination.to_owned()).or_default() += 1;
                }
            }
        }
    }

    fn remove(&mut self, reason: QuotaReason, bytes: usize, accepting: Option<&str>) {
        match reason {
            QuotaReason::FirstTry => self.first_tries.remove(bytes),
            QuotaReason::Failing => self.failing.remove(bytes),
            QuotaReason::AtFault => {
                self.failing.remove(bytes);
                self.at_fault.remove(bytes);
                let Some(destination) = accepting else { return };
                let Some(count) = self.accepting.get_mut(destination) else { return };
                *count -= 1;
                if *count == 0 {
                    self.accepting.remove(destination);
                }
            }
        }
    }
}

impl QuotaShare {
    /// Takes parts of both quotas for one occurrence, if it fits in both.
    pub(in crate::engine) fn take(
        lane: &Arc<FailureQuota>,
        sink: &Arc<FailureQuota>,
        request: QuotaRequest<'_>,
    ) -> Option<QuotaShare> {
        let of_sink = sink.take(request)?;
        let of_lane = lane.take(request)?;
        Some(QuotaShare { of_lane, of_sink })
    }

    /// Whether it is for a first try only.
    pub(in crate::engine) fn is_first_try(&self) -> bool {
        self.of_lane.reason == QuotaReason::FirstTry
    }

    /// Notes that the destination is at fault. Returns whether the occurrence may keep its part: the destinations at
    /// fault are within their limit, or it is the only occurrence of a destination that accepted messages before. They
    /// may exceed the limit, because some of them took their part while they were only failing.
    pub(in crate::engine) fn is_within_at_fault(&mut self) -> bool {
        self.of_lane.set_at_fault();
        self.of_sink.set_at_fault();
        self.of_lane.is_within() && self.of_sink.is_within()
    }
}

impl ShareOfOne {
    fn set_at_fault(&mut self) {
        if self.reason == QuotaReason::AtFault {
            return;
        }
        let mut taken = self.held.taken.lock();
        taken.remove(self.reason, self.bytes, self.accepting.as_deref());
        self.reason = QuotaReason::AtFault;
        taken.add(self.reason, self.bytes, self.accepting.as_deref());
    }

    fn is_within(&self) -> bool {
        let taken = self.held.taken.lock();
        let is_only = self.accepting.as_ref().is_some_and(|destination| taken.accepting.get(destination) == Some(&1));
        is_only || self.held.quarter.covers(taken.at_fault)
    }
}

impl Drop for ShareOfOne {
    fn drop(&mut self) {
        self.held.taken.lock().remove(self.reason, self.bytes, self.accepting.as_deref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An occurrence of a destination that accepted messages before, if its name says so.
    fn waiting(destination: &str, bytes: usize, at_fault: bool) -> QuotaRequest<'_> {
        let reason = if at_fault { QuotaReason::AtFault } else { QuotaReason::Failing };
        QuotaRequest { destination, bytes, reason, is_new: !destination.starts_with("known") }
    }

    fn take(
        held: &Arc<FailureQuota>,
        destination: &str,
        count: usize,
        bytes: usize,
        at_fault: bool,
    ) -> Vec<ShareOfOne> {
        (0..count).map_while(|_| held.take(waiting(destination, bytes, at_fault))).collect()
    }

    #[test]
    fn messages_at_fault_share_a_quarter_and_failing_ones_three_quarters() {
        let held = FailureQuota::new(100, 1 << 20);
        let a = take(&held, "a", 20, 1, true);
        let b = take(&held, "b", 100, 1, true);
        assert_eq!((a.len(), b.len()), (20, 5), "a quarter together");
        let c = take(&held, "c", 100, 1, false);
        assert_eq!(c.len(), 50, "three quarters are held");
        assert!(held.take(waiting("d", 1, true)).is_none(), "the last is for those that do not fail");
        drop(a);
        assert_eq!(take(&held, "d", 100, 1, true).len(), 20);
        drop((b, c));
        assert_eq!(take(&held, "c", 100, 1, true).len(), 25);
        assert_eq!(*held.taken.lock(), HeldAmounts::default(), "nothing is left behind");
    }

    #[test]
    fn destinations_at_fault_leave_a_place_for_each_that_accepted_before() {
        let held = FailureQuota::new(100, 1 << 20);
        let names: Vec<String> = (0..100).map(|n| format!("nobody-{n}")).collect();
        let many: Vec<_> = names.iter().map_while(|name| held.take(waiting(name, 1, true))).collect();
        assert_eq!(many.len(), 25);
        let (one, other) = (take(&held, "known-1", 9, 1, true), take(&held, "known-2", 9, 1, true));
        assert_eq!((one.len(), other.len()), (1, 1));
        assert!(one[0].is_within() && !many[0].is_within());
        drop((many, one, other));
        assert_eq!(*held.taken.lock(), HeldAmounts::default());
    }

    #[test]
    fn lanes_at_fault_hold_at_most_a_quarter_of_the_capacity_of_their_sink() {
        let (lanes, sink) = ([(); 8].map(|()| FailureQuota::new(100, 1 << 20)), FailureQuota::new(200, 2 << 20));
        let mut holds = Vec::new();
        for (n, lane) in lanes.iter().enumerate() {
            let destination = format!("bad{n}");
            let take = || QuotaShare::take(lane, &sink, waiting(&destination, 1, true));
            holds.extend(std::iter::from_fn(take));
        }
        assert_eq!(holds.len(), 50, "a quarter of the sink's capacity");
        assert!(holds.iter_mut().all(QuotaShare::is_within_at_fault));
        let third = lanes[2].taken.lock().failing;
        assert_eq!(third, Amount::default(), "what the sink has no capacity for, its lane does not hold");
        drop(holds);
        assert_eq!(*sink.taken.lock(), HeldAmounts::default(), "nothing is left behind");
    }

    #[test]
    fn bytes_count_too_and_the_first_message_is_admitted_at_any_size() {
        let held = FailureQuota::new(100, 4000);
        let large = held.take(waiting("a", 10_000, true)).expect("the first");
        assert!(held.take(waiting("a", 1, true)).is_none() && held.take(waiting("b", 1, true)).is_none());
        assert!(large.is_within(), "one is never too much");
        drop(large);
        assert_eq!(take(&held, "a", 100, 400, true).len(), 2);
    }

    #[test]
    fn messages_found_at_fault_exceed_the_quota_until_enough_are_released() {
        let held = FailureQuota::new(100, 1 << 20);
        let mut failing = take(&held, "a", 100, 1, false);
        assert_eq!(failing.len(), 75);
        failing.iter_mut().for_each(ShareOfOne::set_at_fault);
        while failing.last().is_some_and(|hold| !hold.is_within()) {
            failing.pop();
        }
        assert_eq!(failing.len(), 25);
    }

    #[test]
    fn first_tries_have_their_own_quarter_of_the_capacity() {
        let held = FailureQuota::new(100, 1 << 20);
        let failing = take(&held, "a", 100, 1, true);
        let first = QuotaRequest { reason: QuotaReason::FirstTry, ..waiting("b", 1, true) };
        let mut tries: Vec<_> = (0..100).map_while(|_| held.take(first)).collect();
        assert_eq!((failing.len(), tries.len()), (25, 25));
        tries[0].set_at_fault();
        assert!(!tries[0].is_within() && held.take(first).is_some(), "it is no first try any more");
        drop((failing, tries));
        assert_eq!(*held.taken.lock(), HeldAmounts::default());
    }
}
