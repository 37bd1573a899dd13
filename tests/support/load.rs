//! A steady load of one-shot tasks over HTTP that continues through errors and records what the API promised.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use serde_json::{Value, json};

use super::clock::ServerClock;
use super::http::{Api, NoAnswer};
use super::ledger::{Ledger, Tally};

/// Tasks are put up to this many ms before their due.
const AHEAD: i64 = 3000;

/// A load on some instances, in one lane.
pub(crate) struct Load {
    apis: Vec<Api>,
    lane: &'static str,
    destination: &'static str,
    clock: ServerClock,
    ledger: Mutex<Ledger>,
    /// Number of answers by status and code.
    answers: Mutex<BTreeMap<String, u32>>,
    /// The last error.
    refused: Mutex<Option<Value>>,
    number: AtomicI64,
    ending: AtomicBool,
}

impl Load {
    /// A load on these instances; `clock` tells Redis' time.
    pub(crate) fn new(apis: Vec<Api>, clock: &ServerClock, lane: &'static str, destination: &'static str) -> Load {
        Load {
            apis,
            lane,
            destination,
            clock: clock.clone(),
            ledger: Mutex::default(),
            answers: Mutex::default(),
            refused: Mutex::default(),
            number: AtomicI64::new(0),
            ending: AtomicBool::new(false),
        }
    }

    /// The same load on other instances.
    pub(crate) fn on(self, apis: Vec<Api>) -> Load {
        Load { apis, ..self }
    }

    /// The messages expected so far.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().expect("no client panics holding it")
    }

    /// The last error, as the API returned it.
    pub(crate) fn refused(&self) -> Option<Value> {
        self.refused.lock().expect("no client panics holding it").clone()
    }

    /// Number of answers by status and code.
    pub(crate) fn answers(&self) -> String {
        format!("{:?}", self.answers.lock().expect("no client panics holding it"))
    }

    /// Puts tasks until `end` is called.
    pub(crate) fn run(&self) {
        while !self.ending.load(Ordering::Relaxed) {
            self.put_next();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the load.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Relaxed);
    }

    /// Ends the load when it is dropped, so that its threads end when the test fails, too.
    pub(crate) fn guard(&self) -> impl Drop {
        struct Guard<'a>(&'a Load);
        impl Drop for Guard<'_> {
            fn drop(&mut self) {
                self.0.end();
            }
        }
        Guard(self)
    }

    /// Puts one more task; returns whether the API promised to publish it.
    pub(crate) fn put_next(&self) -> bool {
        self.put(self.number.load(Ordering::Relaxed) * 37 % AHEAD, "")
    }

    /// Puts one more task that is due `ahead` ms from now, with this padding in its payload; returns whether the API
    /// promised to publish it.
    pub(crate) fn put(&self, ahead: i64, padding: &str) -> bool {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        self.put_task(number, &format!("{}-{number}", self.lane), ahead, padding)
    }

    /// Puts a task with this id that is due `ahead` ms from now; returns whether the API promised to publish it.
    pub(crate) fn put_as(&self, id: &str, ahead: i64) -> bool {
        self.put_task(self.number.fetch_add(1, Ordering::Relaxed), id, ahead, "")
    }

    fn put_task(&self, number: i64, id: &str, ahead: i64, padding: &str) -> bool {
        let due = self.clock.now() + ahead;
        let payload = json!({"number": number, "padding": padding});
        let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
        let message = json!({"destination": self.destination, "payload": payload});
        let task = json!({"schedule": {"at": at}, "lane": self.lane, "message": message});
        let api = &self.apis[usize::try_from(number).expect("a count") % self.apis.len()];
        let answer = api.put(id, &task.to_string());
        let (reported, promised) = match &answer {
            Ok(answer) if answer.status == 201 => ("201".to_owned(), true),
            Ok(answer) => {
                assert_eq!(answer.status, 503, "{answer:?}");
                let problem = answer.json();
                let reported = format!("503 {}", problem["code"].as_str().expect("a code"));
                *self.refused.lock().expect("no client panics holding it") = Some(problem);
                (reported, false)
            }
            Err(NoAnswer::Unknown(detail)) => (format!("no answer: {detail}"), false),
            Err(NoAnswer::NotSent) => ("not sent".to_owned(), false),
        };
        *self.answers.lock().expect("no client panics holding it").entry(reported).or_default() += 1;
        let mut ledger = self.ledger();
        // Without a definite answer the put may or may not have taken effect.
        if promised {
            ledger.must(id, due, &payload.to_string())
        } else {
            ledger.may(id, due, &payload.to_string())
        }
        promised
    }
}

/// Checks that an operation of `ms` milliseconds did not delay the load beside it. A pause of the machine delays the
/// load `apart`, too, so the comparison cancels it.
pub(crate) fn undelayed_by(ms: i64, beside: &Tally, apart: &Tally) {
    let ([half, most, latest], [_, most_apart, latest_apart]) = (beside.late, apart.late);
    let alone = half * 3 < ms && (most - most_apart) * 3 < ms && latest - latest_apart < ms;
    assert!(alone, "something waited for what took {ms} ms: {beside}; apart from it: {apart}");
}

/// Puts tasks that are due every second, `limit` times each; all are promised.
pub(crate) fn put_recurring(api: &Api, load: &Load, tasks: i64, limit: i64) {
    let start = load.clock.now() / 1000 * 1000 + 2000;
    for number in 0..tasks {
        let (id, first) = (format!("{}-every-{number}", load.lane), start + number * 13);
        let payload = json!({"number": number});
        let at = jiff::Timestamp::from_millisecond(first).expect("a time").to_string();
        let message = json!({"destination": load.destination, "payload": payload});
        let schedule = json!({"every": "1s", "start": at, "limit": limit});
        // A sink may be away for longer than a minute on a slow machine.
        let task = json!({"schedule": schedule, "catch_up": "all", "lane": load.lane, "message": message});
        let answer = api.put(&id, &task.to_string()).expect("an answer");
        assert_eq!(answer.status, 201, "{answer:?}");
        // A task that is put after its start begins with a later due of the same series.
        let reported = answer.json()["due_ms"].as_i64().expect("a due");
        let late = load.clock.now() > first - 500 && reported > first && (reported - first) % 1000 == 0;
        assert!(reported == first || late, "from {first} on: {answer:?}");
        (0..limit).for_each(|turn| load.ledger().must(&id, reported + turn * 1000, &payload.to_string()));
    }
}
