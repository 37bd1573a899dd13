//! Every violation made by hand, with similar cases that are none.

use super::entry::Told;
use super::judge::{Dead, judge};
use super::ledger::{Ledger, Message, payload};
use super::version::Plan;
use super::{Fault, Tally};

/// A ledger with made-up requests and answers; the clock shows 1 000 000 and more.
struct Tale {
    ledger: Ledger,
    dead: Vec<Dead>,
    left: Vec<(String, String)>,
    faults: Vec<Fault>,
}

const D: i64 = 1_000_000;

impl Tale {
    fn new() -> Tale {
        Tale { ledger: Ledger::new(false), dead: Vec::new(), left: Vec::new(), faults: Vec::new() }
    }

    /// Puts a task and notes the answer.
    fn put(&mut self, id: &str, plan: Plan, told: Told) -> &mut Tale {
        self.ledger.put(id, plan, "default", "put");
        self.ledger.told(id, told, D + 500);
        self
    }

    /// Creates a one-shot with this due.
    fn at(&mut self, id: &str, due: i64) -> &mut Tale {
        self.put(id, Plan::At(due), Told::Created { due, in_flight: None })
    }

    /// Six times, every 100 ms from `D` on.
    fn series(&mut self, id: &str) -> &mut Tale {
        self.put(id, SERIES, Told::Created { due: D, in_flight: None })
    }

    fn replace(&mut self, id: &str, due: i64, in_flight: Option<i64>) -> &mut Tale {
        self.put(id, Plan::At(due), Told::Replaced { due, in_flight })
    }

    fn cancel(&mut self, id: &str, told: Told) -> &mut Tale {
        self.ledger.entry(id).unwrap().cancel();
        self.ledger.told(id, told, D + 500);
        self
    }

    fn entry(&mut self, id: &str) -> &mut super::entry::Entry {
        self.ledger.entry(id).unwrap()
    }

    /// Reads this version of a task, a while after its due.
    fn saw(&mut self, id: &str, due: i64, version: usize) -> &mut Tale {
        self.saw_text(&format!("{id}:{due}"), &payload(id, version), due + 3)
    }

    fn saw_text(&mut self, key: &str, payload: &str, stamp: i64) -> &mut Tale {
        let (key, payload) = (key.to_owned(), payload.to_owned());
        self.ledger.saw(&Message { key, payload, stamp, again: false });
        self
    }

    fn end(&mut self, id: &str) -> &mut Tale {
        self.ledger.end(id);
        self
    }

    fn judge(&mut self) -> Tally {
        for id in self.ledger.tasks.keys().cloned().collect::<Vec<_>>() {
            self.ledger.end(&id);
        }
        judge(&mut self.ledger, &self.dead, &self.left, &self.faults)
    }

    /// The violations, as `law key`.
    fn broken(&mut self) -> Vec<String> {
        self.judge();
        let mut broken: Vec<String> =
            self.ledger.violations.all.iter().map(|broken| format!("{} {}", broken.law, broken.key)).collect();
        broken.sort();
        broken
    }

    #[track_caller]
    fn is(&mut self, broken: &[&str]) {
        let found = self.broken();
        assert_eq!(found, broken, "{:#?}", self.ledger.violations.all);
    }
}

const SERIES: Plan = Plan::Series { start: None, step: 100, limit: 6, end: None };

fn created(due: i64) -> Told {
    Told::Created { due, in_flight: None }
}

#[test]
fn promised_and_published_occurrences_are_no_violation() {
    let mut tale = Tale::new();
    tale.at("a", D).saw("a", D, 0).saw("a", D, 0).end("a").saw("a", D, 0);
    tale.series("s").end("s");
    (0..6).for_each(|n| {
        tale.saw("s", D + n * 100, 0);
    });
    let tally = tale.judge();
    assert_eq!((tally.promised, tally.published, tally.copies, tally.allowed), (7, 9, 2, 0));
    tale.is(&[]);
}

