//! The model check: everything that can happen to a task or two and two instances, in every order, to a stated depth.
//!
//! - `search`   breadth first, each state once, the shortest way to a broken law
//! - `world`    one shard as a twin, two instances, calls on their way; what a step does
//! - `choices`  which steps can come next
//! - `ledger`   what users were told and consumers may have got; the laws
//! - `structure` how a shard keeps what it keeps
//! - `rules`    the twin's verbs, and the same with one rule taken out
//!
//! One tick of the model's clock is a lease, and as long as any call may take effect. All dues have come.

mod choices;
mod ledger;
mod rules;
mod search;
mod structure;
mod world;

use punctual::timeline::PutMode;
use rules::{Budget, Flaw, Kind, Plan, Rules, Wish};
use search::search;
use world::World;

const fn wish(id: u8, due: u8, payload: u8, kind: Kind) -> Wish {
    Wish { id, due, payload, lane: 0, kind, mode: PutMode::Put }
}

const fn there(wish: Wish) -> Wish {
    Wish { lane: 1, ..wish }
}

const fn post(due: u8, payload: u8) -> Wish {
    Wish { mode: PutMode::Post, ..wish(0, due, payload, Kind::In) }
}

const fn budget(puts: u8, cancels: u8, requeues: u8, claims: u8) -> Budget {
    Budget { puts, cancels, requeues, claims, publishes: 2, extends: 0, losses: 1, crashes: 1, ticks: 2 }
}

/// One one-shot task, put again with the same and another message and due, cancelled, created anew.
static ONE_SHOT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[wish(0, 1, 0, Kind::At), wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    rejects: false,
    budget: budget(2, 1, 0, 2),
};

/// A time-out that is reset: the same message, another due, back to the first due.
static RESET: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::In)],
    wishes: &[wish(0, 1, 0, Kind::In), wish(0, 2, 0, Kind::In), wish(0, 2, 1, Kind::In)],
    ids: 1,
    lanes: 1,
    rejects: false,
    budget: Budget { crashes: 0, ..budget(2, 1, 0, 2) },
};

/// A time-out that is posted: repeated under its key, posted with another message, put and cancelled meanwhile.
static POSTED: Plan = Plan {
    standing: &[post(1, 0)],
    wishes: &[post(2, 0), post(2, 1), wish(0, 2, 1, Kind::In)],
    ids: 1,
    lanes: 1,
    rejects: false,
    budget: Budget { crashes: 0, ..budget(2, 1, 0, 2) },
};

/// A task that is put into another lane and back, while it waits and while it is in flight.
static MOVED: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[there(wish(0, 1, 0, Kind::At)), there(wish(0, 2, 1, Kind::At)), wish(0, 1, 0, Kind::At)],
    ids: 1,
    lanes: 2,
    rejects: false,
    budget: Budget { losses: 0, ticks: 1, ..budget(2, 1, 0, 2) },
};

/// One recurring task of three occurrences.
static RECURRING: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 2, 0, Kind::Every), wish(0, 2, 1, Kind::Every), wish(0, 3, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    rejects: false,
    budget: Budget { publishes: 3, crashes: 0, ticks: 1, ..budget(1, 1, 0, 3) },
};

/// A task that dies, is requeued, and put anew meanwhile.
static DEAD: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 1, 0, Kind::At)],
    ids: 1,
    lanes: 1,
    rejects: true,
    budget: Budget { publishes: 2, crashes: 0, ticks: 1, ..budget(1, 0, 1, 3) },
};

/// Two tasks in one claim: settled whole, by the short cut, and in parts.
static TWO: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(1, 2, 1, Kind::At)],
    ids: 2,
    lanes: 1,
    rejects: false,
    budget: Budget { ticks: 1, crashes: 0, ..budget(1, 1, 0, 2) },
};

/// A task whose claims keep ending without word: put, cancelled and claimed alone meanwhile, leases extended.
static SUSPECT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    rejects: false,
    budget: Budget { extends: 1, losses: 0, ticks: 3, ..budget(1, 1, 0, 3) },
};

