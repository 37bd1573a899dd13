//! Drives one claim from its first publish to its last settle.
//!
//! The claim is settled when every occurrence has a verdict, or when none has arrived for a while. Occurrences without
//! a verdict stay in the claim and are published again, so that a slow message does not delay the others. When the
//! lease is lost, the claim is dropped at once. When the sink is absent, its occurrences return to the lane.

mod beginning;
mod copies;
mod deciding;
mod ending;
mod flight;
mod following;
mod judging;
mod outbox;
mod task;
mod trials;
mod verdicts;

use std::sync::Arc;

use tracing::warn;

use self::copies::Copied;
use self::outbox::{Posted, SinkAnswer};
use self::task::ClaimTask;
use self::verdicts::Written;
use crate::task::Follow;
use crate::timeline::{Claimed, Settled};

pub(super) use self::task::ClaimContext;

/// What happens to a claim.
enum Event {
    /// Another claim may hold its occurrences now.
    LeaseLost,
    /// The sink answered.
    SinkAnswer(SinkAnswer),
    /// A flight is due to be published again.
    RetryDue,
    /// The dead-letter destination answered.
    Copied(Copied),
    /// The next due of a task is known, or cannot be computed.
    Followed(usize, Result<Follow, String>),
    /// It is time to write the verdicts.
    SettleDue,
    /// The timeline wrote verdicts; `None` if it will not.
    Settled(Option<Settled>),
    /// The sink's breaker opened.
    SinkAbsent,
    /// The engine starts no publishes any more.
    Stopping,
    /// The engine waits for no answers any more.
    Deadline,
}

/// Drives a claim until it is empty.
pub(super) async fn run(claim: ClaimContext, claimed: Claimed) {
    ClaimTask::new(claim, claimed).run().await;
}

impl ClaimTask {
    async fn run(mut self) {
        self.begin();
        while self.open > 0 || !self.verdicts.all_written() {
            self.send_copies();
            self.settle_if_due();
            match self.next().await {
                Event::SinkAnswer(answer) => {
                    self.take_in_all(answer);
                    self.give_back_if_absent();
                }
                Event::RetryDue => self.publish_due(),
                Event::Copied(copied) => self.copied(copied),
                Event::Followed(index, follow) => self.followed(index, follow),
                // The next iteration writes them.
                Event::SettleDue => {}
                Event::Settled(Some(settled)) if !settled.lost => self.settled(&settled),
                Event::LeaseLost | Event::Settled(Some(_)) => return self.let_go(),
                // The engine is closed, or the timeline rejects the settle: the lease will expire.
                Event::Settled(None) => return,
                Event::SinkAbsent => self.give_back(),
                Event::Stopping => self.stop(),
                Event::Deadline => self.give_up(),
            }
        }
    }

    async fn next(&mut self) -> Event {
        let (context, sink) = (Arc::clone(&self.claim.context), Arc::clone(&self.claim.lane.sink));
        // While the last settle is under way, its answer tells whether the claim was lost.
        let last = self.verdicts.is_settling() && self.open == 0;
        tokio::select! {
            biased;
            () = self.claim.lease.lost.cancelled(), if !last => Event::LeaseLost,
            posted = self.outbox.next() => match posted {
                Posted::SinkAnswer(answer) => Event::SinkAnswer(answer),
                Posted::RetryDue => Event::RetryDue,
            },
            copied = self.copies.next() => Event::Copied(copied),
            (index, follow) = self.followings.next() => Event::Followed(index, follow),
            written = self.verdicts.next() => match written {
                Written::Settled(settled) => Event::Settled(settled),
                Written::SettleDue => Event::SettleDue,
            },
            () = sink.breaker.opened(), if !self.ending => Event::SinkAbsent,
            () = context.deadline.cancelled(), if self.open > 0 => Event::Deadline,
            () = context.stopping.cancelled(), if !self.ending => Event::Stopping,
        }
    }

    /// The lease is lost: ends without writing anything.
    fn let_go(self) {
        self.claim.lane.metrics.claims_lost.inc();
        let (lane, token, open) = (&self.claim.lane.lane, &self.claim.lease.token.0, self.open);
        warn!(%lane, token, open, "lease lost before the claim was settled; its occurrences may be published again");
    }
}