#[test]
fn a_promised_occurrence_without_a_publish_is_lost() {
    let mut tale = Tale::new();
    tale.at("a", D).series("s");
    [0, 1, 2, 4, 5].into_iter().for_each(|n| {
        tale.saw("s", D + n * 100, 0);
    });
    tale.is(&["lost a:1000000", "lost s:1000300"]);
}

#[test]
fn a_series_publishes_nothing_after_its_end() {
    let mut tale = Tale::new();
    let plan = Plan::Series { start: Some(D), step: 100, limit: 50, end: Some(D + 250) };
    tale.put("s", plan, created(D)).saw("s", D, 0).saw("s", D + 100, 0).saw("s", D + 300, 0);
    tale.is(&["lost s:1000200", "wrong_key s:1000300"]);
}

#[test]
fn a_message_before_its_due_is_early() {
    let mut tale = Tale::new();
    tale.at("a", D).at("b", D).saw_text("a:1000000", &payload("a", 0), D - 1).saw_text(
        "b:1000000",
        &payload("b", 0),
        D,
    );
    tale.is(&["early a:1000000"]);
}

#[test]
fn a_published_key_that_was_never_promised_is_wrong() {
    let mut tale = Tale::new();
    tale.at("a", D).saw("a", D, 0).saw("a", D + 1, 0).end("a").at("b", D).saw("b", D, 0).end("b").saw("b", D + 1, 0);
    tale.saw("nobody", D, 0).saw_text("no key", "x", D);
    tale.is(&["wrong_key a:1000001", "wrong_key b:1000001", "wrong_key no key", "wrong_key nobody:1000000"]);
}

#[test]
fn another_payload_under_a_key_is_reported_before_and_after_the_task_ends() {
    let mut tale = Tale::new();
    tale.at("a", D).saw("a", D, 0).saw_text("a:1000000", "other", D + 3);
    tale.at("b", D).saw("b", D, 0).end("b").saw_text("b:1000000", "other", D + 3);
    tale.is(&["other_payload a:1000000", "other_payload b:1000000"]);
    // The version that was replaced before it was handed out, with the key of its replacement.
    let mut tale = Tale::new();
    tale.at("c", D).replace("c", D, None).saw("c", D, 1).saw("c", D, 0);
    tale.is(&["other_payload c:1000000"]);
}

#[test]
fn a_publish_of_a_task_withdrawn_before_its_claim_is_a_violation() {
    let cancelled = Told::Cancelled { handed_out: None };
    let mut tale = Tale::new();
    tale.at("a", D).cancel("a", cancelled).saw("a", D, 0);
    tale.at("b", D).cancel("b", cancelled).end("b").saw("b", D, 0);
    tale.at("c", D).replace("c", D + 100, None).saw("c", D, 0).saw("c", D + 100, 1);
    tale.is(&[
        "cancelled_but_published a:1000000",
        "cancelled_but_published b:1000000",
        "cancelled_but_published c:1000000",
    ]);
    let mut tale = Tale::new();
    tale.at("a", D).cancel("a", cancelled).at("b", D).replace("b", D + 100, None).saw("b", D + 100, 1);
    tale.is(&[]);
}

#[test]
fn an_occurrence_cancelled_in_flight_can_arrive_but_no_later_one() {
    for told in [Told::CancelledInFlight { due: D }, Told::Cancelled { handed_out: Some(D) }] {
        let mut tale = Tale::new();
        tale.at("a", D).cancel("a", told).at("b", D).cancel("b", told).saw("b", D, 0).end("b");
        tale.series("s").cancel("s", Told::CancelledInFlight { due: D + 200 });
        tale.saw("s", D, 0).saw("s", D + 100, 0);
        tale.is(&[]);
        tale.saw("s", D + 200, 0).is(&[]);
        tale.saw("s", D + 300, 0).is(&["cancelled_but_published s:1000300"]);
    }
    let mut tale = Tale::new();
    tale.series("s").cancel("s", Told::CancelledInFlight { due: D + 200 }).saw("s", D, 0);
    tale.is(&["lost s:1000100"]);
}

