//! Instances share the shards: each asks for what it owns, and for what others leave.

use std::collections::BTreeSet;

use super::*;

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
    // A worse rank applies after a second.
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
    // The deputies look behind the owners, nobody else does.
    let (empty, took) = (empty_claims(&engines) - before.0, claims(&engines).iter().sum::<u64>() - before.1);
    assert!(empty <= 2 * took, "{empty} claims found nothing, {took} took something");
    assert!(claims(&engines).iter().all(|claims| *claims > took / 8), "{:?}", claims(&engines));
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_dies_is_replaced_by_its_deputies() {
    let (bed, mut engines) = start(5).await;
    let tasks = put_steadily(&bed, "a", seconds(1), 6000).await;
    bed.pass(millis(2500)).await;
    // It holds nothing at this moment: its sink answers at once.
    drop(engines.remove(1));
    bed.pass(millis(6000)).await;
    assert_eq!(owned(&engines).iter().sum::<i64>(), i64::from(SHARDS), "every shard has an owner again");
    let text = engines.iter().map(|(_, metrics)| metrics.text()).collect::<Vec<_>>();
    let keys = bed.keys();
    assert_eq!((keys.len(), published_twice(&keys)), (tasks, 0));
    // Lateness is a histogram with a bound of 50 ms.
    for metrics in text {
        let value = |bound: &str| {
            let name = format!("punctual_lateness_seconds_bucket{{le=\"{bound}\",lane=\"default\"}} ");
            metrics
                .lines()
                .find_map(|line| line.strip_prefix(&name).map(|value| value.parse::<u64>().unwrap()))
                .unwrap()
        };
        assert_eq!(value("0.05"), value("+Inf"), "nothing was later than 50 ms");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_stops_leaves_its_shards_to_others_at_once() {
    let (bed, mut engines) = start(2).await;
    assert_eq!(owned(&engines), [8, 8]);
    // Between two looks: the stop is over before the next one.
    bed.pass(millis(50)).await;
    let (stopped, _) = engines.remove(0);
    assert!(stopped.shutdown(seconds(5)).await);
    bed.pass(millis(300)).await;
    assert_eq!(owned(&engines), [16], "its last beat names no lane");
    drop(bed);
}
