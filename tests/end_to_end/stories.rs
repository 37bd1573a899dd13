//! What users do in the end-to-end test, and the keys that follow from the answers they get.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::{Value, json};

use crate::support::http::{Definite, Fleet};
use crate::support::ledger::Ledger;
use crate::support::stage::Stage;

/// How long the one-shots are due, and the stories go on, in ms.
pub(super) const WINDOW: i64 = 20_000;

const ONE_SHOTS: i64 = 15_000;
const LINES: i64 = 100;
const RECURRING: i64 = 100;
const LIMIT: i64 = 20;
const STORIES: i64 = 200;

/// How far ahead of its due the first put of a story comes.
const AHEAD: i64 = 1500;

/// When the second request of every other story comes, relative to the first due: where put, cancel and claim meet.
const CLOSE: [i64; 12] = [-20, -6, -3, -2, -1, 0, 1, 2, 3, 5, 8, 30];

/// The other half come well ahead of it.
const EARLY: i64 = -800;

/// Users, the instances they ask, and what they are to get.
#[derive(Clone)]
pub(super) struct Users {
    pub(super) stage: Stage,
    pub(super) fleet: Fleet,
    ledger: Arc<Mutex<Ledger>>,
    /// How often a second request met its task in flight.
    met: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Where everything is published.
    destination: &'static str,
    /// When the window of dues begins.
    from: i64,
}

impl Users {
    /// Users of these instances who begin at `from`.
    pub(super) fn new(stage: Stage, fleet: Fleet, destination: &'static str, from: i64) -> Users {
        Users { stage, fleet, ledger: Arc::default(), met: Arc::default(), destination, from }
    }