#[test]
fn a_replacement_of_a_task_in_flight_is_published_unless_withdrawn_too() {
    let mut tale = Tale::new();
    tale.at("a", D).replace("a", D + 50, Some(D)).saw("a", D, 0);
    tale.at("b", D).replace("b", D + 50, Some(D)).replace("b", D + 60, Some(D)).saw("b", D + 60, 2);
    // Back to the first due, once that claim had ended.
    tale.at("c", D).replace("c", D + 50, Some(D)).replace("c", D, None).saw("c", D, 0).saw("c", D, 2);
    tale.at("d", D).replace("d", D - 50, Some(D)).cancel("d", Told::CancelledInFlight { due: D });
    // The same for a series whose put took long: its first due is before the one in flight.
    let late = Told::Replaced { due: D - 50, in_flight: Some(D) };
    let every = Plan::Series { start: None, step: 100, limit: 7, end: None };
    tale.at("e", D).put("e", every, late).cancel("e", Told::CancelledInFlight { due: D }).saw("e", D, 0);
    tale.at("f", D).put("f", every, late).cancel("f", Told::CancelledInFlight { due: D + 50 });
    tale.is(&["lost a:1000050", "lost f:999950"]);
    let mut tale = Tale::new();
    tale.at("b", D).replace("b", D + 50, Some(D)).replace("b", D + 60, Some(D)).saw("b", D + 60, 2).saw("b", D + 50, 1);
    tale.is(&["cancelled_but_published b:1000050"]);
}

#[test]
fn a_cancelled_series_has_no_gaps_before_its_last_publish() {
    let cancelled = Told::Cancelled { handed_out: None };
    let mut tale = Tale::new();
    // It was withdrawn before D + 500; how far it had come is unknown.
    tale.series("none").cancel("none", cancelled);
    tale.series("some").cancel("some", cancelled).saw("some", D, 0).saw("some", D + 100, 0);
    tale.is(&[]);
    tale.series("gap").cancel("gap", cancelled).saw("gap", D, 0).saw("gap", D + 200, 0);
    tale.is(&["lost gap:1000100"]);
    let mut tale = Tale::new();
    let plan = Plan::Series { start: None, step: 100, limit: 20, end: None };
    tale.put("late", plan, created(D)).cancel("late", cancelled);
    (0..7).for_each(|n| {
        tale.saw("late", D + n * 100, 0);
    });
    tale.is(&["cancelled_but_published late:1000600"]);
}

#[test]
fn a_task_that_ended_by_itself_must_have_been_published() {
    let mut tale = Tale::new();
    tale.at("a", D).cancel("a", Told::Unknown);
    tale.at("b", D).at("b", D + 10).saw("b", D + 10, 1);
    tale.series("s").cancel("s", Told::Unknown);
    (0..5).for_each(|n| {
        tale.saw("s", D + n * 100, 0);
    });
    tale.is(&["lost a:1000000", "lost b:1000000", "lost s:1000500"]);
}

#[test]
fn a_request_retried_after_a_503_can_be_refused_because_of_its_own_effect() {
    let mut tale = Tale::new();
    for (id, version, due) in [("a", 0, D), ("b", 1, D + 50)] {
        tale.at(id, D).ledger.put(id, Plan::At(D + 50), "default", "put");
        tale.entry(id).unsure();
        tale.ledger.told(id, Told::Refused, D + 500);
        tale.saw(id, due, version).ledger.end(id);
    }
    tale.is(&[]);
}

#[test]
fn a_refused_put_changes_nothing() {
    let mut tale = Tale::new();
    tale.at("a", D).put("a", Plan::At(D), Told::Refused).saw("a", D, 0);
    tale.at("b", D).put("b", Plan::At(D), Told::Refused).saw("b", D, 1);
    tale.is(&["lost b:1000000", "other_payload b:1000000"]);
}

