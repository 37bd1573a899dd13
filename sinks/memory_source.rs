//! A source in memory, for tests.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::Away;
use crate::source::{Incoming, Receipt, Source, SourceError};

/// How long a read waits for a message.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// A source in memory. Clones share their state.
#[derive(Clone, Default)]
pub struct MemorySource {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    sent: Notify,
}

#[derive(Default)]
struct State {
    /// Messages that no read has returned.
    waiting: VecDeque<Incoming>,
    /// Messages that a read has returned, and that are not acknowledged.
    read: Vec<Incoming>,
    acknowledged: Vec<String>,
    /// Places of messages that another reader has.
    elsewhere: BTreeSet<String>,
    unavailable: bool,
    /// How many more acknowledgements are accepted; `None` if all are.
    acknowledgements_left: Option<usize>,
}

impl MemorySource {
    /// Sends a message. Its receipt is its place.
    pub fn send(&self, message: Incoming) {
        let message = Incoming { receipt: Receipt(message.place.clone()), ..message };
        self.inner.state.lock().waiting.push_back(message);
        self.inner.sent.notify_one();
    }

    /// Lets all messages that are not acknowledged come again, before the others, as after the death of their reader.
    pub fn redeliver(&self) {
        let mut state = self.inner.state.lock();
        let read = std::mem::take(&mut state.read);
        read.into_iter().rev().for_each(|message| state.waiting.push_front(message));
        self.inner.sent.notify_one();
    }

    /// The places of the acknowledged messages, in the order of acknowledgement.
    pub fn acknowledged(&self) -> Vec<String> {
        self.inner.state.lock().acknowledged.clone()
    }

    /// Number of messages that no read has returned.
    pub fn unread(&self) -> usize {
        self.inner.state.lock().waiting.len()
    }

    /// Lets another reader have a message that was read, as after a rebalance.
    pub fn hand_over(&self, place: &str) {
        self.inner.state.lock().elsewhere.insert(place.to_owned());
    }

    /// Makes it unreachable, or reachable again.
    pub fn set_unavailable(&self, unavailable: bool) {
        self.inner.state.lock().unavailable = unavailable;
    }

    /// Accepts so many more acknowledgements and refuses the others; `None` accepts all.
    pub fn accept_acknowledgements(&self, count: Option<usize>) {
        self.inner.state.lock().acknowledgements_left = count;
    }

    fn take(&self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let mut state = self.inner.state.lock();
        if state.unavailable {
            return Err(Away::from("the source is unavailable".to_owned()).into());
        }
        let count = max.min(state.waiting.len());
        let taken: Vec<Incoming> = state.waiting.drain(..count).collect();
        state.read.extend(taken.iter().cloned());
        Ok(taken)
    }
}

#[async_trait]
impl Source for MemorySource {
    async fn next(&self, max: usize) -> Result<Vec<Incoming>, SourceError> {
        let taken = self.take(max)?;
        if !taken.is_empty() {
            return Ok(taken);
        }
        // Without a message in time there is none.
        drop(timeout(READ_TIMEOUT, self.inner.sent.notified()).await);
        self.take(max)
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), SourceError> {
        let mut state = self.inner.state.lock();
        if state.unavailable || state.acknowledgements_left == Some(0) {
            return Err(Away::from("the source is unavailable".to_owned()).into());
        }
        state.acknowledgements_left = state.acknowledgements_left.map(|left| left - 1);
        let places: BTreeSet<&str> = receipts.iter().map(|receipt| receipt.0.as_str()).collect();
        state.read.retain(|message| !places.contains(message.place.as_str()));
        state.acknowledged.extend(receipts.into_iter().map(|receipt| receipt.0));
        Ok(())
    }

    fn has_another_reader(&self, receipt: &Receipt) -> bool {
        self.inner.state.lock().elsewhere.contains(&receipt.0)
    }

    async fn check(&self) -> Result<Vec<String>, SourceError> {
        self.take(0).map(|_| Vec::new())
    }

    async fn close(&self, _deadline: Duration) {}

    fn kind(&self) -> &'static str {
        "memory"
    }
}
