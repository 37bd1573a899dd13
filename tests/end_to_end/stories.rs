//! What users do in the end-to-end test, and the keys that follow from the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use super::answers::{due, ended, payload, result, rfc3339, told};
use crate::support::http::{Definite, Fleet};
use crate::support::ledger::Ledger;
use crate::support::stage::Stage;

/// The time range of the one-shots and stories, in ms.
pub(super) const WINDOW: i64 = 20_000;

const ONE_SHOTS: i64 = 15_000;
const LINES: i64 = 100;
const RECURRING: i64 = 100;
const LIMIT: i64 = 20;
const STORIES: i64 = 200;

/// Herds: one-shots that are due at one moment together with the cron tasks, at whole seconds from `KILLING` ms into
/// the window on. An instance that claims them holds them for a while.
const HERD: i64 = 600;
const HERDS: i64 = 14;
pub(super) const KILLING: i64 = 5000;

/// How many tasks of a stopped instance are changed; all of that before its lease ends.
const CHANGED: usize = 30;

/// How long before its due the first put of a story is sent.
const AHEAD: i64 = 1500;

/// When the second request of every other story is sent, relative to the first due: where put, cancel and claim meet.
const CLOSE: [i64; 12] = [-20, -6, -3, -2, -1, 0, 1, 2, 3, 5, 8, 30];

/// The other half are sent well before it.
const EARLY: i64 = -800;

/// Users, their instances, and their expectations.
#[derive(Clone)]
pub(super) struct Users {
    pub(super) stage: Stage,
    pub(super) fleet: Fleet,
    ledger: Arc<Mutex<Ledger>>,
    /// How often a second request met its task in flight.
    met: Arc<Mutex<BTreeMap<String, u32>>>,
    /// Tasks of herds that were changed while a stopped instance held them.
    changed: Arc<Mutex<BTreeSet<String>>>,
    /// The destination of all tasks.
    destination: &'static str,
    /// When the window of dues begins.
    from: i64,
}

impl Users {
    /// Users of these instances whose window begins at `from`, a whole second.
    pub(super) fn new(stage: Stage, fleet: Fleet, destination: &'static str, from: i64) -> Users {
        let (ledger, met, changed) = (Arc::default(), Arc::default(), Arc::default());
        Users { stage, fleet, ledger, met, changed, destination, from }
    }

