//! Which rules a call met.

use std::collections::BTreeSet;

use punctual::clock::Timestamp;
use punctual::task::{Lane, Member};
use punctual::timeline::memory::{Change, OccurrenceMark, Twin};
use punctual::timeline::*;

use super::rules::Tally;

/// Mark of the occurrence with this due.
fn mark(twin: &Twin, member: &Member, due: Timestamp) -> Option<OccurrenceMark> {
    twin.crashes.get(member).filter(|mark| mark.due == due).copied()
}

impl Tally {
    pub(super) fn put(&mut self, before: &Twin, puts: &[Put], answers: &Result<Vec<PutAnswer>, TimelineError>) {
        let Ok(answers) = answers else { return self.met("put: late", true) };
        for (put, answer) in puts.iter().zip(answers) {
            let member = Member::from(&put.id);
            let (held, place) = (before.get(&put.id), before.place(&member));
            let flies = held.as_ref().is_some_and(|held| held.in_flight);
            let handed_out = held.as_ref().is_some_and(|held| mark(before, &member, held.due).is_some());
            let named = answer.in_flight.is_some();
            let requeued =
                format!("!{}:{}", put.id, put.due.as_millis()).parse().is_ok_and(|it| before.tasks.contains_key(&it));
            let written = matches!(answer.result, PutResult::Created | PutResult::Replaced);
            self.met("put: replaced and still paused", answer.paused && answer.result == PutResult::Replaced);
            self.met("put: unchanged and still paused", answer.paused && answer.result == PutResult::Unchanged);
            self.met("put: clears counts", written && before.counts.contains_key(&member));
            match answer.result {
                PutResult::Created => {
                    self.met("put: created", !named);
                    self.met("put: created anew while the cancelled one is in flight, which is named", named);
                }
                PutResult::Replaced => {
                    self.met("put: replaced", !named);
                    self.met("put: replaced in flight, which is named", named && flies);
                    self.met("put: replaced after it was handed out, which is named", named && !flies);
                    self.met(
                        "put: replaced, and moved to another lane",
                        place.is_some_and(|(lane, _)| lane != put.lane),
                    );
                    let equal = held.as_ref().is_some_and(|held| held.record[30..] == put.record[30..]);
                    self.met("put: replaced by an equal `in`, which counts anew", equal);
                    self.met("put: clears what could not be read", held.is_some_and(|held| held.unreadable));
                }
                PutResult::Unchanged => {
                    self.met("put: unchanged", !named);
                    self.met("put: unchanged with another due in flight, which is named", named);
                    let counts_anew = put.record[1] & 2 != 0 && answer.due == put.due && (flies || handed_out);
                    self.met("put: unchanged by an equal `in` at the due that was handed out", counts_anew);
                }
                PutResult::InFlight => {
                    let same = answer.in_flight == Some(put.due);
                    self.met("put: in_flight for the due in flight", same && flies && !requeued);
                    self.met("put: in_flight for another lane", !same);
                    let waits = held.is_some() && !flies;
                    self.met("put: in_flight for a due that was handed out", same && waits && !requeued);
                    self.met("put: in_flight for the key of a requeued one", requeued);
                }
                PutResult::KeyReused => self.met("put: key_reused", true),
                PutResult::Mismatch => {
                    self.met("put: mismatch, there is none", held.is_none());
                    self.met("put: mismatch, there is one", held.is_some());
                }
                PutResult::BadDue => self.met("put: bad_due", true),
                PutResult::Unconfirmed => {}
            }
        }
    }

    pub(super) fn cancel(&mut self, paused: bool, answer: &Result<CancelAnswer, TimelineError>) {
        self.met("cancel: a paused one", paused && answer.is_ok());
        match answer {
            Err(_) => self.met("cancel: late", true),
            Ok(CancelAnswer::Cancelled { handed_out }) => {
                self.met("cancel: cancelled", handed_out.is_none());
                self.met("cancel: cancelled after it was handed out, which is named", handed_out.is_some());
            }
            Ok(CancelAnswer::InFlight { .. }) => self.met("cancel: in_flight", true),
            Ok(CancelAnswer::Mismatch) => self.met("cancel: mismatch", true),
            Ok(CancelAnswer::Unknown) => self.met("cancel: unknown", true),
        }
    }

