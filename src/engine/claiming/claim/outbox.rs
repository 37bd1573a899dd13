//! Publishes under way, and flights that wait to be published again.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{FutureExt, ready};
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use punctual_sinks::{Message, Outcome, Sink};
use tokio::time::Instant;

use crate::engine::context::SinkContext;
#[cfg(feature = "fault-points")]
use crate::engine::fault::{self, Point};

/// Answers that come later than this after `answer_timeout` are ignored.
const SINK_GRACE: Duration = Duration::from_millis(500);

/// What a sink's stream yields.
pub(super) enum SinkAnswer {
    /// The outcome of a flight, with the number of its publish.
    Outcome(usize, u32, Outcome),
    /// A batch that was sent at this time has ended. The remaining messages will not be answered.
    Ended(Instant, Vec<(usize, u32)>),
}

/// What an outbox yields.
pub(super) enum OutboxEvent {
    SinkAnswer(SinkAnswer),
    /// A flight is due to be published again.
    RetryDue,
}

/// Messages for one destination, with flight and publish number of each.
#[derive(Default)]
pub(super) struct PublishBatch {
    pub(super) flights: Vec<(usize, u32)>,
    pub(super) messages: Vec<Message>,
}

/// Publishes under way, and when to publish which flight again.
#[derive(Default)]
pub(super) struct Outbox {
    answers: SelectAll<BoxStream<'static, SinkAnswer>>,
    retries: BinaryHeap<Reverse<(Instant, usize)>>,
}

impl Outbox {
    /// Publishes a batch.
    pub(super) fn send(&mut self, sink: &SinkContext, sent: Instant, batch: PublishBatch) {
        self.answers.push(answers(sink, sent, batch));
    }

    /// Publishes a flight again at this time.
    pub(super) fn retry_at(&mut self, at: Instant, index: usize) {
        self.retries.push(Reverse((at, index)));
    }

    /// Removes and returns the flights whose retry is due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<usize> {
        let mut due = Vec::new();
        while self.retries.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            due.extend(self.retries.pop().map(|Reverse((_, index))| index));
        }
        due
    }

    /// Removes all retries.
    pub(super) fn clear_retries(&mut self) {
        self.retries.clear();
    }

    /// Ignores all later answers.
    pub(super) fn drop_answers(&mut self) {
        self.answers = SelectAll::new();
    }

    /// An answer that is already available.
    pub(super) fn try_answer(&mut self) -> Option<SinkAnswer> {
        self.answers.next().now_or_never().flatten()
    }

    /// Waits for the next event; for ever if there is none to come.
    pub(super) async fn next(&mut self) -> OutboxEvent {
        let retry = self.retries.peek().map(|Reverse((at, _))| *at);
        tokio::select! {
            biased;
            Some(answer) = self.answers.next() => OutboxEvent::SinkAnswer(answer),
            () = sleep_until(retry) => OutboxEvent::RetryDue,
        }
    }
}

/// Sleeps until a time; for ever without one.
pub(super) async fn sleep_until(timer: Option<Instant>) {
    match timer {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The outcomes of a batch, then its end.
fn answers(sink: &SinkContext, sent: Instant, batch: PublishBatch) -> BoxStream<'static, SinkAnswer> {
    let limit = tokio::time::sleep(sink.sink.answer_timeout() + SINK_GRACE);
    let (flights, under_way) = (batch.flights.clone(), sink.begin_publish(sent));
    outcomes(&sink.sink, batch.messages)
        .filter_map(move |(at, outcome)| {
            let _until_dropped = &under_way;
            ready(flights.get(at).map(|(index, publish)| SinkAnswer::Outcome(*index, *publish, outcome)))
        })
        .take_until(limit)
        .chain(stream::once(ready(SinkAnswer::Ended(sent, batch.flights))))
        .boxed()
}

/// The outcome of each message.
#[cfg(not(feature = "fault-points"))]
fn outcomes(sink: &Arc<dyn Sink>, messages: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
    sink.publish(messages)
}

/// The outcome of each message; of half of them, if a fault point between the halves of a batch is selected.
#[cfg(feature = "fault-points")]
fn outcomes(sink: &Arc<dyn Sink>, mut messages: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
    let Some(half) = fault::first_half(messages.len()) else { return sink.publish(messages) };
    messages.truncate(half);
    let never = async {
        fault::reached(Point::MidPublish);
        std::future::pending().await
    };
    sink.publish(messages).chain(stream::once(never)).boxed()
}
