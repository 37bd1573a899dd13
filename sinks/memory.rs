//! The reference sink: publishes inside this process.
//!
//! - A message is accepted when every receiver has it in its channel. Its key is [`Message::key`].
//! - It serves programs that schedule and receive in one process ([`MemorySink::receive`]), and tests, which choose its
//!   answers ([`MemorySink::answer_by`], [`MemorySink::set_unavailable`]).
//! - Memory is bounded: it keeps the last `keep` messages. A receiver with a full channel delays publishes until
//!   `answer_timeout`; then they are `Retry`. A dropped receiver is forgotten.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::answers::Answers;
use crate::link::{PublishTracker, deadline, no_answer};
use crate::{Away, Fault, Message, Outcome, Sink, SinkError, Trouble};

/// A sink in memory. Clones share their state.
#[derive(Clone)]
pub struct MemorySink {
    inner: Arc<Inner>,
}

struct Inner {
    answer_timeout: Duration,
    keep: usize,
    publishes: PublishTracker,
    state: Mutex<State>,
}

struct State {
    kept: VecDeque<Message>,
    accepted: u64,
    receivers: Vec<mpsc::Sender<Message>>,
    unavailable: bool,
    rule: Option<Rule>,
}

type Rule = Box<dyn FnMut(&Message) -> Answer + Send>;

/// What a [`MemorySink`] does with one message; see [`MemorySink::answer_by`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Accepts it.
    Accept,
    /// Does not take it, because it has one with this key.
    Duplicate,
    /// Does not take it, and answers this.
    Retry(Trouble),
    /// Does not take it, and rejects it.
    Reject(String),
    /// Does not take it, and never answers.
    Hang,
    /// Takes it, and the answer is lost.
    Lose,
}

impl MemorySink {
    /// A sink that keeps the last `keep` messages for [`published`](MemorySink::published).
    pub fn new(keep: usize, answer_timeout: Duration) -> MemorySink {
        let state = State { kept: VecDeque::new(), accepted: 0, receivers: Vec::new(), unavailable: false, rule: None };
        let inner = Inner { answer_timeout, keep, publishes: PublishTracker::default(), state: Mutex::new(state) };
        MemorySink { inner: Arc::new(inner) }
    }

    /// A receiver of all later messages, with a channel for `capacity` messages (at least 1).
    pub fn receive(&self, capacity: usize) -> mpsc::Receiver<Message> {
        let (sender, receiver) = mpsc::channel(capacity);
        self.inner.state.lock().receivers.push(sender);
        receiver
    }

    /// The last `keep` accepted messages, in order.
    pub fn published(&self) -> Vec<Message> {
        self.inner.state.lock().kept.iter().cloned().collect()
    }

    /// Number of accepted messages.
    pub fn accepted(&self) -> u64 {
        self.inner.state.lock().accepted
    }

    /// Calls `rule` for each later message to decide what to do with it.
    pub fn answer_by(&self, rule: impl FnMut(&Message) -> Answer + Send + 'static) {
        self.inner.state.lock().rule = Some(Box::new(rule));
    }

    /// Makes the sink unreachable: publishes are `Retry` with [`Fault::Sink`], and checks fail.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.inner.state.lock().unavailable = unavailable;
    }

    async fn run(self, batch: Vec<Message>, answers: Answers) {
        let _pass = match self.inner.publishes.enter() {
            Ok(pass) => pass,
            Err(trouble) => return answers.give_up(trouble.fault, &trouble.detail),
        };
        for (index, message) in batch.into_iter().enumerate() {
            answers.handed(index);
            let answer = self.decide(&message);
            match answer {
                Answer::Accept => {
                    self.take(message).await;
                    answers.set(index, Outcome::Accepted);
                }
                Answer::Duplicate => answers.set(index, Outcome::Duplicate),
                Answer::Lose => self.take(message).await,
                Answer::Retry(trouble) => answers.set(index, Outcome::Retry(trouble)),
                Answer::Reject(detail) => answers.set(index, Outcome::Reject(detail)),
                Answer::Hang => {}
            }
        }
        answers.handed(usize::MAX);
        if !answers.complete() {
            std::future::pending::<()>().await;
        }
    }

    fn decide(&self, message: &Message) -> Answer {
        let mut state = self.inner.state.lock();
        if state.unavailable {
            return Answer::Retry(Trouble::definite(Fault::Sink, "cannot reach `memory:`: unavailable"));
        }
        state.rule.as_mut().map_or(Answer::Accept, |rule| rule(message))
    }

    /// Waits for room in every receiver before it sends to any, so that a message that times out reaches none.
    async fn take(&self, message: Message) {
        let receivers = self.inner.state.lock().receivers.clone();
        let mut places = Vec::with_capacity(receivers.len());
        for receiver in receivers {
            places.extend(receiver.reserve_owned().await.ok());
        }
        let mut state = self.inner.state.lock();
        for place in places {
            place.send(message.clone());
        }
        state.receivers.retain(|receiver| !receiver.is_closed());
        state.accepted += 1;
        state.kept.push_back(message);
        while state.kept.len() > self.inner.keep {
            state.kept.pop_front();
        }
    }
}