    /// What is expected so far.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no user panics holding it")
    }

    /// What the second requests of stories were answered, each with how often.
    pub(super) fn answers(&self) -> String {
        format!("{:?}", self.met.lock().expect("no user panics holding it"))
    }

    /// Plans everything that they do.
    pub(super) fn plan(&self) {
        for first in (0..ONE_SHOTS).step_by(LINES as usize) {
            // Most two seconds ahead, every tenth batch when some of its tasks are due already.
            let ahead = if first / LINES % 10 == 9 { -60 } else { 2000 };
            self.plan_act(self.one_shot_due(first) - ahead, move |users| {
                users.put_one_shots((first..first + LINES).collect())
            });
        }
        for number in 0..RECURRING {
            self.plan_act(self.from - 2800 + number * 10, move |users| users.put_interval(number));
            self.plan_act(self.from - 2795 + number * 10, move |users| users.put_cron(number));
        }
        for number in 0..STORIES {
            let at = self.from + number * (WINDOW - AHEAD) / STORIES;
            self.plan_act(at - AHEAD, move |users| users.cancel_story(number, at));
            self.plan_act(at - AHEAD, move |users| users.replace_story(number, at + 31));
            self.plan_act(at - AHEAD + 62, move |users| users.reset_story(number));
        }
    }

    fn plan_act(&self, at: i64, act: impl FnOnce(&Users) + Send + 'static) {
        let users = self.clone();
        self.stage.at(at, move || act(&users));
    }

    fn one_shot_due(&self, number: i64) -> i64 {
        self.from + number * WINDOW / ONE_SHOTS
    }

    /// Puts a batch of one-shots; lines without a definite answer are put again.
    fn put_one_shots(&self, numbers: Vec<i64>) {
        let mut left = numbers.clone();
        for round in 0.. {
            assert!(round < 100, "batch lines find no definite answer: {left:?}");
            let line = |&number: &i64| {
                let mut task = self.task(json!({"at": rfc3339(self.one_shot_due(number))}), &payload("one", number, 1));
                task["id"] = json!(format!("one-{number}"));
                format!("{task}\n")
            };
            let body: String = left.iter().map(line).collect();
            let sent = self.fleet.send("POST", "/v1/tasks:batch", Some(&body));
            assert_eq!(sent.answer.status, 200, "{:?}", sent.answer);
            let answers = sent.answer.lines();
            assert_eq!(answers.len(), left.len(), "{:?}", sent.answer);
            let mut again = Vec::new();
            for (&number, answer) in left.iter().zip(&answers) {
                assert_eq!(answer["id"], format!("one-{number}"), "{answer}");
                match answer["result"].as_str() {
                    Some("created") => assert_eq!(answer["due_ms"], self.one_shot_due(number), "{answer}"),
                    Some("unchanged") if sent.sent_before || round > 0 => {}
                    None if answer["error"]["status"] == 503 => again.push(number),
                    _ => panic!("{answer}"),
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
        }
        let mut ledger = self.ledger();
        for number in numbers {
            ledger.must(&format!("one-{number}"), self.one_shot_due(number), &payload("one", number, 1));
        }
    }

    /// Every second, 20 times: half of them with a start of their own, half from their put on.
    fn put_interval(&self, number: i64) {
        let (id, start) = (format!("every-{number}"), self.from + number * 7);
        let mut schedule = json!({"every": "1s", "limit": LIMIT});
        if number % 2 == 0 {
            schedule["start"] = json!(rfc3339(start));
        }
        let answer = self.put(&id, schedule, &payload("every", number, 1));
        let first = due(&answer);
        if number % 2 == 0 {
            assert_eq!(first, start, "{answer:?}");
        }
        self.recurring(&id, first, &payload("every", number, 1));
    }

    /// By cron at every second of three zones, 20 times.
    fn put_cron(&self, number: i64) {
        let zone = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"][(number % 3) as usize];
        let (id, start) = (format!("cron-{number}"), self.from + number * 7);
        let schedule = json!({"cron": "* * * * * *", "zone": zone, "start": rfc3339(start), "limit": LIMIT});
        let answer = self.put(&id, schedule, &payload("cron", number, 1));
        let first = (start + 999) / 1000 * 1000;
        assert_eq!(due(&answer), first, "{answer:?}");
        self.recurring(&id, first, &payload("cron", number, 1));
    }

    fn recurring(&self, id: &str, first: i64, payload: &str) {
        let mut ledger = self.ledger();
        (0..LIMIT).for_each(|turn| ledger.must(id, first + turn * 1000, payload));
    }

    /// A one-shot that is cancelled: well ahead, or about when it is due.
    fn cancel_story(&self, number: i64, at: i64) {
        let (id, text) = (format!("cancel-{number}"), payload("cancel", number, 1));
        let answer = self.put(&id, json!({"at": rfc3339(at)}), &text);
        assert!(matches!(result(&answer), "created" | "unchanged"), "{answer:?}");
        self.plan_act(at + second(number), move |users| {
            let answer = users.fleet.send("DELETE", &format!("/v1/tasks/{id}"), None);
            let body = answer.answer.json();
            let key = format!("{id}:{at}");
            let told = match (answer.answer.status, body["result"].as_str()) {
                // Nothing of it is published: its key is in no list.
                (200, Some("cancelled")) if body["handed_out"] != true => "cancelled",
                (200, Some("cancelled")) => {
                    assert_eq!(body["key"], key, "{answer:?}");
                    users.ledger().may(&id, at, &text);
                    "handed out"
                }
                (200, Some("in_flight")) => {
                    assert_eq!(body["key"], key, "{answer:?}");
                    users.ledger().may(&id, at, &text);
                    "in flight"
                }
                (404, _) if answer.sent_before => {
                    users.ledger().may(&id, at, &text);
                    "unknown"
                }
                // It had ended before: published.
                (404, _) => {
                    users.ledger().must(&id, at, &text);
                    "unknown"
                }
                _ => panic!("{answer:?}"),
            };
            users.count("cancel", told);
        });
    }

    /// A one-shot that is replaced by another message: at another due, or well ahead also at the same.
    fn replace_story(&self, number: i64, at: i64) {
        let (id, old, new) =
            (format!("replace-{number}"), payload("replace", number, 1), payload("replace", number, 2));
        let answer = self.put(&id, json!({"at": rfc3339(at)}), &old);
        assert!(matches!(result(&answer), "created" | "unchanged"), "{answer:?}");
        let later = if number % 4 == 0 { at } else { at + 1000 };
        self.plan_act(at + second(number), move |users| {
            let answer = users.put(&id, json!({"at": rfc3339(later)}), &new);
            let mut ledger = users.ledger();
            if answer.answer.status == 409 {
                // Only where the old message is in flight under the very key.
                assert_eq!((later, &answer.answer.json()["code"]), (at, &json!("in_flight")), "{answer:?}");
                ledger.must(&id, at, &old);
                drop(ledger);
                return users.count("replace", "409");
            }
            assert_eq!(due(&answer), later, "{answer:?}");
            ledger.must(&id, later, &new);
            ended(&mut ledger, &id, at, &old, &answer);
            drop(ledger);
            users.count("replace", told(&answer));
        });
    }

    /// A time-out that is reset: put again, it counts anew.
    fn reset_story(&self, number: i64) {
        let (id, text) = (format!("reset-{number}"), payload("reset", number, 1));
        let schedule = json!({"in": format!("{AHEAD}ms")});
        let first = self.put(&id, schedule.clone(), &text);
        let at = due(&first);
        self.plan_act(at + second(number), move |users| {
            let again = users.put(&id, schedule, &text);
            let mut ledger = users.ledger();
            ledger.must(&id, due(&again), &text);
            assert!(due(&again) > at, "{first:?} {again:?}");
            ended(&mut ledger, &id, at, &text, &again);
            if first.sent_before || again.sent_before {
                ledger.untold(&id);
            }
            drop(ledger);
            users.count("reset", told(&again));
        });
    }

    /// Puts a task; the answer is definite, and a 409 or names what was done.
    fn put(&self, id: &str, schedule: Value, text: &str) -> Definite {
        let body = self.task(schedule, text).to_string();
        let answer = self.fleet.send("PUT", &format!("/v1/tasks/{id}"), Some(&body));
        assert!(matches!(answer.answer.status, 200 | 201 | 409), "{id}: {answer:?}");
        answer
    }

    fn task(&self, schedule: Value, text: &str) -> Value {
        let payload: Value = serde_json::from_str(text).expect("JSON");
        json!({"schedule": schedule, "message": {"destination": self.destination, "payload": payload}})
    }

    fn count(&self, story: &str, told: &str) {
        *self.met.lock().expect("no user panics holding it").entry(format!("{story} {told}")).or_default() += 1;
    }
}

/// What became of the occurrence that a put found, from its answer.
fn ended(ledger: &mut Ledger, id: &str, at: i64, text: &str, answer: &Definite) {
    let body = answer.answer.json();
    match (result(answer), body["in_flight"].as_str()) {
        // Perhaps a first request that nobody answered did it, and its answer would have named the key.
        _ if answer.sent_before => ledger.may(id, at, text),
        // It waited, and was never published.
        ("replaced", None) => {}
        (_, Some(key)) => {
            assert_eq!(key, format!("{id}:{at}"), "{answer:?}");
            ledger.may(id, at, text);
        }
        // It had ended before: published.
        ("created", None) => ledger.must(id, at, text),
        _ => panic!("{answer:?}"),
    }
}

/// When the second request of a story comes, relative to the first due.
fn second(number: i64) -> i64 {
    if number % 2 == 0 { EARLY } else { CLOSE[(number / 2) as usize % CLOSE.len()] }
}

fn told(answer: &Definite) -> &'static str {
    let in_flight = answer.answer.json()["in_flight"].is_string();
    match result(answer) {
        "created" if in_flight => "created, in flight",
        "created" => "created",
        "replaced" if in_flight => "replaced, in flight",
        "replaced" => "replaced",
        _ => "unchanged",
    }
}

fn result(answer: &Definite) -> &'static str {
    let body = answer.answer.json();
    let known = ["created", "replaced", "unchanged"].into_iter().find(|&known| body["result"] == known);
    known.unwrap_or_else(|| panic!("{answer:?}"))
}

fn due(answer: &Definite) -> i64 {
    answer.answer.json()["due_ms"].as_i64().unwrap_or_else(|| panic!("{answer:?}"))
}

/// The very bytes that stand in the request, as `serde_json` writes them.
fn payload(kind: &str, number: i64, version: i64) -> String {
    json!({"kind": kind, "number": number, "version": version}).to_string()
}

fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).expect("a time").to_string()
}
