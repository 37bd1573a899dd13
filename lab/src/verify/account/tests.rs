//! Violations made by hand, with similar cases that are none. Those of messages to a door are in `by_message`.

use super::entry::DefiniteAnswer;
use super::judge::{Dead, judge};
use super::ledger::{Ledger, Message, payload, trace_of};
use super::version::Plan;
use super::{Fault, Tally};

/// A ledger with made-up requests and answers; the clock shows 1 000 000 and more.
struct Scenario {
    ledger: Ledger,
    dead: Vec<Dead>,
    left: Vec<(String, String)>,
    faults: Vec<Fault>,
}

const D: i64 = 1_000_000;

impl Scenario {
    fn new() -> Scenario {
        Scenario { ledger: Ledger::new(false), dead: Vec::new(), left: Vec::new(), faults: Vec::new() }
    }

    /// Puts a task and notes the answer.
    fn put(&mut self, id: &str, plan: Plan, answer: DefiniteAnswer) -> &mut Scenario {
        self.ledger.put(id, plan, "default", "put");
        self.ledger.note_answer(id, answer, D + 500);
        self
    }

    /// Creates a one-shot with this due.
    fn at(&mut self, id: &str, due: i64) -> &mut Scenario {
        self.put(id, Plan::At(due), DefiniteAnswer::Created { due, in_flight: None })
    }

    /// Six times, every 100 ms from `D` on.
    fn series(&mut self, id: &str) -> &mut Scenario {
        self.put(id, SERIES, DefiniteAnswer::Created { due: D, in_flight: None })
    }

    fn replace(&mut self, id: &str, due: i64, in_flight: Option<i64>) -> &mut Scenario {
        self.put(id, Plan::At(due), DefiniteAnswer::Replaced { due, in_flight })
    }

    fn cancel(&mut self, id: &str, answer: DefiniteAnswer) -> &mut Scenario {
        self.ledger.entry(id).unwrap().cancel();
        self.ledger.note_answer(id, answer, D + 500);
        self
    }

    fn entry(&mut self, id: &str) -> &mut super::entry::Entry {
        self.ledger.entry(id).unwrap()
    }

    /// Reads this version of a task, a while after its due.
    fn saw(&mut self, id: &str, due: i64, version: usize) -> &mut Scenario {
        self.saw_text(&format!("{id}:{due}"), &payload(id, version), due + 3)
    }

    fn saw_text(&mut self, key: &str, payload: &str, stamp: i64) -> &mut Scenario {
        let trace = key.split_once(':').map(|(id, _)| trace_of(id));
        let (key, payload) = (key.to_owned(), payload.to_owned());
        self.ledger.saw(&Message { key, payload, trace, rejected: None, stamp, again: false });
        self
    }

    fn end(&mut self, id: &str) -> &mut Scenario {
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

fn created(due: i64) -> DefiniteAnswer {
    DefiniteAnswer::Created { due, in_flight: None }
}

#[test]
fn promised_and_published_occurrences_are_no_violation() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).saw("a", D, 0).saw("a", D, 0).end("a").saw("a", D, 0);
    scenario.series("s").end("s");
    (0..6).for_each(|n| {
        scenario.saw("s", D + n * 100, 0);
    });
    let tally = scenario.judge();
    assert_eq!((tally.promised, tally.published, tally.copies, tally.allowed), (7, 9, 2, 0));
    scenario.is(&[]);
}

#[test]
fn a_promised_occurrence_without_a_publish_is_lost() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).series("s");
    [0, 1, 2, 4, 5].into_iter().for_each(|n| {
        scenario.saw("s", D + n * 100, 0);
    });
    scenario.is(&["lost a:1000000", "lost s:1000300"]);
}

#[test]
fn a_series_publishes_nothing_after_its_end() {
    let mut scenario = Scenario::new();
    let plan = Plan::Series { start: Some(D), step: 100, limit: 50, end: Some(D + 250) };
    scenario.put("s", plan, created(D)).saw("s", D, 0).saw("s", D + 100, 0).saw("s", D + 300, 0);
    scenario.is(&["lost s:1000200", "wrong_key s:1000300"]);
}

#[test]
fn a_message_before_its_due_is_early() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).at("b", D).saw_text("a:1000000", &payload("a", 0), D - 1).saw_text(
        "b:1000000",
        &payload("b", 0),
        D,
    );
    scenario.is(&["early a:1000000"]);
}

