//! One request about one task: sent until it has a definite answer, and noted in the ledger.

use std::sync::atomic::Ordering;

use hyper::Method;
use rand::RngExt;
use rand::rngs::StdRng;

use super::Users;
use crate::verify::account::entry::Told;
use crate::verify::account::fleet::{self, Ask, Reply, Word};
use crate::verify::account::ledger;
use crate::verify::account::version::Plan;

/// How many 409 a user accepts after an unanswered request, which may still take effect until then.
const REFUSALS: u32 = 200;

/// A task to put.
#[derive(Clone, Debug)]
pub(super) struct Put {
    pub(super) plan: Plan,
    /// The schedule as JSON.
    pub(super) schedule: String,
    pub(super) lane: &'static str,
}

/// Once, at this time.
pub(super) fn at(due: i64, lane: &'static str) -> Put {
    Put { plan: Plan::At(due), schedule: format!(r#"{{"at":"{}"}}"#, rfc3339(due)), lane }
}

/// Once, after this many ms.
pub(super) fn within(ms: i64, lane: &'static str) -> Put {
    Put { plan: Plan::In, schedule: format!(r#"{{"in":"{ms}ms"}}"#), lane }
}

pub(super) fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| time.to_string())
}

/// One of the two lanes that tasks move between.
pub(super) fn lane(random: &mut StdRng) -> &'static str {
    crate::verify::account::LANES[usize::from(random.random_bool(0.3))]
}

impl Users {
    /// Puts a task and notes its answer. `None` means that it is unknown whether it took effect, and that no more
    /// requests may be made about the task. If it is put carelessly, a 503 counts as the last answer, and the next
    /// request follows without a repetition.
    pub(super) async fn put(&self, id: &str, put: &Put, carelessly: bool) -> Option<Told> {
        let how = if carelessly { " carelessly" } else { "" };
        let words = format!("; put{how} {} {} at {}", put.schedule, put.lane, self.clock.now());
        let payload = self.ledger().put(id, put.plan, put.lane, &words);
        let body = self.body(None, put, &payload);
        self.ask(id, Ask { method: Method::PUT, path: format!("/v1/tasks/{id}"), key: None, body }, carelessly).await
    }

    /// Cancels a task, like [`put`](Users::put).
    pub(super) async fn cancel(&self, id: &str, carelessly: bool) -> Option<Told> {
        let words = format!("; cancel at {}", self.clock.now());
        if let Some(entry) = self.ledger().entry(id) {
            entry.history.push_str(&words);
            entry.cancel();
        }
        let (path, body) = (format!("/v1/tasks/{id}"), String::new());
        self.ask(id, Ask { method: Method::DELETE, path, key: None, body }, carelessly).await
    }

    /// Whether more requests may be made about a task: not once a request may still take effect.
    pub(super) fn goes_on(&self, id: &str) -> bool {
        let mut ledger = self.ledger();
        !self.stop.is_cancelled() && ledger.entry(id).is_some_and(|entry| !entry.published_after_cancel)
    }

    /// The JSON of a task.
    pub(super) fn body(&self, id: Option<&str>, put: &Put, payload: &str) -> String {
        let id = id.map_or(String::new(), |id| format!(r#""id":"{id}","#));
        let destination = ledger::destination(payload, &self.destinations);
        // Short enough for the shortest series; many retries, so that no task dies because the sink is away for a
        // moment.
        let retry = match put.plan {
            Plan::Series { .. } => r#"{"max":5,"interval":"10ms","jitter":"10ms"}"#,
            _ => r#"{"max":5,"interval":"200ms","jitter":"100ms"}"#,
        };
        format!(
            r#"{{{id}"schedule":{},"message":{{"destination":"{destination}","payload":{payload}}},"lane":"{}","retry":{retry},"catch_up":"all"}}"#,
            put.schedule, put.lane
        )
    }

    /// Sends a request until it has a definite answer.
    pub(super) async fn ask(&self, id: &str, ask: Ask, carelessly: bool) -> Option<Told> {
        let (mut refusals, mut tries) = (0, 0);
        loop {
            tries += 1;
            let reply = self.fleet.send(&ask).await;
            let at = self.clock.at_latest();
            let word = match reply {
                Reply::NotSent => Word::NoEffect,
                Reply::None => {
                    self.with(id, |entry| entry.unanswered());
                    Word::NoEffect
                }
                Reply::Answer { status, body } => fleet::read(status, &body, id),
            };
            match word {
                Word::NoEffect => {}
                Word::Maybe => {
                    self.with(id, |entry| entry.unsure());
                    if carelessly && self.goes_on(id) {
                        self.with(id, |entry| entry.leave());
                        return None;
                    }
                }
                Word::Strange(words) => {
                    self.ledger().wrong_answer(id, &words);
                    self.with(id, |entry| entry.unanswered());
                    return None;
                }
                // The unanswered request may still take effect, and this one would not know.
                Word::Told(Told::Refused, _) if refusals < REFUSALS && self.is_haunted(id) => refusals += 1,
                Word::Told(told, named) => {
                    let mut ledger = self.ledger();
                    ledger.name(id, &named);
                    ledger.told(&named, told, at);
                    if let (Told::Created { .. } | Told::Replaced { .. }, Some(entry)) = (told, ledger.entry(&named)) {
                        let promised = entry.standing().map_or(0, |version| version.must().count() as u64);
                        self.promised.fetch_add(promised, Ordering::Relaxed);
                    }
                    return Some(told);
                }
            }
            tokio::select! {
                () = self.give_up.cancelled() => {
                    self.with(id, |entry| entry.leave());
                    return None;
                }
                // A refusal because of an occurrence in flight lasts some ms only.
                () = tokio::time::sleep(fleet::pause(if refusals > 0 { 1 } else { tries })) => {}
            }
        }
    }

    fn is_haunted(&self, id: &str) -> bool {
        self.ledger().entry(id).is_some_and(|entry| entry.published_after_cancel)
    }

    pub(super) fn with(&self, id: &str, act: impl FnOnce(&mut crate::verify::account::entry::Entry)) {
        if let Some(entry) = self.ledger().entry(id) {
            act(entry);
        }
    }
}
