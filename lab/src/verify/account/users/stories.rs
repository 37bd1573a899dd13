//! What users do with one task, one request after the other.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::Method;
use rand::RngExt;
use rand::rngs::StdRng;

use super::Users;
use super::acts::{Put, at, lane, rfc3339, within};
use crate::verify::account::entry::DefiniteAnswer;
use crate::verify::account::fleet::{Ask, Reply};
use crate::verify::account::version::{Dues, Plan};

/// What a user does with an existing task.
#[derive(Clone, Copy, Debug)]
enum Act {
    Cancel,
    Later,
    Earlier,
    SameDue,
    Back,
    Again,
    Lane,
}

/// Each with its share in percent.
const ACTS: [(u32, Act, &str); 7] = [
    (24, Act::Cancel, "cancel"),
    (22, Act::Later, "replace"),
    (10, Act::Earlier, "to an earlier due"),
    (12, Act::SameDue, "to the same due"),
    (10, Act::Back, "back to the first due"),
    (8, Act::Again, "again the same"),
    (14, Act::Lane, "to another lane"),
];

impl Users {
    /// A one-shot and the later requests about it.
    pub(super) async fn one_shot(self: Arc<Users>, mut random: StdRng) {
        let id = self.name("task");
        let ahead = if random.random_bool(0.1) { -500..0 } else { 30..2500 };
        let due = self.clock.now() + random.random_range(ahead);
        let put = at(due, lane(&mut random));
        let answer = self.put(&id, &put, false).await;
        if answer.is_some() && self.load.races && random.random_bool(0.6) {
            self.follow(id, due, random).await;
        } else {
            self.ledger().end(&id);
        }
    }

    /// Replaces, cancels and moves a one-shot, around its due or well before.
    pub(super) async fn follow(self: Arc<Users>, id: String, first: i64, mut random: StdRng) {
        let mut due = first;
        for _ in 0..random.random_range(1..=3) {
            let now = self.clock.now();
            let ahead = due - 40;
            let at = match () {
                () if random.random_bool(0.35) && ahead > now => random.random_range(now..ahead),
                () => due + random.random_range(-20..=30),
            };
            tokio::time::sleep_until(self.clock.until(at)).await;
            if !self.goes_on(&id) {
                break;
            }
            let act = choose(&mut random);
            let carelessly = random.random_bool(0.3);
            let Some(put) = self.second(act, &id, (first, due), &mut random) else {
                let (answer, cancelled) = (self.cancel(&id, carelessly).await, true);
                self.race("cancel", answer, cancelled);
                // A later put makes another task under the same id.
                if !self.goes_on(&id) || random.random_bool(0.5) {
                    break;
                }
                due = if random.random_bool(0.5) { due } else { self.clock.now() + random.random_range(0..300) };
                let answer = self.put(&id, &super::acts::at(due, lane(&mut random)), false).await;
                self.race("put after a cancel", answer, false);
                continue;
            };
            let answer = match act {
                Act::Again => self.put_the_same(&id, &put).await,
                _ => self.put(&id, &put, carelessly).await,
            };
            self.race(name(act), answer, false);
            if let (
                Some(
                    DefiniteAnswer::Created { .. } | DefiniteAnswer::Replaced { .. } | DefiniteAnswer::Unchanged { .. },
                ),
                Plan::At(new),
            ) = (answer, put.plan)
            {
                due = new;
            }
        }
        self.ledger().end(&id);
    }

    /// The replacement; `None` for a cancel.
    fn second(&self, act: Act, id: &str, (first, due): (i64, i64), random: &mut StdRng) -> Option<Put> {
        let now = self.clock.now();
        let lane = self.ledger().entry(id).and_then(|entry| Some(entry.versions.last()?.lane)).unwrap_or("default");
        let other = if lane == "default" { "second" } else { "default" };
        let new = match act {
            Act::Cancel => return None,
            Act::Later => due.max(now) + random.random_range(1..1500),
            Act::Earlier => due - random.random_range(1..400),
            Act::SameDue | Act::Again => due,
            Act::Back => first,
            Act::Lane if random.random_bool(0.5) => due,
            Act::Lane => due.max(now) + random.random_range(1..800),
        };
        Some(at(new, if matches!(act, Act::Lane) { other } else { lane }))
    }

