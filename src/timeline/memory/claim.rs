//! The verbs claim and claim_suspects.

use super::twin::{AnswerWithWakes, Claim, Twin};
use crate::clock::Timestamp;
use crate::task::layout::{RECURRING, has};
use crate::task::{Lane, Member};
use crate::timeline::{
    ClaimRequest, Claimed, DuePosition, MAX_BATCH, MAX_CLAIM_BYTES, Occurrence, SuspectsRequest, TimelineError, Token,
};

/// Maximum number of due members that a claim reads beyond those it takes, if some have to be left out.
const MAX_READ: usize = 1000;

/// An occurrence is a suspect once this many of its claims have expired. Suspects with exactly this count are claimed
/// together, the others one by one.
const MIN_SUSPECT_CRASHES: u32 = 2;

/// Score and member of a lane.
type DueRow<'a> = (i64, &'a Member);

impl Twin {
    /// Claims due occurrences of a lane under one new lease.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn claim(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        request: &ClaimRequest,
    ) -> Result<AnswerWithWakes<Claimed>, TimelineError> {
        if now > request.not_after {
            return Err(TimelineError::Late);
        }
        if self.pause_of(now, lane).is_some() {
            return Ok(AnswerWithWakes::quietly(Claimed::paused(now)));
        }
        let selection = self.select(now, lane, request);
        let end = now.plus(request.lease);
        let mut claimed = self.take(now, lane, &request.token, end, selection, false);
        if request.newest_first {
            claimed.head = self.head(lane);
        }
        // Wake the next claimer for the remaining due tasks, but not after a claim with `after` or `newest_first`. Such
        // a claim skipped the earlier occurrences for a reason, so another claimer would find nothing to publish.
        let may_wake = !claimed.occurrences.is_empty() && !request.newest_first && request.after.is_none();
        let due_head = claimed.head.filter(|head| *head <= now && may_wake);
        Ok(AnswerWithWakes { answer: claimed, wakes: due_head.map(|head| (lane.clone(), head)).into_iter().collect() })
    }

    /// Claims due occurrences that ordinary claims leave out: suspects or unreadable ones.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn claim_suspects(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        request: &SuspectsRequest,
    ) -> Result<AnswerWithWakes<Claimed>, TimelineError> {
        if now > request.not_after {
            return Err(TimelineError::Late);
        }
        if self.pause_of(now, lane).is_some() {
            return Ok(AnswerWithWakes::quietly(Claimed::paused(now)));
        }
        let selection = self.select_suspects(now, lane, request);
        let end = now.plus(request.lease);
        Ok(AnswerWithWakes::quietly(self.take(now, lane, &request.token, end, selection, !request.unreadable)))
    }

    /// Why ordinary claims leave the occurrence out, if they do.
    fn left_out(&self, (score, member): DueRow<'_>) -> Option<LeftOutReason> {
        let mark = self.mark(member, Timestamp::from_millis(score))?;
        match mark.count {
            _ if mark.unreadable => Some(LeftOutReason::Unreadable),
            Some(count) if count >= MIN_SUSPECT_CRASHES => Some(LeftOutReason::Suspect(count)),
            _ => None,
        }
    }

    fn size(&self, (_, member): DueRow<'_>) -> Option<usize> {
        self.tasks.get(member).map(|record| record.len())
    }

    /// Selects the occurrences of a claim.
    fn select(&self, now: Timestamp, lane: &Lane, request: &ClaimRequest) -> Selection {
        let Some(rows) = self.rows(now, lane, request.after.as_ref()) else { return Selection::default() };
        let (max, max_bytes) = (request.max.clamp(1, MAX_BATCH), request.max_bytes.min(MAX_CLAIM_BYTES));
        // Without marks no occurrence is left out.
        let window = max + if self.crashes.is_empty() { 0 } else { MAX_READ };
        let rows: Vec<DueRow<'_>> =
            if request.newest_first { rows.rev().take(window).collect() } else { rows.take(window).collect() };
        let (mut selection, mut bytes, mut looked) = (Selection::default(), 0, 0);
        for row in &rows {
            if selection.taken.len() == max {
                break;
            }
            match (self.left_out(*row), self.size(*row)) {
                (Some(LeftOutReason::Unreadable), _) => selection.unreadable += 1,
                (Some(LeftOutReason::Suspect(_)), _) => selection.suspects += 1,
                (None, None) => selection.without_record.push(row.1.clone()),
                (None, Some(size)) if !selection.taken.is_empty() && bytes + size > max_bytes => break,
                (None, Some(size)) => {
                    bytes += size;
                    selection.taken.push((row.1.clone(), Timestamp::from_millis(row.0)));
                }
            }
            looked += 1;
        }
        if request.newest_first {
            selection.taken.reverse();
            (selection.suspects, selection.unreadable) = (0, 0);
        } else {
            self.note_what_is_behind(lane, request.after.as_ref(), rows[..looked].last(), &mut selection);
        }
        selection
    }

    /// Selects the occurrences of a claim of suspects or of unreadable ones.
    fn select_suspects(&self, now: Timestamp, lane: &Lane, request: &SuspectsRequest) -> Selection {
        let Some(rows) = self.rows(now, lane, request.after.as_ref()) else { return Selection::default() };
        let (max, max_bytes) = (request.max.clamp(1, MAX_BATCH), request.max_bytes.min(MAX_CLAIM_BYTES));
        let (mut selection, mut bytes, mut full, mut crashed, mut last) = (Selection::default(), 0, false, 0, None);
        let mut free = None;
        for row in rows.take(MAX_READ + 1) {
            let why = self.left_out(row);
            let meant = match why {
                Some(LeftOutReason::Unreadable) => request.unreadable,
                Some(LeftOutReason::Suspect(count)) => {
                    !request.unreadable
                        && (selection.taken.is_empty()
                            || (count == MIN_SUSPECT_CRASHES && crashed == MIN_SUSPECT_CRASHES))
                }
                None => false,
            };
            let mut may = meant && !full && selection.taken.len() < max;
            let size = self.size(row).unwrap_or_default();
            if may {
                full = !selection.taken.is_empty() && bytes + size > max_bytes;
                may = !full;
            }
            match why {
                // The next call continues here.
                Some(LeftOutReason::Unreadable) if meant && !may => break,
                Some(_) if may && size == 0 => selection.without_record.push(row.1.clone()),
                Some(why) if may => {
                    crashed = if let LeftOutReason::Suspect(count) = why { count } else { 0 };
                    bytes += size;
                    selection.taken.push((row.1.clone(), Timestamp::from_millis(row.0)));
                }
                Some(LeftOutReason::Unreadable) => selection.unreadable += 1,
                Some(LeftOutReason::Suspect(_)) => selection.suspects += 1,
                None => free = free.or(Some(Timestamp::from_millis(row.0))),
            }
            last = Some(row);
        }
        self.note_what_is_behind(lane, request.after.as_ref(), last.as_ref(), &mut selection);
        selection.head = free.or(selection.head);
        selection
    }

    /// Due members of a lane, the earliest first, behind a position if one is given.
    fn rows<'a>(
        &'a self,
        now: Timestamp,
        lane: &Lane,
        after: Option<&'a DuePosition>,
    ) -> Option<impl DoubleEndedIterator<Item = DueRow<'a>>> {
        let low = after.map_or(1, |place| place.due.as_millis());
        let due = self.due.get(lane)?.between(low, now.as_millis());
        Some(due.filter(move |row| is_behind(*row, after)))
    }

    /// Notes the last member that was read, and the first due behind it.
    fn note_what_is_behind(
        &self,
        lane: &Lane,
        after: Option<&DuePosition>,
        last: Option<&DueRow<'_>>,
        selection: &mut Selection,
    ) {
        selection.last = last.map(|(score, member)| DuePosition {
            due: Timestamp::from_millis(*score),
            member: Some((*member).clone()),
        });
        let from = selection.last.as_ref().or(after);
        let behind = self.waiting(lane).find(|row| is_behind(*row, from));
        selection.head = behind.map(|(score, _)| Timestamp::from_millis(score));
    }

    /// Claims the selected occurrences.
    fn take(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        token: &Token,
        end: Timestamp,
        selection: Selection,
        tells_crashes: bool,
    ) -> Claimed {
        let mut claimed = Claimed {
            now,
            paused: false,
            occurrences: Vec::new(),
            head: selection.head,
            last: selection.last,
            suspects: selection.suspects,
            unreadable: selection.unreadable,
            removed: selection.without_record.len() as u64,
        };
        for member in &selection.without_record {
            self.remove_score(lane, member);
            self.crashes.remove(member);
        }
        if selection.taken.is_empty() {
            return claimed;
        }
        self.set_lease(lane, token, end);
        let claim = Claim { whole: true, pairs: selection.taken.clone() };
        self.claims.entry(lane.clone()).or_default().insert(token.clone(), claim);
        for (member, due) in selection.taken {
            self.turn(lane, &member, -due.as_millis());
            let record = self.tasks.get(&member).cloned().unwrap_or_default();
            let crashes = self.mark(&member, due).filter(|_| tells_crashes).and_then(|mark| mark.count);
            claimed.occurrences.push(Occurrence {
                counts: self.counts.get(&member).filter(|_| has(&record, RECURRING)).copied().unwrap_or_default(),
                record,
                crashes: crashes.unwrap_or_default(),
                member,
                due,
            });
        }
        claimed
    }
}

/// Why ordinary claims leave an occurrence out.
#[derive(Clone, Copy)]
enum LeftOutReason {
    /// This many of its claims have expired.
    Suspect(u32),
    /// An instance could not parse it.
    Unreadable,
}

/// The selection of a claim.
#[derive(Default)]
struct Selection {
    /// Due occurrences to claim.
    taken: Vec<(Member, Timestamp)>,
    /// Due members without a record.
    without_record: Vec<Member>,
    /// Number of due suspects that are left out.
    suspects: u64,
    /// Number of due unreadable occurrences that are left out.
    unreadable: u64,
    /// The last position that was read.
    last: Option<DuePosition>,
    /// The first due behind it.
    head: Option<Timestamp>,
}

/// Whether a member stands behind a position.
fn is_behind((score, member): DueRow<'_>, place: Option<&DuePosition>) -> bool {
    place.is_none_or(|place| (score, Some(member)) > (place.due.as_millis(), place.member.as_ref()))
}
