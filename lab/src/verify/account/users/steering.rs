//! Users pause, resume, trigger and skip their tasks, and an operator pauses a lane.
//!
//! A paused task neither ends nor is published, unless the answer to the pause named a key. What is resumed is published
//! as if it had not been paused: catch-up `all` publishes every occurrence.

use std::sync::Arc;
use std::time::Duration;

use hyper::Method;
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::Value;

use super::Users;
use super::acts::{Put, at, lane};
use crate::verify::account::LANES;
use crate::verify::account::entry::DefiniteAnswer;
use crate::verify::account::fleet::{self, Ask, Reply};
use crate::verify::account::ledger::parts;
use crate::verify::account::version::{Plan, Version};

/// How long a pause lasts at most, in ms. It is shorter than the grace of instances, so that nothing is passed over.
const LONGEST_PAUSE_MS: u64 = 2500;

/// How long a skip may still take effect after its user has given up waiting for the answer.
const LATE_SKIP_MS: i64 = 60_000;

/// The time between two pauses of a lane.
const LANE_PAUSE_INTERVAL: Duration = Duration::from_secs(7);

/// The definite answer to a request that steers a task.
#[derive(Debug)]
struct Steered {
    status: u16,
    view: Value,
    /// An earlier copy of the request may have taken effect.
    unsure: bool,
}

impl Steered {
    fn result(&self) -> &str {
        self.view["result"].as_str().or(self.view["code"].as_str()).unwrap_or("?")
    }

    fn due(&self) -> Option<i64> {
        self.view["due_ms"].as_i64()
    }

    /// The due of the key in this member.
    fn due_of(&self, name: &str) -> Option<i64> {
        self.view[name].as_str().and_then(parts).map(|(_, due)| due)
    }
}

impl Users {
    /// A one-shot or a recurring task that is paused around a due, then resumed or cancelled.
    pub(super) async fn paused(self: Arc<Users>, mut random: StdRng) {
        let id = self.name("paused");
        let put = self.steered_task(&mut random);
        let Some(DefiniteAnswer::Created { due, .. }) = self.put(&id, &put, false).await else {
            return self.ledger().end(&id);
        };
        tokio::time::sleep_until(self.clock.until(due + random.random_range(-300..=20))).await;
        let Some(paused) = self.steer(&id, "pause", "{}").await else { return self.ledger().end(&id) };
        // Without a key nothing of it may come, and it cannot end.
        let rests = paused.result() == "paused" && !paused.unsure && paused.view["in_flight"].is_null();
        let has_ended = paused.status == 404;
        tokio::time::sleep(Duration::from_millis(random.random_range(100..LONGEST_PAUSE_MS))).await;
        if random.random_bool(0.3) && !has_ended && self.goes_on(&id) {
            let before = self.history(&id).len();
            let answer = self.cancel(&id, false).await;
            // A first copy without a definite answer may have removed it.
            let unsure = self
                .history(&id)
                .get(before..)
                .is_none_or(|since| since.contains("; 503") || since.contains("; no answer"));
            let removed = answer == Some(DefiniteAnswer::Cancelled { handed_out: None });
            if rests && !unsure && answer.is_some() && !removed {
                self.broken_pause(&id, &format!("{paused:?}, then the cancel was answered {answer:?}"));
            }
            self.count("cancel a paused task", if rests { "at rest" } else { "perhaps in flight" });
            return self.ledger().end(&id);
        }
        if !has_ended && let Some(resumed) = self.steer(&id, "resume", "{}").await {
            let same = resumed.status == 200 && resumed.due() == paused.due() && resumed.view["in_flight"].is_null();
            // A first copy that was answered 503 may have resumed it, and then it was published.
            if rests && !resumed.unsure && !same {
                self.broken_pause(&id, &format!("{paused:?}, then {resumed:?}"));
            }
        }
        self.ledger().end(&id);
    }

    /// A one-shot or a recurring task that is triggered once or twice.
    pub(super) async fn triggered(self: Arc<Users>, mut random: StdRng) {
        let id = self.name("triggered");
        let put = self.steered_task(&mut random);
        let Some(DefiniteAnswer::Created { due, .. }) = self.put(&id, &put, false).await else {
            return self.ledger().end(&id);
        };
        for _ in 0..random.random_range(1..=2) {
            tokio::time::sleep_until(self.clock.until(due + random.random_range(-900..=20))).await;
            if !self.goes_on(&id) {
                break;
            }
            let Some(triggered) = self.steer(&id, "trigger", "{}").await else {
                self.with(&id, |entry| entry.steer(Version::perhaps_triggered));
                break;
            };
            let (key, handed_out) = (triggered.due_of("key"), triggered.due_of("in_flight"));
            self.with(&id, |entry| {
                entry.steer(|version| match (triggered.result(), key) {
                    ("triggered", Some(key)) if !version.added.contains(&key) => version.triggered(key, handed_out),
                    _ => {}
                });
            });
            if triggered.result() != "triggered" || matches!(put.plan, Plan::At(_)) {
                break;
            }
        }
        self.ledger().end(&id);
    }