#[test]
fn a_published_key_that_was_never_promised_is_wrong() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).saw("a", D, 0).saw("a", D + 1, 0).end("a").at("b", D).saw("b", D, 0).end("b").saw(
        "b",
        D + 1,
        0,
    );
    scenario.saw("nobody", D, 0).saw_text("no key", "x", D);
    scenario.is(&["wrong_key a:1000001", "wrong_key b:1000001", "wrong_key no key", "wrong_key nobody:1000000"]);
}

#[test]
fn another_payload_under_a_key_is_reported_before_and_after_the_task_ends() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).saw("a", D, 0).saw_text("a:1000000", "other", D + 3);
    scenario.at("b", D).saw("b", D, 0).end("b").saw_text("b:1000000", "other", D + 3);
    scenario.is(&["other_payload a:1000000", "other_payload b:1000000"]);
    // The version that was replaced before it was handed out, with the key of its replacement.
    let mut scenario = Scenario::new();
    scenario.at("c", D).replace("c", D, None).saw("c", D, 1).saw("c", D, 0);
    scenario.is(&["other_payload c:1000000"]);
}

#[test]
fn a_publish_of_a_task_withdrawn_before_its_claim_is_a_violation() {
    let cancelled = DefiniteAnswer::Cancelled { handed_out: None };
    let mut scenario = Scenario::new();
    scenario.at("a", D).cancel("a", cancelled).saw("a", D, 0);
    scenario.at("b", D).cancel("b", cancelled).end("b").saw("b", D, 0);
    scenario.at("c", D).replace("c", D + 100, None).saw("c", D, 0).saw("c", D + 100, 1);
    scenario.is(&[
        "cancelled_but_published a:1000000",
        "cancelled_but_published b:1000000",
        "cancelled_but_published c:1000000",
    ]);
    let mut scenario = Scenario::new();
    scenario.at("a", D).cancel("a", cancelled).at("b", D).replace("b", D + 100, None).saw("b", D + 100, 1);
    scenario.is(&[]);
}

#[test]
fn an_occurrence_cancelled_in_flight_can_arrive_but_no_later_one() {
    for answer in [DefiniteAnswer::CancelledInFlight { due: D }, DefiniteAnswer::Cancelled { handed_out: Some(D) }] {
        let mut scenario = Scenario::new();
        scenario.at("a", D).cancel("a", answer).at("b", D).cancel("b", answer).saw("b", D, 0).end("b");
        scenario.series("s").cancel("s", DefiniteAnswer::CancelledInFlight { due: D + 200 });
        scenario.saw("s", D, 0).saw("s", D + 100, 0);
        scenario.is(&[]);
        scenario.saw("s", D + 200, 0).is(&[]);
        scenario.saw("s", D + 300, 0).is(&["cancelled_but_published s:1000300"]);
    }
    let mut scenario = Scenario::new();
    scenario.series("s").cancel("s", DefiniteAnswer::CancelledInFlight { due: D + 200 }).saw("s", D, 0);
    scenario.is(&["lost s:1000100"]);
}

#[test]
fn a_replacement_of_a_task_in_flight_is_published_unless_withdrawn_too() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).replace("a", D + 50, Some(D)).saw("a", D, 0);
    scenario.at("b", D).replace("b", D + 50, Some(D)).replace("b", D + 60, Some(D)).saw("b", D + 60, 2);
    // Back to the first due, once that claim had ended.
    scenario.at("c", D).replace("c", D + 50, Some(D)).replace("c", D, None).saw("c", D, 0).saw("c", D, 2);
    scenario.at("d", D).replace("d", D - 50, Some(D)).cancel("d", DefiniteAnswer::CancelledInFlight { due: D });
    // The same for a series whose put took long: its first due is before the one in flight.
    let late = DefiniteAnswer::Replaced { due: D - 50, in_flight: Some(D) };
    let every = Plan::Series { start: None, step: 100, limit: 7, end: None };
    scenario.at("e", D).put("e", every, late).cancel("e", DefiniteAnswer::CancelledInFlight { due: D }).saw("e", D, 0);
    scenario.at("f", D).put("f", every, late).cancel("f", DefiniteAnswer::CancelledInFlight { due: D + 50 });
    scenario.is(&["lost a:1000050", "lost f:999950"]);
    let mut scenario = Scenario::new();
    scenario.at("b", D).replace("b", D + 50, Some(D)).replace("b", D + 60, Some(D)).saw("b", D + 60, 2).saw(
        "b",
        D + 50,
        1,
    );
    scenario.is(&["cancelled_but_published b:1000050"]);
}

