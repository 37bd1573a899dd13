//! One publish: hands messages over within the window, collects their outcomes, and sends messages again that were
//! under way when the server closed the channel because of another message.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;

use super::carry::{check, publishing, size, target};
use super::connection::{Channel, Failed, RabbitConnection};
use super::refusal::{Blame, Refusal, blame};
use super::under_way::{Confirmation, Event, UnderWay};
use crate::answers::Answers;
use crate::window::Window;
use crate::{Fault, Message, Outcome, Trouble};

/// If RabbitMQ closes a channel before a message was sent on it, the publish opens another one, at most this many times.
const MAX_UNUSED_CHANNELS: usize = 3;

/// One publish.
pub(super) struct RabbitPublish<'a> {
    window: &'a Window,
    connection: &'a RabbitConnection,
    batch: &'a [Message],
    answers: Answers,
    /// Messages that were under way when a channel was closed. Whatever happens to a later copy, the first one may be
    /// in its queue.
    sent: Mutex<HashSet<usize>>,
}

/// Why sending on a channel has ended.
enum SendEnd {
    /// Acknowledgements on it can no longer be trusted. The messages under way are answered.
    Doubtful,
    Failed(Failed),
}

impl From<Failed> for SendEnd {
    fn from(failed: Failed) -> SendEnd {
        SendEnd::Failed(failed)
    }
}

