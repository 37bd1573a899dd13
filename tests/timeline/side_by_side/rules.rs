//! The rules of lua/README.md by name, and how often random runs met each: what is met seldom is not compared.

use std::collections::BTreeMap;

use punctual::clock::Timestamp;
use punctual::task::Lane;
use punctual::timeline::memory::Twin;
use punctual::timeline::*;

/// What is met less often by the runs of one shape is told.
const SELDOM: u32 = 50;

/// Every rule, by verb.
pub(super) const RULES: [&str; 63] = [
    "put: created",
    "put: created anew while the cancelled one is in flight, which is named",
    "put: replaced",
    "put: replaced in flight, which is named",
    "put: replaced after it was handed out, which is named",
    "put: unchanged",
    "put: unchanged with another due in flight, which is named",
    "put: key_reused",
    "put: in_flight for the due in flight",
    "put: in_flight for another lane",
    "put: in_flight for a due that was handed out",
    "put: in_flight for the key of a requeued one",
    "put: bad_due",
    "put: clears what could not be read",
    "put: late",
    "cancel: cancelled",
    "cancel: cancelled after it was handed out, which is named",
    "cancel: in_flight",
    "cancel: unknown",
    "cancel: late",
    "get: held",
    "get: held in flight with a change",
    "get: held and unreadable",
    "get: unknown",
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
    "claim: late",
    "claim_suspects: one alone",
    "claim_suspects: several together",
    "claim_suspects: leaves suspects behind",
    "claim_suspects: behind a place",
    "claim_suspects: what cannot be read",
    "settle: lost",
    "settle: all of a whole claim",
    "settle: the front of a claim",
    "settle: out of order",
    "settle: skips what is not in the claim",
    "settle: a change instead of the verdict",
    "settle: the rest goes back",
    "settle: dead, and the oldest are dropped",
    "settle: unreadable",
    "settle: wakes nobody",
    "settle: refuses a due that is not later",
    "extend: lives",
    "extend: is gone",
    "reap: ends claims",
    "reap: cuts a lease that ends too late",
    "reap: frees what is stranded",
    "reap: drops old dead",
    "glance: tells to reap",
    "requeue: requeued",
    "requeue: in_flight",
    "discard: discarded",
];