#[test]
fn a_cancelled_series_has_no_gaps_before_its_last_publish() {
    let cancelled = DefiniteAnswer::Cancelled { handed_out: None };
    let mut scenario = Scenario::new();
    // It was withdrawn before D + 500; how far it had come is unknown.
    scenario.series("none").cancel("none", cancelled);
    scenario.series("some").cancel("some", cancelled).saw("some", D, 0).saw("some", D + 100, 0);
    scenario.is(&[]);
    scenario.series("gap").cancel("gap", cancelled).saw("gap", D, 0).saw("gap", D + 200, 0);
    scenario.is(&["lost gap:1000100"]);
    let mut scenario = Scenario::new();
    let plan = Plan::Series { start: None, step: 100, limit: 20, end: None };
    scenario.put("late", plan, created(D)).cancel("late", cancelled);
    (0..7).for_each(|n| {
        scenario.saw("late", D + n * 100, 0);
    });
    scenario.is(&["cancelled_but_published late:1000600"]);
}

#[test]
fn a_task_that_ended_by_itself_must_have_been_published() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).cancel("a", DefiniteAnswer::Unknown);
    scenario.at("b", D).at("b", D + 10).saw("b", D + 10, 1);
    scenario.series("s").cancel("s", DefiniteAnswer::Unknown);
    (0..5).for_each(|n| {
        scenario.saw("s", D + n * 100, 0);
    });
    scenario.is(&["lost a:1000000", "lost b:1000000", "lost s:1000500"]);
}

#[test]
fn a_request_retried_after_a_503_can_be_refused_because_of_its_own_effect() {
    let mut scenario = Scenario::new();
    for (id, version, due) in [("a", 0, D), ("b", 1, D + 50)] {
        scenario.at(id, D).ledger.put(id, Plan::At(D + 50), "default", "put");
        scenario.entry(id).unsure();
        scenario.ledger.note_answer(id, DefiniteAnswer::Refused, D + 500);
        scenario.saw(id, due, version).ledger.end(id);
    }
    scenario.is(&[]);
}

#[test]
fn a_refused_put_changes_nothing() {
    let mut scenario = Scenario::new();
    scenario.at("a", D).put("a", Plan::At(D), DefiniteAnswer::Refused).saw("a", D, 0);
    scenario.at("b", D).put("b", Plan::At(D), DefiniteAnswer::Refused).saw("b", D, 1);
    scenario.is(&["lost b:1000000", "other_payload b:1000000"]);
}

#[test]
fn a_put_answered_503_took_effect_before_the_answer_or_never() {
    // Repeated and then answered: the replaced version may have been in flight at the first request.
    let mut scenario = Scenario::new();
    scenario.at("a", D);
    scenario.ledger.put("a", Plan::At(D + 50), "default", "put");
    scenario.entry("a").unsure();
    scenario.ledger.note_answer("a", DefiniteAnswer::Unchanged { due: D + 50 }, D + 500);
    scenario.is(&["lost a:1000050"]);
    // An occurrence that was not due by then is not published, whatever the first request did.
    let mut scenario = Scenario::new();
    scenario.at("a", D + 900).at("b", D);
    for id in ["a", "b"] {
        scenario.entry(id).cancel();
        scenario.entry(id).unsure();
        scenario.ledger.note_answer(id, DefiniteAnswer::Unknown, D + 500);
    }
    scenario.saw("a", D + 900, 0).saw("b", D, 0);
    scenario.is(&["cancelled_but_published a:1000900"]);
    // Left open, and cancelled: nothing of either is published afterwards.
    let mut scenario = Scenario::new();
    for id in ["one", "other", "both"] {
        scenario.at(id, D);
        scenario.ledger.put(id, Plan::At(D + 50), "default", "put");
        scenario.entry(id).unsure();
        scenario.entry(id).leave();
        scenario.cancel(id, DefiniteAnswer::Cancelled { handed_out: None });
    }
    scenario.saw("one", D, 0).is(&[]);
    scenario.saw("other", D + 50, 1).is(&["cancelled_but_published other:1000050"]);
    // The last answer is a 503: either version may exist.
    let mut scenario = Scenario::new();
    for id in ["one", "other"] {
        scenario.at(id, D);
        scenario.ledger.put(id, Plan::At(D + 50), "default", "put");
        scenario.entry(id).unsure();
    }
    scenario.saw("one", D, 0).saw("other", D + 50, 1);
    scenario.is(&[]);
}