impl<'a> RabbitPublish<'a> {
    pub(super) fn new(
        window: &'a Window,
        connection: &'a RabbitConnection,
        batch: &'a [Message],
        answers: Answers,
    ) -> RabbitPublish<'a> {
        RabbitPublish { window, connection, batch, answers, sent: Mutex::default() }
    }

    /// Ends when every message is answered. Messages for exchanges that have to be checked first do not delay the
    /// others.
    ///
    /// # Errors
    /// If the connection is lost, or the server opens no channel.
    pub(super) async fn run(&self) -> Result<(), Failed> {
        let (known, unknown) = self.sendable();
        let later = async {
            let found = self.look_for(unknown).await?;
            self.send_all(found).await
        };
        tokio::try_join!(self.send_all(known), later).map(|_| ())
    }

    /// The messages that AMQP can carry: those for known exchanges, and those for others. Answers all other messages.
    fn sendable(&self) -> (Vec<usize>, Vec<usize>) {
        let mut sendable = Vec::with_capacity(self.batch.len());
        for (index, message) in self.batch.iter().enumerate() {
            match check(message, self.connection.frame) {
                Ok(_) => sendable.push(index),
                Err(detail) => self.answers.set(index, Outcome::Reject(detail)),
            }
        }
        // Looked up once per exchange: another publish may learn of one in the meantime, and the messages for one
        // destination must stay together.
        let mut known: HashMap<&str, bool> = HashMap::new();
        let mut knows = |exchange| *known.entry(exchange).or_insert_with(|| self.connection.knows(exchange));
        sendable.into_iter().partition(|index| knows(self.exchange(*index)))
    }

    /// Checks the exchanges of these messages. Returns the messages whose exchanges exist, and answers each other one as
    /// soon as its exchange is known to be missing.
    async fn look_for(&self, indices: Vec<usize>) -> Result<Vec<usize>, Failed> {
        let mut exchanges: HashMap<&str, Vec<usize>> = HashMap::new();
        for index in indices {
            exchanges.entry(self.exchange(index)).or_default().push(index);
        }
        let look = |(exchange, indices)| async move { (indices, self.connection.find(exchange).await) };
        let mut looking: FuturesUnordered<_> = exchanges.into_iter().map(look).collect();
        let mut found = Vec::new();
        while let Some((indices, look)) = looking.next().await {
            match look {
                Ok(()) => found.extend(indices),
                Err(Failed::Refused(refusal)) => indices.iter().for_each(|index| self.retry(*index, &refusal, true)),
                Err(Failed::Lost) => return Err(Failed::Lost),
            }
        }
        Ok(merged(found))
    }

    fn exchange(&self, index: usize) -> &'a str {
        target(&self.batch[index].destination).0
    }

    /// Sends these messages, and repeats those that must be sent again, until each is answered.
    async fn send_all(&self, indices: Vec<usize>) -> Result<(), Failed> {
        let (mut groups, mut unused) = (VecDeque::from([indices]), 0);
        while let Some(group) = groups.pop_front() {
            if group.is_empty() {
                continue;
            }
            let channel = self.connection.channel().await?;
            let (mut under_way, mut next) = (UnderWay::new(self.batch), 0);
            match self.send(&group, &channel, &mut under_way, &mut next).await {
                Ok(()) => self.connection.keep(channel),
                Err(SendEnd::Doubtful) => groups.push_front(group[next..].to_vec()),
                // The channel was closed before it was used. An idle channel can be closed at any time.
                Err(SendEnd::Failed(Failed::Refused(_))) if next == 0 && unused < MAX_UNUSED_CHANNELS => {
                    unused += 1;
                    groups.push_front(group);
                }
                Err(SendEnd::Failed(Failed::Refused(refusal))) => {
                    let open = under_way.clear();
                    self.refused(&refusal, &open, &group[next..], &mut groups);
                }
                Err(SendEnd::Failed(Failed::Lost)) => return Err(Failed::Lost),
            }
        }
        Ok(())
    }

    /// Hands over a group of messages from `next` on, and waits until each is answered.
    async fn send(
        &self,
        group: &[usize],
        channel: &Channel,
        under_way: &mut UnderWay<'a>,
        next: &mut usize,
    ) -> Result<(), SendEnd> {
        let mut share = None;
        while let Some(&index) = group.get(*next) {
            let message = &self.batch[index];
            if share.as_ref().is_none_or(|(destination, _)| *destination != message.destination) {
                share = Some((message.destination.as_str(), self.window.share(&message.destination, group.len())));
            }
            let share = &mut share.as_mut().expect("just set").1;
            while let Some(event) = under_way.try_event() {
                self.take(event, under_way)?;
            }
            let permit = self.meanwhile(self.window.acquire(share, size(message)), under_way).await?;
            // Wait while the server blocks the connection: a message that is not handed over has certainly not arrived.
            let mut blocked = self.connection.blocked();
            self.meanwhile(blocked.wait_for(Option::is_none), under_way).await?.ok();
            self.answers.handed(index + 1);
            if let Err(error) = under_way.insert(index, publishing(&channel.lapin, message), permit) {
                // The channel has ended. Wait for the events of the earlier messages: one of them is the error that ended it.
                self.take_all(under_way).await?;
                return Err(self.connection.failed(&error).into());
            }
            *next += 1;
        }
        // Let other publishes hand over their messages while this one waits for outcomes.
        drop(share);
        self.take_all(under_way).await
    }

    /// Waits for a future, and handles events of the channel in the meantime.
    async fn meanwhile<T>(
        &self,
        something: impl Future<Output = T>,
        under_way: &mut UnderWay<'a>,
    ) -> Result<T, SendEnd> {
        let mut something = pin!(something);
        loop {
            tokio::select! {
                biased;
                done = &mut something => return Ok(done),
                event = under_way.event() => self.take(event, under_way)?,
            }
        }
    }

    /// Handles events of the channel until every message on it is answered.
    async fn take_all(&self, under_way: &mut UnderWay<'a>) -> Result<(), SendEnd> {
        while !under_way.is_empty() {
            let event = under_way.event().await;
            self.take(event, under_way)?;
        }
        Ok(())
    }

    fn take(&self, event: Event, under_way: &mut UnderWay<'a>) -> Result<(), SendEnd> {
        match event {
            Event::Confirmed(confirmations) => {
                for (index, confirmation) in confirmations {
                    match confirmation {
                        Confirmation::Accepted => self.answers.set(index, Outcome::Accepted),
                        Confirmation::Returned(refusal) => self.retry(index, &refusal, true),
                        Confirmation::Nacked => {
                            // Whatever the reason, it is one of the queue: it is full, or could not store the message.
                            let detail = "nack: RabbitMQ did not take it (its queue is full, or could not store it)";
                            self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Refusing, detail)));
                        }
                    }
                }
                Ok(())
            }
            Event::Doubt(refusal) => {
                // The returned message may be any of them, so no acknowledgement on this channel can be trusted any
                // more.
                let detail = format!("{refusal}, for a message that is not under way on this channel");
                for index in under_way.clear() {
                    self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Unclear, detail.clone())));
                }
                Err(SendEnd::Doubtful)
            }
            Event::Ended(error) => Err(self.connection.failed(&error).into()),
        }
    }

    /// Handles the close of a channel, with the messages in `open` under way and those in `rest` not handed over.
    /// Answers the refused messages, as far as the server names them, and arranges to send the others again.
    fn refused(&self, refusal: &Refusal, open: &[usize], rest: &[usize], groups: &mut VecDeque<Vec<usize>>) {
        // With one message under way, the refusal concerns this message.
        let alone = open.len() == 1;
        let all = || open.iter().chain(rest).copied();
        match blame(refusal.code) {
            Blame::Message if alone => {
                self.answers.set(open[0], Outcome::Reject(refusal.to_string()));
                groups.push_front(rest.to_vec());
            }
            Blame::Message if let Some(limit) = refusal.limit() => {
                // Messages that are too large are sent one by one, to get the server's own error text for each; last,
                // because none will be accepted.
                let is_large = |index: &usize| self.batch[*index].payload.len() as u64 > limit;
                let (large, others): (Vec<usize>, Vec<usize>) = all().partition(is_large);
                if !open.iter().any(is_large) {
                    return self.give_up(refusal, open, rest);
                }
                groups.push_front(merged(others));
                groups.extend(merged(large).into_iter().map(|index| vec![index]));
            }
            Blame::Destination if let Some(exchange) = self.named(refusal, open) => {
                self.connection.forget(exchange);
                let is = |index: &usize| self.exchange(*index) == exchange;
                open.iter().copied().filter(is).for_each(|index| self.retry(index, refusal, alone));
                rest.iter().copied().filter(is).for_each(|index| self.retry(index, refusal, true));
                groups.push_front(merged(all().filter(|index| !is(index)).collect()));
            }
            Blame::Destination if alone => {
                self.connection.forget(self.exchange(open[0]));
                self.retry(open[0], refusal, true);
                groups.push_front(rest.to_vec());
            }
            Blame::Message | Blame::Destination if !open.is_empty() => {
                // Each is sent alone, in order, so that none overtakes another.
                groups.push_front(rest.to_vec());
                open.iter().rev().for_each(|index| groups.push_front(vec![*index]));
            }
            _ => return self.give_up(refusal, open, rest),
        }
        self.sent.lock().extend(open);
    }

    /// The refusal names no message under way; sending them again might end in the same refusal.
    fn give_up(&self, refusal: &Refusal, open: &[usize], rest: &[usize]) {
        open.iter().for_each(|index| self.retry(*index, refusal, false));
        rest.iter().for_each(|index| self.retry(*index, refusal, true));
    }

    /// The exchange that the refusal names, among those with messages under way.
    fn named(&self, refusal: &Refusal, open: &[usize]) -> Option<&'a str> {
        let exchanges = open.iter().map(|index| self.exchange(*index));
        // The longest match, because a name can begin with another name and the text behind it.
        exchanges.filter(|exchange| refusal.names(exchange)).max_by_key(|exchange| exchange.len())
    }

    /// Answers a message with this refusal. `definite` concerns only the last time that it was sent.
    fn retry(&self, index: usize, refusal: &Refusal, definite: bool) {
        let fault = match blame(refusal.code) {
            Blame::Destination => Fault::Destination,
            Blame::Sink => Fault::Sink,
            Blame::Message | Blame::Unclear => Fault::Unclear,
        };
        let definite = definite && !self.sent.lock().contains(&index);
        self.answers.set(index, Outcome::Retry(Trouble { fault, definite, detail: refusal.to_string() }));
    }
}

fn merged(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_unstable();
    indices
}
