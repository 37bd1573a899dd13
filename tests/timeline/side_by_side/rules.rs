//! The rules of lua/README.md by name, and how often random runs met each: a rule that is rarely met is not compared.
//!
//! Rules with their own tests in `lua` are not listed: the answers `elsewhere` (the client repeats the call by itself)
//! and `again` (over 2 MiB of stored records), and rules that need more than 100 dead records or 1000 occurrences.

use std::collections::BTreeMap;

/// How often the runs with one shard must meet each rule.
pub(super) const OFTEN_ENOUGH: u32 = 50;

/// All rules, by verb.
const RULES: [&str; 154] = [
    "put: created",
    "put: created anew while the cancelled one is in flight, which is named",
    "put: replaced",
    "put: replaced in flight, which is named",
    "put: replaced after it was handed out, which is named",
    "put: replaced, and moved to another lane",
    "put: replaced by an equal `in`, which counts anew",
    "put: unchanged",
    "put: unchanged with another due in flight, which is named",
    "put: unchanged by an equal `in` at the due that was handed out",
    "put: key_reused",
    "put: in_flight for the due in flight",
    "put: in_flight for another lane",
    "put: in_flight for a due that was handed out",
    "put: in_flight for the key of a requeued one",
    "put: bad_due",
    "put: clears what could not be read",
    "put: clears counts",
    "put: replaced and still paused",
    "put: unchanged and still paused",
    "put: mismatch, there is none",
    "put: mismatch, there is one",
    "put: late",
    "cancel: cancelled",
    "cancel: cancelled after it was handed out, which is named",
    "cancel: in_flight",
    "cancel: mismatch",
    "cancel: unknown",
    "cancel: late",
    "get: held",
    "get: held in flight with a change",
    "get: held and unreadable",
    "get: unknown",
    "get: unknown, for it is cancelled in flight",
    "claim: takes in order of due",
    "claim: nothing is due",
    "claim: leaves due ones behind",
    "claim: leaves suspects out",
    "claim: leaves out what cannot be read",
    "claim: newest first, more is due",
    "claim: behind a place, something stands before it",
    "claim: stops at its bytes",
    "claim: removes what has no record",
    "claim: tells counts",
    "claim: takes a requeued one",
    "claim: more than 250 at once",
    "claim: the lane is paused",
    "claim: late",
    "claim_suspects: one alone",
    "claim_suspects: several together",
    "claim_suspects: leaves suspects behind",
    "claim_suspects: behind a place",
    "claim_suspects: what cannot be read",
    "claim_suspects: nothing",
    "claim_suspects: the lane is paused",
    "claim_suspects: late",
    "settle: lost",
    "settle: all of a whole claim",
    "settle: all that is left of a claim",
    "settle: the front of a claim",
    "settle: out of order",
    "settle: skips what is not in the claim",
    "settle: ended",
    "settle: next",
    "settle: dead",
    "settle: dead and next",
    "settle: dead, in the place of one under the same key",
    "settle: dead, and the oldest are dropped",
    "settle: back",
    "settle: back, a publish had begun",
    "settle: back, with the count that it had",
    "settle: back, and its holder could read it",
    "settle: unreadable",
    "settle: unreadable, with the count that it had",
    "settle: a change instead of the verdict",
    "settle: removed instead of the verdict",
    "settle: the rest goes back",
    "settle: the rest takes its changes",
    "settle: returned occurrences cause no wake-up",
    "settle: refuses a due that is not later",
    "extend: lives",
    "extend: is gone",
    "reap: ends claims",
    "reap: counts an end without word",
    "reap: counts one more of them",
    "reap: what cannot be read ends nobody",
    "reap: a change takes effect",
    "reap: removes what was cancelled",
    "reap: cuts a lease that ends later than its token says",
    "reap: cuts a lease whose token does not say",
    "reap: frees what is stranded",
    "reap: an empty lane leaves",
    "reap: an empty lane stays, for it is paused",
    "reap: drops old dead",
    "reap: late",
    "glance: has come, there is work",
    "glance: has come, there is none",
    "glance: is missing",
    "glance: everybody was away",
    "glance: late, but it was put off before",
    "glance: more than a lease ahead",
    "glance: put off, and somebody looks often",
    "glance: stays",
    "glance: nobody knows the lane",
    "glance: the lane is paused",
    "glance: removes a pause that has ended",
    "requeue: requeued",
    "requeue: in_flight, it was requeued",
    "requeue: in_flight, its task has that due",
    "requeue: unknown",
    "requeue: late",
    "discard: discarded",
    "discard: unknown",
    "browse: leaves others behind",
    "show: shown",
    "scan: by status",
    "scan: paused ones",
    "scan: by a part of the id",
    "scan: by due",
    "upcoming: some",
    "upcoming: leaves others behind",
    "count: overdue and in flight",
    "count: in a window",
    "settle: a paused one goes on paused",
    "settle: a paused one ends",
    "reap: a paused one returns paused",
    "cancel: a paused one",
    "pause: paused",
    "pause: paused in flight, which is named",
    "pause: paused after it was handed out, which is named",
    "pause: paused again after a trigger",
    "pause: paused again while what was triggered is in flight",
    "pause: resumed",
    "pause: resumed in flight",
    "pause: unchanged",
    "pause: unknown",
    "pause: late",
    "pause_lane: paused",
    "pause_lane: resumed",
    "pause_lane: unchanged",
    "pause_lane: something is in flight",
    "pause_lane: late",
    "move_due: triggered",
    "move_due: triggered in spite of a pause",
    "move_due: a missed due becomes a new one",
    "move_due: a missed due is kept",
    "move_due: skipped",
    "move_due: skipped and still paused",
    "move_due: names what was handed out",
    "move_due: unchanged",
    "move_due: in_flight",
    "move_due: mismatch",
    "move_due: unknown",
    "move_due: late",
];

/// How often each rule was met.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<&'static str, u32>);

impl Tally {
    /// Counts a rule if it was met.
    pub(super) fn met(&mut self, rule: &'static str, whether: bool) {
        assert!(RULES.contains(&rule), "`{rule}` is not in the table");
        *self.0.entry(rule).or_default() += u32::from(whether);
    }

    pub(super) fn add(&mut self, other: &Tally) {
        for (rule, count) in &other.0 {
            *self.0.entry(rule).or_default() += count;
        }
    }

    /// Rules that were not met often enough, with their counts.
    pub(super) fn seldom(&self) -> Vec<String> {
        let count = |rule| self.0.get(rule).copied().unwrap_or_default();
        let seldom = RULES.into_iter().filter(|rule| count(*rule) < OFTEN_ENOUGH);
        seldom.map(|rule| format!("{} {rule}", count(rule))).collect()
    }
}
