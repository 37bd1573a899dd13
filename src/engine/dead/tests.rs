//! Pages and bulk requests over the dead of several shards, against the timeline in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::clock::{Clock, ManualClock};
use crate::engine::dead::{MAX_BULK_READ_PAUSE, RequeueError};
use crate::engine::intake::LaneRequirements;
use crate::task::{Key, Lane, Member, Record, Shard, When, samples};
use crate::timeline::memory::{InjectedFault, MemoryTimeline};
use crate::timeline::{DeadRecord, Timeline, Verb};

const SHARDS: u16 = 4;
const SECOND: Duration = Duration::from_secs(1);

/// An API with so many dead occurrences on four shards, which died in an order unlike that of their keys.
fn with_dead(count: u16) -> (Intake, Vec<Key>) {
    let (intake, _, _, keys) = stage(count);
    (intake, keys)
}

fn stage(count: u16) -> (Intake, Arc<MemoryTimeline>, Arc<ManualClock>, Vec<Key>) {
    let clock = Arc::new(ManualClock::new(samples::NOW));
    let timeline = Arc::new(MemoryTimeline::new(clock.clone(), SHARDS));
    let mut cursors = Vec::new();
    for number in 0..count {
        let due = clock.now().minus(SECOND);
        let key = Key { task: format!("t{number}").parse().unwrap(), due };
        let record = Record::new(samples::task(When::At(due)), Lane::default(), due).of_dead(key.clone()).encode();
        let reason = if number % 50 == 7 { "poison" } else { "rejected" };
        let dead_record = DeadRecord { record, reason: reason.into(), detail: String::new() };
        let died = clock.now().minus(Duration::from_millis(u64::from(number) * 7919 % 101));
        timeline.edit(Shard::of(&key.task, SHARDS), |twin| {
            twin.dead.set(key.to_string().into(), died.as_millis());
            twin.dead_records.insert(key.to_string().into(), dead_record);
        });
        cursors.push(DeadCursor { died, key });
    }
    cursors.sort();
    let served = BTreeMap::from([(
        Lane::default(),
        LaneRequirements { destination: Some("news".to_owned()), ..LaneRequirements::default() },
    )]);
    let intake = Intake::new(timeline.clone(), served);
    (intake, timeline, clock, cursors.into_iter().map(|cursor| cursor.key).collect())
}

async fn all(intake: &Intake, filter: &DeadFilter, max: usize) -> Vec<Key> {
    let (mut keys, mut after) = (Vec::new(), None);
    loop {
        // No patience: a page ends after one look.
        let page = intake.dead(filter, after, max, Duration::ZERO).await.unwrap();
        assert!(page.dead.len() <= max);
        keys.extend(page.dead.into_iter().map(|dead| dead.cursor.key));
        after = page.next;
        if after.is_none() {
            return keys;
        }
    }
}