#[test]
fn a_put_repeated_after_its_publish_withdraws_nothing() {
    let cancelled = DefiniteAnswer::Cancelled { handed_out: None };
    let mut scenario = Scenario::new();
    for id in ["a", "b", "c"] {
        scenario.at(id, D);
        assert!(scenario.ledger.put_again(id, "again").is_some());
    }
    scenario.ledger.note_answer("a", created(D), D + 500);
    scenario.ledger.note_answer("b", created(D), D + 500);
    scenario.ledger.note_answer("c", DefiniteAnswer::Unchanged { due: D }, D + 500);
    scenario.cancel("a", cancelled).cancel("b", cancelled).cancel("c", cancelled);
    scenario.saw("a", D, 0).saw("c", D, 0);
    scenario.is(&["cancelled_but_published c:1000000", "lost b:1000000"]);
    // The first of two requests was answered 503 and took effect; that one was published.
    let mut scenario = Scenario::new();
    scenario.ledger.put("a", Plan::In, "default", "put");
    scenario.entry("a").unsure();
    scenario.ledger.note_answer("a", created(D + 70), D + 80);
    scenario.cancel("a", cancelled).saw("a", D, 0);
    scenario.is(&[]);
}

#[test]
fn a_request_without_an_answer_can_take_effect_again_later() {
    let mut scenario = Scenario::new();
    for (id, plan) in [("in", Plan::In), ("none", Plan::In), ("s", SERIES), ("at", Plan::At(D))] {
        scenario.ledger.put(id, plan, "default", "put");
        scenario.entry(id).unanswered();
        scenario.ledger.note_answer(id, DefiniteAnswer::Created { due: D, in_flight: None }, D + 500);
    }
    // The first request arrived last, and counted from then.
    scenario.saw("in", D + 77, 0).saw("at", D, 0).saw("at", D, 0);
    (0..12).for_each(|n| {
        scenario.saw("s", D + n * 100, 0);
    });
    scenario.is(&["lost none"]);
}

#[test]
fn contradicting_answers_are_reported() {
    let mut scenario = Scenario::new();
    scenario.put("a", Plan::At(D), created(D + 1));
    scenario.at("b", D).cancel("b", DefiniteAnswer::Cancelled { handed_out: None }).replace("b", D + 50, None);
    scenario.at("c", D).cancel("c", DefiniteAnswer::CancelledInFlight { due: D + 7 });
    scenario.at("d", D).put("d", Plan::At(D), DefiniteAnswer::Unchanged { due: D });
    let broken = scenario.broken();
    let answers: Vec<_> = broken.iter().filter(|broken| broken.starts_with("wrong_answer")).collect();
    assert_eq!(answers, ["wrong_answer a", "wrong_answer b", "wrong_answer c", "wrong_answer d"]);
}

#[test]
fn a_deduplicating_sink_can_drop_the_second_message_under_a_key() {
    for deduplicates in [false, true] {
        let mut scenario = Scenario::new();
        scenario.ledger = Ledger::new(deduplicates);
        scenario.at("a", D).at("a", D).saw("a", D, 0);
        scenario.is(if deduplicates { &[] } else { &["lost a:1000000"] });
    }
}

#[test]
fn posts_are_identified_by_payload_until_their_id_is_known() {
    let mut scenario = Scenario::new();
    for name in ["post-1", "post-2"] {
        assert_eq!(scenario.ledger.post(name, Plan::At(D), "default"), payload(name, 0));
    }
    scenario.saw_text("uuid-1:1000000", &payload("post-1", 0), D + 3);
    scenario.saw_text("uuid-2:1000000", &payload("post-2", 0), D + 3);
    scenario.ledger.unnamed.get_mut("post-2").unwrap().unanswered();
    scenario.ledger.name("post-1", "uuid-1");
    scenario.ledger.note_answer("uuid-1", created(D), D + 500);
    scenario.is(&[]);
    scenario.saw_text("uuid-3:1000000", &payload("post-3", 0), D + 3).is(&["wrong_key uuid-3:1000000"]);
}

fn fault(kind: &'static str, from: i64) -> Fault {
    Fault { kind, instance: None, from, until: from + 1000, held: false }
}

