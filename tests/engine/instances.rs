//! Instances share the shards: each asks for what it owns, and for what others leave.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicI64, Ordering};

use punctual::engine::InstanceState;
use punctual_sinks::memory::Answer;
use punctual_sinks::{Fault, Trouble};

use super::*;
use crate::support::log::Log;

const SHARDS: u16 = 16;

/// Starts this many engines on a timeline of 16 shards, each with metrics of its own.
async fn start(count: usize) -> (Bed, Vec<(Engine, Arc<Metrics>)>) {
    let mut bed = Bed::start_on(SHARDS);
    bed.engine = None;
    let mut engines = Vec::new();
    for n in 0..count {
        let mut config = EngineConfig::new(format!("i{n}"));
        config.lease = seconds(5);
        bed.metrics = Arc::new(Metrics::new("0", &config.instance));
        engines.push((bed.another(config), Arc::clone(&bed.metrics)));
    }
    // An instance gives up a shard only a second after it heard of a better one.
    bed.pass(seconds(3)).await;
    (bed, engines)
}

/// Puts a task for each millisecond from `begin` on, and returns how many there are.
async fn put_steadily(bed: &Bed, name: &str, begin: Duration, tasks: u64) -> usize {
    let ids: Vec<String> = (0..tasks).map(|n| format!("{name}{n}")).collect();
    bed.put(ids.iter().zip(0..).map(|(id, n)| (id.as_str(), after(begin + millis(n))))).await;
    ids.len()
}

/// How many messages were published a second time.
fn published_twice(keys: &[String]) -> usize {
    keys.len() - keys.iter().collect::<BTreeSet<_>>().len()
}

fn empty_claims(engines: &[(Engine, Arc<Metrics>)]) -> u64 {
    engines.iter().map(|(_, metrics)| metrics.lane("default").claims_empty.get()).sum()
}

/// How many messages were published later than this bound of the histogram, in seconds.
fn later_than(bound: &str, engines: &[(Engine, Arc<Metrics>)]) -> u64 {
    let later = |(_, metrics): &(Engine, Arc<Metrics>)| {
        let text = metrics.text();
        let value = |bound: &str| {
            let name = format!("punctual_lateness_seconds_bucket{{le=\"{bound}\",lane=\"default\"}} ");
            let line = text.lines().find_map(|line| line.strip_prefix(&name));
            line.expect("the lane has a histogram").parse::<u64>().unwrap()
        };
        value("+Inf") - value(bound)
    };
    engines.iter().map(later).sum()
}

/// How late the latest message from now on is, in milliseconds.
fn watch_lateness(bed: &Bed) -> Arc<AtomicI64> {
    let (latest, clock) = (Arc::<AtomicI64>::default(), Arc::clone(&bed.clock));
    let seen = Arc::clone(&latest);
    bed.sink.answer_by(move |message| {
        seen.fetch_max(clock.now().as_millis() - message.due_ms, Ordering::Relaxed);
        Answer::Accept
    });
    latest
}

fn claims(engines: &[(Engine, Arc<Metrics>)]) -> Vec<u64> {
    engines.iter().map(|(_, metrics)| metrics.lane("default").claims.get()).collect()
}

fn owned(engines: &[(Engine, Arc<Metrics>)]) -> Vec<i64> {
    engines.iter().map(|(_, metrics)| metrics.lane("default").shards_owned.get()).collect()
}

#[tokio::test(start_paused = true)]
async fn each_shard_is_claimed_by_one_instance() {
    let (bed, engines) = start(4).await;
    assert_eq!(owned(&engines), [4, 4, 4, 4]);
    assert!(engines.iter().all(|(_, metrics)| metrics.instances.get() == 4));
    let before = (empty_claims(&engines), claims(&engines).iter().sum::<u64>());
    let tasks = put_steadily(&bed, "a", seconds(2), 4000).await;
    bed.pass(seconds(8)).await;
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys)), (tasks, 0));
    // After the owner only the deputy asks, and finds nothing.
    let (empty, took) = (empty_claims(&engines) - before.0, claims(&engines).iter().sum::<u64>() - before.1);
    assert!(empty <= 2 * took, "{empty} claims found nothing, {took} took something");
    assert!(claims(&engines).iter().all(|claims| *claims > took / 8), "{:?}", claims(&engines));
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_five_that_dies_is_replaced_by_its_deputies() {
    one_dies_of(5).await;
}

#[tokio::test(start_paused = true)]
async fn an_instance_of_twenty_that_dies_is_replaced_by_its_deputies() {
    one_dies_of(20).await;
}

async fn one_dies_of(count: usize) {
    let (log, _guard) = Log::begin();
    let (bed, mut engines) = start(count).await;
    let tasks = put_steadily(&bed, "a", seconds(1), 6000).await;
    bed.pass(millis(2500)).await;
    // It holds nothing at this moment: its sink answers at once.
    drop(engines.remove(1));
    bed.pass(millis(6000)).await;
    assert_eq!(owned(&engines).iter().sum::<i64>(), i64::from(SHARDS), "every shard has an owner again");
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys)), (tasks, 0));
    assert_eq!(later_than("0.05", &engines), 0, "nothing was later than 50 ms");
    let named =
        log.text().lines().filter(|line| line.contains("instances are silent") && line.contains("\"i1\"")).count();
    assert_eq!(named, engines.len(), "each of the others names it once: {}", log.text());
}

