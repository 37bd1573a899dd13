//! What a claimer knows between two claims: when the next claim is due, of which kind it is, and where it starts.
//!
//! Claims start at the oldest due task. While a destination of the lane is at fault, some of its occurrences return to
//! the lane with the due they had. Claims then start behind the last position that was read, and every two seconds one
//! starts at the oldest again. While a lane is far behind, every other claim takes the newest, so that new tasks do not
//! wait for the whole backlog.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::engine::claiming::wake_signal::WakeReasons;
use crate::engine::instances::Rank;
use crate::timeline::{Claimed, DuePosition};

/// How often a claim starts at the oldest while other claims start behind returned occurrences.
pub(in crate::engine) const OLDEST_INTERVAL: Duration = Duration::from_secs(2);

/// Every other claim takes the newest once the head is this late.
const MIN_FAR_BEHIND: Duration = Duration::from_secs(5);

/// The pause before the next claim while another claim holds the permit for suspects. A signal ends it when the permit
/// is free.
const SUSPECTS_PAUSE: Duration = Duration::from_secs(1);

/// How often a claimer checks for unreadable occurrences, because a cancel of one sends no wake-up.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(10);

/// How often a claimer asks whether its lane is still paused, whatever wakes it in the meantime.
const PAUSED_INTERVAL: Duration = Duration::from_secs(1);

/// The kind of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum ClaimKind {
    /// From the oldest, or behind returned occurrences.
    Ordinary,
    /// From the oldest, while ordinary claims start behind returned occurrences.
    Oldest,
    /// The newest.
    Newest,
    /// Suspects.
    Suspects,
    /// Unreadable occurrences.
    Unreadable,
}

/// What the claimer knows between two claims.
#[derive(Debug, Default)]
pub(in crate::engine) struct NextClaim {
    /// The earliest known due of the lane.
    head: Option<Timestamp>,
    /// Where the next ordinary claim starts while occurrences return to the lane.
    place: Option<DuePosition>,
    /// Where the next ordinary claim starts if the last one read only occurrences that it had to leave out.
    behind_left_out: Option<DuePosition>,
    /// When a claim starts at the oldest again, while occurrences return to the lane.
    oldest_at: Option<Timestamp>,
    /// Whether the next claim takes the newest.
    newest_next: bool,
    /// Whether there are suspects, as far as the claims so far have shown. The next claim is for them if the claimer
    /// gets the permit.
    suspects_next: bool,
    /// The position behind which it looks for suspects.
    suspects_behind: Option<DuePosition>,
    unreadable: Unreadable,
    /// No claim before this time, because the lane is paused.
    paused_until: Option<Timestamp>,
}

/// The state of the lane when a claim begins.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct LaneNow {
    pub(in crate::engine) now: Timestamp,
    /// Occurrences of the lane returned lately because their destination is at fault.
    pub(in crate::engine) has_returns: bool,
    /// This claimer holds the permit for suspects.
    pub(in crate::engine) may_take_suspects: bool,
}

/// What is known of unreadable occurrences.
#[derive(Debug, Default)]
struct Unreadable {
    /// How many the last claim from the oldest left out.
    seen: u64,
    /// Whether the next claim asks for them.
    next: bool,
    /// The position behind which it asks.
    behind: Option<DuePosition>,
    /// Whether all of them were asked for once, in case this version can parse them.
    asked: bool,
}

impl NextClaim {
    /// Notes a signal.
    pub(in crate::engine) fn notified(&mut self, notice: WakeReasons) {
        if notice.from_oldest {
            (self.place, self.behind_left_out, self.oldest_at) = (None, None, None);
        }
        if notice.look {
            self.head = Some(Timestamp::MIN_DUE);
        }
        if let Some(due) = notice.due {
            self.look_by(due);
            if self.place.as_ref().is_some_and(|place| due <= place.due) {
                self.place = Some(DuePosition { due, member: None });
            }
        }
    }

    /// When the next claim is due. `has_returns` is as in [`LaneNow`].
    fn next_at(&mut self, has_returns: bool, now: Timestamp) -> Option<Timestamp> {
        if let Some(until) = &mut self.paused_until {
            // The clock of Redis may have been set back since.
            *until = now.plus(PAUSED_INTERVAL).min(*until);
            return Some(*until);
        }
        if has_returns {
            self.oldest_at.get_or_insert(now.plus(OLDEST_INTERVAL));
        }
        self.head.into_iter().chain(self.oldest_at).min()
    }

    /// When an instance of this rank makes the next claim. It forgets a due that it leaves to other instances, until a
    /// glance shows that due again.
    pub(in crate::engine) fn asks_at(&mut self, rank: Rank, has_returns: bool, now: Timestamp) -> Option<Timestamp> {
        let at = self.next_at(has_returns, now);
        // Other instances may not know of the pause, the suspects or the unreadable occurrences that this claimer has
        // seen.
        if self.paused_until.is_some() || self.suspects_next || self.unreadable.seen > 0 {
            return at;
        }
        if rank != Rank::Other {
            return at.and_then(|at| rank.asks_at(at, now));
        }
        // Returned occurrences stand at the head and look overdue. While there are any, only a signal to look starts a
        // claim.
        let head = self.head.filter(|head| !has_returns || *head == Timestamp::MIN_DUE);
        self.head = head.filter(|head| rank.asks_at(*head, now).is_some());
        self.head
    }

    /// Whether the next claim should be for suspects, if the claimer gets the permit.
    pub(in crate::engine) fn asks_for_suspects(&self) -> bool {
        self.suspects_next
    }

    /// Number of unreadable occurrences that were seen lately.
    pub(in crate::engine) fn unreadable(&self) -> u64 {
        self.unreadable.seen
    }

