//! One request about one task: sent until it has a definite answer, and noted in the ledger.

use std::sync::atomic::Ordering;

use hyper::Method;
use rand::RngExt;
use rand::rngs::StdRng;

use super::Users;
use crate::verify::account::entry::DefiniteAnswer;
use crate::verify::account::fleet::{self, AnswerMeaning, Ask, Reply};
use crate::verify::account::ledger;
use crate::verify::account::version::Plan;

/// How often a user repeats a request that is refused while an earlier copy without an answer may still take effect.
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
    /// Puts a task and notes its answer. `None` means that it is unknown whether it took effect;
    /// [`goes_on`](Users::goes_on) tells whether more requests may be made about the task. If it is put carelessly, a
    /// 503 counts as the last answer, and the request is not repeated.
    pub(super) async fn put(&self, id: &str, put: &Put, carelessly: bool) -> Option<DefiniteAnswer> {
        let how = if carelessly { " carelessly" } else { "" };
        let detail = format!("; put{how} {} {} at {}", put.schedule, put.lane, self.clock.now());
        let payload = self.ledger().put(id, put.plan, put.lane, &detail);
        let body = self.body(None, put, &payload);
        self.ask(id, Ask { method: Method::PUT, path: format!("/v1/tasks/{id}"), key: None, body }, carelessly).await
    }

    /// Cancels a task, like [`put`](Users::put).
    pub(super) async fn cancel(&self, id: &str, carelessly: bool) -> Option<DefiniteAnswer> {
        let detail = format!("; cancel at {}", self.clock.now());
        if let Some(entry) = self.ledger().entry(id) {
            entry.history.push_str(&detail);
            entry.cancel();
        }
        let (path, body) = (format!("/v1/tasks/{id}"), String::new());
        self.ask(id, Ask { method: Method::DELETE, path, key: None, body }, carelessly).await
    }

    /// Whether more requests may be made about a task: not while a request may still take effect, nor after the
    /// campaign has stopped putting.
    pub(super) fn goes_on(&self, id: &str) -> bool {
        let mut ledger = self.ledger();
        !self.stop.is_cancelled() && ledger.entry(id).is_some_and(|entry| !entry.request_may_take_effect)
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
    pub(super) async fn ask(&self, id: &str, ask: Ask, carelessly: bool) -> Option<DefiniteAnswer> {
        let (mut refusals, mut tries) = (0, 0);
        loop {
            tries += 1;
            let reply = self.fleet.send(&ask).await;
            let at = self.clock.at_latest();
            let word = match reply {
                Reply::NotSent => AnswerMeaning::NoEffect,
                Reply::None => {
                    self.with(id, |entry| entry.unanswered());
                    AnswerMeaning::NoEffect
                }
                Reply::Answer { status, body } => fleet::read(status, &body, id),
            };
            match word {
                AnswerMeaning::NoEffect => {}
                AnswerMeaning::Maybe => {
                    self.with(id, |entry| entry.unsure());
                    if carelessly && self.goes_on(id) {
                        self.with(id, |entry| entry.leave());
                        return None;
                    }
                }
                AnswerMeaning::Impossible(detail) => {
                    self.ledger().wrong_answer(id, &detail);
                    self.with(id, |entry| entry.unanswered());
                    return None;
                }
                // An earlier copy without an answer may still take effect; this refusal does not tell.
                AnswerMeaning::DefiniteAnswer(DefiniteAnswer::Refused, _)
                    if refusals < REFUSALS && self.has_unresolved_request(id) =>
                {
                    refusals += 1
                }
                AnswerMeaning::DefiniteAnswer(answer, named) => {
                    let mut ledger = self.ledger();
                    ledger.name(id, &named);
                    ledger.note_answer(&named, answer, at);
                    if let (DefiniteAnswer::Created { .. } | DefiniteAnswer::Replaced { .. }, Some(entry)) =
                        (answer, ledger.entry(&named))
                    {
                        let promised = entry.standing().map_or(0, |version| version.must().count() as u64);
                        self.promised.fetch_add(promised, Ordering::Relaxed);
                    }
                    return Some(answer);
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

    fn has_unresolved_request(&self, id: &str) -> bool {
        self.ledger().entry(id).is_some_and(|entry| entry.request_may_take_effect)
    }

    pub(super) fn with(&self, id: &str, act: impl FnOnce(&mut crate::verify::account::entry::Entry)) {
        if let Some(entry) = self.ledger().entry(id) {
            act(entry);
        }
    }
}
