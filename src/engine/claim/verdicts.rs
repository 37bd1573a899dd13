//! Verdicts that are not written yet: they wait for one another a little, are written together, and again until the timeline
//! has answered.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::Instant;

use super::outbox::sleep_until;
use crate::clock::Timestamp;
use crate::engine::judge::Reason;
use crate::task::{CatchUp, Member};
use crate::timeline::{Settled, Settlement, Verdict};

/// How long verdicts wait for the next one: those of a batch come close together once they begin to come, but a broker at its
/// limit may answer in bursts a tenth of a second apart.
const GATHER_PAUSE: Duration = Duration::from_millis(250);

/// How long the first waits at most.
const MAX_GATHER_PAUSE: Duration = Duration::from_millis(500);

/// How long one waits whose occurrence, or the next of its task, is due before that: it cannot be claimed until it is written.
const DUE_GATHER_PAUSE: Duration = Duration::from_millis(50);

/// What is counted of one verdict once it is written: a death, and occurrences passed over.
pub(super) struct Counted {
    pub(super) member: Member,
    pub(super) dead: Option<Reason>,
    pub(super) passed_over: u64,
    pub(super) catch_up: CatchUp,
}

/// What happens to verdicts.
pub(super) enum Written {
    /// They have waited long enough for more of them.
    SettleDue,
    /// The timeline has written some; `None` when it will not.
    Settled(Option<Settled>),
}

/// The verdicts of one claim.
pub(super) struct Verdicts {
    /// Each with the index of its flight.
    waiting: Vec<(usize, Settlement)>,
    tally: Vec<Counted>,
    /// When those that wait are written.
    settle_at: Option<Instant>,
    /// Until when others may put that off.
    settle_by: Option<Instant>,
    settling: Option<Settling>,
}

/// A settle under way, and what follows from it.
struct Settling {
    answer: BoxFuture<'static, Option<Settled>>,
    /// The earliest due that it writes.
    head: Option<Timestamp>,
    tally: Vec<Counted>,
}

impl Verdicts {
    pub(super) fn new(most: usize) -> Verdicts {
        let waiting = Vec::with_capacity(most);
        Verdicts { waiting, tally: Vec::new(), settle_at: None, settle_by: None, settling: None }
    }

    /// Adds one, which waits a little for others; `now` is the timeline's time.
    pub(super) fn add(&mut self, index: usize, verdict: Settlement, counted: Option<Counted>, now: Timestamp) {
        let due = waits_until(&verdict);
        let wait = due.map_or(MAX_GATHER_PAUSE, |due| due.since(now).clamp(DUE_GATHER_PAUSE, MAX_GATHER_PAUSE));
        self.tally.extend(counted);
        self.waiting.push((index, verdict));
        let now = Instant::now();
        let latest = self.settle_by.map_or(now + wait, |by| by.min(now + wait));
        self.settle_by = Some(latest);
        self.settle_at = Some(latest.min(now + GATHER_PAUSE));
    }

    /// Those that are not handed to a settle yet.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    pub(super) fn all_written(&self) -> bool {
        self.waiting.is_empty() && self.settling.is_none()
    }

    /// Takes out what is to be written now, in the claim's order: a settle costs less for what the claim begins with.
    /// Nothing while a settle is under way, or while more verdicts are awaited; unless `all` are there.
    pub(super) fn take_due(&mut self, all: bool) -> Option<Vec<(usize, Settlement)>> {
        let due = all || self.settle_at.is_some_and(|at| at <= Instant::now());
        if self.settling.is_some() || self.waiting.is_empty() || !due {
            return None;
        }
        (self.settle_at, self.settle_by) = (None, None);
        self.waiting.sort_unstable_by_key(|(index, _)| *index);
        Some(self.waiting.drain(..).collect())
    }

    /// A settle is under way, which tells of `head` and counts what came up so far once it is answered.
    pub(super) fn settle(
        &mut self,
        answer: impl Future<Output = Option<Settled>> + Send + 'static,
        head: Option<Timestamp>,
    ) {
        self.settling = Some(Settling { answer: answer.boxed(), head, tally: std::mem::take(&mut self.tally) });
    }

    /// A settle was answered: the earliest due that it wrote, and what is to be counted.
    pub(super) fn settled(&mut self) -> Option<(Option<Timestamp>, Vec<Counted>)> {
        self.settling.take().map(|settling| (settling.head, settling.tally))
    }

    /// Waits for what happens next; for ever if there are no verdicts.
    pub(super) async fn next(&mut self) -> Written {
        match &mut self.settling {
            Some(settling) => Written::Settled((&mut settling.answer).await),
            None => {
                sleep_until(self.settle_at).await;
                Written::SettleDue
            }
        }
    }
}

/// The due under which an occurrence waits after its verdict, if it does.
pub(super) fn waits_until(settlement: &Settlement) -> Option<Timestamp> {
    match settlement.verdict {
        Verdict::Next { due, .. } | Verdict::DeadNext { due, .. } => Some(due),
        Verdict::Back { .. } => Some(settlement.due),
        Verdict::Finished | Verdict::Dead(_) | Verdict::Unreadable => None,
    }
}
