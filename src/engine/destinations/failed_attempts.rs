//! The occurrences of a sink whose last publish failed, and that are published again. The API shows why they are late.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::task::Member;

/// Maximum length of an error text that is kept, in bytes.
const MAX_DETAIL_BYTES: usize = 500;

/// What is known of an occurrence that is published again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedAttempt {
    /// Where its message goes.
    pub destination: String,
    /// Number of publishes that failed, of its current claim.
    pub attempts: u32,
    /// The broker's error text about the last one.
    pub detail: String,
}

/// The failed attempts of one sink. There are never more than occurrences in flight.
#[derive(Default)]
pub(in crate::engine) struct FailedAttempts {
    known: Mutex<HashMap<Member, Arc<FailedAttempt>>>,
}

/// Keeps the entry of one occurrence until it is dropped.
pub(in crate::engine) struct FailedAttemptEntry {
    all: Arc<FailedAttempts>,
    member: Member,
    own: Arc<FailedAttempt>,
}

impl FailedAttempts {
    /// Notes a failed publish of an occurrence, in the place of an earlier one.
    pub(in crate::engine) fn note(
        self: &Arc<FailedAttempts>,
        member: &Member,
        destination: &str,
        attempts: u32,
        detail: &str,
    ) -> FailedAttemptEntry {
        let detail = detail[..detail.floor_char_boundary(MAX_DETAIL_BYTES)].to_owned();
        let own = Arc::new(FailedAttempt { destination: destination.to_owned(), attempts, detail });
        self.known.lock().insert(member.clone(), Arc::clone(&own));
        FailedAttemptEntry { all: Arc::clone(self), member: member.clone(), own }
    }

    /// The last failed publish of an occurrence, if there is one.
    pub(in crate::engine) fn get(&self, member: &Member) -> Option<FailedAttempt> {
        self.known.lock().get(member).map(|known| FailedAttempt::clone(known))
    }

    /// How many occurrences wait for each destination.
    pub(in crate::engine) fn waiting(&self) -> HashMap<String, u64> {
        let mut waiting = HashMap::new();
        for known in self.known.lock().values() {
            *waiting.entry(known.destination.clone()).or_default() += 1;
        }
        waiting
    }
}

impl Drop for FailedAttemptEntry {
    fn drop(&mut self) {
        let mut known = self.all.known.lock();
        // The occurrence may have failed again in a later claim.
        if known.get(&self.member).is_some_and(|known| Arc::ptr_eq(known, &self.own)) {
            known.remove(&self.member);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attempt_is_known_until_its_occurrence_has_a_verdict_or_fails_again() {
        let all = Arc::new(FailedAttempts::default());
        let member: Member = "a".parse().expect("a member");
        let first = all.note(&member, "orders", 1, "no such topic");
        let other = all.note(&"b".parse().expect("a member"), "orders", 1, &"é".repeat(300));
        assert_eq!(all.waiting(), HashMap::from([("orders".to_owned(), 2)]));
        let again = all.note(&member, "orders", 2, "still none");
        drop(first);
        let known = all.get(&member).expect("the later claim holds it");
        assert_eq!((known.attempts, known.detail.as_str()), (2, "still none"));
        drop((again, other));
        assert!(all.get(&member).is_none() && all.waiting().is_empty());
    }
}
