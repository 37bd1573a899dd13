//! The model check: everything that can happen to one or two tasks and two instances, in every order, to a stated
//! depth.
//!
//! - `search`   breadth first, each state once, the shortest path to a broken law
//! - `world`    one shard as a twin, two instances, calls in transit; the effect of a step
//! - `choices`  the possible next steps
//! - `calls`    calls in transit, and their effect when they arrive
//! - `holder`   claims as their holders know them
//! - `ledger`   what the answers to users said, and what consumers may have received; the laws. `cursors`: dead records; `copies`: sets
//!   of occurrences
//! - `structure` rules of a shard's keys
//! - `shards`   what each call does to each shard, and what becomes of it when all claims have ended
//! - `plans`    start states, and how often each event may happen
//! - `rules`    the twin's verbs, and the same with one rule removed
//!
//! A lease lasts one tick of the model's clock (two in some plans). A call with a `not_after` has no effect after the
//! tick in which it was sent. All dues have come. A caller without an answer repeats its request before any other. Not
//! covered here, but by `side_by_side`: limits in bytes, counts, traces, the reaper's scan, glance.
//!
//! Each plan is searched completely; `make model` searches each with one more of each event.

mod calls;
mod choices;
mod copies;
mod cursors;
mod holder;
mod ledger;
mod plans;
mod rules;
mod search;
mod shards;
mod structure;
mod world;

use rules::{Flaw, Plan, Rules};
use search::search;
use world::World;

/// Maximum states of one plan: about a gigabyte.
const MOST: usize = 1_000_000;

/// Searches all states, or `most` of them, and prints how many; returns whether these were all.
#[expect(clippy::print_stdout, reason = "how much was looked at belongs to what the check says")]
fn look(name: &str, plan: &'static Plan, most: usize) -> bool {
    let rules = Rules { plan, flaw: None, outside_only: false };
    let report = search(&World::new(rules), rules, most);
    let end = if report.complete { "complete" } else { "cut" };
    println!("{name}: depth {} ({end}), {} states, {} steps", report.depth, report.states, report.steps);
    if let Some(broken) = report.broken {
        panic!("{name}: {}", broken.tell());
    }
    report.complete
}

/// Searches all states.
fn holds(name: &str, plan: &'static Plan) {
    assert!(look(name, plan, MOST), "{name}: there are more than {MOST} states");
}

/// Searches a plan with one more of each event, up to `PUNCTUAL_MODEL_STATES` states of each.
fn holds_deeper(name: &str, plan: &'static Plan) {
    let most = std::env::var("PUNCTUAL_MODEL_STATES").ok();
    let most = most.map_or(MOST, |most| most.parse().expect("a number of states"));
    for (what, budget) in plan.budget.one_more() {
        // Steps of the clock have a plan of their own: a call sent before a step is meant for the time before.
        if what == "step of the clock" && plan.budget.steps == 0 || what == "loss" && plan.budget.steps > 0 {
            continue;
        }
        look(&format!("{name} and a {what}"), Box::leak(Box::new(Plan { budget, ..*plan })), most);
    }
}

/// Searches for the broken law that a removed rule must cause; checks only what users and consumers see.
#[expect(clippy::print_stdout, reason = "the way to the broken law explains why the rule is there")]
fn breaks(flaw: Flaw, plan: &'static Plan, law: &str) {
    let rules = Rules { plan, flaw: Some(flaw), outside_only: true };
    let report = search(&World::new(rules), rules, MOST);
    println!("{flaw:?}: {} states", report.states);
    let broken = report.broken.unwrap_or_else(|| panic!("nobody notices {flaw:?}: {} states", report.states));
    println!("{}", broken.tell());
    assert!(broken.law.starts_with(law), "{}", broken.tell());
}