    /// The kind of the next claim, and the position behind which it starts.
    pub(in crate::engine) fn next(&self, lane: LaneNow) -> (ClaimKind, Option<DuePosition>) {
        let LaneNow { now, has_returns, may_take_suspects } = lane;
        if may_take_suspects {
            (ClaimKind::Suspects, self.suspects_behind.clone())
        } else if self.unreadable.next {
            (ClaimKind::Unreadable, self.unreadable.behind.clone())
        } else if has_returns && self.oldest_at.is_some_and(|at| at <= now) {
            // A claim with a position sends no wake-up for the remaining tasks, so use the position before all tasks.
            (ClaimKind::Oldest, Some(DuePosition { due: Timestamp::MIN_DUE, member: None }))
        } else if self.newest_next {
            (ClaimKind::Newest, None)
        } else {
            let place = if has_returns { &self.place } else { &self.behind_left_out };
            (ClaimKind::Ordinary, place.clone())
        }
    }

    /// Updates this state from the reply of a claim. `wait(true)` joins the queue for the suspect permit, `wait(false)`
    /// leaves it. It returns whether this claimer is next.
    pub(in crate::engine) fn learn(
        &mut self,
        kind: ClaimKind,
        after: Option<DuePosition>,
        claimed: &Claimed,
        wait: impl FnOnce(bool) -> bool,
    ) {
        self.paused_until = claimed.paused.then(|| claimed.now.plus(PAUSED_INTERVAL));
        if claimed.paused {
            self.suspects_next = false;
            wait(false);
            return;
        }
        match kind {
            ClaimKind::Newest => self.newest_next = false,
            ClaimKind::Unreadable => self.asked_for_unreadable(claimed),
            ClaimKind::Oldest => {
                self.oldest_at = Some(claimed.now.plus(OLDEST_INTERVAL));
                self.saw_suspects(claimed, after);
                self.saw_unreadable(claimed);
            }
            ClaimKind::Ordinary => self.claimed_ordinary(claimed, after),
            ClaimKind::Suspects => self.claimed_suspects(claimed, after.is_none()),
        }
        if matches!(kind, ClaimKind::Ordinary | ClaimKind::Oldest | ClaimKind::Suspects) {
            let has_suspects = self.suspects_next || claimed.suspects > 0;
            let is_next = wait(has_suspects);
            if self.suspects_next && is_next {
                self.head = Some(claimed.now);
            } else if has_suspects {
                self.look_by(claimed.now.plus(SUSPECTS_PAUSE));
            }
        }
        if self.unreadable.next {
            self.head = Some(claimed.now);
        } else if self.unreadable.seen > 0 {
            self.look_by(claimed.now.plus(UNREADABLE_PAUSE));
        }
    }

    fn claimed_ordinary(&mut self, claimed: &Claimed, after: Option<DuePosition>) {
        let from_oldest = after.is_none();
        // The claim started behind occurrences that are left out and still there.
        let behind_left_out = !from_oldest && after == self.behind_left_out;
        if from_oldest {
            self.oldest_at = None;
            self.saw_unreadable(claimed);
        }
        self.place = claimed.last.clone().or(self.place.take());
        // The claim read only occurrences that it left out, and more are due. The next claim must start behind them, or
        // it would read the same ones again.
        let only_left_out = claimed.occurrences.is_empty() && claimed.suspects + claimed.unreadable > 0;
        let more = claimed.head.is_some_and(|head| head <= claimed.now);
        self.behind_left_out = claimed.last.clone().filter(|_| only_left_out && more);
        // Behind returned occurrences no task should wait, so any late head counts as far behind.
        let far = if from_oldest || behind_left_out { MIN_FAR_BEHIND } else { Duration::ZERO };
        self.newest_next = claimed.head.is_some_and(|head| head.plus(far) <= claimed.now);
        self.saw_suspects(claimed, after);
        self.head = claimed.head;
    }

    fn claimed_suspects(&mut self, claimed: &Claimed, from_oldest: bool) {
        // The other suspects are claimed once they are seen again; otherwise suspects of a failing destination would be
        // claimed in a loop.
        self.suspects_next = false;
        // Suspects are left but none was taken. A due head is then behind more suspects than one claim reads.
        let none_taken = claimed.occurrences.is_empty() && claimed.suspects > 0;
        let head = claimed.head.filter(|head| *head > claimed.now || !none_taken);
        // A claim behind a position says nothing about the tasks before it.
        self.head = if from_oldest { head } else { self.head.into_iter().chain(head).min() };
    }

    fn look_by(&mut self, latest: Timestamp) {
        self.head = Some(self.head.map_or(latest, |head| head.min(latest)));
    }

    /// A claim behind a position does not see suspects before it. They are claimed from the position where they were
    /// last seen.
    fn saw_suspects(&mut self, claimed: &Claimed, after: Option<DuePosition>) {
        if claimed.suspects > 0 || after.is_none() {
            self.suspects_next = claimed.suspects > 0;
            self.suspects_behind = after;
        }
    }

    fn saw_unreadable(&mut self, claimed: &Claimed) {
        self.unreadable.seen = claimed.unreadable;
        self.unreadable.next = claimed.unreadable > 0 && !self.unreadable.asked;
    }

    /// Continues behind the unreadable occurrences that were taken, until none is left.
    fn asked_for_unreadable(&mut self, claimed: &Claimed) {
        // One call reads at most a thousand members of any kind. Only a call that reached the end has seen them all.
        if claimed.last.is_none() {
            self.unreadable.asked = true;
            self.unreadable.next = false;
        }
        self.unreadable.behind = claimed.last.clone().or(self.unreadable.behind.take());
    }
}

#[cfg(test)]
#[path = "next_claim_tests.rs"]
mod tests;