    /// The expectations so far.
    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often a story got this answer: `cancel in flight`.
    pub(super) fn answered(&self, story: &str) -> u32 {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).get(story).copied().unwrap_or(0)
    }

    /// The answers to the second requests of stories with their numbers.
    pub(super) fn answers(&self) -> String {
        format!("{:?}", self.met.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Plans all requests.
    pub(super) fn plan(&self) {
        for first in (0..ONE_SHOTS).step_by(LINES as usize) {
            // Most are put two seconds ahead, every tenth batch when some of its tasks are already due.
            let ahead = if first / LINES % 10 == 9 { -60 } else { 2000 };
            self.plan_act(self.one_shot_due(first) - ahead, move |users| {
                users.put_one_shots((first..first + LINES).collect())
            });
        }
        for herd in 0..HERDS {
            self.plan_act(self.herd_due(herd) - 5000, move |users| users.put_herd(herd));
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

    fn herd_due(&self, herd: i64) -> i64 {
        self.from + KILLING + herd * 1000
    }

    fn put_one_shots(&self, numbers: Vec<i64>) {
        let dues: Vec<(i64, i64)> = numbers.into_iter().map(|number| (number, self.one_shot_due(number))).collect();
        self.put_batch("one", &dues);
        let mut ledger = self.ledger();
        for (number, due) in dues {
            ledger.must(&format!("one-{number}"), due, &payload("one", number, 1));
        }
    }

    /// Puts a herd; its expectations are noted at the end.
    fn put_herd(&self, herd: i64) {
        let numbers = herd * HERD..(herd + 1) * HERD;
        self.put_batch("herd", &numbers.map(|number| (number, self.herd_due(herd))).collect::<Vec<_>>());
    }

    /// Cancels every third task of a herd that a stopped instance holds, and replaces another third.
    pub(super) fn change_held(&self, held: &[(String, i64)]) {
        for (id, at) in held.iter().filter(|(id, _)| id.starts_with("herd-")).take(CHANGED) {
            let Some(number) = id.strip_prefix("herd-").and_then(|number| number.parse::<i64>().ok()) else { continue };
            let (old, new) = (payload("herd", number, 1), payload("herd", number, 2));
            match number % 3 {
                0 => self.cancel("held", id, *at, &old),
                1 => self.replace("held", id, (*at, &old), (at + 6000, &new)),
                _ => continue,
            }
            self.changed.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone());
        }
    }

    /// Notes the expectations for unchanged tasks of herds.
    pub(super) fn close(&self) {
        let changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        for number in 0..HERDS * HERD {
            let id = format!("herd-{number}");
            if !changed.contains(&id) {
                self.ledger().must(&id, self.herd_due(number / HERD), &payload("herd", number, 1));
            }
        }
    }

    /// Puts one-shots by number and due in one batch; repeats lines without a definite answer.
    fn put_batch(&self, kind: &str, dues: &[(i64, i64)]) {
        let mut left = dues.to_vec();
        for round in 0..100 {
            let line = |&(number, due): &(i64, i64)| {
                let mut task = self.task(json!({"at": rfc3339(due)}), &payload(kind, number, 1));
                task["id"] = json!(format!("{kind}-{number}"));
                format!("{task}\n")
            };
            let body: String = left.iter().map(line).collect();
            let sent = self.fleet.send("POST", "/v1/tasks:batch", Some(&body));
            assert_eq!(sent.answer.status, 200, "{:?}", sent.answer);
            let answers = sent.answer.lines();
            assert_eq!(answers.len(), left.len(), "{:?}", sent.answer);
            let mut again = Vec::new();
            for (&(number, due), answer) in left.iter().zip(&answers) {
                assert_eq!(answer["id"], format!("{kind}-{number}"), "{answer}");
                match answer["result"].as_str() {
                    Some("created") => assert_eq!(answer["due_ms"], due, "{answer}"),
                    Some("unchanged") if sent.sent_before || round > 0 => {}
                    None if answer["error"]["status"] == 503 => again.push((number, due)),
                    _ => panic!("{answer}"),
                }
            }
            left = again;
            if left.is_empty() {
                return;
            }
        }
        panic!("batch lines find no definite answer: {left:?}");
    }

    /// Every second, 20 times: half of them with a start, half from their put on.
    fn put_interval(&self, number: i64) {
        let (id, start) = (format!("every-{number}"), self.from + number * 7);
        let mut schedule = json!({"every": "1s", "limit": LIMIT});
        if number % 2 == 0 {
            schedule["start"] = json!(rfc3339(start));
        }
        let answer = self.put(&id, schedule, &payload("every", number, 1));
        let first = if number % 2 == 0 { self.first_of(&answer, start) } else { due(&answer) };
        self.recurring(&id, first, &payload("every", number, 1));
    }

    /// By cron at every second in three zones, 20 times.
    fn put_cron(&self, number: i64) {
        let zone = ["Europe/Berlin", "America/New_York", "Asia/Kathmandu"][(number % 3) as usize];
        let (id, start) = (format!("cron-{number}"), self.from + number * 7);
        let schedule = json!({"cron": "* * * * * *", "zone": zone, "start": rfc3339(start), "limit": LIMIT});
        let answer = self.put(&id, schedule, &payload("cron", number, 1));
        let first = self.first_of(&answer, (start + 999) / 1000 * 1000);
        self.recurring(&id, first, &payload("cron", number, 1));
    }

    /// The first due of a task that is due every second from `start` on; a later one only if it was put late.
    fn first_of(&self, answer: &Definite, start: i64) -> i64 {
        let first = due(answer);
        let late = self.stage.now() > start - 1000 && first > start && (first - start) % 1000 == 0;
        assert!(first == start || late, "from {start} on: {answer:?}");
        first
    }

    fn recurring(&self, id: &str, first: i64, payload: &str) {
        let mut ledger = self.ledger();
        (0..LIMIT).for_each(|turn| ledger.must(id, first + turn * 1000, payload));
    }

    /// A one-shot that is cancelled: well before its due, or around it.
    fn cancel_story(&self, number: i64, at: i64) {
        let (id, text) = (format!("cancel-{number}"), payload("cancel", number, 1));
        let answer = self.put(&id, json!({"at": rfc3339(at)}), &text);
        assert!(matches!(result(&answer), "created" | "unchanged"), "{answer:?}");
        self.plan_act(at + second(number), move |users| users.cancel("cancel", &id, at, &text));
    }

    fn cancel(&self, story: &str, id: &str, at: i64, text: &str) {
        let answer = self.fleet.send("DELETE", &format!("/v1/tasks/{id}"), None);
        let body = answer.answer.json();
        let mut ledger = self.ledger();
        let told = match (answer.answer.status, body["result"].as_str()) {
            // It is not published, so its key is in no list.
            (200, Some("cancelled")) if body["handed_out"] != true => "cancelled",
            (200, Some(told @ ("cancelled" | "in_flight"))) => {
                assert_eq!(body["key"], format!("{id}:{at}"), "{answer:?}");
                ledger.may(id, at, text);
                if told == "cancelled" { "handed out" } else { "in flight" }
            }
            (404, _) => {
                // A first, unanswered request may have done it; otherwise it had ended before and was published.
                if answer.sent_before {
                    ledger.may(id, at, text)
                } else {
                    ledger.must(id, at, text)
                }
                "unknown"
            }
            _ => panic!("{answer:?}"),
        };
        drop(ledger);
        self.count(story, told);
    }

    /// A one-shot that is replaced by another message: with another due, or well ahead also with the same.
    fn replace_story(&self, number: i64, at: i64) {
        let (id, old, new) =
            (format!("replace-{number}"), payload("replace", number, 1), payload("replace", number, 2));
        let answer = self.put(&id, json!({"at": rfc3339(at)}), &old);
        assert!(matches!(result(&answer), "created" | "unchanged"), "{answer:?}");
        let later = if number % 4 == 0 { at } else { at + 1000 };
        self.plan_act(at + second(number), move |users| users.replace("replace", &id, (at, &old), (later, &new)));
    }

    fn replace(&self, story: &str, id: &str, (at, old): (i64, &str), (later, new): (i64, &str)) {
        let answer = self.put(id, json!({"at": rfc3339(later)}), new);
        let mut ledger = self.ledger();
        if answer.answer.status == 409 {
            // Only if the old message is in flight with this very key.
            assert_eq!((later, &answer.answer.json()["code"]), (at, &json!("in_flight")), "{answer:?}");
            ledger.must(id, at, old);
            drop(ledger);
            return self.count(story, "409");
        }
        assert_eq!(due(&answer), later, "{answer:?}");
        ledger.must(id, later, new);
        ended(&mut ledger, id, at, old, &answer);
        drop(ledger);
        self.count(story, told(&answer));
    }

    /// A timeout that is reset: a repeated put counts anew.
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

    /// Puts a task until the answer is definite: a 409, or the result.
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
        *self.met.lock().unwrap_or_else(PoisonError::into_inner).entry(format!("{story} {told}")).or_default() += 1;
    }
}

/// When the second request of a story is sent, relative to the first due.
fn second(number: i64) -> i64 {
    if number % 2 == 0 { EARLY } else { CLOSE[(number / 2) as usize % CLOSE.len()] }
}
