//! The twin is Redis: random verbs on both, every answer, every wake-up and the whole state of a shard compared.
//!
//! Few ids, few dues, few lanes and a clock that steps over leases make collisions the rule; stories, verbs in the order in
//! which some rules need them, come between; now and then a few hundred tasks at once. A run that differs is cut down to its
//! shortest form, which is printed. A table counts how often each rule was met, and asks for enough.
//!
//! - `steps`, `stories` what may happen   - `both`, `verbs` both timelines, and what happens to them   - `wakes` wake-ups
//! - `rules` the table   - `met` which rules a call met

/// Asks both and compares.
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
use super::stage::{Shape, ms, shared_server};

/// Stories in one run.
const STORIES: RangeInclusive<usize> = 80..=140;

/// Runs of one shard at a time, until every rule was met often enough, ...
const RUNS: u32 = 20;

/// ... and how many times at most.
const MOST_TIMES: u32 = 10;

/// Random runs against Redis with one shard, until every rule was met often enough.
fn every_rule_is_the_same(shape: Shape) {
    let mut tally = Tally::default();
    for _ in 0..MOST_TIMES {
        let Some(met) = the_twin_is_redis(shape, 1, STORIES) else { return };
        tally.add(&met);
        if tally.seldom().is_empty() {
            return;
        }
    }
    panic!("met less than {OFTEN_ENOUGH} times:\n{}", tally.seldom().join("\n"));
}

/// Random runs against one shape of Redis; which rules they met. `None` where there is no Redis.
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
            // A run that is cut down to its shortest form need not wait as long each time.
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

/// Takes more than five seconds: random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_with_1_shard() {
    every_rule_is_the_same(Shape::Plain);
}

/// Takes more than five seconds: random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_with_4_shards() {
    the_twin_is_redis(Shape::Plain, 4, 1..=80);
}

/// Takes more than five seconds: random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_cluster_with_1_shard() {
    every_rule_is_the_same(Shape::Cluster);
}

/// Takes more than five seconds: random runs on both timelines, then each wake-up is waited for.
#[test]
fn the_twin_is_redis_cluster_with_4_shards() {
    the_twin_is_redis(Shape::Cluster, 4, 1..=80);
}
