//! The twin behaves like Redis: random verbs on both, then a comparison of every answer, every notification and the
//! whole state of a shard.
//!
//! With few ids, dues and lanes and a clock that skips leases, collisions are the rule. Between random verbs come
//! stories: verbs in the order that some rules need. Now and then a step has a few hundred tasks. A run that differs is
//! shrunk and printed. A table counts how often each rule was met, and requires a minimum.
//!
//! - `steps`, `stories` possible steps   - `both`, `verbs` both timelines, and what the steps do   - `wakes`
//!   notifications
//! - `rules` the table   - `met` which rules a call met

/// Calls both sides and compares the answers.
macro_rules! both {
    ($both:expr, $step:expr, |$timeline:ident| $call:expr) => {{
        let $timeline = &$both.memory;
        let expected = $call.await;
        let $timeline = &$both.redis;
        let found = $call.await;
        if found != expected {
            return Err(TestCaseError::fail(format!("{:?}:\n  twin  {expected:?}\n  Redis {found:?}", $step)));
        }
        expected
    }};
}

mod both;
mod met;
mod rules;
mod steps;
mod stories;
mod verbs;
mod wakes;

use std::cell::{Cell, RefCell};
use std::ops::RangeInclusive;

use proptest::test_runner::{Config, TestError, TestRunner};

use self::both::Both;
use self::rules::{OFTEN_ENOUGH, Tally};
use self::stories::any_story;
use super::shared::{Shape, shared_server};
use super::stage::ms;

/// Number of stories in one run with one shard.
const STORIES: RangeInclusive<usize> = 80..=140;

/// Runs in one round. With 4 shards there is one round.
const RUNS: u32 = 20;

/// Rounds with one shard, at least and at most: they end when every rule was met often enough.
const ROUNDS: RangeInclusive<u32> = 3..=10;

/// Random runs against Redis with one shard, until every rule was met often enough.
fn every_rule_is_the_same(shape: Shape) {
    let mut tally = Tally::default();
    for round in 1..=*ROUNDS.end() {
        let Some(met) = the_twin_is_redis(shape, 1, STORIES) else { return };
        tally.add(&met);
        if round >= *ROUNDS.start() && tally.seldom().is_empty() {
            return;
        }
    }
    panic!("met less than {OFTEN_ENOUGH} times:\n{}", tally.seldom().join("\n"));
}

/// Random runs against one kind of Redis; returns which rules they met. `None` if Redis is not installed.
fn the_twin_is_redis(shape: Shape, shards: u16, stories: RangeInclusive<usize>) -> Option<Tally> {
    let server = shared_server(shape)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let config = Config { cases: RUNS, failure_persistence: None, max_shrink_iters: 300, ..Config::default() };
    let stories = proptest::collection::vec(any_story(), stories);
    let (tally, failed) = (RefCell::new(Tally::default()), Cell::new(false));
    let outcome = TestRunner::new(config).run(&stories, |stories| {
        runtime.block_on(async {
            let (mut both, wakes) = Both::new(&server, shards).await;
            for step in stories.iter().flatten() {
                if let Some(shard) = both.step(step).await? {
                    both.compare(shard, step)?;
                }
            }
            tally.borrow_mut().add(&both.tally);
            // While a failed run is shrunk, each attempt waits for a shorter time.
            let patience = ms(if failed.get() { 300 } else { 10_000 });
            let compared = wakes.compare((&both.in_rounds, &both.not_in_rounds), patience).await;
            failed.set(failed.get() || compared.is_err());
            compared
        })
    });
    match outcome {
        Ok(()) => Some(tally.into_inner()),
        Err(TestError::Abort(why)) => panic!("{why}"),
        Err(TestError::Fail(why, stories)) => {
            let steps: Vec<String> = stories.iter().flatten().map(|step| format!("  {step:?}")).collect();
            panic!("{why}\nafter\n{}", steps.join("\n"));
        }
    }
}

/// Takes more than five seconds: random runs on both timelines, then a wait for each notification.
#[test]
fn the_twin_is_redis_with_1_shard() {
    every_rule_is_the_same(Shape::Plain);
}

/// Takes more than five seconds: random runs on both timelines, then a wait for each notification.
#[test]
fn the_twin_is_redis_with_4_shards() {
    the_twin_is_redis(Shape::Plain, 4, 1..=80);
}

/// Takes more than five seconds: random runs on both timelines, then a wait for each notification.
#[test]
fn the_twin_is_redis_cluster_with_1_shard() {
    every_rule_is_the_same(Shape::Cluster);
}

/// Takes more than five seconds: random runs on both timelines, then a wait for each notification.
#[test]
fn the_twin_is_redis_cluster_with_4_shards() {
    the_twin_is_redis(Shape::Cluster, 4, 1..=80);
}