/// For some shards these two are owner and deputy.
#[tokio::test(start_paused = true)]
async fn if_owner_and_deputy_die_together_the_others_take_over_in_little_more_than_a_second() {
    let (bed, mut engines) = start(5).await;
    let tasks = put_steadily(&bed, "a", seconds(1), 9000).await;
    bed.pass(millis(2500)).await;
    let latest = watch_lateness(&bed);
    drop(engines.drain(1..3));
    bed.pass(millis(9000)).await;
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys)), (tasks, 0));
    assert!(later_than("0.05", &engines) > 0, "nobody looked after some shards at once");
    let latest = latest.load(Ordering::Relaxed);
    assert!((51..=1300).contains(&latest), "{latest} ms");
}

#[tokio::test(start_paused = true)]
async fn instances_that_hear_no_beats_claim_everything_in_time() {
    let (log, _guard) = Log::begin();
    let (bed, engines) = start(4).await;
    bed.timeline.filter_beats(|_, _| false);
    let tasks = put_steadily(&bed, "a", seconds(1), 10_000).await;
    bed.pass(seconds(12)).await;
    assert_eq!(owned(&engines), [i64::from(SHARDS); 4], "each of them owns every shard");
    assert!(!log.text().contains("silent"), "none of them hears itself: {}", log.text());
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys), later_than("0.05", &engines)), (tasks, 0, 0));
    bed.timeline.filter_beats(|_, _| true);
    bed.pass(seconds(3)).await;
    assert_eq!(owned(&engines), [4, 4, 4, 4]);
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_hears_no_beats_claims_beside_the_others() {
    let (bed, engines) = start(4).await;
    bed.timeline.filter_beats(|receiver, _| receiver != 1);
    let tasks = put_steadily(&bed, "a", seconds(1), 10_000).await;
    bed.pass(seconds(12)).await;
    let mut shards = owned(&engines);
    shards.sort_unstable();
    assert_eq!(shards, [4, 4, 4, i64::from(SHARDS)], "it owns every shard, the others hear it");
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys), later_than("0.05", &engines)), (tasks, 0, 0));
    bed.timeline.filter_beats(|_, _| true);
    bed.pass(seconds(3)).await;
    assert_eq!(owned(&engines), [4; 4]);
}

/// Each instance hears a random half of the others, so no two of them need to agree who owns a shard.
#[tokio::test(start_paused = true)]
async fn views_that_differ_in_all_instances_make_nothing_late_by_more_than_1300_ms() {
    let mut unowned = 0;
    for (seed, count) in [3, 4, 5, 8, 12, 20].into_iter().cycle().take(12).enumerate() {
        let (bed, engines) = start(count).await;
        bed.timeline.filter_beats(move |receiver, beat| hears(seed, receiver, beat));
        bed.pass(seconds(5)).await;
        let owned = owned(&engines).iter().sum::<i64>();
        assert_ne!(owned, i64::from(SHARDS), "seed {seed}: they agree");
        let latest = watch_lateness(&bed);
        let tasks = put_steadily(&bed, "a", seconds(1), 4000).await;
        bed.pass(seconds(8)).await;
        let keys = bed.keys();
        assert_eq!((keys.len(), published_twice(&keys)), (tasks, 0), "seed {seed}");
        let latest = latest.load(Ordering::Relaxed);
        assert!(latest <= 1300, "seed {seed}: {latest} ms");
        // A deputy took what had no owner.
        unowned += u64::from(latest >= 25);
    }
    assert!(unowned > 0, "every shard had an owner in each view");
}

/// Whether the instance that receives hears the sender of this beat.
fn hears(seed: usize, receiver: usize, beat: &str) -> bool {
    let mut hash = DefaultHasher::new();
    (seed, receiver, beat.split(' ').next()).hash(&mut hash);
    hash.finish().is_multiple_of(2)
}

/// Beats arrive from instances that do not exist, each time from another one. So most shards have no owner that runs.
#[tokio::test(start_paused = true)]
async fn wrong_views_make_messages_late_by_little_more_than_a_second_and_lose_none() {
    let (bed, engines) = start(3).await;
    let timeline = Arc::clone(&bed.timeline);
    let liar = tokio::spawn(async move {
        for n in 0.. {
            timeline.send_beat(format!("h{} default", n % 40)).await.unwrap();
            tokio::time::sleep(millis(50)).await;
        }
    });
    bed.pass(seconds(3)).await;
    assert!(owned(&engines).iter().sum::<i64>() < i64::from(SHARDS) / 2, "{:?}", owned(&engines));
    let latest = watch_lateness(&bed);
    let tasks = put_steadily(&bed, "a", seconds(1), 6000).await;
    bed.pass(seconds(9)).await;
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys)), (tasks, 0));
    let latest = latest.load(Ordering::Relaxed);
    assert!(later_than("0.05", &engines) > 1000 && latest <= 1300, "{latest} ms");
    liar.abort();
}