macro_rules! plans {
    ($($name:ident: $plan:ident;)*) => {
        $(#[test]
        fn $name() {
            holds(stringify!($plan), &plans::$plan);
        })*

        #[test]
        #[ignore = "takes long: make model"]
        fn the_laws_hold_deeper() {
            $(holds_deeper(stringify!($plan), &plans::$plan);)*
        }
    };
}

plans! {
    the_laws_hold_for_a_one_shot_task: ONE_SHOT;
    the_laws_hold_for_a_time_out_that_is_reset: RESET;
    the_laws_hold_for_a_time_out_whose_holder_dies: RESET_CRASH;
    the_laws_hold_for_a_time_out_that_is_posted: POSTED;
    the_laws_hold_for_a_posted_time_out_whose_holder_dies: POSTED_CRASH;
    the_laws_hold_for_a_task_that_moves_between_lanes: MOVED;
    the_laws_hold_for_a_task_that_moves_while_answers_get_lost: MOVED_LOST;
    the_laws_hold_for_a_recurring_task: RECURRING;
    the_laws_hold_for_a_recurring_task_whose_holder_dies: RECURRING_CRASH;
    the_laws_hold_for_the_dead: DEAD;
    the_laws_hold_for_the_dead_whose_holder_dies: DEAD_CRASH;
    the_laws_hold_for_what_is_requeued: REQUEUED;
    the_laws_hold_for_what_is_requeued_while_answers_get_lost: REQUEUED_LOST;
    the_laws_hold_for_few_dead_and_not_for_long: KEPT;
    the_laws_hold_for_a_suspect: SUSPECT;
    the_laws_hold_for_a_suspect_while_answers_get_lost: SUSPECT_LOST;
    the_laws_hold_for_suspects_that_crashed_together: SUSPECTS;
    the_laws_hold_for_two_tasks_in_one_claim: TWO;
    the_laws_hold_for_two_tasks_whose_holder_dies: TWO_CRASH;
    the_laws_hold_for_claims_of_the_newest_and_behind_a_place: ENDS;
    the_laws_hold_for_what_somebody_cannot_read: UNREADABLE;
    the_laws_hold_for_what_was_requeued_and_cannot_be_read: UNREADABLE_REQUEUED;
    the_laws_hold_for_a_task_that_is_paused: PAUSED;
    the_laws_hold_for_a_paused_task_whose_holder_dies: PAUSED_CRASH;
    the_laws_hold_for_a_clock_that_steps: CLOCK;
    the_laws_hold_for_reaps_and_extends_that_come_late: LATE;
}

macro_rules! flaws {
    ($($name:ident: $flaw:ident, $plan:ident, $law:literal;)*) => {
        $(#[test]
        fn $name() {
            breaks(Flaw::$flaw, &plans::$plan, $law);
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
    it_is_noticed_if_a_put_overlooks_what_was_requeued: PutOverlooksRequeued, REQUEUED, "law 3";
    it_is_noticed_if_a_requeue_overlooks_the_task: RequeueOverlooksTask, REQUEUED, "law 3";
    it_is_noticed_if_unchanged_names_no_key: UnchangedNamesNoKey, ONE_SHOT, "law 9";
    it_is_noticed_if_reap_cuts_leases_to_its_own: ReapCutsToItsOwnLease, CLOCK, "law 4";
    it_is_noticed_if_what_cannot_be_read_is_forgotten: UnreadableForgets, UNREADABLE, "law 9";
    it_is_noticed_if_the_newest_dead_are_dropped: NewestDeadDropped, KEPT, "law 2";
    it_is_noticed_if_a_put_ends_a_pause: PutEndsPause, PAUSED, "law 13";
    it_is_noticed_if_a_settle_forgets_pauses: SettleForgetsPauses, PAUSED, "law 13";
    it_is_noticed_if_a_reap_forgets_pauses: ReapForgetsPauses, PAUSED_CRASH, "law 13";
    it_is_noticed_if_a_trigger_ends_a_pause: TriggerEndsPause, PAUSED, "law 13";
}
