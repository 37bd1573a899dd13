//! The messages under way on one channel, and the confirmation of each.
//!
//! RabbitMQ returns an unroutable message before it acknowledges it. lapin queues returns, and attaches the oldest one
//! to the next acknowledgement, whichever message that is for. An acknowledgement without a return therefore proves
//! that every earlier return has been seen. A message is judged by the returns that name it, once no return can be
//! missing: at its own acknowledgement if that carries no return, else at a later one that carries none, or when no
//! message is open any more.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;
use lapin::ErrorKind;
use parking_lot::Mutex;

use super::carry::{Confirmed, Publishing, Returned, target};
use super::refusal::Refusal;
use crate::Message;
use crate::window::WindowPermit;

/// The final result of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Confirmation {
    Accepted,
    Nacked,
    Returned(Refusal),
}

/// An event of a channel.
#[derive(Debug)]
pub(super) enum Event {
    Confirmed(Vec<(usize, Confirmation)>),
    /// RabbitMQ returned a message that is not under way here. No acknowledgement on this channel can be trusted any
    /// more.
    Doubt(Refusal),
    /// The channel has ended, or the connection.
    Ended(lapin::Error),
}

/// The unanswered messages on a channel.
pub(super) struct UnderWay<'a> {
    batch: &'a [Message],
    woken: Arc<Woken>,
    /// The delivery tag of the last message.
    last_tag: u64,
    /// Open messages by delivery tag.
    open: HashMap<u64, Open>,
    /// Messages whose acknowledgement carried a return. Their own return may still be in lapin's queue.
    waiting: Vec<usize>,
    /// Messages without a final result, by key.
    unjudged: HashMap<&'a str, Vec<usize>>,
    /// Those of them that were returned, and why.
    returned: HashMap<usize, Refusal>,
    ended: Option<lapin::Error>,
}

struct Open {
    publishing: Publishing,
    waker: Waker,
    index: usize,
    _room: WindowPermit,
}

/// The messages that lapin has completed. lapin completes them in the server's order, so when one of them is here, all
/// earlier ones are too.
#[derive(Default)]
struct Woken {
    tags: Mutex<Vec<u64>>,
    task: AtomicWaker,
}

struct OpenWaker {
    tag: u64,
    woken: Arc<Woken>,
}

impl Wake for OpenWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.tags.lock().push(self.tag);
        self.woken.task.wake();
    }
}

impl Woken {
    fn pop(&self) -> Option<u64> {
        self.tags.lock().pop()
    }
}

impl<'a> UnderWay<'a> {
    pub(super) fn new(batch: &'a [Message]) -> UnderWay<'a> {
        UnderWay {
            batch,
            woken: Arc::default(),
            last_tag: 0,
            open: HashMap::new(),
            waiting: Vec::new(),
            unjudged: HashMap::new(),
            returned: HashMap::new(),
            ended: None,
        }
    }

    /// Hands over a message. lapin takes it at the first poll of its future.
    ///
    /// # Errors
    /// If lapin did not take it, because the channel has ended.
    pub(super) fn insert(
        &mut self,
        index: usize,
        mut publishing: Publishing,
        permit: WindowPermit,
    ) -> Result<(), lapin::Error> {
        let tag = self.last_tag + 1;
        let waker = Waker::from(Arc::new(OpenWaker { tag, woken: Arc::clone(&self.woken) }));
        match publishing.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(Err(error)) if matches!(error.kind(), ErrorKind::InvalidChannelState(_, "basic.publish")) => {
                return Err(error);
            }
            // It completed during the first poll. Queue that result like every other one.
            Poll::Ready(result) => {
                publishing = Box::pin(std::future::ready(result));
                waker.wake_by_ref();
            }
            Poll::Pending => {}
        }
        self.last_tag = tag;
        self.unjudged.entry(&self.batch[index].key).or_default().push(index);
        self.open.insert(tag, Open { publishing, waker, index, _room: permit });
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unjudged.is_empty()
    }