#[test]
fn a_put_answered_503_took_effect_before_the_answer_or_never() {
    // Repeated and then answered: the replaced version may have been in flight at the first request.
    let mut tale = Tale::new();
    tale.at("a", D);
    tale.ledger.put("a", Plan::At(D + 50), "default", "put");
    tale.entry("a").unsure();
    tale.ledger.told("a", Told::Unchanged { due: D + 50 }, D + 500);
    tale.is(&["lost a:1000050"]);
    // An occurrence that was not due by then is not published, whatever the first request did.
    let mut tale = Tale::new();
    tale.at("a", D + 900).at("b", D);
    for id in ["a", "b"] {
        tale.entry(id).cancel();
        tale.entry(id).unsure();
        tale.ledger.told(id, Told::Unknown, D + 500);
    }
    tale.saw("a", D + 900, 0).saw("b", D, 0);
    tale.is(&["cancelled_but_published a:1000900"]);
    // Left open, and cancelled: nothing of either is published afterwards.
    let mut tale = Tale::new();
    for id in ["one", "other", "both"] {
        tale.at(id, D);
        tale.ledger.put(id, Plan::At(D + 50), "default", "put");
        tale.entry(id).unsure();
        tale.entry(id).leave();
        tale.cancel(id, Told::Cancelled { handed_out: None });
    }
    tale.saw("one", D, 0).is(&[]);
    tale.saw("other", D + 50, 1).is(&["cancelled_but_published other:1000050"]);
    // The last answer is a 503: either version may exist.
    let mut tale = Tale::new();
    for id in ["one", "other"] {
        tale.at(id, D);
        tale.ledger.put(id, Plan::At(D + 50), "default", "put");
        tale.entry(id).unsure();
    }
    tale.saw("one", D, 0).saw("other", D + 50, 1);
    tale.is(&[]);
}

#[test]
fn a_put_repeated_after_its_publish_withdraws_nothing() {
    let cancelled = Told::Cancelled { handed_out: None };
    let mut tale = Tale::new();
    for id in ["a", "b", "c"] {
        tale.at(id, D);
        assert!(tale.ledger.put_again(id, "again").is_some());
    }
    tale.ledger.told("a", created(D), D + 500);
    tale.ledger.told("b", created(D), D + 500);
    tale.ledger.told("c", Told::Unchanged { due: D }, D + 500);
    tale.cancel("a", cancelled).cancel("b", cancelled).cancel("c", cancelled);
    tale.saw("a", D, 0).saw("c", D, 0);
    tale.is(&["cancelled_but_published c:1000000", "lost b:1000000"]);
    // The first of two requests was answered 503 and took effect; that one was published.
    let mut tale = Tale::new();
    tale.ledger.put("a", Plan::In, "default", "put");
    tale.entry("a").unsure();
    tale.ledger.told("a", created(D + 70), D + 80);
    tale.cancel("a", cancelled).saw("a", D, 0);
    tale.is(&[]);
}

#[test]
fn a_request_without_an_answer_can_take_effect_again_later() {
    let mut tale = Tale::new();
    for (id, plan) in [("in", Plan::In), ("none", Plan::In), ("s", SERIES), ("at", Plan::At(D))] {
        tale.ledger.put(id, plan, "default", "put");
        tale.entry(id).unanswered();
        tale.ledger.told(id, Told::Created { due: D, in_flight: None }, D + 500);
    }
    // The first request arrived last, and counted from then.
    tale.saw("in", D + 77, 0).saw("at", D, 0).saw("at", D, 0);
    (0..12).for_each(|n| {
        tale.saw("s", D + n * 100, 0);
    });
    tale.is(&["lost none"]);
}

#[test]
fn contradicting_answers_are_reported() {
    let mut tale = Tale::new();
    tale.put("a", Plan::At(D), created(D + 1));
    tale.at("b", D).cancel("b", Told::Cancelled { handed_out: None }).replace("b", D + 50, None);
    tale.at("c", D).cancel("c", Told::CancelledInFlight { due: D + 7 });
    tale.at("d", D).put("d", Plan::At(D), Told::Unchanged { due: D });
    let broken = tale.broken();
    let answers: Vec<_> = broken.iter().filter(|broken| broken.starts_with("wrong_answer")).collect();
    assert_eq!(answers, ["wrong_answer a", "wrong_answer b", "wrong_answer c", "wrong_answer d"]);
}