#[async_trait]
impl Sink for MemorySink {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (sink, deadline) = (self.clone(), deadline(self.inner.answer_timeout));
        Answers::stream(batch.len(), |answers| async move {
            let detail = no_answer("memory:", sink.inner.answer_timeout);
            if tokio::time::timeout_at(deadline, sink.run(batch, answers.clone())).await.is_err() {
                answers.give_up(Fault::Unanswered, &detail);
            }
        })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let unreachable = |detail: String| Away::from(detail).of_sink("memory:");
        self.inner.publishes.check_open().map_err(|trouble| unreachable(trouble.detail))?;
        if self.inner.state.lock().unavailable {
            return Err(unreachable("unavailable".to_owned()));
        }
        Ok(())
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        self.inner.publishes.shut(deadline).await
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    fn kind(&self) -> &'static str {
        "memory"
    }

    fn needs_destination(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::StreamExt;

    use super::*;

    fn message(key: &str, destination: &str) -> Message {
        Message {
            key: key.to_owned(),
            task: "t".to_owned(),
            due_ms: 1,
            attempt: 1,
            destination: destination.to_owned(),
            record_key: None,
            native: None,
            headers: Vec::new(),
            is_tombstone: false,
            content_type: None,
            payload: Bytes::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn memory_sink_answers_as_scripted_and_a_missing_answer_is_a_retry_in_time() {
        let sink = MemorySink::new(10, Duration::from_secs(7));
        sink.answer_by(|message| match message.destination.as_str() {
            "hang" => Answer::Hang,
            "lose" => Answer::Lose,
            "reject" => Answer::Reject("no".to_owned()),
            _ => Answer::Accept,
        });
        let batch = ["hang", "a", "lose", "reject"].map(|destination| message(destination, destination));
        let before = tokio::time::Instant::now();
        let mut all: Vec<_> = sink.publish(batch.to_vec()).collect().await;
        assert!(before.elapsed() <= Duration::from_secs(7));
        all.sort_by_key(|(index, _)| *index);
        let lost = Outcome::Retry(Trouble::open(Fault::Unanswered, "no answer from `memory:` within 7s"));
        let outcomes: Vec<_> = all.into_iter().map(|(_, outcome)| outcome).collect();
        assert_eq!(outcomes, [lost.clone(), Outcome::Accepted, lost, Outcome::Reject("no".to_owned())]);
        let keys: Vec<_> = sink.published().into_iter().map(|message| message.key).collect();
        assert_eq!(keys, ["a", "lose"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_receiver_limits_publishes_and_a_dropped_receiver_does_not() {
        let sink = MemorySink::new(0, Duration::from_secs(1));
        let mut receiver = sink.receive(1);
        let both = vec![message("a", "d"), message("b", "d")];
        let all: Vec<_> = sink.publish(both.clone()).collect().await;
        assert_eq!(all[0], (0, Outcome::Accepted));
        assert!(matches!(&all[1], (1, Outcome::Retry(trouble)) if trouble.definite), "{all:?}");
        assert_eq!(receiver.recv().await.map(|message| message.key), Some("a".to_owned()));
        drop(receiver);
        let all: Vec<_> = sink.publish(both).collect().await;
        assert_eq!(all, [(0, Outcome::Accepted), (1, Outcome::Accepted)]);
        assert!(sink.published().is_empty(), "nothing is kept unless asked for");
    }
}
