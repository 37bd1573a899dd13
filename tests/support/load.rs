//! A steady load of one-shots over HTTP that goes on whatever is answered, and keeps account of what was promised.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::http::{Api, NoAnswer};
use super::ledger::{Ledger, Tally};
use super::stage::Stage;

/// How far ahead of their due tasks are put, in ms: from at once to this.
const AHEAD: i64 = 3000;

/// A load on some instances, in one lane.
pub(crate) struct Load {
    apis: Vec<Api>,
    lane: &'static str,
    destination: &'static str,
    stage: Stage,
    ledger: Mutex<Ledger>,
    /// Answers by status and code, each with how often.
    answers: Mutex<BTreeMap<String, u32>>,
    /// The last refusal.
    refused: Mutex<Option<Value>>,
    number: AtomicI64,
    ending: AtomicBool,
}

impl Load {
    /// A load on these instances; `stage` tells Redis' time.
    pub(crate) fn new(apis: Vec<Api>, stage: &Stage, lane: &'static str, destination: &'static str) -> Load {
        Load {
            apis,
            lane,
            destination,
            stage: stage.clone(),
            ledger: Mutex::default(),
            answers: Mutex::default(),
            refused: Mutex::default(),
            number: AtomicI64::new(0),
            ending: AtomicBool::new(false),
        }
    }

    /// What is expected so far.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no client panics holding it")
    }

    /// The last refusal, as the API told it.
    pub(crate) fn refused(&self) -> Option<Value> {
        self.refused.lock().expect("no client panics holding it").clone()
    }

    /// Answers by status and code, each with how often.
    pub(crate) fn answers(&self) -> String {
        format!("{:?}", self.answers.lock().expect("no client panics holding it"))
    }

    /// Puts task after task until it is told to end.
    pub(crate) fn run(&self) {
        while !self.ending.load(Ordering::Relaxed) {
            self.put_next();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The load ends.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Ends the load when it is dropped: also when the test fails, so that its threads end.
    pub(crate) fn guard(&self) -> impl Drop {
        struct Guard<'a>(&'a Load);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        Guard(self)
    }

    /// Puts one more task; whether it was promised.
    pub(crate) fn put_next(&self) -> bool {
        self.put(self.number.load(Ordering::Relaxed) * 37 % AHEAD, "")
    }

    /// Puts one more task that is due `ahead` ms from now, with this padding in its payload; whether it was promised.
    pub(crate) fn put(&self, ahead: i64, padding: &str) -> bool {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let (id, due) = (format!("{}-{number}", self.lane), self.stage.now() + ahead);
        let payload = json!({"number": number, "padding": padding});
        let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
        let message = json!({"destination": self.destination, "payload": payload});
        let task = json!({"schedule": {"at": at}, "lane": self.lane, "message": message});
        let api = &self.apis[usize::try_from(number).expect("a count") % self.apis.len()];
        let answer = api.put(&id, &task.to_string());
        let (told, promised) = match &answer {
            Ok(answer) if answer.status == 201 => ("201".to_owned(), true),
            Ok(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                let problem = answer.json();
                let told = format!("503 {}", problem["code"].as_str().expect("a code"));
                *self.refused.lock().expect("no client panics holding it") = Some(problem);
                (told, false)
            }
            Err(NoAnswer::Unknown(detail)) => (format!("no answer: {detail}"), false),
            Err(NoAnswer::NotSent) => ("not sent".to_owned(), false),
        };
        *self.answers.lock().expect("no client panics holding it").entry(told).or_default() += 1;
        let mut ledger = self.ledger();
        // Without a definite answer it took effect or not.
        if promised {
            ledger.must(&id, due, &payload.to_string())
        } else {
            ledger.may(&id, due, &payload.to_string())
        }
        promised
    }
}

/// What took so many ms delayed nobody beside it: a load is late by no good part of that, but for what delays as much a
/// load that has nothing to do with it, as where everything stands still for a moment.
pub(crate) fn undelayed_by(ms: i64, beside: &Tally, apart: &Tally) {
    let ([half, most, latest], [_, most_apart, latest_apart]) = (beside.late, apart.late);
    let alone = half * 3 < ms && (most - most_apart) * 3 < ms && latest - latest_apart < ms;
    assert!(alone, "something waited for what took {ms} ms: {beside}; apart from it: {apart}");
}

/// Puts tasks that are due every second, `limit` times each; all of them are promised.
pub(crate) fn put_recurring(api: &Api, load: &Load, tasks: i64, limit: i64) {
    let start = load.stage.now() / 1000 * 1000 + 2000;
    for number in 0..tasks {
        let (id, first) = (format!("{}-every-{number}", load.lane), start + number * 13);
        let payload = json!({"number": number});
        let at = jiff::Timestamp::from_millisecond(first).expect("a time").to_string();
        let message = json!({"destination": load.destination, "payload": payload});
        let schedule = json!({"every": "1s", "start": at, "limit": limit});
        let task = json!({"schedule": schedule, "lane": load.lane, "message": message});
        let answer = api.put(&id, &task.to_string()).expect("an answer");
        assert_eq!(answer.status, 201, "{answer:?}");
        // One that is put after its start begins with a later due of the same series.
        let told = answer.json()["due_ms"].as_i64().expect("a due");
        let late = load.stage.now() > first - 500 && told > first && (told - first) % 1000 == 0;
        assert!(told == first || late, "from {first} on: {answer:?}");
        (0..limit).for_each(|turn| load.ledger().must(&id, told + turn * 1000, &payload.to_string()));
    }
}
