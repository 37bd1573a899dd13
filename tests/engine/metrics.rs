//! Drives the engine and reads its metrics as an operator does: each must count what its help text says.

use punctual::metrics::Metrics;
use punctual::task::{CatchUp, Key, Record};
use punctual::timeline::Verb;
use punctual::timeline::memory::{InjectedFault, MemoryTimeline};
use punctual::timeline::{ClaimRequest, DeadCap, Put, Token};
use punctual_sinks::memory::Answer;

use super::*;

/// Value of the line with this name and these labels; `None` without such a line.
fn find(metrics: &Metrics, name: &str) -> Option<f64> {
    let text = metrics.text();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
    Some(value.parse().unwrap())
}

impl Bed {
    /// Value of the line with this name and these labels. Panics without such a line.
    #[track_caller]
    pub(super) fn shows(&self, name: &str) -> f64 {
        find(&self.metrics, name).unwrap_or_else(|| panic!("no `{name}` in\n{}", self.metrics.text()))
    }

    fn shard(&self) -> Shard {
        Shard::of(&id("any"), 1)
    }

    /// Writes a task into any lane, without the intake's checks.
    async fn put_unchecked(&self, name: &str, lane: &str, due: Timestamp) {
        let lane: Lane = lane.parse().unwrap();
        let record = Record::new(task(When::At(due)), lane.clone(), due).encode();
        let puts = vec![Put { id: id(name), lane, due, record }];
        self.timeline.put(self.shard(), PutMode::Put, puts, self.soon()).await.unwrap();
    }

    fn soon(&self) -> Timestamp {
        self.clock.now().plus(seconds(1))
    }
}

#[tokio::test(start_paused = true)]
async fn claims_publishes_and_deaths_are_counted_by_their_outcome() {
    let bed = Bed::start_with(|config| config.dead_cap = DeadCap::of(1));
    bed.sink.answer_by(|message| match (message.task.as_str(), message.attempt) {
        ("shaky", 1) => unclear("not now"),
        ("bad" | "worse", _) => Answer::Reject("no".into()),
        _ => Answer::Accept,
    });
    bed.put(["a", "b", "shaky", "bad", "worse"].map(|name| (name, after(seconds(1))))).await;
    bed.pass(seconds(5)).await;
    for (name, value) in [
        ("punctual_claims_total{lane=\"default\"}", 1.0),
        ("punctual_claimed_total{lane=\"default\"}", 5.0),
        ("punctual_published_total{sink=\"sink\",outcome=\"accepted\"}", 3.0),
        ("punctual_published_total{sink=\"sink\",outcome=\"retry\"}", 1.0),
        ("punctual_published_total{sink=\"sink\",outcome=\"rejected\"}", 2.0),
        ("punctual_published_total{sink=\"other\",outcome=\"accepted\"}", 0.0),
        ("punctual_retries_total{sink=\"sink\"}", 1.0),
        ("punctual_publish_seconds_count{sink=\"sink\"}", 6.0),
        ("punctual_lateness_seconds_count{lane=\"default\"}", 3.0),
        ("punctual_lateness_seconds_bucket{le=\"0.005\",lane=\"default\"}", 2.0),
        ("punctual_dead_total{lane=\"default\",reason=\"rejected\"}", 2.0),
        ("punctual_dead_total{lane=\"default\",reason=\"poison\"}", 0.0),
        ("punctual_dead_total{lane=\"side\",reason=\"rejected\"}", 0.0),
        ("punctual_dead_dropped_total", 1.0),
        ("punctual_dead_kept", 1.0),
        ("punctual_breaker{sink=\"sink\"}", 0.0),
        ("punctual_timeline_up", 1.0),
        ("punctual_claims_lost_total{lane=\"default\"}", 0.0),
    ] {
        assert!((bed.shows(name) - value).abs() < f64::EPSILON, "{name} is not {value}:\n{}", bed.metrics.text());
    }
    // The retried message was late by its backoff: 200 to 700 ms.
    let late = bed.shows("punctual_lateness_seconds_sum{lane=\"default\"}");
    assert!((0.2..0.8).contains(&late), "{late}");
    assert!(!bed.metrics.text().contains("shaky"), "no task's id");
}

