//! One publish: hands messages over within the window, takes in what becomes of them, and sends again what was under way
//! when the server closed the channel because of another.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::pin::pin;

use super::connection::{Channel, Connection, Event, Failed};
use super::frames::{self, Properties, Refusal, SHORT};
use super::refusal::{Blame, blame};
use crate::answers::Answers;
use crate::window::{Room, Window};
use crate::{Fault, Message, Outcome, Trouble, headers};

/// Exchange and routing key.
type Address<'a> = (&'a str, &'a str);

/// One publish.
pub(super) struct Call<'a> {
    window: &'a Window,
    connection: &'a Connection,
    batch: &'a [Message],
    answers: Answers,
    /// Messages before this index were handed over.
    handed: usize,
}

/// What is under way on one channel.
#[derive(Default)]
struct UnderWay {
    /// By their numbers on the channel: index, and the room that they take.
    messages: BTreeMap<u64, (usize, Room)>,
    /// Those that came back, and why.
    returned: HashMap<u64, Refusal>,
    /// The last that came back: they do in their order.
    last_returned: u64,
}

impl<'a> Call<'a> {
    pub(super) fn new(
        window: &'a Window,
        connection: &'a Connection,
        batch: &'a [Message],
        answers: Answers,
    ) -> Call<'a> {
        Call { window, connection, batch, answers, handed: 0 }
    }

    /// Ends when everything is answered.
    ///
    /// # Errors
    /// When nothing more will be: the connection is lost, or the server opens no channel.
    pub(super) async fn run(&mut self) -> Result<(), Failed> {
        let mut groups = VecDeque::from([self.sendable().await?]);
        while let Some(group) = groups.pop_front() {
            let Some(mut channel) = self.open(&group).await? else { continue };
            let (mut under_way, mut next) = (UnderWay::default(), 0);
            match self.send(&group, &mut channel, &mut under_way, &mut next).await {
                Ok(()) => self.connection.keep(channel),
                Err(Failed::Refused(refusal)) => {
                    let open: Vec<usize> = under_way.messages.values().map(|(index, _)| *index).collect();
                    drop(under_way);
                    self.refused(&refusal, &open, &group[next..], &mut groups);
                }
                Err(lost) => return Err(lost),
            }
        }
        Ok(())
    }

    /// Those that AMQP can carry, to exchanges that are there; the others are answered.
    async fn sendable(&mut self) -> Result<Vec<usize>, Failed> {
        let mut missing: HashMap<&str, Option<Refusal>> = HashMap::new();
        let mut sendable = Vec::with_capacity(self.batch.len());
        for (index, message) in self.batch.iter().enumerate() {
            let exchange = match check(message, self.connection.frame) {
                Ok((exchange, _)) => exchange,
                Err(words) => {
                    self.answers.set(index, Outcome::Reject(words));
                    continue;
                }
            };
            if !missing.contains_key(exchange) {
                let found = match self.connection.find(exchange).await {
                    Ok(()) => None,
                    Err(Failed::Refused(refusal)) => Some(refusal),
                    Err(lost) => return Err(lost),
                };
                missing.insert(exchange, found);
            }
            match &missing[exchange] {
                None => sendable.push(index),
                Some(refusal) => self.retry(index, refusal, true),
            }
        }
        Ok(sendable)
    }

    /// A channel for these messages; none if there are none.
    async fn open(&self, group: &[usize]) -> Result<Option<Channel>, Failed> {
        if group.is_empty() { Ok(None) } else { self.connection.channel().await.map(Some) }
    }

    /// Hands over a group of messages, from the `next` on, until each is answered.
    async fn send(
        &mut self,
        group: &[usize],
        channel: &mut Channel,
        under_way: &mut UnderWay,
        next: &mut usize,
    ) -> Result<(), Failed> {
        let mut share = None;
        while let Some(&index) = group.get(*next) {
            let message = &self.batch[index];
            if share.as_ref().is_none_or(|(destination, _)| *destination != message.destination) {
                share = Some((message.destination.as_str(), self.window.share(&message.destination)));
            }
            let share = &share.as_ref().expect("just set").1;
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
            self.handed = self.handed.max(index + 1);
            self.answers.handed(self.handed);
            let tag = hand_over(channel, message, self.connection.frame);
            under_way.messages.insert(tag, (index, room));
            *next += 1;
        }
        while !under_way.messages.is_empty() {
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
                under_way.returned(refusal, is);
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
        let alone = open.len() == 1 && rest.is_empty();
        let (meant, others): (Vec<usize>, Vec<usize>) = match (blame(refusal.code), refusal.exchange()) {
            (Blame::Message, _) if alone => {
                return self.answers.set(open[0], Outcome::Reject(refusal.to_string()));
            }
            // All that is as large, or larger, is tried alone.
            (Blame::Message, _) => open
                .iter()
                .partition(|index| refusal.size().is_none_or(|size| self.batch[**index].payload.len() >= size)),
            (Blame::Destination, Some(exchange)) => {
                self.connection.forget(exchange);
                let is = |index: &usize| target(&self.batch[*index].destination).0 == exchange;
                open.iter().filter(|index| is(index)).for_each(|index| self.retry(*index, refusal, alone));
                rest.iter().filter(|index| is(index)).for_each(|index| self.retry(*index, refusal, true));
                let others = merged(open.iter().chain(rest).copied().filter(|index| !is(index)));
                if others.len() < open.len() + rest.len() {
                    groups.push_front(others);
                    return;
                }
                (open.to_vec(), Vec::new())
            }
            (Blame::Destination, None) => (open.to_vec(), Vec::new()),
            (Blame::Sink | Blame::Unclear, _) => (Vec::new(), open.to_vec()),
        };
        if meant.is_empty() || alone {
            // It names nothing of what was under way: to send it again might end in the same.
            open.iter().for_each(|index| self.retry(*index, refusal, alone));
            rest.iter().for_each(|index| self.retry(*index, refusal, true));
            return;
        }
        groups.push_front(merged(others.into_iter().chain(rest.iter().copied())));
        groups.extend(meant.into_iter().map(|index| vec![index]));
    }

    fn retry(&self, index: usize, refusal: &Refusal, definite: bool) {
        let fault = match blame(refusal.code) {
            Blame::Destination => Fault::Destination,
            Blame::Sink => Fault::Sink,
            Blame::Message | Blame::Unclear => Fault::Unclear,
        };
        self.answers.set(index, Outcome::Retry(Trouble { fault, definite, words: refusal.to_string() }));
    }
}