    pub(super) fn get(&mut self, before: &Twin, member: &Member, held: Option<&StoredTask>) {
        self.met("get: held", held.is_some());
        self.met("get: held in flight with a change", held.is_some_and(|held| held.due_after_claim.is_some()));
        self.met("get: held and unreadable", held.is_some_and(|held| held.unreadable));
        self.met("get: unknown", held.is_none());
        let cancelled = before.changes.get(member) == Some(&Change::Cancelled);
        self.met("get: unknown, for it is cancelled in flight", cancelled);
    }

    pub(super) fn claim(&mut self, before: &Twin, request: &ClaimRequest, claimed: &Result<Claimed, TimelineError>) {
        let Ok(claimed) = claimed else { return self.met("claim: late", true) };
        self.met("claim: the lane is paused", claimed.paused);
        let taken = &claimed.occurrences;
        let bytes: usize = taken.iter().map(|one| one.record.len()).sum();
        let more = claimed.head.is_some_and(|head| head <= claimed.now);
        self.met("claim: takes in order of due", taken.len() > 1);
        self.met("claim: nothing is due", taken.is_empty() && !claimed.paused);
        self.met("claim: leaves due ones behind", more && !taken.is_empty());
        self.met("claim: leaves suspects out", claimed.suspects > 0);
        self.met("claim: leaves out what cannot be read", claimed.unreadable > 0);
        self.met("claim: newest first, more is due", request.newest_first && more && !taken.is_empty());
        let stands = |place: &DuePosition| {
            before.due.values().any(|line| line.between(1, place.due.as_millis()).next().is_some())
        };
        let behind = request.after.as_ref().is_some_and(stands);
        self.met("claim: behind a place, something stands before it", behind && !taken.is_empty());
        self.met("claim: stops at its bytes", more && taken.len() < request.max && bytes * 2 > request.max_bytes);
        self.met("claim: removes what has no record", claimed.removed > 0);
        self.met("claim: tells counts", taken.iter().any(|one| one.counts.accepted > 0));
        self.met("claim: takes a requeued one", taken.iter().any(|one| one.member.requeued_key().is_some()));
        self.met("claim: more than 250 at once", taken.len() > 250);
    }

    pub(super) fn claim_suspects(&mut self, request: &SuspectsRequest, claimed: &Result<Claimed, TimelineError>) {
        let Ok(claimed) = claimed else { return self.met("claim_suspects: late", true) };
        self.met("claim_suspects: the lane is paused", claimed.paused);
        let taken = claimed.occurrences.len();
        self.met("claim_suspects: one alone", taken == 1 && !request.unreadable);
        self.met("claim_suspects: several together", taken > 1 && !request.unreadable);
        self.met("claim_suspects: leaves suspects behind", taken > 0 && claimed.suspects > 0);
        self.met("claim_suspects: behind a place", taken > 0 && request.after.is_some());
        self.met("claim_suspects: what cannot be read", taken > 0 && request.unreadable);
        self.met("claim_suspects: nothing", taken == 0 && !claimed.paused);
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
        let (left, some) = (held(after).map_or(0, |claim| claim.pairs.len()), !settle.verdicts.is_empty());
        let all = in_order && settle.verdicts.len() == claim.pairs.len();
        self.met("settle: all of a whole claim", claim.whole && all);
        self.met("settle: all that is left of a claim", !claim.whole && all);
        self.met("settle: the front of a claim", in_order && some && left > 0);
        self.met("settle: out of order", !in_order && some);
        self.met("settle: skips what is not in the claim", !settled.skipped.is_empty());
        self.met("settle: dead, and the oldest are dropped", settled.dropped > 0);
        let removed = |member: &&Member| before.changes.get(member) == Some(&Change::Cancelled);
        self.met("settle: a change instead of the verdict", settled.changed.iter().any(|member| !removed(&member)));
        self.met("settle: removed instead of the verdict", settled.changed.iter().any(|member| removed(&member)));
        let is_named = |member: &Member| settle.verdicts.iter().any(|one| one.member == *member);
        let rest_back = settle.rest == RestOfClaim::Back && claim.pairs.iter().any(|(member, _)| !is_named(member));
        self.met("settle: the rest goes back", rest_back);
        let was_paused = |member: &Member| before.pauses.contains_key(member);
        let goes_on = |member: &Member| after.pauses.contains_key(member) && after.score_in(lane, member) > Some(0);
        let of_claim = || claim.pairs.iter().map(|(member, _)| member).filter(|member| was_paused(member));
        self.met("settle: a paused one goes on paused", of_claim().any(goes_on));
        self.met("settle: a paused one ends", of_claim().any(|member| !after.tasks.contains_key(member)));
        let rest_changes = settled.changed.iter().any(|member| !is_named(member));
        self.met("settle: the rest takes its changes", rest_back && rest_changes);
        let written =
            |one: &&Settlement| !settled.skipped.contains(&one.member) && !settled.changed.contains(&one.member);
        let mut returns = rest_back;
        for one in settle.verdicts.iter().filter(written) {
            returns |= matches!(one.verdict, Verdict::Back { .. } | Verdict::Unreadable);
            self.verdict(before, one);
        }
        self.met("settle: returned occurrences cause no wake-up", settle.quiet && returns);
    }

