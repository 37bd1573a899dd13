//! One round of a publish: hands messages to a producer within the window, and takes in what becomes of them.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use rdkafka::types::RDKafkaErrorCode;
use tokio::time::Instant;

use super::context::{Inbox, Ticket};
use super::producer::{Producer, end_unless_back};
use super::verdict::{Verdict, verdict};
use crate::answers::Answers;
use crate::link::Connection as _;
use crate::window::{Room, Share, Window};
use crate::{Fault, Message, Outcome, Trouble};

/// How long a full library is left alone, if none of our messages comes back from it before.
const FULL: Duration = Duration::from_millis(5);

/// What one producer has of a call.
pub(super) struct Round<'a> {
    pub(super) producer: Arc<Producer>,
    inbox: Arc<Inbox>,
    /// Whether each message has a record batch to itself.
    alone: bool,
    batch: &'a [Message],
    answers: &'a Answers,
    deadline: Instant,
    /// How many messages the library holds.
    pub(super) away: usize,
    /// What is to go out again alone.
    pub(super) again: Vec<usize>,
}

/// Ends when the producer is lost.
type Lost<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send)>;

impl<'a> Round<'a> {
    pub(super) fn new(
        producer: Arc<Producer>,
        alone: bool,
        batch: &'a [Message],
        answers: &'a Answers,
        deadline: Instant,
    ) -> Round<'a> {
        Round { producer, inbox: Arc::default(), alone, batch, answers, deadline, away: 0, again: Vec::new() }
    }

    /// Hands these messages over and waits until all are back. Whether the producer lives; if not, all is answered.
    pub(super) async fn run(&mut self, window: &Window, indices: &[usize]) -> bool {
        let producer = Arc::clone(&self.producer);
        let mut lost = pin!(producer.lost());
        let mut share: Option<(&str, Share)> = None;
        for (turn, &index) in indices.iter().enumerate() {
            let message = &self.batch[index];
            let known = share.take().filter(|(topic, _)| *topic == message.destination);
            let (_, share) = share
                .insert(known.unwrap_or_else(|| (message.destination.as_str(), window.share(&message.destination))));
            if turn % 32 == 0 {
                self.take();
            }
            if !self.hand_over(window, share, index, lost.as_mut()).await {
                return self.lost().await;
            }
        }
        while self.away > 0 {
            if !self.next(lost.as_mut()).await {
                return self.lost().await;
            }
        }
        true
    }

    /// Hands one message over, once there is room for it and the library takes it. Whether the producer lives.
    async fn hand_over(&mut self, window: &Window, share: &Share, index: usize, mut lost: Lost<'_>) -> bool {
        let message = &self.batch[index];
        loop {
            let Some(room) = self.room(window, share, size(message), lost.as_mut()).await else { return false };
            if !self.alone {
                self.answers.handed(index + 1);
            }
            match self.producer.send(message, Ticket { inbox: Arc::clone(&self.inbox), index, room }) {
                Ok(()) => {
                    self.away += 1;
                    return true;
                }
                Err((RDKafkaErrorCode::QueueFull, _)) => tokio::select! {
                    alive = self.next(lost.as_mut()) => if !alive { return false },
                    () = tokio::time::sleep(FULL) => {}
                },
                Err((RDKafkaErrorCode::MessageSizeTooLarge, _)) => {
                    let bytes = message.payload.len();
                    let words = format!("{bytes} bytes with key and headers are over the client's `message.max.bytes`");
                    self.answers.set(index, Outcome::Reject(words));
                    return true;
                }
                Err((code, _)) => {
                    self.report(index, code);
                    return true;
                }
            }
        }
    }

    /// Waits for room in the window, and takes in answers meanwhile, which make some. None if the producer is lost.
    async fn room(&mut self, window: &Window, share: &Share, bytes: usize, mut lost: Lost<'_>) -> Option<Room> {
        let mut room = pin!(window.room(share, bytes));
        loop {
            tokio::select! {
                biased;
                room = &mut room => return Some(room),
                alive = self.next(lost.as_mut()) => if !alive { return None },
            }
        }
    }

    /// Waits for reports and takes them in. Whether the producer lives.
    async fn next(&mut self, lost: Lost<'_>) -> bool {
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

    /// Ends the producer, which gives back what it holds, and answers everything.
    async fn lost(&mut self) -> bool {
        self.producer.end();
        let inbox = Arc::clone(&self.inbox);
        while self.away > 0 {
            inbox.arrived().await;
            self.take();
        }
        let words = self.producer.trouble().unwrap_or_else(|| "the connection was given up".to_owned());
        self.answers.give_up(Fault::Sink, &words);
        false
    }

    /// Takes in the reports that have come.
    pub(super) fn take(&mut self) {
        for (index, code) in self.inbox.take() {
            self.away -= 1;
            self.report(index, code);
        }
    }

    fn report(&mut self, index: usize, code: RDKafkaErrorCode) {
        use RDKafkaErrorCode as Code;
        match verdict(code, self.alone) {
            Verdict::Again | Verdict::Full => self.again.push(index),
            Verdict::Is(Outcome::Retry(Trouble { fault, definite, words }))
                if matches!(
                    code,
                    Code::MessageTimedOut | Code::TimedOutQueue | Code::PurgeQueue | Code::PurgeInflight
                ) =>
            {
                // The library had it for too long: what it says of the brokers tells why.
                let trouble = match self.producer.trouble() {
                    Some(words) => Trouble { fault: Fault::Sink, definite, words },
                    None => Trouble { fault, definite, words },
                };
                self.answers.set(index, Outcome::Retry(trouble));
            }
            Verdict::Is(outcome) => self.answers.set(index, outcome),
        }
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        if self.away > 0 {
            let left = self.deadline.saturating_duration_since(Instant::now());
            end_unless_back(&self.producer, Arc::clone(&self.inbox), self.away, left);
        }
    }
}

/// About how many bytes the message takes on the wire; 128 for the headers that are always there.
fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 4).sum();
    message.payload.len() + own + 2 * message.key.len() + message.task.len() + 128
}
