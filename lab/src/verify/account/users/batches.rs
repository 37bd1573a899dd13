//! Many one-shots in one request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use hyper::Method;
use rand::RngExt;
use rand::rngs::StdRng;

use super::Users;
use super::acts::{Put, at, lane, within};
use crate::verify::account::entry::DefiniteAnswer;
use crate::verify::account::fleet::{self, AnswerMeaning, Ask, Reply};
use crate::verify::account::version::Plan;

/// A line of a batch without a definite answer yet.
struct Line {
    id: String,
    plan: Plan,
    text: String,
}

impl Users {
    /// Puts tasks in one request; a herd is due at one moment.
    pub(super) async fn put_batch(self: Arc<Users>, size: u32, herd: bool, mut random: StdRng) {
        let herd_due = self.clock.now() + random.random_range(1500..3000);
        let mut lines: Vec<Line> = (0..size)
            .map(|_| {
                let lane = lane(&mut random);
                let put = if herd { at(herd_due, lane) } else { self.any_one_shot(lane, &mut random) };
                self.line(&put)
            })
            .collect();
        let (mut results, mut tries) = (Vec::new(), 0);
        while !lines.is_empty() {
            tries += 1;
            lines = self.send_lines(lines, &mut results).await;
            tokio::select! {
                () = self.give_up.cancelled() => break,
                () = tokio::time::sleep(fleet::pause(tries)), if !lines.is_empty() => {}
                () = std::future::ready(()), if lines.is_empty() => {}
            }
        }
        results.extend(lines.into_iter().map(|line| (line.id, None)));
        for (id, due) in results {
            let follows = self.load.races && random.random_bool(0.12);
            match due {
                Some(due) if follows && self.goes_on(&id) => {
                    let own = rand::SeedableRng::seed_from_u64(random.random());
                    self.open.spawn(Arc::clone(&self).follow(id, due, own));
                }
                _ => self.ledger().end(&id),
            }
        }
    }

    fn any_one_shot(&self, lane: &'static str, random: &mut StdRng) -> Put {
        match random.random_range(0..100) {
            0..8 => at(self.clock.now() - random.random_range(0..2000), lane),
            8..20 => within(random.random_range(1..3000), lane),
            _ => at(self.clock.now() + random.random_range(20..4000), lane),
        }
    }

    fn line(&self, put: &Put) -> Line {
        let id = self.name("one");
        let detail = format!("; batch {} {} at {}", put.schedule, put.lane, self.clock.now());
        let payload = self.ledger().put(&id, put.plan, put.lane, &detail);
        // A trace is a header of the request, which puts many tasks.
        self.with(&id, |entry| entry.is_untraced = true);
        let text = self.body(Some(&id), put, &payload);
        Line { id, plan: put.plan, text }
    }

    /// Sends lines once; returns those without a definite answer.
    async fn send_lines(&self, lines: Vec<Line>, results: &mut Vec<(String, Option<i64>)>) -> Vec<Line> {
        let body = lines.iter().flat_map(|line| [&*line.text, "\n"]).collect();
        let ask = Ask { method: Method::POST, path: "/v1/tasks:batch".to_owned(), key: None, body };
        let reply = self.fleet.send(&ask).await;
        let at = self.clock.at_latest();
        let body = match reply {
            Reply::NotSent => return lines,
            // It is unknown whether the first lines took effect before it broke off.
            Reply::None => String::new(),
            Reply::Answer { status: 200, body } => body,
            Reply::Answer { status: 503 | 408, .. } => return lines,
            Reply::Answer { status, body } => {
                self.ledger().wrong_answer("batch", &format!("{status}: {body}"));
                String::new()
            }
        };
        // The last line may be incomplete.
        let whole = body.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let mut answers = whole.lines();
        let mut again = Vec::new();
        let mut ledger = self.ledger();
        for line in lines {
            let id = &line.id;
            match answers.next().map(|answer| fleet::read_line(answer, id)) {
                Some(AnswerMeaning::DefiniteAnswer(answer, _)) => {
                    ledger.note_answer(id, answer, at);
                    self.promised.fetch_add(1, Ordering::Relaxed);
                    let due = match (answer, line.plan) {
                        (
                            DefiniteAnswer::Created { due, .. }
                            | DefiniteAnswer::Replaced { due, .. }
                            | DefiniteAnswer::Unchanged { due },
                            _,
                        ) => due,
                        (_, Plan::At(due)) => due,
                        _ => at,
                    };
                    results.push((line.id, Some(due)));
                    continue;
                }
                Some(AnswerMeaning::NoEffect) => {}
                Some(AnswerMeaning::Maybe) => ledger.entry(id).into_iter().for_each(|entry| entry.unsure()),
                Some(AnswerMeaning::Impossible(detail)) => {
                    ledger.wrong_answer(id, &detail);
                    ledger.entry(id).into_iter().for_each(|entry| entry.unanswered());
                    results.push((line.id, None));
                    continue;
                }
                None => ledger.entry(id).into_iter().for_each(|entry| entry.unanswered()),
            }
            again.push(line);
        }
        again
    }
}