    /// A recurring task whose next occurrence is skipped.
    pub(super) async fn skipped(self: Arc<Users>, mut random: StdRng) {
        let id = self.name("skipped");
        let put = self.steered_series(&mut random);
        let Some(DefiniteAnswer::Created { due, .. }) = self.put(&id, &put, false).await else {
            return self.ledger().end(&id);
        };
        let Plan::Series { step, .. } = put.plan else { return };
        let which = due + step * random.random_range(0..3);
        tokio::time::sleep_until(self.clock.until(which - random.random_range(0..600))).await;
        if self.goes_on(&id) {
            let body = format!(r#"{{"due":"{}"}}"#, super::acts::rfc3339(which));
            let skipped = self.steer(&id, "skip", &body).await;
            let at = self.clock.at_latest();
            self.with(&id, |entry| {
                entry.steer(|version| match &skipped {
                    Some(skipped) if skipped.unsure => version.perhaps_skipped(which, at),
                    Some(skipped) if skipped.result() == "skipped" => {
                        let handed_out = !skipped.view["in_flight"].is_null();
                        version.skipped(which, handed_out, skipped.due().unwrap_or(which + step));
                    }
                    // It is not the next one, or in flight: nothing was skipped.
                    Some(_) => {}
                    // It may take effect at any later time, but it names its due.
                    None => version.perhaps_skipped(which, at + LATE_SKIP_MS),
                });
            });
        }
        self.ledger().end(&id);
    }

    /// An operator pauses a lane for a moment, again and again.
    pub(super) async fn pause_a_lane(self: Arc<Users>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(LANE_PAUSE_INTERVAL) => {}
            }
            let path = format!("/v1/lanes/{}", LANES[1]);
            self.repeat(&format!("{path}/pause"), r#"{"note":"the broker moves"}"#).await;
            tokio::time::sleep(Duration::from_millis(LONGEST_PAUSE_MS)).await;
            self.resume_lanes().await;
        }
    }

    /// Resumes the lane and all tasks, because requests without an answer may have paused them. Repeats each request
    /// until it is answered 200.
    pub(in crate::verify::account) async fn resume_all(&self) {
        self.resume_lanes().await;
        self.repeat("/v1/tasks:resume", r#"{"all":true}"#).await;
    }

    async fn resume_lanes(&self) {
        self.repeat(&format!("/v1/lanes/{}/resume", LANES[1]), "{}").await;
    }

    /// Sends a request that may be repeated until it is answered 200.
    async fn repeat(&self, path: &str, body: &str) {
        let ask = Ask { method: Method::POST, path: path.to_owned(), key: None, body: body.to_owned() };
        for tries in 1.. {
            let reply = self.fleet.send(&ask).await;
            let word = match &reply {
                Reply::Answer { status: 200, .. } => "done",
                _ => "repeated",
            };
            self.count(path, word);
            if word == "done" {
                return;
            }
            tokio::select! {
                () = self.give_up.cancelled() => return,
                () = tokio::time::sleep(fleet::pause(tries)) => {}
            }
        }
    }

    fn broken_pause(&self, id: &str, detail: &str) {
        let history = self.history(id);
        self.ledger().violations.add("pause_not_held", id, format!("{detail}; {history}"));
    }

    fn history(&self, id: &str) -> String {
        self.ledger().entry(id).map_or_else(String::new, |entry| entry.history.clone())
    }

    /// Sends a request about a task until it has a definite answer; `None` if there is none.
    async fn steer(&self, id: &str, verb: &'static str, body: &str) -> Option<Steered> {
        let path = format!("/v1/tasks/{id}/{verb}");
        let ask = Ask { method: Method::POST, path, key: None, body: body.to_owned() };
        let (mut unsure, mut tries) = (false, 0);
        let begun = self.clock.now();
        loop {
            tries += 1;
            match self.fleet.send(&ask).await {
                Reply::NotSent => {}
                Reply::None => {
                    // It may take effect at any later time.
                    self.count(verb, "no answer");
                    self.with(id, |entry| {
                        entry.history.push_str(&format!("; {verb} {body}: no answer"));
                        entry.request_may_take_effect = true;
                    });
                    return None;
                }
                Reply::Answer { status, body } => {
                    let view: Value = serde_json::from_str(&body).unwrap_or_default();
                    let code = view["code"].as_str().unwrap_or_default().to_owned();
                    match status {
                        503 if code == "timeline_unknown" => {
                            unsure = true;
                            // Each copy of a trigger counts by itself.
                            if verb == "trigger" {
                                self.with(id, |entry| entry.steer(Version::perhaps_triggered));
                            }
                        }
                        503 | 408 => {}
                        200 | 404 | 409 => {
                            let steered = Steered { status, view, unsure };
                            self.count(verb, steered.result());
                            let detail =
                                format!("; {verb} {body} from {begun} to {}: {steered:?}", self.clock.at_latest());
                            self.with(id, |entry| entry.history.push_str(&detail));
                            return Some(steered);
                        }
                        _ => {
                            self.ledger().wrong_answer(id, &format!("{verb}: {status} {body}"));
                            return None;
                        }
                    }
                }
            }
            tokio::select! {
                () = self.give_up.cancelled() => return None,
                () = tokio::time::sleep(fleet::pause(tries)) => {}
            }
        }
    }

    fn steered_task(&self, random: &mut StdRng) -> Put {
        if random.random_bool(0.5) {
            return at(self.clock.now() + random.random_range(400..2000), lane(random));
        }
        self.steered_series(random)
    }

    /// A recurring task without an end, so that its limit alone says how often it comes.
    fn steered_series(&self, random: &mut StdRng) -> Put {
        let (step, limit) = (1000, random.random_range(4..9));
        let start = self.clock.now() + random.random_range(400..1500);
        let begins = super::acts::rfc3339(start);
        Put {
            plan: Plan::Series { start: Some(start), step, limit, end: None },
            schedule: format!(r#"{{"every":"1s","start":"{begins}","limit":{limit}}}"#),
            lane: lane(random),
        }
    }
}
