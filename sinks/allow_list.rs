//! A sink with a list of the destinations that it may publish to.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use crate::patterns::DestinationPatterns;
use crate::{DestinationState, Message, Outcome, Sink, SinkError};

/// Publishes to listed destinations only. Messages to others are rejected, whoever put them.
pub(crate) struct AllowList {
    inner: Arc<dyn Sink>,
    allowed: DestinationPatterns,
}

impl AllowList {
    pub(crate) fn new(inner: Arc<dyn Sink>, allowed: DestinationPatterns) -> AllowList {
        AllowList { inner, allowed }
    }

    fn check_allowed(&self, destination: &str) -> Result<(), String> {
        if self.allowed.allow(destination) {
            return Ok(());
        }
        let (destination, allowed) = (destination.escape_debug(), &self.allowed);
        Err(format!("the sink may not publish to `{destination}`, only to {allowed}"))
    }
}

#[async_trait]
impl Sink for AllowList {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (mut rejected, mut indices, mut allowed) = (Vec::new(), Vec::new(), Vec::with_capacity(batch.len()));
        for (index, message) in batch.into_iter().enumerate() {
            match self.check_allowed(&message.destination) {
                Ok(()) => {
                    indices.push(index);
                    allowed.push(message);
                }
                Err(detail) => rejected.push((index, Outcome::Reject(detail))),
            }
        }
        let rejected = stream::iter(rejected);
        if allowed.is_empty() {
            return rejected.boxed();
        }
        let answers = self.inner.publish(allowed).map(move |(position, outcome)| (indices[position], outcome));
        rejected.chain(answers).boxed()
    }

    async fn check(&self) -> Result<(), SinkError> {
        self.inner.check().await
    }

    async fn look_for(&self, destination: &str) -> Result<DestinationState, SinkError> {
        match self.check_allowed(destination) {
            Ok(()) => self.inner.look_for(destination).await,
            Err(detail) => Ok(DestinationState::Missing(detail)),
        }
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        self.inner.close(deadline).await
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout()
    }

    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn takes_tombstones(&self) -> bool {
        self.inner.takes_tombstones()
    }

    fn needs_destination(&self) -> bool {
        self.inner.needs_destination()
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        self.check_allowed(destination)?;
        self.inner.check_destination(destination)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::memory::MemorySink;

    fn message(destination: &str) -> Message {
        Message {
            key: format!("{destination}:1"),
            task: destination.to_owned(),
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

    #[tokio::test]
    async fn destinations_not_on_the_list_are_rejected_and_the_others_published() {
        let memory = MemorySink::new(10, Duration::from_secs(1));
        let mut received = memory.receive(10);
        let allowed = DestinationPatterns::new(vec!["orders.*".to_owned()]).unwrap();
        let sink = AllowList::new(Arc::new(memory), allowed);
        assert_eq!(sink.check_destination("orders.a"), Ok(()));
        assert!(sink.check_destination("orders").is_err_and(|detail| detail.contains("`orders.*`")));
        let batch = ["orders.a", "session:alice", "orders.b", ""].map(message).to_vec();
        let mut outcomes: Vec<(usize, Outcome)> = sink.publish(batch).collect().await;
        outcomes.sort_by_key(|(index, _)| *index);
        let accepted: Vec<bool> = outcomes.iter().map(|(_, outcome)| *outcome == Outcome::Accepted).collect();
        assert_eq!(accepted, [true, false, true, false]);
        assert!(outcomes.iter().all(|(_, outcome)| !matches!(outcome, Outcome::Retry(_))), "{outcomes:?}");
        let arrived = [received.recv().await.unwrap().destination, received.recv().await.unwrap().destination];
        assert_eq!(arrived, ["orders.a", "orders.b"]);
        assert!(received.try_recv().is_err());
    }
}
