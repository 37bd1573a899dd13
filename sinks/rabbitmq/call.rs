//! One publish: hands messages over within the window, takes in what becomes of them, and sends again what was under way
//! when the server closed the channel because of another.

use std::collections::{HashMap, HashSet, VecDeque};
use std::pin::pin;

use futures_util::{StreamExt, stream};
use parking_lot::Mutex;

use super::carry::{check, hand_over, size, target};
use super::connection::{Channel, Connection, Event, Failed};
use super::frames::Refusal;
use super::refusal::{Blame, blame};
use super::under_way::UnderWay;
use crate::answers::Answers;
use crate::window::Window;
use crate::{Fault, Message, Outcome, Trouble};

/// Exchanges that are looked for at once.
const LOOKED_FOR: usize = 16;

/// One publish.
pub(super) struct Call<'a> {
    window: &'a Window,
    connection: &'a Connection,
    batch: &'a [Message],
    answers: Answers,
    /// Those that were under way when a channel was closed: whatever is said of a later copy, the first may be in its queue.
    sent: Mutex<HashSet<usize>>,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        window: &'a Window,
        connection: &'a Connection,
        batch: &'a [Message],
        answers: Answers,
    ) -> Call<'a> {
        Call { window, connection, batch, answers, sent: Mutex::default() }
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
                Err(words) => self.answers.set(index, Outcome::Reject(words)),
            }
        }
        // Asked once for each: another call may learn of one meanwhile, and what goes to one destination is not to be split.
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
        let mut groups = VecDeque::from([indices]);
        while let Some(group) = groups.pop_front() {
            if group.is_empty() {
                continue;
            }
            let mut channel = self.connection.channel().await?;
            let (mut under_way, mut next) = (UnderWay::default(), 0);
            match self.send(&group, &mut channel, &mut under_way, &mut next).await {
                Ok(()) if under_way.doubtful() => groups.push_front(group[next..].to_vec()),
                Ok(()) => self.connection.keep(channel),
                Err(Failed::Refused(refusal)) => {
                    let open = under_way.clear();
                    self.refused(&refusal, &open, &group[next..], &mut groups);
                }
                Err(Failed::Lost) => return Err(Failed::Lost),
            }
        }
        Ok(())
    }

    /// Hands over a group of messages, from the `next` on, until each is answered, or the channel's answers are doubtful.
    async fn send(
        &self,
        group: &[usize],
        channel: &mut Channel,
        under_way: &mut UnderWay,
        next: &mut usize,
    ) -> Result<(), Failed> {
        let mut share = None;
        while let Some(&index) = group.get(*next) {
            let message = &self.batch[index];
            if share.as_ref().is_none_or(|(destination, _)| *destination != message.destination) {
                share = Some((message.destination.as_str(), self.window.share(&message.destination, group.len())));
            }
            let share = &mut share.as_mut().expect("just set").1;
            while let Ok(event) = channel.events.try_recv() {
                self.take(event, under_way)?;
            }
            let room = {
                let mut room = pin!(self.window.room(share, size(message)));
                loop {
                    tokio::select! {
                        biased;
                        room = &mut room => break room,
                        event = channel.events.recv() => self.take(event.ok_or(Failed::Lost)?, under_way)?,
                    }
                }
            };
            self.until_unblocked(channel, under_way).await?;
            if under_way.doubtful() {
                return Ok(());
            }
            self.answers.handed(index + 1);
            let tag = hand_over(channel, message, self.connection.frame);
            under_way.insert(tag, index, room);
            *next += 1;
        }
        // Other calls have their turn while this one's answers come.
        drop(share);
        while !under_way.is_empty() {
            let event = channel.events.recv().await.ok_or(Failed::Lost)?;
            self.take(event, under_way)?;
        }
        Ok(())
    }

    /// Waits while the server takes nothing: what is not handed over is known not to arrive.
    async fn until_unblocked(&self, channel: &mut Channel, under_way: &mut UnderWay) -> Result<(), Failed> {
        let mut blocked = self.connection.blocked();
        loop {
            tokio::select! {
                biased;
                _ = blocked.wait_for(Option::is_none) => return Ok(()),
                event = channel.events.recv() => self.take(event.ok_or(Failed::Lost)?, under_way)?,
            }
        }
    }

    fn take(&self, event: Event, under_way: &mut UnderWay) -> Result<(), Failed> {
        match event {
            Event::Returned { refusal, exchange, key, message_id } => {
                let is = |index: usize| {
                    let message = &self.batch[index];
                    message_id.as_deref() == Some(&message.key) && target(&message.destination) == (&exchange, &key)
                };
                if let Err(refusal) = under_way.returned(refusal, is) {
                    // It may be any of them: no acknowledgement on this channel can be believed any more.
                    let words = format!("{refusal}, of a message that is none of these");
                    for index in under_way.doubt() {
                        self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Unclear, words.clone())));
                    }
                }
            }
            Event::Answered { tag, multiple, taken } => {
                // A return comes before the acknowledgement of its message.
                for (index, refusal) in under_way.answered(tag, multiple) {
                    match refusal {
                        Some(refusal) => self.retry(index, &refusal, true),
                        None if taken => self.answers.set(index, Outcome::Accepted),
                        None => {
                            let words = "nack: RabbitMQ did not take it (its queue is full, or could not store it)";
                            self.answers.set(index, Outcome::Retry(Trouble::open(Fault::Unclear, words)));
                        }
                    }
                }
            }
            Event::Closed(refusal) => return Err(Failed::Refused(refusal)),
            Event::Done => {}
        }
        Ok(())
    }

    /// The server closed the channel, with the messages in `open` under way and those in `rest` not handed over. Answers
    /// those that it meant, as far as it tells, and arranges how the others are sent again.
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
                // Each that is too large is tried alone, for the server's own words of it; last, since none will be taken.
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
        self.answers.set(index, Outcome::Retry(Trouble { fault, definite, words: refusal.to_string() }));
    }
}

fn merged(mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_unstable();
    indices
}
