//! One publish: hands messages over within the window, takes in what becomes of them, and sends again what was under
//! way when the server closed the channel because of another.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::carry::{check, publishing, size, target};
use super::connection::{Channel, Failed, RabbitConnection};
use super::refusal::{Blame, Refusal, blame};
use super::under_way::{Event, Judged, UnderWay};
use crate::answers::Answers;
use crate::window::Window;
use crate::{Fault, Message, Outcome, Trouble};

/// Exchanges that are looked for at once.
const LOOKED_FOR: usize = 16;

/// How many channels that RabbitMQ closed before their first message one publish replaces.
const MAX_UNUSED_CHANNELS: usize = 3;

/// One publish.
pub(super) struct RabbitPublish<'a> {
    window: &'a Window,
    connection: &'a RabbitConnection,
    batch: &'a [Message],
    answers: Answers,
    /// Those that were under way when a channel was closed: whatever is said of a later copy, the first may be in its
    /// queue.
    sent: Mutex<HashSet<usize>>,
}

/// Why no more is sent on a channel.
enum Ended {
    /// What is said on it can be of other messages than it seems; those under way are answered.
    Doubtful,
    Failed(Failed),
}

impl From<Failed> for Ended {
    fn from(failed: Failed) -> Ended {
        Ended::Failed(failed)
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

    /// Ends when everything is answered. What goes to exchanges that are yet to be found holds up nothing else.
    ///
    /// # Errors
    /// When nothing more will be: the connection is lost, or the server opens no channel.
    pub(super) async fn run(&self) -> Result<(), Failed> {
        let (known, unknown) = self.sendable();
        let later = async {
            let found = self.look_for(unknown).await?;
            self.send_all(found).await
        };
        tokio::try_join!(self.send_all(known), later).map(|_| ())
    }

    /// Those that AMQP can carry, to exchanges that are known to be there and to others; the rest is answered.
    fn sendable(&self) -> (Vec<usize>, Vec<usize>) {
        let mut sendable = Vec::with_capacity(self.batch.len());
        for (index, message) in self.batch.iter().enumerate() {
            match check(message, self.connection.frame) {
                Ok(_) => sendable.push(index),
                Err(detail) => self.answers.set(index, Outcome::Reject(detail)),
            }
        }
        // Asked once for each: another call may learn of one meanwhile, and what goes to one destination is not to be
        // split.
        let mut known: HashMap<&str, bool> = HashMap::new();
        let mut knows = |exchange| *known.entry(exchange).or_insert_with(|| self.connection.knows(exchange));
        sendable.into_iter().partition(|index| knows(self.exchange(*index)))
    }

    /// Those whose exchanges are there; the others are answered.
    async fn look_for(&self, indices: Vec<usize>) -> Result<Vec<usize>, Failed> {
        let exchanges: HashSet<&str> = indices.iter().map(|index| self.exchange(*index)).collect();
        let looking: Vec<_> = exchanges
            .into_iter()
            .map(|exchange| async move { (exchange, self.connection.find(exchange).await) })
            .collect();
        let mut looking = stream::iter(looking).buffer_unordered(LOOKED_FOR);
        let mut missing: HashMap<&str, Refusal> = HashMap::new();
        while let Some((exchange, found)) = looking.next().await {
            match found {
                Ok(()) => {}
                Err(Failed::Refused(refusal)) => drop(missing.insert(exchange, refusal)),
                Err(Failed::Lost) => return Err(Failed::Lost),
            }
        }
        let is_there = |index: &usize| match missing.get(self.exchange(*index)) {
            Some(refusal) => {
                self.retry(*index, refusal, true);
                false
            }
            None => true,
        };
        Ok(indices.into_iter().filter(is_there).collect())
    }

    fn exchange(&self, index: usize) -> &'a str {
        target(&self.batch[index].destination).0
    }