/// Looks at everything and prints how much that was.
#[expect(clippy::print_stdout, reason = "how much was looked at belongs to what the check says")]
fn holds(name: &str, plan: &'static Plan, depth: usize) {
    let rules = Rules { plan, flaw: None, outside_only: false };
    let report = search(&World::new(rules), rules, depth);
    let end = if report.complete { "complete" } else { "cut" };
    println!("{name}: depth {} ({end}), {} states, {} steps", report.depth, report.states, report.steps);
    if let Some(broken) = report.broken {
        panic!("{name}: {}", broken.tell());
    }
    assert!(report.complete, "{name}: the plan goes deeper than {depth} steps");
}

/// Looks for the broken law that a rule taken out must cause; only at what users and consumers see.
#[expect(clippy::print_stdout, reason = "the way to the broken law explains why the rule is there")]
fn breaks(flaw: Flaw, plan: &'static Plan, law: &str) {
    let rules = Rules { plan, flaw: Some(flaw), outside_only: true };
    let report = search(&World::new(rules), rules, 30);
    println!("{flaw:?}: {} states", report.states);
    let broken = report.broken.unwrap_or_else(|| panic!("nobody notices {flaw:?}: {} states", report.states));
    println!("{}", broken.tell());
    assert!(broken.law.starts_with(law), "{}", broken.tell());
}

#[test]
fn the_laws_hold_for_a_one_shot_task() {
    holds("one-shot", &ONE_SHOT, 30);
}

#[test]
fn the_laws_hold_for_a_time_out_that_is_reset() {
    holds("reset", &RESET, 30);
}

#[test]
fn the_laws_hold_for_a_time_out_that_is_posted() {
    holds("posted", &POSTED, 30);
}

#[test]
fn the_laws_hold_for_a_task_that_moves_between_lanes() {
    holds("moved", &MOVED, 30);
}

#[test]
fn the_laws_hold_for_a_recurring_task() {
    holds("recurring", &RECURRING, 30);
}

#[test]
fn the_laws_hold_for_the_dead() {
    holds("dead", &DEAD, 30);
}

#[test]
fn the_laws_hold_for_a_suspect() {
    holds("suspect", &SUSPECT, 30);
}

#[test]
fn the_laws_hold_for_two_tasks_in_one_claim() {
    holds("two tasks", &TWO, 30);
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, $plan:ident, $law:literal;)*) => {
        $(#[test]
        fn $name() {
            breaks(Flaw::$flaw, &$plan, $law);
        })*
    };
}

flaws! {
    it_is_noticed_if_a_settled_pair_stays_in_its_claim: SettledPairStays, TWO, "law 2";
    it_is_noticed_if_calls_take_effect_late: NoNotAfter, ONE_SHOT, "law 2";
    it_is_noticed_if_a_put_may_take_the_due_in_flight: NoRefusalOfTheDueInFlight, ONE_SHOT, "law 3";
    it_is_noticed_if_reap_drops_changes: ReapDropsChanges, ONE_SHOT, "law 2";
    it_is_noticed_if_nobody_remembers_what_was_handed_out: NoMarks, ONE_SHOT, "law 9";
    it_is_noticed_if_nobody_reaps: NoReap, ONE_SHOT, "law 2";
    it_is_noticed_if_reap_restores_now: ReapRestoresNow, ONE_SHOT, "law 2";
    it_is_noticed_if_a_claim_does_not_negate: ClaimDoesNotNegate, ONE_SHOT, "law 2";
    it_is_noticed_if_the_short_cut_is_taken_always: ShortCutAlways, TWO, "law 2";
    it_is_noticed_if_settle_ignores_changes: SettleIgnoresChanges, RECURRING, "law 2";
    it_is_noticed_if_a_put_forgets_marks: PutForgetsMarks, ONE_SHOT, "law 9";
    it_is_noticed_if_an_instance_ignores_its_lease: PublishWithoutLease, ONE_SHOT, "law 4";
    it_is_noticed_if_an_instance_does_not_tell_that_it_began: BegunNotTold, ONE_SHOT, "law 9";
    it_is_noticed_if_a_post_replaces_what_stands: PostReplaces, POSTED, "law 9";
    it_is_noticed_if_a_task_that_moves_stays_where_it_was: MoveLeavesBehind, MOVED, "law 9";
    it_is_noticed_if_a_task_in_flight_is_moved: MoveInFlight, MOVED, "law 2";
}