    fn verdict(&mut self, before: &Twin, one: &Settlement) {
        let mark = mark(before, &one.member, one.due);
        let counted = mark.is_some_and(|mark| mark.count.is_some());
        let died = before.dead.score(&one.member.key(one.due).to_string().into()).is_some();
        self.met(
            match one.verdict {
                Verdict::Finished => "settle: ended",
                Verdict::Next { .. } => "settle: next",
                Verdict::Dead(_) => "settle: dead",
                Verdict::DeadNext { .. } => "settle: dead and next",
                Verdict::Back { begun: false } => "settle: back",
                Verdict::Back { begun: true } => "settle: back, a publish had begun",
                Verdict::Unreadable => "settle: unreadable",
            },
            true,
        );
        match one.verdict {
            Verdict::Dead(_) | Verdict::DeadNext { .. } => {
                self.met("settle: dead, in the place of one under the same key", died);
            }
            Verdict::Back { .. } => {
                self.met("settle: back, with the count that it had", counted);
                self.met("settle: back, and its holder could read it", mark.is_some_and(|mark| mark.unreadable));
            }
            Verdict::Unreadable => self.met("settle: unreadable, with the count that it had", counted),
            Verdict::Finished | Verdict::Next { .. } => {}
        }
    }

    pub(super) fn extend(&mut self, lives: &Result<Vec<bool>, TimelineError>) {
        let lives = lives.as_deref().unwrap_or_default();
        self.met("extend: lives", lives.contains(&true));
        self.met("extend: is gone", lives.contains(&false));
    }