    /// Removes and returns all messages.
    pub(super) fn clear(&mut self) -> Vec<usize> {
        let mut all: Vec<usize> = self.unjudged.drain().flat_map(|(_, indices)| indices).collect();
        all.sort_unstable();
        *self = UnderWay::new(self.batch);
        all
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn event(&mut self) -> Event {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// The next event, if it is already known.
    pub(super) fn try_event(&mut self) -> Option<Event> {
        match self.judge_completed() {
            Ok(confirmations) if confirmations.is_empty() => self.ended.take().map(Event::Ended),
            Ok(confirmations) => Some(Event::Confirmed(confirmations)),
            Err(refusal) => Some(Event::Doubt(refusal)),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Event> {
        self.woken.task.register(context.waker());
        self.try_event().map_or(Poll::Pending, Poll::Ready)
    }

    /// Reads all completed messages, and judges those that can be judged.
    ///
    /// # Errors
    /// If RabbitMQ returned a message that is not under way here.
    fn judge_completed(&mut self) -> Result<Vec<(usize, Confirmation)>, Refusal> {
        let (mut proven, mut waiting, mut nacked) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(tag) = self.woken.pop() {
            let Some((index, confirmed)) = self.confirmed(tag) else { continue };
            if let Some(returned) = &confirmed.returned {
                self.note(returned)?;
            }
            match (confirmed.acked, confirmed.returned) {
                (true, None) => proven.push(index),
                (true, Some(_)) => waiting.push(index),
                (false, _) => nacked.push(index),
            }
        }
        // An acknowledgement without a return proves that all earlier returns are known.
        if !proven.is_empty() {
            proven.append(&mut self.waiting);
        }
        self.waiting.append(&mut waiting);
        if self.open.is_empty() {
            proven.append(&mut self.waiting);
        }
        let confirmed = proven.into_iter().map(|index| (index, Confirmation::Accepted));
        let confirmed = confirmed.chain(nacked.into_iter().map(|index| (index, Confirmation::Nacked)));
        Ok(confirmed.map(|(index, confirmation)| (index, self.unless_returned(index, confirmation))).collect())
    }

    /// The acknowledgement of the message with this tag.
    fn confirmed(&mut self, tag: u64) -> Option<(usize, Confirmed)> {
        let open = self.open.get_mut(&tag)?;
        match open.publishing.as_mut().poll(&mut Context::from_waker(&open.waker)) {
            Poll::Pending => None,
            Poll::Ready(Ok(confirmed)) => self.open.remove(&tag).map(|open| (open.index, confirmed)),
            Poll::Ready(Err(error)) => {
                // It stays open, because it may have been delivered.
                open.publishing = Box::pin(std::future::pending());
                self.ended = Some(error);
                None
            }
        }
    }

    /// Notes a return: for the first message with this key and destination that has none.
    fn note(&mut self, returned: &Returned) -> Result<(), Refusal> {
        let address = (returned.exchange.as_str(), returned.key.as_str());
        let same_key = returned.message_id.as_deref().and_then(|key| self.unjudged.get(key));
        let is =
            |index: &&usize| target(&self.batch[**index].destination) == address && !self.returned.contains_key(*index);
        let Some(&index) = same_key.into_iter().flatten().find(is) else { return Err(returned.refusal.clone()) };
        self.returned.insert(index, returned.refusal.clone());
        Ok(())
    }

    /// Removes a message from `unjudged`. Returns its final result: `Returned` if it was returned, else `confirmation`.
    fn unless_returned(&mut self, index: usize, confirmation: Confirmation) -> Confirmation {
        let key = self.batch[index].key.as_str();
        if let Some(indices) = self.unjudged.get_mut(key) {
            indices.retain(|unjudged| *unjudged != index);
            if indices.is_empty() {
                self.unjudged.remove(key);
            }
        }
        self.returned.remove(&index).map_or(confirmation, Confirmation::Returned)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::window::Window;

    /// What a server sends.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Says {
        Returns(usize),
        ReturnsAnother,
        Acks(usize),
    }

    /// Two messages with one key for different queues, and one with another key.
    fn batch() -> Vec<Message> {
        let message = |key: &str, destination: &str| Message {
            destination: destination.to_owned(),
            key: key.to_owned(),
            task: "t".to_owned(),
            due_ms: 0,
            attempt: 1,
            record_key: None,
            native: None,
            headers: Vec::new(),
            is_tombstone: false,
            content_type: None,
            payload: bytes::Bytes::new(),
        };
        vec![message("k", "a"), message("k", "b"), message("l", "a")]
    }

    fn returned(message: &Message) -> Returned {
        let refusal = Refusal { code: 312, detail: format!("{} {}", message.key, message.destination) };
        let (key, message_id) = (message.destination.clone(), Some(message.key.clone()));
        Returned { exchange: String::new(), key, message_id, refusal }
    }

    /// All orders in which each message is returned before it is acknowledged.
    fn orders(left: &[Says]) -> Vec<Vec<Says>> {
        if left.is_empty() {
            return vec![Vec::new()];
        }
        let may_be_first = |says: &Says| !matches!(says, Says::Acks(index) if left.contains(&Says::Returns(*index)));
        let firsts = left.iter().copied().filter(may_be_first);
        let with_first = |first: Says| {
            let rest: Vec<Says> = left.iter().copied().filter(|says| *says != first).collect();
            orders(&rest).into_iter().map(move |rest| [vec![first], rest].concat())
        };
        firsts.flat_map(with_first).collect()
    }

    /// Lets a server send this sequence to a client that behaves like lapin, and reads the events after each step whose
    /// bit is set in `looks`, and after the last one. Each confirmation must be true. Each message must have one, unless a
    /// foreign return was seen.
    fn judge(batch: &[Message], order: &[Says], looks: u32) {
        let window = Window::new(16, 1);
        let mut share = window.share("a", batch.len());
        let mut under_way = UnderWay::new(batch);
        let mut confirms: Vec<Option<oneshot::Sender<Confirmed>>> = Vec::new();
        for index in 0..batch.len() {
            let (sender, receiver) = oneshot::channel();
            let permit = window.acquire(&mut share, 1).now_or_never().expect("a permit is free");
            under_way.insert(index, Box::pin(async { Ok(receiver.await.expect("an answer")) }), permit).expect("taken");
            confirms.push(Some(sender));
        }
        let mut returns = VecDeque::new();
        let (mut judged, mut doubted, mut another_is_told) = (0, false, false);
        for (at, says) in order.iter().enumerate() {
            match *says {
                Says::Returns(index) => returns.push_back(returned(&batch[index])),
                Says::ReturnsAnother => {
                    returns.push_back(returned(&Message { key: "m".to_owned(), ..batch[0].clone() }))
                }
                Says::Acks(index) => {
                    let returned = returns.pop_front();
                    another_is_told |= returned.as_ref().is_some_and(|r| r.message_id.as_deref() == Some("m"));
                    // After a doubt the client has stopped listening.
                    confirms[index].take().expect("once").send(Confirmed { acked: true, returned }).ok();
                }
            }
            if doubted || (looks >> at & 1 == 0 && at + 1 < order.len()) {
                continue;
            }
            match under_way.try_event() {
                None => {}
                Some(Event::Confirmed(confirmations)) => {
                    judged += confirmations.len();
                    for (index, confirmation) in confirmations {
                        let truth = match order.contains(&Says::Returns(index)) {
                            true => Confirmation::Returned(returned(&batch[index]).refusal),
                            false => Confirmation::Accepted,
                        };
                        assert_eq!(confirmation, truth, "{index} of {order:?}, looks {looks:b}");
                    }
                }
                Some(Event::Doubt(_)) => {
                    doubted = true;
                    judged += under_way.clear().len();
                }
                Some(Event::Ended(error)) => panic!("{error}"),
            }
        }
        assert_eq!(
            (judged, under_way.is_empty(), doubted),
            (batch.len(), true, another_is_told),
            "{order:?} {looks:b}"
        );
    }

    #[test]
    fn a_message_gets_the_same_outcome_in_every_order_of_acks_and_returns() {
        let batch = batch();
        for bits in 0..16_u32 {
            let mut says: Vec<Says> = (0..batch.len()).map(Says::Acks).collect();
            says.extend((0..batch.len()).filter(|index| bits >> index & 1 == 1).map(Says::Returns));
            says.extend((bits >> batch.len() & 1 == 1).then_some(Says::ReturnsAnother));
            for order in orders(&says) {
                (0..1 << (order.len() - 1)).for_each(|looks| judge(&batch, &order, looks));
            }
        }
    }
}
