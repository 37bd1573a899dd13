//! The answer stream of one publish. The publish runs inside the stream that reports it, so that dropping the stream
//! ends the publish.
//!
//! It answers each index at most once. It also knows which messages were handed over, so that an unanswered message is
//! reported truthfully: may it still be delivered or not. It spawns no task and keeps no time.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;
use std::task::Poll;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use parking_lot::Mutex;

use crate::{Fault, Outcome, Trouble};

/// Collects the outcomes of a running publish.
#[derive(Clone)]
pub(crate) struct Answers {
    state: Arc<Mutex<State>>,
}

struct State {
    known: VecDeque<(usize, Outcome)>,
    answered: Vec<bool>,
    open: usize,
    /// Messages before this index may be handed over; those from it on are not.
    handed: usize,
}

impl Answers {
    /// The stream of a publish of `len` messages. `run` is polled only while the stream is polled.
    pub(crate) fn stream<F>(len: usize, run: impl FnOnce(Answers) -> F) -> BoxStream<'static, (usize, Outcome)>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let state = State { known: VecDeque::new(), answered: vec![false; len], open: len, handed: 0 };
        let answers = Answers { state: Arc::new(Mutex::new(state)) };
        let mut run = Some(Box::pin(run(answers.clone())));
        let mut ready = VecDeque::new();
        stream::poll_fn(move |context| {
            loop {
                if let Some(answer) = ready.pop_front() {
                    return Poll::Ready(Some(answer));
                }
                std::mem::swap(&mut ready, &mut answers.state.lock().known);
                if !ready.is_empty() {
                    continue;
                }
                let Some(running) = &mut run else { return Poll::Ready(None) };
                if running.as_mut().poll(context).is_ready() {
                    run = None;
                } else if answers.state.lock().known.is_empty() {
                    return Poll::Pending;
                }
            }
        })
        .boxed()
    }

    /// Answers one message. Later answers for the same index are dropped.
    pub(crate) fn set(&self, index: usize, outcome: Outcome) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.answered[index], true) {
            state.open -= 1;
            state.known.push_back((index, outcome));
        }
    }

    /// Notes that the messages before `index` are, or may be, handed over.
    pub(crate) fn handed(&self, index: usize) {
        let mut state = self.state.lock();
        state.handed = state.handed.max(index);
    }

    /// Whether every message is answered.
    pub(crate) fn complete(&self) -> bool {
        self.state.lock().open == 0
    }

    /// Answers every open message with `Retry`. A message that was not handed over cannot arrive any more, so its answer is
    /// `definite`; if the `fault` is [`Fault::Unanswered`], it only waited behind others, and gets [`Fault::Unavailable`].
    pub(crate) fn give_up(&self, fault: Fault, detail: &str) {
        let all = self.state.lock().answered.len();
        self.give_up_these(0..all, fault, detail);
    }

    /// As [`give_up`](Answers::give_up), for some messages.
    pub(crate) fn give_up_these(&self, indices: impl IntoIterator<Item = usize>, fault: Fault, detail: &str) {
        let mut state = self.state.lock();
        for index in indices {
            if !std::mem::replace(&mut state.answered[index], true) {
                let definite = index >= state.handed;
                let fault = if definite && fault == Fault::Unanswered { Fault::Unavailable } else { fault };
                let trouble = Trouble { fault, definite, detail: detail.to_owned() };
                state.known.push_back((index, Outcome::Retry(trouble)));
                state.open -= 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_message_gets_one_outcome_and_only_handed_over_ones_may_be_written() {
        let stream = Answers::stream(3, |answers| async move {
            answers.handed(2);
            answers.set(1, Outcome::Accepted);
            answers.set(1, Outcome::Reject("late".to_owned()));
            answers.give_up(Fault::Unanswered, "no answer");
        });
        let all: Vec<_> = stream.collect().await;
        assert_eq!(
            all,
            [
                (1, Outcome::Accepted),
                (0, Outcome::Retry(Trouble::open(Fault::Unanswered, "no answer"))),
                (2, Outcome::Retry(Trouble::definite(Fault::Unavailable, "no answer"))),
            ]
        );
    }

    #[tokio::test]
    async fn an_outcome_is_readable_before_the_publish_has_ended() {
        let mut stream = Answers::stream(2, |answers| async move {
            answers.set(0, Outcome::Accepted);
            std::future::pending::<()>().await;
        });
        assert_eq!(stream.next().await, Some((0, Outcome::Accepted)));
    }
}
