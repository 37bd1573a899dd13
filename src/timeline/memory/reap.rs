//! The verbs reap and glance. Glance tells an instance when to reap.

use std::time::Duration;

use super::twin::{AnswerWithWakes, OccurrenceMark, ReapAt, Twin};
use crate::clock::Timestamp;
use crate::task::{Lane, Member};
use crate::timeline::{
    CountRequest, Glance, GlanceRequest, LaneGlance, MAX_BATCH, MAX_HOLDERS, ReapRequest, Reaped, TimelineError, Token,
};

/// The pause between two reaps, a little less than the second between two glances of one instance.
const REAP_PAUSE: Duration = Duration::from_millis(900);

/// If a reap is overdue by more than this, and by more than half a lease, no instance reached the timeline. The holders get
/// time to renew their leases first.
const MAX_REAP_AGE: Duration = Duration::from_secs(3);

/// Maximum number of dead occurrences that one reap drops because of their age.
const MAX_DROPPED: usize = 100;

impl Twin {
    /// Ends expired claims. Their occurrences return to the lane with the due they had.
    ///
    /// # Errors
    /// [`TimelineError::Late`] after `not_after`.
    pub fn reap(
        &mut self,
        now: Timestamp,
        lane: &Lane,
        request: &ReapRequest,
    ) -> Result<AnswerWithWakes<Reaped>, TimelineError> {
        if now > request.not_after {
            return Err(TimelineError::Late);
        }
        let before = self.head(lane);
        let (mut reaped, mut waits) = (Reaped::default(), Vec::new());
        self.shorten_leases(now, lane, request.lease);
        self.end_claims(now, lane, &mut reaped, &mut waits);
        self.free_stranded(lane, &mut reaped, &mut waits);
        let (dropped, more) = self.drop_dead_until(now.minus(request.dead_keep), MAX_DROPPED);
        reaped.dropped = dropped;
        reaped.more |= more;
        if !self.leases.contains_key(lane) {
            self.claims.remove(lane);
        }
        if !request.served && self.is_empty_lane(lane) && self.pause_of(now, lane).is_none() {
            self.lanes.remove(lane);
            self.reap_at.remove(lane);
            if self.tasks.is_empty() {
                self.largest = 0;
            }
        }
        Ok(AnswerWithWakes { answer: reaped, wakes: self.wake_for(now, lane, before, &waits).into_iter().collect() })
    }

    /// Shortens leases that end later than a new lease would: they were written before the clock stepped back.
    fn shorten_leases(&mut self, now: Timestamp, lane: &Lane, lease: Duration) {
        let Some(leases) = self.leases.get_mut(lane) else { return };
        let limit = |token: &Token| now.plus(token.lease().unwrap_or(lease)).as_millis();
        let long: Vec<_> = leases.iter().filter(|(end, token)| *end > limit(token)).map(|(_, it)| it.clone()).collect();
        for token in long {
            let limit = limit(&token);
            leases.set(token, limit);
        }
    }

    fn end_claims(&mut self, now: Timestamp, lane: &Lane, reaped: &mut Reaped, waits: &mut Vec<Timestamp>) {
        let ended = |twin: &Twin| {
            let (end, token) = twin.leases.get(lane)?.first()?;
            (end <= now.as_millis()).then(|| token.clone())
        };
        while let Some(token) = ended(self) {
            let held = self.claims.get(lane).and_then(|claims| claims.get(&token));
            let held = held.map_or(0, |claim| claim.pairs.len() as u64);
            if reaped.occurrences > 0 && reaped.occurrences + held > MAX_BATCH as u64 {
                reaped.more = true;
                return;
            }
            reaped.claims += 1;
            reaped.occurrences += held;
            let holder = token.holder();
            if reaped.holders.len() < MAX_HOLDERS && !reaped.holders.iter().any(|known| known == holder) {
                reaped.holders.push(holder.to_owned());
            }
            for (member, due) in self.remove_claim(lane, &token).into_iter().flat_map(|claim| claim.pairs) {
                waits.extend(self.return_to_lane(lane, &member, due));
            }
        }
    }

    /// A safety net: returns occurrences that are marked as claimed although the lane has no lease.
    fn free_stranded(&mut self, lane: &Lane, reaped: &mut Reaped, waits: &mut Vec<Timestamp>) {
        if self.leases.contains_key(lane) {
            return;
        }
        let Some(line) = self.due.get(lane) else { return };
        let left = MAX_BATCH.saturating_sub(usize::try_from(reaped.occurrences).unwrap_or(MAX_BATCH));
        let stranded: Vec<_> = line.negative().map(|(score, member)| (member.clone(), -score)).collect();
        reaped.more |= stranded.len() > left;
        for (member, due) in stranded.into_iter().take(left) {
            reaped.stranded += 1;
            waits.extend(self.return_to_lane(lane, &member, Timestamp::from_millis(due)));
        }
    }

