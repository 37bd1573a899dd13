//! Verdicts that are not written yet. They are collected for a short time, written together, and the settle is repeated
//! until the timeline has answered.

use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use tokio::time::Instant;

use super::outbox::sleep_until;
use crate::clock::Timestamp;
use crate::engine::claiming::judge::Reason;
use crate::task::{CatchUp, Member};
use crate::timeline::{Settled, Settlement, Verdict};

/// How long verdicts wait for the next one. The outcomes of a batch usually arrive together, but a broker at its limit
/// may answer in bursts a tenth of a second apart.
const GATHER_PAUSE: Duration = Duration::from_millis(250);

/// How long the first verdict waits at most.
const MAX_GATHER_PAUSE: Duration = Duration::from_millis(500);

/// Lower bound of the wait of a verdict whose task is due again soon. Such a verdict waits at most until that due,
/// because the task cannot be claimed before the verdict is written.
const DUE_GATHER_PAUSE: Duration = Duration::from_millis(50);

/// What to count once a verdict is written: a death, and passed-over occurrences.
pub(super) struct VerdictMetrics {
    pub(super) member: Member,
    pub(super) dead: Option<Reason>,
    pub(super) passed_over: u64,
    pub(super) catch_up: CatchUp,
}

/// What `Verdicts` yields.
pub(super) enum VerdictsEvent {
    /// It is time to write the verdicts.
    SettleDue,
    /// The timeline wrote some; `None` if it keeps rejecting them or the engine is closed.
    Settled(Option<Settled>),
}

/// The verdicts of one claim.
pub(super) struct Verdicts {
    /// Verdicts not yet handed to a settle, with the index of their flight.
    waiting: Vec<(usize, Settlement)>,
    tally: Vec<VerdictMetrics>,
    /// When the waiting verdicts are written.
    settle_at: Option<Instant>,
    /// Upper bound of `settle_at`.
    settle_by: Option<Instant>,
    settling: Option<Settling>,
}

/// A settle under way, and what to do after it.
struct Settling {
    answer: BoxFuture<'static, Option<Settled>>,
    /// The earliest due that it writes.
    head: Option<Timestamp>,
    tally: Vec<VerdictMetrics>,
}

impl Verdicts {
    pub(super) fn new(most: usize) -> Verdicts {
        let waiting = Vec::with_capacity(most);
        Verdicts { waiting, tally: Vec::new(), settle_at: None, settle_by: None, settling: None }
    }

    /// Adds a verdict; `now` is the timeline's time.
    pub(super) fn add(&mut self, index: usize, verdict: Settlement, counted: Option<VerdictMetrics>, now: Timestamp) {
        let due = waits_until(&verdict);
        let wait = due.map_or(MAX_GATHER_PAUSE, |due| due.since(now).clamp(DUE_GATHER_PAUSE, MAX_GATHER_PAUSE));
        self.tally.extend(counted);
        self.waiting.push((index, verdict));
        let now = Instant::now();
        let latest = self.settle_by.map_or(now + wait, |by| by.min(now + wait));
        self.settle_by = Some(latest);
        self.settle_at = Some(latest.min(now + GATHER_PAUSE));
    }

    /// Number of verdicts not yet handed to a settle.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn is_settling(&self) -> bool {
        self.settling.is_some()
    }

    pub(super) fn all_written(&self) -> bool {
        self.waiting.is_empty() && self.settling.is_none()
    }

    /// Removes and returns the verdicts to write now, in the order of the claim, because the script is cheapest in that
    /// order. Returns `None` while a settle is under way, or while more verdicts are expected, unless `all` have
    /// arrived.
    pub(super) fn take_due(&mut self, all: bool) -> Option<Vec<(usize, Settlement)>> {
        let due = all || self.settle_at.is_some_and(|at| at <= Instant::now());
        if self.settling.is_some() || self.waiting.is_empty() || !due {
            return None;
        }
        (self.settle_at, self.settle_by) = (None, None);
        self.waiting.sort_unstable_by_key(|(index, _)| *index);
        Some(self.waiting.drain(..).collect())
    }

    /// Notes a settle under way; `head` is the earliest due that it writes.
    pub(super) fn settle(
        &mut self,
        answer: impl Future<Output = Option<Settled>> + Send + 'static,
        head: Option<Timestamp>,
    ) {
        self.settling = Some(Settling { answer: answer.boxed(), head, tally: std::mem::take(&mut self.tally) });
    }

    /// A settle was answered. Returns its earliest due and what to count.
    pub(super) fn settled(&mut self) -> Option<(Option<Timestamp>, Vec<VerdictMetrics>)> {
        self.settling.take().map(|settling| (settling.head, settling.tally))
    }

    /// Waits for the next event; for ever if there are no verdicts.
    pub(super) async fn next(&mut self) -> VerdictsEvent {
        match &mut self.settling {
            Some(settling) => VerdictsEvent::Settled((&mut settling.answer).await),
            None => {
                sleep_until(self.settle_at).await;
                VerdictsEvent::SettleDue
            }
        }
    }
}

/// The due with which an occurrence waits after its verdict, if any.
pub(super) fn waits_until(settlement: &Settlement) -> Option<Timestamp> {
    match settlement.verdict {
        Verdict::Next { due, .. } | Verdict::DeadNext { due, .. } => Some(due),
        Verdict::Back { .. } => Some(settlement.due),
        Verdict::Finished | Verdict::Dead(_) | Verdict::Unreadable => None,
    }
}