#[test]
fn a_deduplicating_sink_can_drop_the_second_message_under_a_key() {
    for deduplicates in [false, true] {
        let mut tale = Tale::new();
        tale.ledger = Ledger::new(deduplicates);
        tale.at("a", D).at("a", D).saw("a", D, 0);
        tale.is(if deduplicates { &[] } else { &["lost a:1000000"] });
    }
}

#[test]
fn posts_are_identified_by_payload_until_their_id_is_known() {
    let mut tale = Tale::new();
    for name in ["post-1", "post-2"] {
        assert_eq!(tale.ledger.post(name, Plan::At(D), "default"), payload(name, 0));
    }
    tale.saw_text("uuid-1:1000000", &payload("post-1", 0), D + 3);
    tale.saw_text("uuid-2:1000000", &payload("post-2", 0), D + 3);
    tale.ledger.unnamed.get_mut("post-2").unwrap().unanswered();
    tale.ledger.name("post-1", "uuid-1");
    tale.ledger.told("uuid-1", created(D), D + 500);
    tale.is(&[]);
    tale.saw_text("uuid-3:1000000", &payload("post-3", 0), D + 3).is(&["wrong_key uuid-3:1000000"]);
}

fn fault(kind: &'static str, from: i64) -> Fault {
    Fault { kind, instance: None, from, until: from + 1000, held: false }
}

#[test]
fn dead_occurrences_are_reported_with_the_last_fault_of_the_sink() {
    let tale = |kind: &'static str, from: i64| {
        let mut tale = Tale::new();
        let (key, reason, words) = (format!("a:{D}"), "retries".to_owned(), "no".to_owned());
        tale.at("a", D).dead.push(Dead { key, died: D + 10, reason, words });
        tale.faults.push(fault(kind, from));
        tale.is(&["dead a:1000000"]);
        tale.ledger.violations.all[0].evidence.clone()
    };
    assert!(tale("sink_cut", D - 500).ends_with("`retries` (no): 510 ms after `sink_cut` began, which lasted 1000 ms"));
    assert!(tale("sink_cut", D + 500).ends_with("before any fault of the sink"));
    assert!(tale("kill", D - 500).ends_with("before any fault of the sink"));
}

#[test]
fn entries_left_in_the_timeline_are_reported() {
    let mut tale = Tale::new();
    tale.left.push(("changes".to_owned(), "1: a".to_owned()));
    tale.is(&["left_over changes"]);
}

#[test]
fn late_wakeups_are_reported_only_without_a_recent_fault() {
    let tale = |late: i64, faults: &[Fault]| {
        let mut tale = Tale::new();
        tale.faults = faults.to_vec();
        for n in 0..9 {
            let (id, due) = (format!("quiet-{n}"), D + n * 500);
            tale.at(&id, due).saw_text(&format!("{id}:{due}"), &payload(&id, 0), due + late);
        }
        tale.broken()
    };
    assert_eq!(tale(99, &[]), Vec::<String>::new());
    assert_eq!(tale(400, &[]), ["not_woken quiet"]);
    assert_eq!(tale(400, &[fault("kill", D - 5000)]), Vec::<String>::new());
    assert_eq!(tale(400, &[fault("kill", D - 50_000)]), ["not_woken quiet"]);
}

#[test]
fn repeated_publishes_are_reported_only_without_a_recent_fault() {
    let tale = |copied: i64, ended: bool, faults: &[Fault]| {
        let mut tale = Tale::new();
        tale.faults = faults.to_vec();
        for n in 0..9 {
            let (id, due) = (format!("quiet-{n}"), D + n * 500);
            tale.at(&id, due).saw(&id, due, 0);
            if ended {
                tale.end(&id);
            }
            if n < copied {
                tale.saw(&id, due, 0);
            }
        }
        tale.broken()
    };
    for ended in [false, true] {
        assert_eq!(tale(4, ended, &[]), Vec::<String>::new());
        assert_eq!(tale(5, ended, &[]), ["copied quiet"]);
        assert_eq!(tale(9, ended, &[fault("kill", D - 5000)]), Vec::<String>::new());
    }
}