#[tokio::test]
async fn pages_list_each_dead_occurrence_of_all_shards_once_and_the_oldest_first() {
    let (intake, expected) = with_dead(400);
    for max in [1, 7, 100, 1000] {
        assert!(all(&intake, &DeadFilter::default(), max).await == expected, "{max} a page");
    }
    let poison = DeadFilter { reason: Some("poison".into()), ..DeadFilter::default() };
    let few: Vec<Key> = all(&intake, &poison, 3).await;
    let meant = |key: &&Key| key.task.as_str()[1..].parse::<u16>().unwrap() % 50 == 7;
    assert_eq!(few, expected.iter().filter(meant).cloned().collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dead_occurrence_without_a_destination_shows_the_one_of_its_lane() {
    let (intake, expected) = with_dead(1);
    let (summary, record) = intake.dead_one(&expected[0]).await.unwrap().unwrap();
    assert_eq!(summary.destination, record.task.message.destination.or(Some("news".to_owned())));
    assert_eq!(summary.lane, Some(Lane::default()));
    assert!(intake.dead_one(&"none:1".parse().unwrap()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_bulk_requeue_goes_through_all_shards_and_ends() {
    let (intake, expected) = with_dead(3000);
    let filter = DeadFilter { reason: Some("rejected".into()), ..DeadFilter::default() };
    let (mut done, mut from, mut rounds) = (0, None, 0);
    loop {
        let result = intake.requeue_all(&filter, from, Duration::ZERO).await.unwrap();
        done += result.done;
        rounds += 1;
        from = result.next;
        if from.is_none() {
            break;
        }
    }
    let left = all(&intake, &DeadFilter::default(), 1000).await;
    assert_eq!((done as usize + left.len(), left.len()), (expected.len(), 60));
    // The time is looked at before each: a request whose time is up begins no more than the first few.
    assert!(rounds >= expected.len() / MAX_CONCURRENT, "{rounds}");
}

#[tokio::test]
async fn a_bulk_requeue_reports_an_unknown_result_before_a_definite_refusal() {
    let (intake, timeline, clock, _) = stage(2);
    timeline.fail_next(Verb::Requeue, InjectedFault::ReplyLost);
    timeline.fail_next(Verb::Requeue, InjectedFault::Refused("OOM".into()));
    let filter = DeadFilter::default();
    let position = intake.requeue_all(&filter, None, SECOND);
    let pass = async {
        tokio::task::yield_now().await;
        clock.advance(SECOND * 2);
    };
    let (result, ()) = tokio::join!(position, pass);
    assert!(matches!(result, Err(TimelineError::Unknown(_))), "{result:?}");
}

#[tokio::test]
async fn occurrences_that_stay_dead_are_counted_once_even_if_a_slice_fails() {
    let (intake, timeline, clock, keys) = stage(3);
    // The first gets no answer, the second is in flight, the third is requeued.
    timeline.edit(Shard::of(&keys[1].task, SHARDS), |twin| {
        twin.tasks.insert(Member::requeued(&keys[1]), bytes::Bytes::new());
    });
    timeline.fail_next(Verb::Requeue, InjectedFault::ReplyLost);
    let pass = async {
        while intake.dead_one(&keys[2]).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
        clock.advance(SECOND * 2);
    };
    let filter = DeadFilter::default();
    let (first, ()) = tokio::join!(intake.requeue_all(&filter, None, SECOND), pass);
    let first = first.unwrap();
    assert_eq!((first.done, first.in_flight), (1, 0));
    let second = intake.requeue_all(&filter, first.next, SECOND).await.unwrap();
    assert_eq!((second.done, second.in_flight, second.next), (0, 1, None));
}

#[tokio::test]
async fn a_requeue_leaves_unreadable_and_unserved_occurrences_dead() {
    let (intake, timeline, _, keys) = stage(3);
    let other = "gone".parse::<Lane>().unwrap();
    timeline.edit(Shard::of(&keys[0].task, SHARDS), |twin| {
        let dead_record = twin.dead_records.get_mut(keys[0].to_string().as_str()).unwrap();
        let record = Record::decode(&dead_record.record).unwrap();
        dead_record.record = Record { lane: other.clone(), ..record }.encode();
    });
    timeline.edit(Shard::of(&keys[1].task, SHARDS), |twin| {
        twin.dead_records.get_mut(keys[1].to_string().as_str()).unwrap().record = "x".into();
    });
    let never = Timestamp::from_millis(i64::MAX);
    let damaged = timeline.requeue(Shard::of(&keys[1].task, SHARDS), &keys[1], None, never).await;
    assert_eq!(damaged, Ok(RequeueAnswer::Unreadable));
    let one = intake.requeue(&keys[0], SECOND).await;
    assert!(
        matches!(&one, Err(RequeueError::UnknownLane(error)) if error.to_string().contains(other.as_str())),
        "{one:?}"
    );
    assert!(matches!(intake.requeue(&keys[1], SECOND).await, Err(RequeueError::Record(_))));
    let result = intake.requeue_all(&DeadFilter::default(), None, SECOND).await.unwrap();
    assert_eq!(result, BulkResult { done: 1, unserved: 1, unreadable: 1, ..BulkResult::default() });
    assert_eq!(all(&intake, &DeadFilter::default(), 10).await, &keys[..2]);
}

/// Another caller may have requeued it, and it may have died again for another reason than the one in the filter.
#[tokio::test]
async fn an_occurrence_that_died_again_after_the_scan_is_left_alone() {
    for action in [BulkAction::Requeue, BulkAction::Discard] {
        let (intake, timeline, clock, keys) = stage(3);
        let (dead, _) = intake.browse_all_shards(&DeadFilter::default(), None, SLICE_ENTRIES, true).await.unwrap();
        clock.advance(SECOND);
        timeline.edit(Shard::of(&keys[1].task, SHARDS), |twin| {
            twin.dead.set(keys[1].to_string().into(), clock.now().as_millis());
            twin.dead_records.get_mut(keys[1].to_string().as_str()).unwrap().reason = "too late".into();
        });
        let (mut result, not_after) = (BulkResult::default(), intake.all_shards_until(SECOND));
        let (_, end) = intake.bulk_slice(action, &dead, |_| true, &not_after, &mut result).await;
        assert!(matches!(end, SliceEnd::Complete));
        assert_eq!(result, BulkResult { done: 2, ..BulkResult::default() });
        assert_eq!(all(&intake, &DeadFilter::default(), 10).await, [keys[1].clone()]);
    }
}

/// Any number of callers may browse the dead at once. The pause between two browses leaves time for all other calls.
#[tokio::test(start_paused = true)]
async fn a_browse_of_the_dead_waits_for_the_previous_one_and_for_its_pause() {
    let (intake, _) = with_dead(10);
    let held = intake.bulk_read_lock.clone().lock_owned().await;
    let (filter, begun) = (DeadFilter::default(), Instant::now());
    let look = || intake.dead(&filter, None, 1, SECOND);
    let release = async move {
        let mut held = held;
        tokio::time::sleep(SECOND).await;
        *held = Some(Instant::now() + MAX_BULK_READ_PAUSE);
    };
    let (one, two, ()) = tokio::join!(look(), look(), release);
    assert_eq!(one.unwrap(), two.unwrap());
    assert!(begun.elapsed() >= SECOND + MAX_BULK_READ_PAUSE);
}