    /// Sends these, and again those that are to be sent again, until each is answered.
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
                Err(Ended::Doubtful) => groups.push_front(group[next..].to_vec()),
                // The channel was closed before it was used: an idle one may be, at any time.
                Err(Ended::Failed(Failed::Refused(_))) if next == 0 && unused < MAX_UNUSED_CHANNELS => {
                    unused += 1;
                    groups.push_front(group);
                }
                Err(Ended::Failed(Failed::Refused(refusal))) => {
                    let open = under_way.clear();
                    self.refused(&refusal, &open, &group[next..], &mut groups);
                }
                Err(Ended::Failed(Failed::Lost)) => return Err(Failed::Lost),
            }
        }
        Ok(())
    }

    /// Hands over a group of messages, from the `next` on, until each is answered.
    async fn send(
        &self,
        group: &[usize],
        channel: &Channel,
        under_way: &mut UnderWay<'a>,
        next: &mut usize,
    ) -> Result<(), Ended> {
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
            let room = self.meanwhile(self.window.room(share, size(message)), under_way).await?;
            // What is not handed over while the server takes nothing is known not to arrive.
            let mut blocked = self.connection.blocked();
            self.meanwhile(blocked.wait_for(Option::is_none), under_way).await?.ok();
            self.answers.handed(index + 1);
            if let Err(error) = under_way.insert(index, publishing(&channel.lapin, message), room) {
                // What was under way is told of the ones before.
                self.take_all(under_way).await?;
                return Err(self.connection.failed(&error).into());
            }
            *next += 1;
        }
        // Other calls have their turn while this one's answers come.
        drop(share);
        self.take_all(under_way).await
    }

    /// Waits for something, and takes in meanwhile what is told of the channel.
    async fn meanwhile<T>(&self, something: impl Future<Output = T>, under_way: &mut UnderWay<'a>) -> Result<T, Ended> {
        let mut something = pin!(something);
        loop {
            tokio::select! {
                biased;
                done = &mut something => return Ok(done),
                event = under_way.event() => self.take(event, under_way)?,
            }
        }
    }

    /// Takes in what is told of the channel until everything on it is answered.
    async fn take_all(&self, under_way: &mut UnderWay<'a>) -> Result<(), Ended> {
        while !under_way.is_empty() {
            let event = under_way.event().await;
            self.take(event, under_way)?;
        }
        Ok(())
    }

    fn take(&self, event: Event, under_way: &mut UnderWay<'a>) -> Result<(), Ended> {
        match event {
            Event::Verdicts(verdicts) => {
                for (index, verdict) in verdicts {
                    match verdict {
                        Judged::Accepted => self.answers.set(index, Outcome::Accepted),
                        Judged::Returned(refusal) => self.retry(index, &refusal, true),
                        Judged::Nacked => {
                            let detail = "nack: RabbitMQ did not take it (its queue is full, or could not store it)";
                            self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Unclear, detail)));
                        }
                    }
                }
                Ok(())
            }
            Event::Doubt(refusal) => {
                // It may be any of them: no acknowledgement on this channel can be believed any more.
                let detail = format!("{refusal}, of a message that is none of these");
                for index in under_way.clear() {
                    self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Unclear, detail.clone())));
                }
                Err(Ended::Doubtful)
            }
            Event::Ended(error) => Err(self.connection.failed(&error).into()),
        }
    }

    /// The server closed the channel, with the messages in `open` under way and those in `rest` not handed over.
    /// Answers those that it meant, as far as it tells, and arranges how the others are sent again.
    fn refused(&self, refusal: &Refusal, open: &[usize], rest: &[usize], groups: &mut VecDeque<Vec<usize>>) {
        // Then none but this one can be meant.
        let alone = open.len() == 1;
        let all = || open.iter().chain(rest).copied();
        match blame(refusal.code) {
            Blame::Message if alone => {
                self.answers.set(open[0], Outcome::Reject(refusal.to_string()));
                groups.push_front(rest.to_vec());
            }
            Blame::Message if let Some(limit) = refusal.limit() => {
                // Each that is too large is tried alone, for the server's own words of it; last, since none will be
                // taken.
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
                // Each is tried alone. In their order: none overtakes another.
                groups.push_front(rest.to_vec());
                open.iter().rev().for_each(|index| groups.push_front(vec![*index]));
            }
            _ => return self.give_up(refusal, open, rest),
        }
        self.sent.lock().extend(open);
    }

    /// It names nothing of what was under way: to send that again might end in the same.
    fn give_up(&self, refusal: &Refusal, open: &[usize], rest: &[usize]) {
        open.iter().for_each(|index| self.retry(*index, refusal, false));
        rest.iter().for_each(|index| self.retry(*index, refusal, true));
    }

    /// The exchange that the refusal names, of those that have messages under way.
    fn named(&self, refusal: &Refusal, open: &[usize]) -> Option<&'a str> {
        let exchanges = open.iter().map(|index| self.exchange(*index));
        // A name may begin with another, and with what stands behind a name.
        exchanges.filter(|exchange| refusal.names(exchange)).max_by_key(|exchange| exchange.len())
    }

    /// Answers a message that the refusal means; `definite` as far as it goes for the last time that it was sent.
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
