//! Drives one claim from its first publish to its last settle.
//!
//! The claim is settled when every occurrence has a verdict, or when none has arrived for a while. Occurrences without
//! a verdict stay in the claim and are published again, so that a slow message does not delay the others. When the
//! lease is lost, the claim is dropped at once. When the sink is unavailable, its occurrences return to the lane.

mod beginning;
mod dead_copies;
mod deciding;
mod ending;
mod flight;
mod judging;
mod next_dues;
mod outbox;
mod task;
mod trials;
mod verdicts;

use std::sync::Arc;

use tracing::warn;

use self::dead_copies::DeadCopyResult;
use self::outbox::{OutboxEvent, SinkAnswer};
use self::task::ClaimState;
use self::verdicts::VerdictsEvent;
use crate::task::NextDue;
use crate::timeline::{Claimed, Settled};

pub(super) use self::task::ClaimContext;

/// What happens to a claim.
enum ClaimEvent {
    /// Another claim may hold its occurrences now.
    LeaseLost,
    /// The sink answered.
    SinkAnswer(SinkAnswer),
    /// A flight is due to be published again.
    RetryDue,
    /// The dead-letter destination answered.
    DeadCopyAnswered(DeadCopyResult),
    /// The next due of a task is known, or cannot be computed.
    NextDueKnown(usize, Result<NextDue, String>),
    /// It is time to write the verdicts.
    SettleDue,
    /// The timeline wrote verdicts; `None` if it keeps rejecting them or the engine is closed.
    Settled(Option<Settled>),
    /// The sink's breaker opened.
    SinkUnavailable,
    /// The engine starts no publishes any more, or the lane is paused.
    Stopping,
    /// The engine waits for no answers any more.
    Deadline,
}

/// Drives a claim until it is empty.
pub(super) async fn run(claim: ClaimContext, claimed: Claimed) {
    ClaimState::new(claim, claimed).run().await;
}

impl ClaimState {
    async fn run(mut self) {
        self.begin();
        while self.open > 0 || !self.verdicts.all_written() {
            self.send_copies();
            self.settle_if_due();
            match self.next().await {
                ClaimEvent::SinkAnswer(answer) => {
                    self.take_in_all(answer);
                    self.return_undecided_if_unavailable();
                }
                ClaimEvent::RetryDue => self.publish_due(),
                ClaimEvent::DeadCopyAnswered(copied) => self.dead_copy_answered(copied),
                ClaimEvent::NextDueKnown(index, next_due) => self.next_due_known(index, next_due),
                // The next iteration writes them.
                ClaimEvent::SettleDue => {}
                ClaimEvent::Settled(Some(settled)) if !settled.lost => self.settled(&settled),
                ClaimEvent::LeaseLost | ClaimEvent::Settled(Some(_)) => return self.let_go(),
                // The engine is closed, or the timeline rejects the settle: the lease will expire.
                ClaimEvent::Settled(None) => return,
                ClaimEvent::SinkUnavailable => self.return_undecided(),
                ClaimEvent::Stopping => self.stop(),
                ClaimEvent::Deadline => self.return_all(),
            }
        }
    }

    async fn next(&mut self) -> ClaimEvent {
        let (context, shard, lane) = (&self.claim.context, &self.claim.shard, &self.claim.lane);
        let (context, shard, lane) = (Arc::clone(context), Arc::clone(shard), Arc::clone(lane));
        // While the last settle is under way, its answer tells whether the claim was lost.
        let last = self.verdicts.is_settling() && self.open == 0;
        tokio::select! {
            biased;
            () = self.claim.lease.lost.cancelled(), if !last => ClaimEvent::LeaseLost,
            posted = self.outbox.next() => match posted {
                OutboxEvent::SinkAnswer(answer) => ClaimEvent::SinkAnswer(answer),
                OutboxEvent::RetryDue => ClaimEvent::RetryDue,
            },
            copied = self.dead_copies.next() => ClaimEvent::DeadCopyAnswered(copied),
            (index, next_due) = self.next_due_searches.next() => ClaimEvent::NextDueKnown(index, next_due),
            written = self.verdicts.next() => match written {
                VerdictsEvent::Settled(settled) => ClaimEvent::Settled(settled),
                VerdictsEvent::SettleDue => ClaimEvent::SettleDue,
            },
            () = lane.sink.breaker.opened(), if !self.ending => ClaimEvent::SinkUnavailable,
            () = context.deadline.cancelled(), if self.open > 0 => ClaimEvent::Deadline,
            () = context.stopping.cancelled(), if !self.ending => ClaimEvent::Stopping,
            () = shard.lane_paused(&lane.lane), if !self.ending => ClaimEvent::Stopping,
        }
    }

    /// The lease is lost: ends without writing anything.
    fn let_go(self) {
        self.claim.lane.metrics.claims_lost.inc();
        let (lane, token, open) = (&self.claim.lane.lane, &self.claim.lease.token.0, self.open);
        warn!(%lane, token, open, "lease lost before the claim was settled; its occurrences may be published again");
    }
}