/// A message for each millisecond: 1000 per second, whoever published it.
#[tokio::test(start_paused = true)]
async fn every_instance_shows_the_others_and_what_all_published() {
    let (bed, engines) = start(3).await;
    put_steadily(&bed, "a", seconds(1), 14_000).await;
    bed.pass(seconds(14)).await;
    for (number, (engine, _)) in engines.iter().enumerate() {
        let state = engine.state();
        let (lane, ids) = (&state.lanes[0], state.instances.iter().map(|instance| instance.id.as_str()));
        assert_eq!(ids.clone().next(), Some(&*format!("i{number}")), "itself first");
        assert_eq!(ids.collect::<BTreeSet<_>>(), BTreeSet::from(["i0", "i1", "i2"]));
        let serves =
            |instance: &Arc<InstanceState>| instance.lanes.contains(&lane.lane) && !instance.version.is_empty();
        assert!(state.instances.iter().all(serves), "{:?}", state.instances);
        let rate = lane.published;
        assert!((950.0..1050.0).contains(&rate.per_second), "{rate:?}");
        let (p50, p99) = rate.lateness.expect("messages were published");
        assert!(p50 <= p99 && p99 <= millis(50), "{rate:?}");
    }
    bed.pass(seconds(14)).await;
    let rate = engines[0].0.state().lanes[0].published;
    assert_eq!((rate.per_second, rate.lateness), (0.0, None), "it is that of the last 10 s");
}

/// The claimers of the shards on the silent server wait for answers. If each of them held capacity of the lane
/// meanwhile, none would be left for the other shards.
#[tokio::test(start_paused = true)]
async fn a_silent_server_delays_no_task_of_another() {
    const SILENT: u64 = 0;
    let bed = Bed::start_on(64);
    let ids: Vec<String> = (0..2000).map(|n| format!("a{n}")).collect();
    let is_silent = |id: &&String| u64::from(Shard::of(&id.parse().unwrap(), 64).number()) % 2 == SILENT;
    let (silent, others): (Vec<&String>, Vec<&String>) = ids.iter().partition(is_silent);
    bed.put(silent.iter().map(|id| (id.as_str(), after(millis(900))))).await;
    bed.put(others.iter().zip(0..).map(|(id, n)| (id.as_str(), after(seconds(1) + millis(4 * n))))).await;
    bed.timeline.silence_first_of(2);
    let latest = watch_lateness(&bed);
    bed.pass(seconds(6)).await;
    assert_eq!((bed.keys().len(), latest.load(Ordering::Relaxed)), (others.len(), 0));
    bed.timeline.silence_first_of(0);
    bed.pass(seconds(20)).await;
    assert_eq!(bed.keys().iter().collect::<BTreeSet<_>>().len(), ids.len());
}

/// Compares the calls of 20 instances for each occurrence, with and without tasks for a destination at fault.
#[tokio::test(start_paused = true)]
async fn a_destination_at_fault_costs_few_calls_with_twenty_instances() {
    const TASKS: u64 = 10_000;
    let calls = |engines: &[(Engine, Arc<Metrics>)]| {
        let count = |(_, metrics): &(Engine, Arc<Metrics>)| -> u64 {
            let text = metrics.text();
            let calls = text.lines().filter(|line| line.starts_with("punctual_timeline_calls_total{"));
            calls.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
        };
        engines.iter().map(count).sum::<u64>()
    };
    let mut per_task = Vec::new();
    for refused in [0, TASKS] {
        let (bed, engines) = start(20).await;
        bed.sink.answer_by(|message| match message.destination.as_str() {
            "refused" => Answer::Retry(Trouble::definite(Fault::Destination, "no such stream")),
            _ => Answer::Accept,
        });
        put_steadily(&bed, "good", seconds(2), TASKS).await;
        let ids: Vec<String> = (0..refused).map(|n| format!("refused{n}")).collect();
        bed.put(ids.iter().zip(0..).map(|(id, n)| (id.as_str(), to("refused", seconds(2) + millis(n))))).await;
        let before = calls(&engines);
        bed.pass(seconds(14)).await;
        assert_eq!(bed.sink.accepted(), TASKS);
        per_task.push((calls(&engines) - before) as f64 / (TASKS + refused) as f64);
    }
    assert!(per_task[1] <= 3.0 * per_task[0], "{per_task:?} calls for an occurrence");
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_leaves_its_shards_to_others_at_once() {
    let (log, _guard) = Log::begin();
    let (bed, mut engines) = start(2).await;
    assert_eq!(owned(&engines), [8, 8]);
    // The stop is over before the next regular beat, so only a last beat can notify the other instance.
    bed.pass(millis(50)).await;
    let (stopped, _) = engines.remove(0);
    assert!(stopped.shutdown(seconds(5)).await);
    bed.pass(millis(300)).await;
    assert_eq!(owned(&engines), [16], "its last beat names no lane");
    bed.pass(seconds(5)).await;
    assert!(!log.text().contains("silent"), "it stopped in order: {}", log.text());
    drop(bed);
}
