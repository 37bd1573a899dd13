//! One round of a publish: hands messages to a producer within the window and collects their reports.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;

use rdkafka::types::RDKafkaErrorCode;
use tokio::time::{Instant, timeout_at};

use super::context::{Inbox, Ticket};
use super::producer::{DroppedPublish, Producer, end_unless_reported};
use super::verdict::{AfterReport, verdict};
use crate::answers::Answers;
use crate::link::Connection as _;
use crate::window::{Window, WindowPermit, WindowShare};
use crate::{Fault, Message, Outcome};

/// The messages that one producer holds of a publish.
pub(super) struct PublishRound<'a> {
    pub(super) producer: Arc<Producer>,
    inbox: Arc<Inbox>,
    /// Whether each message is alone in its record batch.
    alone: bool,
    batch: &'a [Message],
    answers: &'a Answers,
    times: PublishTimeouts,
    /// The messages of this round.
    indices: Vec<usize>,
    /// Number of messages that librdkafka holds.
    pub(super) held: usize,
    /// Messages to send again alone.
    pub(super) again: Vec<usize>,
}

/// The time limits of a publish.
#[derive(Clone, Copy)]
pub(super) struct PublishTimeouts {
    /// Messages are handed over until this time, so that librdkafka has given up on them by the deadline.
    pub(super) hand_over: Instant,
    pub(super) deadline: Instant,
}

/// Completes when the producer is lost.
type ProducerLost<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send)>;