    /// Puts the current task again unchanged, if it is known.
    async fn put_the_same(&self, id: &str, other: &Put) -> Option<DefiniteAnswer> {
        let detail = format!("; put the same at {}", self.clock.now());
        let again = self.ledger().put_again(id, &detail);
        let Some((payload, due, lane)) = again else { return self.put(id, other, false).await };
        let body = self.body(None, &at(due, lane), &payload);
        self.ask(id, Ask { method: Method::PUT, path: format!("/v1/tasks/{id}"), key: None, body }, false).await
    }

    /// A timeout that is reset again and again.
    pub(super) async fn reset(self: Arc<Users>, mut random: StdRng) {
        let (id, lane) = (self.name("reset"), lane(&mut random));
        let put = within(random.random_range(100..1500), lane);
        let mut answer = self.put(&id, &put, false).await;
        for _ in 0..random.random_range(0..3) {
            let (Some(DefiniteAnswer::Created { due, .. } | DefiniteAnswer::Replaced { due, .. }), true) =
                (answer, self.load.races)
            else {
                break;
            };
            let offset = if random.random_bool(0.5) { random.random_range(-20..=20) } else { -60 };
            tokio::time::sleep_until(self.clock.until(due + offset)).await;
            if !self.goes_on(&id) {
                break;
            }
            answer = self.put(&id, &put, false).await;
            self.race("reset", answer, false);
        }
        self.ledger().end(&id);
    }

    /// A task with a generated id.
    pub(super) async fn post(self: Arc<Users>, mut random: StdRng) {
        let (name, lane) = (self.name("post"), lane(&mut random));
        let put = match random.random_range(0..3) {
            0 => at(self.clock.now() + random.random_range(-300..1500), lane),
            _ => within(random.random_range(1..1500), lane),
        };
        let payload = self.ledger().post(&name, put.plan, put.lane);
        let body = self.body(None, &put, &payload);
        let ask = Ask { method: Method::POST, path: "/v1/tasks".to_owned(), key: Some(name.clone()), body };
        let answer = self.ask(&name, ask, false).await;
        let id = self.ledger().id_of(&name);
        if let (Some(id), Some(DefiniteAnswer::Created { due, .. }), true) =
            (&id, answer, self.load.races && random.random_bool(0.3))
        {
            tokio::time::sleep_until(self.clock.until(due + random.random_range(-20..=20))).await;
            if self.goes_on(id) {
                let answer = self.cancel(id, false).await;
                self.race("cancel", answer, true);
            }
        }
        self.ledger().end(&id.unwrap_or(name));
    }

    /// A recurring task, which is read, and possibly cancelled or replaced in between.
    pub(super) async fn series(self: Arc<Users>, mut random: StdRng) {
        let id = self.name("series");
        let mut answer = self.put(&id, &self.any_series(&mut random), false).await;
        for _ in 0..3 {
            let Some(DefiniteAnswer::Created { due, .. } | DefiniteAnswer::Replaced { due, .. }) = answer else {
                break;
            };
            // When its claim begins, ends, or in between.
            let at = due + random.random_range(0..5) * 500 + random.random_range(-20..=30);
            tokio::time::sleep_until(self.clock.until(at)).await;
            self.look_up(&id).await;
            if !self.goes_on(&id) || !self.load.races || random.random_bool(0.4) {
                break;
            }
            if random.random_bool(0.5) {
                let answer = self.cancel(&id, random.random_bool(0.3)).await;
                self.race("cancel a series", answer, true);
                break;
            }
            answer = self.put(&id, &self.any_series(&mut random), false).await;
            self.race("replace a series", answer, false);
        }
        self.ledger().end(&id);
        // Until it has ended by itself.
        for _ in 0..random.random_range(0..6) {
            tokio::time::sleep(Duration::from_millis(random.random_range(0..3000))).await;
            self.look_up(&id).await;
        }
    }

