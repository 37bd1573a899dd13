//! What users do who schedule by sending messages to a door. They get no answers, and each message is sent once.

use std::sync::Arc;

use rand::RngExt;
use rand::rngs::StdRng;

use super::Users;
use super::acts::lane;
use crate::verify::account::by_message::{Asked, BY_MESSAGE};
use crate::verify::account::ledger::{self, payload};
use crate::verify::account::write::{self, Outgoing, Sent, Writer};

/// When the task of a message is due.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At this time, in ms.
    At(i64),
    /// This many ms after the time of the message.
    In(i64),
}

impl Users {
    /// A task by message, and possibly a second message about it.
    pub(super) async fn by_message(self: Arc<Users>, mut random: StdRng) {
        let Some(writer) = self.writer.as_deref() else { return };
        let name = format!("{BY_MESSAGE}{}", self.number());
        if random.random_bool(0.05) {
            return self.send_badly(writer, &name).await;
        }
        let has_id = random.random_bool(0.5);
        let when = match random.random_range(0..10) {
            0 => When::At(self.clock.now() + random.random_range(-500..0)),
            1..5 => When::At(self.clock.now() + random.random_range(30..2500)),
            _ => When::In(random.random_range(30..2500)),
        };
        let id = has_id.then_some(&*name);
        // The same for both, because a task in flight does not move to another lane.
        let lane = lane(&mut random);
        let due = self.send_put(writer, (&name, id), 0, when, lane).await;
        if !has_id || !self.load.races || random.random_bool(0.4) {
            return;
        }
        let at = if random.random_bool(0.5) { due - 300 } else { due + random.random_range(-30..50) };
        tokio::time::sleep_until(self.clock.until(at)).await;
        if random.random_bool(0.5) {
            return self.send_cancel(writer, &name).await;
        }
        self.send_put(writer, (&name, id), 1, When::In(random.random_range(30..1500)), lane).await;
    }

    /// Sends a message that puts a task; returns about when that is due.
    async fn send_put(
        &self,
        writer: &dyn Writer,
        (name, id): (&str, Option<&str>),
        version: usize,
        when: When,
        lane: &str,
    ) -> i64 {
        let payload = payload(name, version);
        let mut headers = vec![
            ("punctual-destination", ledger::destination(&payload, &self.destinations).to_owned()),
            ("punctual-lane", lane.to_owned()),
            ("punctual-retry", r#"{"max":5,"interval":"200ms","jitter":"100ms"}"#.to_owned()),
            match when {
                When::At(due) => ("punctual-at", due.to_string()),
                When::In(delay) => ("punctual-in", format!("{delay}ms")),
            },
        ];
        headers.extend(id.map(|id| ("punctual-id", id.to_owned())));
        let (now, earliest) = (self.clock.now(), self.clock.at_earliest());
        let due = self.due_of(when, None, earliest);
        let asked = Asked { payload: payload.clone(), due, is_accepted: false, keys: Vec::new() };
        self.ledger().by_message.ask(name, id.is_some(), asked);
        let sent = self.send("put", writer, Outgoing { name: name.to_owned(), headers, payload, now }).await;
        let due = self.due_of(when, Some(sent), earliest);
        self.ledger().by_message.with(name, |named| {
            named.asked[version].is_accepted = sent.is_accepted;
            named.asked[version].due = due;
        });
        match when {
            When::At(due) => due,
            When::In(delay) => now + delay,
        }
    }

    /// The bounds of the due of a message that was sent after `earliest`; `sent` is what became of it, once that is known.
    fn due_of(&self, when: When, sent: Option<Sent>, earliest: i64) -> (i64, i64) {
        let delay = match when {
            When::At(due) => return (due, due),
            When::In(delay) => delay,
        };
        match sent {
            Some(Sent { time: Some(time), .. }) => (time + delay, time + delay),
            // The clock of a broker that was not started here is unknown.
            Some(_) if !self.load.same_clock => (i64::MIN, i64::MAX),
            Some(Sent { is_accepted: true, .. }) => (earliest + delay, self.clock.at_latest() + delay),
            _ => (earliest + delay, i64::MAX),
        }
    }

    async fn send_cancel(&self, writer: &dyn Writer, name: &str) {
        self.ledger().by_message.with(name, |named| named.is_cancelled = true);
        let headers = vec![("punctual-do", "cancel".to_owned()), ("punctual-id", name.to_owned())];
        let (name, payload, now) = (name.to_owned(), String::new(), self.clock.now());
        self.send("cancel", writer, Outgoing { name, headers, payload, now }).await;
    }

    /// Sends a message of which no task can be made.
    async fn send_badly(&self, writer: &dyn Writer, name: &str) {
        let payload = payload(name, 0);
        let headers = vec![
            ("punctual-destination", ledger::destination(&payload, &self.destinations).to_owned()),
            ("punctual-in", "soon".to_owned()),
        ];
        let asked = Asked { payload: payload.clone(), due: (0, 0), is_accepted: false, keys: Vec::new() };
        self.ledger().by_message.ask_badly(name, asked);
        let now = self.clock.now();
        let sent = self.send("unreadable", writer, Outgoing { name: name.to_owned(), headers, payload, now }).await;
        self.ledger().by_message.with(name, |named| named.asked[0].is_accepted = sent.is_accepted);
    }

    /// Sends a message once, and counts it under `what`.
    async fn send(&self, what: &str, writer: &dyn Writer, message: Outgoing) -> Sent {
        let sent = write::send(writer, message).await;
        let unconfirmed = if sent.is_accepted { "" } else { ", unconfirmed" };
        self.count("by message", &format!("{what}{unconfirmed}"));
        sent
    }
}