#[test]
fn dead_occurrences_are_reported_with_the_last_fault_of_the_sink() {
    let scenario = |kind: &'static str, from: i64| {
        let mut scenario = Scenario::new();
        let (key, reason, detail) = (format!("a:{D}"), "retries".to_owned(), "no".to_owned());
        scenario.at("a", D).dead.push(Dead { key, died: D + 10, reason, detail });
        scenario.faults.push(fault(kind, from));
        scenario.is(&["dead a:1000000"]);
        scenario.ledger.violations.all[0].evidence.clone()
    };
    assert!(
        scenario("sink_cut", D - 500).ends_with("`retries` (no): 510 ms after `sink_cut` began, which lasted 1000 ms")
    );
    assert!(scenario("sink_cut", D + 500).ends_with("before any fault of the sink"));
    assert!(scenario("kill", D - 500).ends_with("before any fault of the sink"));
}

#[test]
fn entries_left_in_the_timeline_are_reported() {
    let mut scenario = Scenario::new();
    scenario.left.push(("changes".to_owned(), "1: a".to_owned()));
    scenario.is(&["left_over changes"]);
}

#[test]
fn late_wakeups_are_reported_only_without_a_recent_fault() {
    let scenario = |late: i64, faults: &[Fault]| {
        let mut scenario = Scenario::new();
        scenario.faults = faults.to_vec();
        for n in 0..9 {
            let (id, due) = (format!("quiet-{n}"), D + n * 500);
            scenario.at(&id, due).saw_text(&format!("{id}:{due}"), &payload(&id, 0), due + late);
        }
        scenario.broken()
    };
    assert_eq!(scenario(99, &[]), Vec::<String>::new());
    assert_eq!(scenario(400, &[]), ["not_woken quiet"]);
    assert_eq!(scenario(400, &[fault("kill", D - 5000)]), Vec::<String>::new());
    assert_eq!(scenario(400, &[fault("kill", D - 50_000)]), ["not_woken quiet"]);
}

#[test]
fn repeated_publishes_are_reported_only_without_a_recent_fault() {
    let scenario = |copied: i64, ended: bool, faults: &[Fault]| {
        let mut scenario = Scenario::new();
        scenario.faults = faults.to_vec();
        for n in 0..9 {
            let (id, due) = (format!("quiet-{n}"), D + n * 500);
            scenario.at(&id, due).saw(&id, due, 0);
            if ended {
                scenario.end(&id);
            }
            if n < copied {
                scenario.saw(&id, due, 0);
            }
        }
        scenario.broken()
    };
    for ended in [false, true] {
        assert_eq!(scenario(4, ended, &[]), Vec::<String>::new());
        assert_eq!(scenario(5, ended, &[]), ["copied quiet"]);
        assert_eq!(scenario(9, ended, &[fault("kill", D - 5000)]), Vec::<String>::new());
    }
}

#[test]
fn a_message_with_another_trace_than_its_put_is_a_violation() {
    let seen = |id: &str, trace: Option<&str>, is_untraced: bool| {
        let mut scenario = Scenario::new();
        scenario.at(id, D).entry(id).is_untraced = is_untraced;
        let (key, payload) = (format!("{id}:{D}"), payload(id, 0));
        let trace = trace.map(str::to_owned);
        scenario.ledger.saw(&Message { key, payload, trace, rejected: None, stamp: D, again: false });
        scenario
    };
    let of_a = trace_of("a");
    seen("a", Some(&of_a), false).is(&[]);
    seen("a", Some(&of_a), true).is(&[]);
    seen("a", None, true).is(&[]);
    seen("a", None, false).is(&["other_trace a:1000000"]);
    seen("b", Some(&of_a), true).is(&["other_trace b:1000000"]);
    assert_eq!(of_a.len(), 55, "as in the header `traceparent`");
}

/// An instance that lost its connection sends a put again, and Redis answers the repeat with `unchanged`.
#[test]
fn only_a_slow_put_of_a_new_version_can_be_unchanged() {
    let put_again = |millis: u64| {
        let mut scenario = Scenario::new();
        scenario.at("a", D).ledger.put("a", Plan::At(D + 50), "default", "put");
        scenario.entry("a").sent_before(std::time::Duration::from_millis(millis));
        scenario.ledger.note_answer("a", DefiniteAnswer::Unchanged { due: D + 50 }, D + 500);
        scenario.saw("a", D + 50, 1);
        scenario
    };
    put_again(60).is(&[]);
    put_again(40).is(&["lost a:1000000", "wrong_answer a"]);
}