    fn any_series(&self, random: &mut StdRng) -> Put {
        let (now, limit) = (self.clock.now(), random.random_range(3..12));
        let start = random.random_bool(0.5).then(|| now + random.random_range(100..1500));
        let begins = start.map_or(String::new(), |start| format!(r#","start":"{}""#, rfc3339(start)));
        let (step, start, schedule) = if random.random_bool(0.5) {
            let step = [500, 700, 1000, 2000][random.random_range(0..4)];
            (step, start, format!(r#""every":"{step}ms"{begins}"#))
        } else {
            let step = random.random_range(1..=2) * 1000;
            let zone = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu"][random.random_range(0..4)];
            let cron = if step == 1000 { "* * * * * *" } else { "*/2 * * * * *" };
            // The first whole or even second from then on.
            let start = start.map(|start| (start + step - 1).div_euclid(step) * step);
            (step, start, format!(r#""cron":"{cron}","zone":"{zone}"{begins}"#))
        };
        let end = random.random_bool(0.3).then(|| now + 3500 + random.random_range(0..3000));
        let ends = end.map_or(String::new(), |end| format!(r#","end":"{}""#, rfc3339(end)));
        Put {
            plan: Plan::Series { start, step, limit, end },
            schedule: format!("{{{schedule}{ends},\"limit\":{limit}}}"),
            lane: lane(random),
        }
    }

    /// Checks that every occurrence of a recurring task is counted once: its next due follows from the counts.
    async fn look_up(&self, id: &str) {
        let known = |users: &Users| {
            let ledger = users.ledger();
            let entry = ledger.tasks.get(id).filter(|entry| !entry.request_may_take_effect)?;
            entry.standing().map(|version| (version.dues, version.any, entry.versions.len()))
        };
        let Some((Dues::Series { first, step, last }, false, versions)) = known(self) else { return };
        let ask = Ask { method: Method::GET, path: format!("/v1/tasks/{id}"), key: None, body: String::new() };
        let Reply::Answer { status: 200, body } = self.fleet.send(&ask).await else { return };
        let Ok(view) = serde_json::from_str::<serde_json::Value>(&body) else { return };
        // It may have been replaced in the meantime.
        if known(self).is_none_or(|(.., now)| now != versions) {
            return;
        }
        let count = |name: &str| view["counts"][name].as_i64();
        let came_due: Option<i64> = ["accepted", "dead", "passed_over"].into_iter().map(count).sum();
        let due = view["due_ms"].as_i64();
        self.count("look up a series", if came_due == Some(0) { "nothing yet" } else { "counts" });
        let counted = came_due.map(|times| first + times * step);
        if due.is_none() || due != counted || due > Some(last) || count("passed_over") != Some(0) {
            let detail = format!("due {first}, every {step} to {last}; shown as {body}");
            self.ledger().violations.add("settled_twice", id, detail);
        }
    }

    /// A one-shot of the lane that nothing else uses.
    pub(super) async fn quiet(self: Arc<Users>) {
        let id = self.name("quiet");
        self.put(&id, &within(20, "quiet"), false).await;
        self.ledger().end(&id);
    }

    /// Counts the answer to a second request.
    fn race(&self, act: &str, answer: Option<DefiniteAnswer>, cancel: bool) {
        let (word, met) = match answer {
            None => ("left open", false),
            Some(DefiniteAnswer::Created { in_flight: None, .. }) => ("created", false),
            Some(DefiniteAnswer::Replaced { in_flight: None, .. }) => ("replaced", false),
            Some(DefiniteAnswer::Created { .. }) => ("created, one in flight", true),
            Some(DefiniteAnswer::Replaced { .. }) => ("replaced, one in flight", true),
            Some(DefiniteAnswer::Unchanged { .. }) => ("unchanged", false),
            Some(DefiniteAnswer::Refused) => ("refused", true),
            Some(DefiniteAnswer::Cancelled { handed_out: None }) => ("cancelled", false),
            Some(DefiniteAnswer::Cancelled { .. }) => ("cancelled, handed out", true),
            Some(DefiniteAnswer::CancelledInFlight { .. }) => ("in flight", true),
            Some(DefiniteAnswer::Unknown) if cancel => ("had ended", false),
            Some(DefiniteAnswer::Unknown) => ("unknown", false),
        };
        self.met.fetch_add(u64::from(met), Ordering::Relaxed);
        self.count(act, word);
    }
}

fn choose(random: &mut StdRng) -> Act {
    let mut left = random.random_range(0..ACTS.iter().map(|(weight, ..)| weight).sum());
    for (weight, act, _) in ACTS {
        if left < weight {
            return act;
        }
        left -= weight;
    }
    Act::Cancel
}

fn name(act: Act) -> &'static str {
    let of = |known: Act| std::mem::discriminant(&known) == std::mem::discriminant(&act);
    ACTS.iter().find(|(_, known, _)| of(*known)).map_or("", |(.., name)| name)
}