#[tokio::test(start_paused = true)]
async fn metrics_show_waiting_in_flight_and_overdue_occurrences_of_each_lane() {
    let bed = Bed::start();
    let depth = |name: &str, lane: &str| bed.shows(&format!("punctual_{name}{{lane=\"{lane}\"}}"));
    let expect = |name: &str, lanes: [f64; 3]| {
        for (lane, value) in ["default", "side", "other"].into_iter().zip(lanes) {
            assert!((depth(name, lane) - value).abs() <= 1.1, "{name} of {lane} is not {value}");
        }
    };
    bed.sink.answer_by(|_| Answer::Hang);
    bed.put(["a", "b", "c", "d"].map(|name| (name, after(seconds(1))))).await;
    bed.put_into("side", [("later", after(seconds(3600)))]).await;
    bed.other.set_unavailable(true);
    bed.put_into("other", ["x", "y"].map(|name| (name, after(millis(10))))).await;
    bed.pass(millis(2500)).await;
    let exactly = |name: &str, lanes: [f64; 3]| {
        let found = ["default", "side", "other"].map(|lane| depth(name, lane));
        assert_eq!(found, lanes, "{name}");
    };
    exactly("pending", [0.0, 1.0, 2.0]);
    exactly("in_flight", [4.0, 0.0, 0.0]);
    exactly("lane_served", [1.0, 1.0, 1.0]);
    // An occurrence that is claimed but not accepted counts as late, too.
    expect("oldest_due_seconds", [1.0, 0.0, 2.0]);
    assert!(depth("oldest_due_seconds", "default") > 0.5);
    bed.pass(seconds(60)).await;
    expect("oldest_due_seconds", [61.0, 0.0, 62.0]);
    assert!(depth("oldest_due_seconds", "other") > 60.0);
    bed.other.set_unavailable(false);
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(10)).await;
    exactly("pending", [0.0, 1.0, 0.0]);
    exactly("in_flight", [0.0, 0.0, 0.0]);
    exactly("oldest_due_seconds", [0.0, 0.0, 0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_breaker_and_a_timeline_that_is_away_are_shown() {
    let bed = Bed::start();
    bed.pass(seconds(1)).await;
    bed.sink.set_unavailable(true);
    bed.put([("a", after(millis(10)))]).await;
    bed.pass(seconds(1)).await;
    assert_eq!(["sink", "other"].map(|sink| bed.shows(&format!("punctual_breaker{{sink=\"{sink}\"}}"))), [2.0, 0.0]);
    bed.timeline.set_link_down("test");
    bed.pass(millis(100)).await;
    assert_eq!(bed.shows("punctual_timeline_up"), 0.0);
    bed.sink.set_unavailable(false);
    bed.timeline.set_link_up();
    bed.pass(seconds(20)).await;
    assert_eq!((bed.shows("punctual_timeline_up"), bed.shows("punctual_breaker{sink=\"sink\"}")), (1.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn passed_over_occurrences_count_by_catch_up_and_a_late_one_shot_is_dead() {
    let bed = Bed::start();
    bed.timeline.set_link_down("test");
    bed.timeline.set_link_up();
    let with = |mut task: Task, catch_up| {
        task.catch_up = Some(catch_up);
        task
    };
    let kinds = [("once", CatchUp::Once), ("all", CatchUp::All), ("none", CatchUp::None)];
    bed.put(kinds.map(|(name, catch_up)| (name, with(every(seconds(1), 100_000), catch_up)))).await;
    bed.put([("order", with(after(seconds(10)), CatchUp::None))]).await;
    bed.pass(millis(500)).await;
    bed.timeline.set_link_down("test");
    bed.pass(seconds(300)).await;
    bed.timeline.set_link_up();
    bed.pass(seconds(2)).await;
    let passed = |reason| bed.shows(&format!("punctual_passed_over_total{{lane=\"default\",reason=\"{reason}\"}}"));
    // About 300 occurrences came due, the last 60 of them within the grace. `once` publishes the first, `all` also the
    // last 100 before those.
    for (reason, count) in [("once", 239.0), ("all", 139.0), ("none", 240.0)] {
        assert!((passed(reason) - count).abs() <= 2.0, "{reason}: {}", passed(reason));
    }
    assert_eq!(bed.shows("punctual_dead_total{lane=\"default\",reason=\"too late\"}"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn occurrences_left_by_dead_instances_and_lost_claims_are_counted() {
    let bed = Bed::start();
    let now = bed.clock.now();
    bed.put_unchecked("gone", "side", now).await;
    bed.put_unchecked("also-gone", "side", now).await;
    let request = ClaimRequest {
        token: Token("dead-instance.1".into()),
        max: 10,
        max_bytes: 1 << 20,
        lease: seconds(5),
        not_after: bed.soon(),
        newest_first: false,
        after: None,
    };
    let claimed = bed.timeline.claim(bed.shard(), &"side".parse().unwrap(), request).await.unwrap();
    assert_eq!(claimed.occurrences.len(), 2, "another instance took them and died");
    bed.pass(seconds(8)).await;
    let of = |name: &str, lane: &str| bed.shows(&format!("punctual_{name}_total{{lane=\"{lane}\"}}"));
    assert_eq!(
        [of("leases_reaped", "side"), of("occurrences_reaped", "side"), of("stranded", "side")],
        [1.0, 2.0, 0.0]
    );
    assert_eq!(bed.sink.accepted(), 2);

    // Another process deletes the lease of this claim, then a record.
    bed.sink.answer_by(|_| Answer::Hang);
    bed.put([("a", after(millis(10))), ("b", after(seconds(30)))]).await;
    bed.pass(millis(200)).await;
    bed.timeline.edit(bed.shard(), |twin| {
        twin.leases.clear();
        twin.claims.clear();
    });
    bed.sink.answer_by(|_| Answer::Accept);
    bed.pass(seconds(8)).await;
    assert_eq!([of("claims_lost", "default"), of("stranded", "default"), of("removed", "default")], [1.0, 1.0, 0.0]);
    bed.timeline.edit(bed.shard(), |twin| twin.tasks.clear());
    bed.pass(seconds(30)).await;
    assert_eq!(of("removed", "default"), 1.0);
}

#[tokio::test(start_paused = true)]
async fn metrics_show_an_unserved_lane_until_it_is_forgotten() {
    let bed = Bed::start();
    bed.pass(seconds(2)).await;
    assert_eq!(bed.shows("punctual_lanes_unserved"), 0.0);
    let due = bed.clock.now().plus(seconds(1));
    bed.put_unchecked("lost", "unserved", due).await;
    bed.pass(seconds(10)).await;
    assert_eq!(bed.shows("punctual_lanes_unserved"), 1.0);
    let of = |name: &str| bed.shows(&format!("punctual_{name}{{lane=\"unserved\"}}"));
    assert_eq!([of("pending"), of("in_flight"), of("lane_served")], [1.0, 0.0, 0.0]);
    assert!(of("oldest_due_seconds") > 7.0);
    bed.timeline.cancel(bed.shard(), &id("lost"), None, bed.soon()).await.unwrap();
    bed.pass(seconds(10)).await;
    assert_eq!(bed.shows("punctual_lanes_unserved"), 0.0);
    for name in ["pending", "in_flight", "lane_served", "oldest_due_seconds"] {
        assert_eq!(find(&bed.metrics, &format!("punctual_{name}{{lane=\"unserved\"}}")), None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_the_timeline_are_counted_by_verb_and_result_and_timed() {
    let clock: Arc<dyn Clock> = Arc::new(LocalClock::new());
    let memory = Arc::new(MemoryTimeline::new(Arc::clone(&clock), 1));
    let metrics = Arc::new(Metrics::new("0", "i0"));
    memory.count_calls(Arc::clone(&metrics));
    let (shard, key) = (Shard::of(&id("a"), 1), Key { task: id("a"), due: clock.now() });
    memory.fail_next(Verb::Get, InjectedFault::Refused("OOM".into()));
    memory.fail_next(Verb::Cancel, InjectedFault::CallLost);
    assert!(memory.get(shard, &id("a")).await.is_err());
    assert!(memory.get(shard, &id("a")).await.is_ok());
    assert!(memory.cancel(shard, &id("a"), None, clock.now().plus(seconds(1))).await.is_err());
    assert!(memory.discard(shard, &key, None, clock.now().minus(seconds(1))).await.is_err());
    memory.set_link_down("test");
    assert!(memory.get(shard, &id("a")).await.is_err());
    for (verb, result) in
        [("get", "refused"), ("get", "ok"), ("cancel", "unknown"), ("discard", "late"), ("get", "unavailable")]
    {
        let name = format!("punctual_timeline_calls_total{{verb=\"{verb}\",result=\"{result}\"}}");
        assert_eq!(find(&metrics, &name), Some(1.0), "{name}");
    }
    assert_eq!(find(&metrics, "punctual_timeline_call_seconds_count{verb=\"get\"}"), Some(3.0));
    let waited = find(&metrics, "punctual_timeline_call_seconds_sum{verb=\"cancel\"}").unwrap();
    assert!(waited >= 1.0, "a lost call is reported only after its deadline: {waited} s");
}