impl<'a> PublishRound<'a> {
    pub(super) fn new(
        producer: Arc<Producer>,
        alone: bool,
        batch: &'a [Message],
        answers: &'a Answers,
        times: PublishTimeouts,
        indices: Vec<usize>,
    ) -> PublishRound<'a> {
        let (inbox, again) = (Arc::default(), Vec::new());
        PublishRound { producer, inbox, alone, batch, answers, times, indices, held: 0, again }
    }

    /// Hands messages over and waits for all their reports. Returns whether there is time and a producer for another
    /// round; otherwise all messages are answered.
    pub(super) async fn run(&mut self, window: &Window) -> bool {
        let producer = Arc::clone(&self.producer);
        let topic = self.indices.first().map(|&index| self.batch[index].destination.as_str());
        let mut lost = pin!(producer.lost(topic));
        let (mut in_time, mut alive) = (true, true);
        let mut share: Option<(&str, WindowShare)> = None;
        for turn in 0..self.indices.len() {
            let index = self.indices[turn];
            let message = &self.batch[index];
            let known = share.take().filter(|(topic, _)| *topic == message.destination);
            let (_, share) = share.insert(known.unwrap_or_else(|| {
                (message.destination.as_str(), window.share(&message.destination, self.indices.len()))
            }));
            if turn % 32 == 0 {
                self.take();
            }
            let until = self.times.hand_over;
            let handed = if Instant::now() < until {
                timeout_at(until, self.hand_over(window, share, index, lost.as_mut())).await.ok()
            } else {
                None
            };
            match handed {
                Some(true) => {}
                Some(false) => {
                    alive = false;
                    break;
                }
                None => {
                    in_time = false;
                    break;
                }
            }
        }
        // Let other publishes hand over their messages while this one waits for reports.
        drop(share);
        if !alive {
            return self.give_up_as_lost().await;
        }
        while self.held > 0 {
            if !self.next(lost.as_mut()).await {
                return self.give_up_as_lost().await;
            }
        }
        if !in_time {
            let (fault, detail) = producer.trouble().unwrap_or_else(|| {
                (
                    Fault::Unavailable,
                    "not handed over in time: too many messages are under way, to this topic or in total".to_owned(),
                )
            });
            self.give_up(fault, &detail);
        }
        in_time
    }

    /// Hands one message over, once the window admits it. Returns whether the producer is alive.
    async fn hand_over(
        &mut self,
        window: &Window,
        share: &mut WindowShare,
        index: usize,
        lost: ProducerLost<'_>,
    ) -> bool {
        let message = &self.batch[index];
        let Some(permit) = self.permit(window, share, size(message), lost).await else { return false };
        if !self.alone {
            self.answers.handed(index + 1);
        }
        match self.producer.send(message, Ticket { inbox: Arc::clone(&self.inbox), index, permit }) {
            Ok(()) => self.held += 1,
            Err((RDKafkaErrorCode::MessageSizeTooLarge, _)) => {
                let bytes = message.payload.len();
                let detail = format!("{bytes} bytes with key and headers are over the client's `message.max.bytes`");
                self.answers.set(index, Outcome::Reject(detail));
            }
            // librdkafka did not take the message. If it is sent again alone, the first round may have sent it.
            Err((code, _)) => self.report(index, code, !self.alone),
        }
        true
    }

    /// Waits for a permit of the window. Handles reports in the meantime, because they free permits. Returns `None` if the
    /// producer is lost.
    async fn permit(
        &mut self,
        window: &Window,
        share: &mut WindowShare,
        bytes: usize,
        mut lost: ProducerLost<'_>,
    ) -> Option<WindowPermit> {
        let mut permit = pin!(window.acquire(share, bytes));
        loop {
            tokio::select! {
                biased;
                permit = &mut permit => return Some(permit),
                alive = self.next(lost.as_mut()) => if !alive { return None },
            }
        }
    }

    /// Waits for reports and handles them. Returns whether the producer is alive.
    async fn next(&mut self, lost: ProducerLost<'_>) -> bool {
        let inbox = Arc::clone(&self.inbox);
        tokio::select! {
            biased;
            () = inbox.arrived() => {
                self.take();
                true
            }
            () = lost => false,
        }
    }

    /// Ends the producer, which purges its messages, and answers all messages.
    async fn give_up_as_lost(&mut self) -> bool {
        self.producer.end();
        let inbox = Arc::clone(&self.inbox);
        while self.held > 0 {
            inbox.arrived().await;
            self.take();
        }
        let (fault, detail) = self.producer.end_of();
        self.give_up(fault, &detail);
        false
    }

    fn give_up(&self, fault: Fault, detail: &str) {
        self.answers.give_up_these(self.indices.iter().copied(), fault, detail);
    }

    /// Handles the reports that have arrived.
    pub(super) fn take(&mut self) {
        for (index, code) in self.inbox.take() {
            self.held -= 1;
            self.report(index, code, false);
        }
    }

    /// `refused`: librdkafka did not take the message, and no earlier round has sent it.
    fn report(&mut self, index: usize, code: RDKafkaErrorCode, refused: bool) {
        let AfterReport::Is(mut outcome) = verdict(code, self.alone) else { return self.again.push(index) };
        if let Outcome::Retry(trouble) = &mut outcome {
            trouble.definite |= refused;
            // The message timed out or lost its connection. The health of the brokers tells why.
            if is_time_or_connection(code)
                && let Some((fault, detail)) = self.producer.trouble()
            {
                (trouble.fault, trouble.detail) = (fault, detail);
            } else if code == RDKafkaErrorCode::MessageTimedOut {
                trouble.detail += "; check that the partition has a leader and `min.insync.replicas` replicas in sync";
            }
        }
        self.answers.set(index, outcome);
    }
}

fn is_time_or_connection(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::MessageTimedOut
            | Code::TimedOutQueue
            | Code::PurgeQueue
            | Code::PurgeInflight
            | Code::BrokerTransportFailure
            | Code::NetworkException
    )
}

impl Drop for PublishRound<'_> {
    fn drop(&mut self) {
        if self.held > 0 {
            let (inbox, until) = (Arc::clone(&self.inbox), self.times.deadline);
            end_unless_reported(&self.producer, DroppedPublish { inbox, held: self.held, until });
        }
    }
}

/// Approximate size of the message on the wire, in bytes; 128 for the fixed headers.
fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    message.payload.len() + own + message.native_bytes() + 2 * message.key.len() + message.task.len() + 128
}