/// How often each rule was met.
#[derive(Default)]
pub(super) struct Tally(BTreeMap<&'static str, u32>);

impl Tally {
    /// Notes that a rule was met.
    pub(super) fn met(&mut self, rule: &'static str, whether: bool) {
        assert!(RULES.contains(&rule), "`{rule}` is not in the table");
        *self.0.entry(rule).or_default() += u32::from(whether);
    }

    pub(super) fn add(&mut self, other: &Tally) {
        for (rule, count) in &other.0 {
            *self.0.entry(rule).or_default() += count;
        }
    }

    /// Prints the rules that were met seldom.
    #[expect(clippy::print_stdout, reason = "what was hardly compared belongs to what the test says")]
    pub(super) fn show(&self) {
        let count = |rule| self.0.get(rule).copied().unwrap_or_default();
        for rule in RULES.into_iter().filter(|rule| count(*rule) < SELDOM) {
            println!("{} {rule}", count(rule));
        }
    }

    pub(super) fn put(&mut self, before: &Twin, puts: &[Put], answers: &Result<Vec<PutAnswer>, TimelineError>) {
        let Ok(answers) = answers else { return self.met("put: late", true) };
        for (put, answer) in puts.iter().zip(answers) {
            let held = before.get(&put.id);
            let flies = held.as_ref().is_some_and(|held| held.in_flight);
            let named = answer.in_flight.is_some();
            let requeued =
                format!("!{}:{}", put.id, put.due.as_millis()).parse().is_ok_and(|it| before.tasks.contains_key(&it));
            match answer.result {
                PutResult::Created => {
                    self.met("put: created", !named);
                    self.met("put: created anew while the cancelled one is in flight, which is named", named);
                }
                PutResult::Replaced => {
                    self.met("put: replaced", !named);
                    self.met("put: replaced in flight, which is named", named && flies);
                    self.met("put: replaced after it was handed out, which is named", named && !flies);
                    self.met("put: clears what could not be read", held.is_some_and(|held| held.unreadable));
                }
                PutResult::Unchanged => {
                    self.met("put: unchanged", !named);
                    self.met("put: unchanged with another due in flight, which is named", named);
                }
                PutResult::InFlight => {
                    let same = answer.in_flight == Some(put.due);
                    self.met("put: in_flight for the due in flight", same && flies && !requeued);
                    self.met("put: in_flight for another lane", !same);
                    self.met(
                        "put: in_flight for a due that was handed out",
                        same && held.is_some() && !flies && !requeued,
                    );
                    self.met("put: in_flight for the key of a requeued one", requeued);
                }
                PutResult::KeyReused => self.met("put: key_reused", true),
                PutResult::BadDue => self.met("put: bad_due", true),
                PutResult::Unkept => {}
            }
        }
    }

    pub(super) fn cancel(&mut self, answer: &Result<CancelAnswer, TimelineError>) {
        match answer {
            Err(_) => self.met("cancel: late", true),
            Ok(CancelAnswer::Cancelled { handed_out }) => {
                self.met("cancel: cancelled", handed_out.is_none());
                self.met("cancel: cancelled after it was handed out, which is named", handed_out.is_some());
            }
            Ok(CancelAnswer::InFlight { .. }) => self.met("cancel: in_flight", true),
            Ok(CancelAnswer::Unknown) => self.met("cancel: unknown", true),
        }
    }

    pub(super) fn get(&mut self, held: Option<&Held>) {
        self.met("get: held", held.is_some());
        self.met("get: held in flight with a change", held.is_some_and(|held| held.changed.is_some()));
        self.met("get: held and unreadable", held.is_some_and(|held| held.unreadable));
        self.met("get: unknown", held.is_none());
    }

    pub(super) fn claim(&mut self, before: &Twin, request: &ClaimRequest, claimed: &Result<Claimed, TimelineError>) {
        let Ok(claimed) = claimed else { return self.met("claim: late", true) };
        let taken = &claimed.occurrences;
        let bytes: usize = taken.iter().map(|one| one.record.len()).sum();
        let more = claimed.head.is_some_and(|head| head <= claimed.now);
        self.met("claim: takes in order of due", taken.len() > 1);
        self.met("claim: nothing is due", taken.is_empty());
        self.met("claim: leaves due ones behind", more && !taken.is_empty());
        self.met("claim: leaves suspects out", claimed.suspects > 0);
        self.met("claim: leaves out what cannot be read", claimed.unreadable > 0);
        self.met("claim: newest first, more is due", request.newest_first && more && !taken.is_empty());
        let stands =
            |place: &Place| before.due.values().any(|line| line.between(1, place.due.as_millis()).next().is_some());
        let behind = request.after.as_ref().is_some_and(stands);
        self.met("claim: behind a place, something stands before it", behind && !taken.is_empty());
        self.met("claim: stops at its bytes", more && taken.len() < request.max && bytes * 2 > request.max_bytes);
        self.met("claim: removes what has no record", claimed.removed > 0);
        self.met("claim: tells counts", taken.iter().any(|one| one.counts.accepted > 0));
        self.met("claim: takes a requeued one", taken.iter().any(|one| one.member.requeued_key().is_some()));
        self.met("claim: more than 250 at once", taken.len() > 250);
    }

    pub(super) fn claim_suspects(&mut self, request: &SuspectsRequest, claimed: &Result<Claimed, TimelineError>) {
        let Ok(claimed) = claimed else { return };
        let taken = claimed.occurrences.len();
        self.met("claim_suspects: one alone", taken == 1 && !request.unreadable);
        self.met("claim_suspects: several together", taken > 1 && !request.unreadable);
        self.met("claim_suspects: leaves suspects behind", taken > 0 && claimed.suspects > 0);
        self.met("claim_suspects: behind a place", taken > 0 && request.after.is_some());
        self.met("claim_suspects: what cannot be read", taken > 0 && request.unreadable);
    }

    pub(super) fn settle(
        &mut self,
        (before, after): (&Twin, &Twin),
        lane: &Lane,
        settle: &Settle,
        settled: &Result<Settled, TimelineError>,
    ) {
        let Ok(settled) = settled else { return self.met("settle: refuses a due that is not later", true) };
        let held = |twin: &Twin| twin.claims.get(lane).and_then(|claims| claims.get(&settle.token)).cloned();
        let Some(claim) = held(before) else { return self.met("settle: lost", settled.lost) };
        let named = settle.verdicts.iter().map(|one| (&one.member, one.due));
        let in_order =
            claim.pairs.iter().map(|(member, due)| (member, *due)).zip(named).all(|(one, other)| one == other);
        let left = held(after).map_or(0, |claim| claim.pairs.len());
        let some = !settle.verdicts.is_empty();
        let unread = settle.verdicts.iter().any(|one| one.verdict == Verdict::Unreadable);
        self.met("settle: all of a whole claim", claim.whole && in_order && settle.verdicts.len() == claim.pairs.len());
        self.met("settle: the front of a claim", in_order && some && left > 0);
        self.met("settle: out of order", !in_order && some);
        self.met("settle: skips what is not in the claim", !settled.skipped.is_empty());
        self.met("settle: a change instead of the verdict", !settled.changed.is_empty());
        self.met("settle: the rest goes back", settle.rest == Rest::Back && settle.verdicts.len() < claim.pairs.len());
        self.met("settle: dead, and the oldest are dropped", settled.dropped > 0);
        self.met("settle: unreadable", unread);
        self.met("settle: wakes nobody", settle.quiet && settle.rest == Rest::Back);
    }

    pub(super) fn extend(&mut self, lives: &Result<Vec<bool>, TimelineError>) {
        let lives = lives.as_deref().unwrap_or_default();
        self.met("extend: lives", lives.contains(&true));
        self.met("extend: is gone", lives.contains(&false));
    }

    pub(super) fn reap(
        &mut self,
        before: &Twin,
        now: Timestamp,
        request: &ReapRequest,
        reaped: &Result<Reaped, TimelineError>,
    ) {
        let Ok(reaped) = reaped else { return };
        let limit = |token: &Token| now.plus(token.lease().unwrap_or(request.lease)).as_millis();
        let long = before.leases.values().any(|leases| leases.iter().any(|(end, token)| end > limit(token)));
        self.met("reap: ends claims", reaped.claims > 0);
        self.met("reap: cuts a lease that ends too late", long);
        self.met("reap: frees what is stranded", reaped.stranded > 0);
        self.met("reap: drops old dead", reaped.dropped > 0);
    }

    pub(super) fn glance(&mut self, glance: &Result<Glance, TimelineError>) {
        self.met(
            "glance: tells to reap",
            glance.as_ref().is_ok_and(|glance| glance.lanes.iter().any(|lane| lane.reap)),
        );
    }

    pub(super) fn requeue(&mut self, answer: &Result<RequeueAnswer, TimelineError>) {
        self.met("requeue: requeued", matches!(answer, Ok(RequeueAnswer::Requeued)));
        self.met("requeue: in_flight", matches!(answer, Ok(RequeueAnswer::InFlight)));
    }

    pub(super) fn discard(&mut self, answer: &Result<bool, TimelineError>) {
        self.met("discard: discarded", *answer == Ok(true));
    }
}