    /// Returns an occurrence of an expired claim to its lane. Returns its due, or `None` if the task was cancelled or is
    /// paused.
    fn return_to_lane(&mut self, lane: &Lane, member: &Member, due: Timestamp) -> Option<Timestamp> {
        if let Some(due) = self.apply_change(lane, member) {
            return due;
        }
        let before = self.mark(member, due);
        let count = before.and_then(|mark| mark.count).unwrap_or_default();
        let mark = match before {
            // The crash count of an unreadable occurrence stays: only an instance that could parse it can have
            // published it.
            Some(mark) if mark.unreadable => OccurrenceMark { count: Some(count), ..mark },
            _ => OccurrenceMark::crashed(due, count.saturating_add(1)),
        };
        self.crashes.insert(member.clone(), mark);
        self.let_wait(lane, member, due)
    }

    fn is_empty_lane(&self, lane: &Lane) -> bool {
        !self.due.contains_key(lane) && !self.leases.contains_key(lane)
    }

    /// Reads the state of lanes, and tells one caller when a reap is due.
    pub fn glance(&mut self, now: Timestamp, request: &GlanceRequest) -> Glance {
        let lanes = request.lanes.iter().map(|(lane, served)| self.glance_lane(now, lane, *served, request)).collect();
        Glance { lanes, known: self.lanes.iter().cloned().collect(), dead: self.dead.len() as u64 }
    }

    fn glance_lane(&mut self, now: Timestamp, lane: &Lane, served: bool, request: &GlanceRequest) -> LaneGlance {
        if self.pause_of(now, lane).is_none() {
            self.paused_lanes.remove(lane);
        }
        let pause = self.paused_lanes.get(lane).cloned();
        let leases = self.leases.get(lane);
        let first_lease = leases.and_then(|leases| leases.first()).map(|(end, _)| Timestamp::from_millis(end));
        let last_lease = leases.and_then(|leases| leases.last()).map(|(end, _)| Timestamp::from_millis(end));
        let line = self.due.get(lane);
        let claimed = |line: &super::Zset<Member>| line.first().is_some_and(|(score, _)| score < 0);
        let stranded = leases.is_none() && line.is_some_and(claimed);
        let counts = request.depth.then(|| self.count(now, lane, &CountRequest::default()));
        let held = line.filter(|_| request.depth).and_then(|line| line.negative().map(|(score, _)| -score).min());
        let limit = now.plus(request.lease);
        let length =
            leases.and_then(|leases| leases.last()).and_then(|(_, token)| token.lease()).unwrap_or(request.lease);
        // A paused lane stays known: another instance may serve it.
        let forgotten = !served && self.is_empty_lane(lane) && pause.is_none();
        let outlived = self.dead.first().is_some_and(|(at, _)| at <= now.minus(request.dead_keep).as_millis());
        let work = first_lease.is_some_and(|end| end <= now)
            || last_lease.is_some_and(|end| end > now.plus(length))
            || stranded
            || forgotten
            || outlived;
        let next_reap = ReapAt { at: now.plus(REAP_PAUSE), postponed: false };
        let long = MAX_REAP_AGE.max(request.lease / 2);
        let (reap_at, reap) = match self.reap_at.get(lane).copied() {
            Some(stored) if stored.at < now.minus(long) && !stored.postponed => {
                (ReapAt { at: limit, postponed: true }, false)
            }
            Some(stored) if stored.at <= now => (next_reap, work),
            Some(stored) if stored.at > limit => (next_reap, false),
            // An instance makes glances regularly. If no instance reaches the timeline for that long again, the reap may be postponed again.
            Some(stored) => {
                let postponed = stored.postponed && now > stored.at.minus(request.lease).plus(long);
                (ReapAt { postponed, ..stored }, false)
            }
            None => (ReapAt { at: limit, postponed: false }, false),
        };
        // Store nothing for a lane that is neither served nor known, because no reap would remove the entry.
        let known = served || self.lanes.contains(lane);
        if known {
            self.reap_at.insert(lane.clone(), reap_at);
        }
        let held = held.map(Timestamp::from_millis);
        LaneGlance {
            head: self.head(lane),
            first_lease,
            last_lease,
            stranded,
            reap: reap && known,
            depth: counts.as_ref().map(|counts| (counts.waiting, counts.in_flight)),
            held,
            overdue: counts.as_ref().map_or(0, |counts| counts.overdue),
            paused: counts.map_or(0, |counts| counts.paused),
            pause,
        }
    }
}