impl UnderWay {
    /// A message came back: the next in their order that it can be.
    fn returned(&mut self, refusal: Refusal, is: impl Fn(usize) -> bool) {
        let later = self.messages.range(self.last_returned + 1..);
        let mut candidates = later.chain(self.messages.iter());
        let found = candidates.find(|(tag, (index, _))| is(*index) && !self.returned.contains_key(tag));
        if let Some((&tag, _)) = found {
            self.last_returned = tag;
            self.returned.insert(tag, refusal);
        }
    }

    /// Takes out the messages that an answer is for, and why they came back if they did.
    fn answered(&mut self, tag: u64, multiple: bool) -> Vec<(usize, Option<Refusal>)> {
        let mut answered = BTreeMap::new();
        if multiple {
            let later = if tag == 0 { BTreeMap::new() } else { self.messages.split_off(&(tag + 1)) };
            answered = std::mem::replace(&mut self.messages, later);
        } else if let Some(message) = self.messages.remove(&tag) {
            answered.insert(tag, message);
        }
        answered.into_iter().map(|(tag, (index, _))| (index, self.returned.remove(&tag))).collect()
    }
}

fn merged(indices: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut merged: Vec<usize> = indices.collect();
    merged.sort_unstable();
    merged
}

/// Exchange and routing key of a destination; without `/` a queue, by the exchange without a name.
fn target(destination: &str) -> Address<'_> {
    destination.split_once('/').unwrap_or(("", destination))
}

/// As [`target`], if there can be such.
pub(super) fn check_target(destination: &str) -> Result<Address<'_>, String> {
    let (exchange, key) = target(destination);
    if exchange.is_empty() && key.is_empty() {
        return Err("it names neither an exchange nor a queue".to_owned());
    }
    if exchange.len() > SHORT || key.len() > SHORT {
        return Err(format!("exchange and routing key have {SHORT} bytes at most each"));
    }
    Ok((exchange, key))
}

/// Whether AMQP can carry it; where it goes.
fn check(message: &Message, most: usize) -> Result<Address<'_>, String> {
    let target = check_target(&message.destination)?;
    let name = message.headers.iter().map(|(name, _)| name).find(|name| name.len() > SHORT);
    if let Some(name) = name {
        return Err(format!("the header `{name}` has a name of more than {SHORT} bytes"));
    }
    if message.key.len() > SHORT || message.content_type.as_ref().is_some_and(|text| text.len() > SHORT) {
        return Err(format!("key and content type have {SHORT} bytes at most each"));
    }
    let headers: usize = message.all_headers().map(|(name, value)| name.len() + value.len() + 6).sum();
    // Beside the headers there is a frame's frame, and three texts.
    if headers + 1024 > most { Err(format!("the headers do not fit into a frame of {most} bytes")) } else { Ok(target) }
}

fn hand_over(channel: &mut Channel, message: &Message, most: usize) -> u64 {
    let own_place = [headers::KEY, headers::CONTENT_TYPE];
    let headers: Vec<(&str, Cow<'_, str>)> =
        message.all_headers().filter(|(name, _)| !own_place.contains(name)).collect();
    let content_type = message.content_type.as_deref();
    channel.publish(|bytes, number| {
        bytes.reserve(size(message));
        let properties = Properties { content_type, message_id: &message.key, headers: &headers };
        frames::write_message(bytes, number, target(&message.destination), true, &properties, &message.payload, most);
    })
}

/// About how many bytes the message takes on the wire; 256 for what is always there.
fn size(message: &Message) -> usize {
    let own: usize = message.headers.iter().map(|(name, value)| name.len() + value.len() + 6).sum();
    message.payload.len() + own + message.key.len() + message.destination.len() + 256
}