    pub(super) fn reap(
        &mut self,
        (before, after): (&Twin, &Twin),
        (now, lane): (Timestamp, &Lane),
        request: &ReapRequest,
        reaped: &Result<Reaped, TimelineError>,
    ) {
        let Ok(reaped) = reaped else { return self.met("reap: late", true) };
        let leases = || before.leases.get(lane).into_iter().flat_map(|leases| leases.iter());
        let long =
            |end, token: &Token, lease| end > now.plus(lease).as_millis() && token.lease().unwrap_or(lease) == lease;
        let said = leases().any(|(end, token)| token.lease().is_some_and(|lease| long(end, token, lease)));
        let unsaid = leases().any(|(end, token)| token.lease().is_none() && long(end, token, request.lease));
        self.met("reap: cuts a lease that ends later than its token says", said);
        self.met("reap: cuts a lease whose token does not say", unsaid);
        self.met("reap: ends claims", reaped.claims > 0);
        self.met("reap: frees what is stranded", reaped.stranded > 0);
        self.met("reap: drops old dead", reaped.dropped > 0);
        self.met("reap: an empty lane leaves", before.lanes.contains(lane) && !after.lanes.contains(lane));
        let empty = !before.due.contains_key(lane) && !before.leases.contains_key(lane);
        let stays = empty && !request.served && after.lanes.contains(lane) && after.paused_lanes.contains_key(lane);
        self.met("reap: an empty lane stays, for it is paused", stays);
        let flew = |member: &Member| before.score_in(lane, member).is_some_and(|score| score < 0);
        let came_back = |member: &Member| flew(member) && after.score_in(lane, member).is_some_and(|score| score > 0);
        self.met("reap: a paused one returns paused", after.pauses.keys().any(came_back));
        for (member, mark) in after.crashes.iter().filter(|(member, _)| came_back(member)) {
            self.met("reap: counts an end without word", mark.count == Some(1));
            self.met("reap: counts one more of them", mark.count > Some(1));
            self.met("reap: what cannot be read ends nobody", mark.unreadable && before.crashes.contains_key(member));
        }
        for (member, change) in before.changes.iter().filter(|(member, _)| !after.changes.contains_key(member)) {
            self.met("reap: a change takes effect", *change != Change::Cancelled && flew(member));
            self.met("reap: removes what was cancelled", *change == Change::Cancelled && flew(member));
        }
    }

    pub(super) fn glance(
        &mut self,
        before: &Twin,
        now: Timestamp,
        request: &GlanceRequest,
        glance: &Result<Glance, TimelineError>,
    ) {
        let Ok(glance) = glance else { return };
        for ((lane, served), seen) in request.lanes.iter().zip(&glance.lanes) {
            let ended = before.paused_lanes.contains_key(lane) && seen.pause.is_none();
            self.met("glance: removes a pause that has ended", ended);
            self.met("glance: the lane is paused", seen.pause.is_some());
            if !served && !before.lanes.contains(lane) {
                self.met("glance: nobody knows the lane", true);
                continue;
            }
            let long = (request.lease / 2).max(std::time::Duration::from_secs(3));
            let away = now.minus(long);
            let often = |at: Timestamp| now <= at.minus(request.lease).plus(long);
            let rule = match before.reap_at.get(lane) {
                None => "glance: is missing",
                Some(it) if it.at > now.plus(request.lease) => "glance: more than a lease ahead",
                Some(it) if it.at > now && it.postponed && often(it.at) => "glance: put off, and somebody looks often",
                Some(it) if it.at > now => "glance: stays",
                Some(it) if it.at < away && !it.postponed => "glance: everybody was away",
                Some(it) if it.at < away => "glance: late, but it was put off before",
                Some(_) if seen.reap => "glance: has come, there is work",
                Some(_) => "glance: has come, there is none",
            };
            self.met(rule, true);
        }
    }

    pub(super) fn pause(&mut self, before: Option<&StoredTask>, answer: &Result<TaskPauseAnswer, TimelineError>) {
        let Ok(answer) = answer else { return self.met("pause: late", true) };
        let flies = before.is_some_and(|held| held.in_flight);
        let was_paused = before.is_some_and(|held| held.pause.is_some());
        match answer {
            TaskPauseAnswer::Paused { in_flight, .. } => {
                self.met("pause: paused", in_flight.is_none());
                self.met("pause: paused in flight, which is named", flies);
                self.met("pause: paused again after a trigger", was_paused && !flies);
                self.met("pause: paused again while what was triggered is in flight", was_paused && flies);
                self.met("pause: paused after it was handed out, which is named", !flies && in_flight.is_some());
            }
            TaskPauseAnswer::Resumed { .. } => {
                self.met("pause: resumed", !flies);
                self.met("pause: resumed in flight", flies);
            }
            TaskPauseAnswer::Unchanged { .. } => self.met("pause: unchanged", true),
            TaskPauseAnswer::Unknown => self.met("pause: unknown", true),
        }
    }