/// The first copy of a slow put was published and settled, and the second copy created the task again. A cancel then
/// removes the second one.
#[test]
fn a_slow_put_can_be_published_although_a_later_cancel_found_it_waiting() {
    let cancel = |millis: u64| {
        let mut scenario = Scenario::new();
        scenario.ledger.put("a", Plan::At(D), "default", "put");
        scenario.entry("a").sent_before(std::time::Duration::from_millis(millis));
        scenario.ledger.note_answer("a", DefiniteAnswer::Created { due: D, in_flight: None }, D + 500);
        scenario.cancel("a", DefiniteAnswer::Cancelled { handed_out: None }).saw("a", D, 0);
        scenario
    };
    cancel(60).is(&[]);
    cancel(40).is(&["cancelled_but_published a:1000000"]);
}

#[test]
fn a_triggered_one_shot_has_the_due_of_its_trigger_alone() {
    let triggered = |handed_out| {
        let mut scenario = Scenario::new();
        scenario.at("a", D + 900);
        scenario.entry("a").steer(|version| version.triggered(D + 100, handed_out));
        scenario
    };
    assert_eq!(triggered(None).saw("a", D + 100, 0).broken(), [""; 0]);
    assert_eq!(triggered(None).broken(), ["lost a:1000100"]);
    assert_eq!(
        triggered(None).saw("a", D + 100, 0).saw("a", D + 900, 0).broken(),
        ["wrong_key a:1000900"],
        "its former due"
    );
    assert_eq!(triggered(Some(D + 900)).saw("a", D + 100, 0).saw("a", D + 900, 0).broken(), [""; 0]);
    // It is unknown whether it was triggered: it comes at one due or another.
    let mut unsure = Scenario::new();
    unsure.at("a", D + 900).entry("a").steer(|version| version.perhaps_triggered());
    assert_eq!(unsure.broken(), ["lost a"]);
    let mut unsure = Scenario::new();
    unsure.at("a", D + 900).entry("a").steer(|version| version.perhaps_triggered());
    assert_eq!(unsure.saw("a", D + 123, 0).broken(), [""; 0]);
}

#[test]
fn a_trigger_of_a_series_comes_in_place_of_its_last_and_a_skipped_due_does_not_come() {
    let steered = || {
        let mut scenario = Scenario::new();
        scenario.series("a");
        scenario.entry("a").steer(|version| {
            version.triggered(D + 50, None);
            version.skipped(D + 200, false, D + 300);
        });
        for due in [D, D + 50, D + 100, D + 300, D + 400] {
            scenario.saw("a", due, 0);
        }
        scenario
    };
    assert_eq!(steered().broken(), [""; 0]);
    assert_eq!(steered().saw("a", D + 200, 0).broken(), ["wrong_key a:1000200"], "it was skipped");
    assert_eq!(steered().saw("a", D + 500, 0).broken(), ["wrong_key a:1000500"], "the trigger counts");
    // Each trigger may have taken the place of one more, whether it is certain or not.
    for certain in [[false, false], [false, true], [true, false]] {
        let mut twice = Scenario::new();
        twice.series("a");
        for (number, certain) in (1..).zip(certain) {
            twice.entry("a").steer(|version| match certain {
                true => version.triggered(D + number, None),
                false => version.perhaps_triggered(),
            });
        }
        let lost: Vec<String> = twice.broken().iter().filter(|broken| broken.ends_with("00")).cloned().collect();
        assert_eq!(lost, ["lost a:1000000", "lost a:1000100", "lost a:1000200", "lost a:1000300"], "{certain:?}");
    }
}

#[test]
fn a_late_skip_takes_what_came_due_meanwhile_and_counts_once() {
    let skipped = || {
        let mut scenario = Scenario::new();
        scenario.series("a");
        scenario.entry("a").steer(|version| version.skipped(D + 100, false, D + 300));
        for due in [D, D + 300, D + 400, D + 500] {
            scenario.saw("a", due, 0);
        }
        scenario
    };
    assert_eq!(skipped().broken(), ["lost a:1000600"], "the limit allows one more");
    assert_eq!(skipped().saw("a", D + 600, 0).broken(), [""; 0]);
    assert_eq!(skipped().saw("a", D + 600, 0).saw("a", D + 200, 0).broken(), ["wrong_key a:1000200"]);
    // It is unknown whether the skip took effect.
    let mut unsure = Scenario::new();
    unsure.series("a").entry("a").steer(|version| version.perhaps_skipped(D + 100, D + 150));
    assert_eq!(unsure.saw("a", D, 0).saw("a", D + 300, 0).broken(), [""; 0]);
}