    pub(super) fn move_due(
        &mut self,
        before: Option<&StoredTask>,
        request: &MoveRequest,
        answer: &Result<MoveAnswer, TimelineError>,
    ) {
        let Ok(answer) = answer else { return self.met("move_due: late", true) };
        let skip = matches!(request, MoveRequest::Skip(_));
        let paused = before.is_some_and(|held| held.pause.is_some());
        match answer {
            MoveAnswer::Moved { due, handed_out } => {
                let missed = paused && !skip && before.is_some_and(|held| held.due < *due);
                self.met("move_due: a missed due becomes a new one", missed);
                self.met("move_due: a missed due is kept", !skip && before.is_some_and(|held| held.due == *due));
                self.met("move_due: triggered", !skip && !paused);
                self.met("move_due: triggered in spite of a pause", !skip && paused);
                self.met("move_due: skipped", skip && !paused);
                self.met("move_due: skipped and still paused", skip && paused);
                self.met("move_due: names what was handed out", handed_out.is_some());
            }
            MoveAnswer::Unchanged { .. } => self.met("move_due: unchanged", true),
            MoveAnswer::InFlight { .. } => self.met("move_due: in_flight", true),
            MoveAnswer::Mismatch { .. } => self.met("move_due: mismatch", true),
            MoveAnswer::Unknown => self.met("move_due: unknown", true),
        }
    }

    pub(super) fn pause_lane(&mut self, answer: &Result<LanePauseAnswer, TimelineError>) {
        let Ok(answer) = answer else { return self.met("pause_lane: late", true) };
        self.met("pause_lane: something is in flight", answer.in_flight > 0);
        match answer.result {
            LanePauseResult::Paused => self.met("pause_lane: paused", true),
            LanePauseResult::Resumed => self.met("pause_lane: resumed", true),
            LanePauseResult::Unchanged => self.met("pause_lane: unchanged", true),
        }
    }

    pub(super) fn list(
        &mut self,
        filter: &TaskFilter,
        scanned: &Result<BTreeSet<ScannedTask>, TimelineError>,
        upcoming: &Result<Upcoming, TimelineError>,
        counted: &Result<LaneCounts, TimelineError>,
    ) {
        let (Ok(scanned), Ok(upcoming), Ok(counted)) = (scanned, upcoming, counted) else { return };
        let some = !scanned.is_empty();
        self.met("scan: paused ones", some && filter.status == Some(TaskStatus::Paused));
        self.met("scan: by status", some && filter.status.is_some());
        self.met("scan: by a part of the id", some && !(filter.prefix.is_empty() && filter.contains.is_empty()));
        self.met("scan: by due", some && (filter.due_from.is_some() || filter.due_to.is_some()));
        self.met("upcoming: some", !upcoming.tasks.is_empty());
        self.met("upcoming: leaves others behind", upcoming.last.is_some());
        self.met("count: overdue and in flight", counted.overdue > 0 && counted.in_flight > 0);
        self.met("count: in a window", counted.windows.iter().any(|window| *window > 0));
    }

    pub(super) fn requeue(&mut self, before: &Twin, member: &Member, answer: &Result<RequeueAnswer, TimelineError>) {
        let stands = before.tasks.contains_key(member);
        match answer {
            Err(_) => self.met("requeue: late", true),
            Ok(RequeueAnswer::Requeued) => self.met("requeue: requeued", true),
            Ok(RequeueAnswer::InFlight) if stands => self.met("requeue: in_flight, it was requeued", true),
            Ok(RequeueAnswer::InFlight) => self.met("requeue: in_flight, its task has that due", true),
            Ok(_) => self.met("requeue: unknown", true),
        }
    }

    pub(super) fn discard(&mut self, answer: &Result<bool, TimelineError>) {
        self.met("discard: discarded", *answer == Ok(true));
        self.met("discard: unknown", *answer == Ok(false));
    }

    pub(super) fn browse(&mut self, browsed: &Result<Browsed, TimelineError>) {
        self.met("browse: leaves others behind", browsed.as_ref().is_ok_and(|browsed| browsed.last.is_some()));
    }

    pub(super) fn show(&mut self, dead: &Result<Option<Dead>, TimelineError>) {
        self.met("show: shown", matches!(dead, Ok(Some(_))));
    }
}
