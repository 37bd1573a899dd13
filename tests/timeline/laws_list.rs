//! Lists: what stays is listed, whatever happens to other tasks, and a filter selects.

use std::collections::BTreeSet;

use punctual::clock::Timestamp;
use punctual::task::TaskId;
use punctual::timeline::{
    CountRequest, DuePosition, LaneCounts, MAX_UPCOMING, PauseNote, PutMode, RequeueAnswer, RestOfClaim, ScanRequest,
    ScannedTask, TaskFilter, TaskPauseRequest, TaskStatus, Upcoming, UpcomingRequest, Verdict,
};

use super::stage::{Stage, at, dead_record, key, lane, ms, once, settlement};

super::laws! {
    every_task_that_stays_is_listed_whatever_happens_to_others,
    a_list_shows_only_tasks_that_match_its_filter,
    what_is_upcoming_is_listed_by_due_and_id,
    counts_equal_the_lists,
}

impl Stage {
    async fn scan_all(&self, filter: TaskFilter, count: usize) -> Vec<ScannedTask> {
        let (mut tasks, mut cursor) = (Vec::new(), 0);
        loop {
            let request = ScanRequest { filter: filter.clone(), cursor, count };
            let scanned = self.timeline.scan(self.shard(), &lane(), request).await.unwrap();
            tasks.extend(scanned.tasks);
            cursor = scanned.cursor;
            if cursor == 0 {
                tasks.sort();
                tasks.dedup();
                return tasks;
            }
        }
    }

    async fn upcoming(&self, after: DuePosition, max: usize, prefix: &str) -> Upcoming {
        let request = UpcomingRequest { after, max, prefix: prefix.to_owned() };
        self.timeline.upcoming(self.shard(), &lane(), request).await.unwrap()
    }

    /// All that is upcoming from `from` on, and the number of calls.
    async fn all_upcoming(&self, from: Timestamp, max: usize, prefix: &str) -> (Vec<(Timestamp, TaskId)>, usize) {
        let (mut tasks, mut next, mut calls) = (Vec::new(), Some(DuePosition { due: from, member: None }), 0);
        while let Some(after) = next {
            let read = self.upcoming(after, max, prefix).await;
            assert!(read.tasks.len() <= max);
            tasks.extend(read.tasks);
            (next, calls) = (read.last, calls + 1);
        }
        (tasks, calls)
    }

    async fn put_all(&self, ids: &[TaskId], due: i64) {
        let puts = ids.iter().map(|id| once(id, at(due), "a")).collect();
        self.timeline.put(self.shard(), PutMode::Put, puts, self.soon()).await.unwrap();
    }
}

async fn every_task_that_stays_is_listed_whatever_happens_to_others(stage: Stage) {
    let ids = stage.ids(5000);
    let (staying, others) = ids.split_at(2000);
    let (leaving, coming) = others.split_at(1500);
    for ids in staying.chunks(1000) {
        stage.put_all(ids, 0).await;
    }
    for ids in leaving.chunks(1000) {
        stage.put_all(ids, 1000).await;
    }
    let (mut seen, mut cursor, mut parts) = (BTreeSet::new(), 0, 0);
    loop {
        let request = ScanRequest { filter: TaskFilter::default(), cursor, count: 100 };
        let scanned = stage.timeline.scan(stage.shard(), &lane(), request).await.unwrap();
        seen.extend(scanned.tasks.into_iter().map(|task| task.id));
        cursor = scanned.cursor;
        if cursor == 0 {
            break;
        }
        // Tasks come and go, so that the table of the server grows and shrinks, and those that stay are claimed and
        // return, are paused and are resumed.
        match parts % 4 {
            0 => stage.put_all(&coming[(parts * 40).min(1400)..(parts * 40 + 160).min(1500)], 2000).await,
            1 => {
                for id in leaving.iter().skip((parts - 1) * 40).take(160) {
                    stage.cancel(id).await;
                }
            }
            2 => {
                for (n, id) in staying.iter().enumerate().skip(parts * 10).step_by(3).take(60) {
                    let pause = TaskPauseRequest::Pause(PauseNote::default());
                    let request = if n % 2 == 0 { pause } else { TaskPauseRequest::Resume };
                    stage.timeline.pause(stage.shard(), id, request, stage.soon()).await.unwrap();
                }
            }
            _ => {
                let (token, _) = stage.claim().await;
                stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
            }
        }
        parts += 1;
    }
    assert!(parts > 10, "{parts} parts");
    let missing: Vec<_> = staying.iter().filter(|id| !seen.contains(id)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

async fn a_list_shows_only_tasks_that_match_its_filter(stage: Stage) {
    let ids = stage.ids(200);
    stage.put_all(&ids[..1], 0).await;
    let (token, claimed) = stage.claim().await;
    let dead = settlement(&claimed.occurrences[0], Verdict::Dead(dead_record(&claimed.occurrences[0], "rejected")));
    stage.settle(&token, RestOfClaim::Back, vec![dead]).await;
    // It waits, but is no task.
    let requeued = stage.timeline.requeue(stage.shard(), &key(&ids[0], at(0)), None, stage.soon()).await;
    assert_eq!(requeued, Ok(RequeueAnswer::Requeued));
    stage.put_all(&ids[1..5], 0).await;
    let (_, claimed) = stage.claim().await;
    assert_eq!(claimed.occurrences.len(), 5, "with the requeued one");
    stage.clock.advance(ms(10));
    stage.put_all(&ids[5..10], 0).await;
    stage.clock.advance(ms(2000));
    stage.put_all(&ids[10..20], 1).await;
    stage.put_all(&ids[20..], 100_000).await;
    let wanted = |range: std::ops::Range<usize>| ids[range].iter().cloned().collect::<BTreeSet<_>>();
    let filter = |status| TaskFilter { status, ..TaskFilter::default() };
    let due = |from, to| TaskFilter { due_from: from, due_to: to, ..TaskFilter::default() };
    let id = ids[30].as_str();
    for (filter, range) in [
        (TaskFilter::default(), 1..200),
        (filter(Some(TaskStatus::InFlight)), 1..5),
        (filter(Some(TaskStatus::Scheduled)), 5..200),
        (due(Some(at(1)), None), 10..200),
        (due(Some(at(1)), Some(at(100))), 10..20),
        (due(None, Some(at(1))), 1..10),
        (TaskFilter { prefix: id.to_owned(), ..TaskFilter::default() }, 30..31),
        (TaskFilter { contains: id[1..].to_owned(), ..TaskFilter::default() }, 30..31),
        (TaskFilter { contains: "%a".to_owned(), ..TaskFilter::default() }, 0..0),
    ] {
        for count in [7, 1000] {
            let seen: BTreeSet<_> =
                stage.scan_all(filter.clone(), count).await.into_iter().map(|task| task.id).collect();
            assert_eq!(seen, wanted(range.clone()), "{filter:?}");
        }
    }
    // Overdue by a second: those that were due 2010 and 2009 ms ago, but not what is claimed.
    let overdue = stage.scan_all(filter(Some(TaskStatus::Overdue)), 50).await;
    assert_eq!(overdue.iter().map(|task| task.id.clone()).collect::<BTreeSet<_>>(), wanted(5..20));
    assert!(overdue.iter().all(|task| !task.in_flight && [at(0), at(1)].contains(&task.due)), "{overdue:?}");
}

async fn what_is_upcoming_is_listed_by_due_and_id(stage: Stage) {
    let mut ids = stage.ids(600);
    ids.sort();
    assert_eq!(stage.all_upcoming(at(0), 10, "").await, (Vec::new(), 1));
    // One dies and is requeued: it waits, but is no task. Another one is in flight.
    stage.put_all(&ids[..1], 0).await;
    let (token, claimed) = stage.claim().await;
    let dead = settlement(&claimed.occurrences[0], Verdict::Dead(dead_record(&claimed.occurrences[0], "rejected")));
    stage.settle(&token, RestOfClaim::Back, vec![dead]).await;
    stage.put_all(&ids[1..2], 0).await;
    assert_eq!(stage.claim().await.1.occurrences.len(), 1);
    let requeued = stage.timeline.requeue(stage.shard(), &key(&ids[0], at(0)), None, stage.soon()).await;
    assert_eq!(requeued, Ok(RequeueAnswer::Requeued));
    // Many with one due; one with the highest id is due earlier, and one with a low id later.
    let (first, last) = (&ids[599], &ids[2]);
    stage.put_all(&ids[3..599], 5000).await;
    stage.put_all(std::slice::from_ref(first), 4000).await;
    stage.put_all(std::slice::from_ref(last), 6000).await;
    let mut expected = vec![(at(4000), first.clone())];
    expected.extend(ids[3..599].iter().map(|id| (at(5000), id.clone())));
    expected.push((at(6000), last.clone()));
    for max in [1, 7, 64, MAX_UPCOMING] {
        assert_eq!(stage.all_upcoming(at(0), max, "").await.0, expected, "{max} a call");
    }
    assert_eq!(stage.all_upcoming(at(5000), 100, "").await.0, expected[1..]);
    assert_eq!(stage.all_upcoming(at(5001), 100, "").await.0, expected[597..]);
    assert_eq!(stage.all_upcoming(at(6001), 100, "").await, (Vec::new(), 1));
    // A call reads 256 members, also if none has the prefix.
    assert_eq!(stage.all_upcoming(at(0), 100, ids[590].as_str()).await, (vec![(at(5000), ids[590].clone())], 3));
    let read = stage.upcoming(DuePosition { due: at(0), member: None }, 100, "none").await;
    assert!(read.tasks.is_empty() && read.last.is_some(), "{read:?}");
}

async fn counts_equal_the_lists(stage: Stage) {
    let count = async |borders: &[i64]| {
        let request = CountRequest { borders: borders.iter().map(|border| at(*border)).collect() };
        stage.timeline.count(stage.shard(), &lane(), request).await.unwrap()
    };
    let ids = stage.ids(300);
    assert_eq!(count(&[]).await, LaneCounts::default());
    assert_eq!(count(&[0, 10, 20]).await, LaneCounts { windows: vec![0, 0], ..LaneCounts::default() });
    stage.put_all(&ids[..7], 0).await;
    assert_eq!(stage.claim().await.1.occurrences.len(), 7);
    stage.put_all(&ids[7..20], 0).await;
    stage.put_all(&ids[20..120], 500).await;
    stage.put_all(&ids[120..300], 50_000).await;
    stage.clock.advance(ms(1499));
    let windows = vec![13, 0, 100, 0];
    let expected = LaneCounts { waiting: 293, overdue: 13, in_flight: 7, paused: 0, windows };
    assert_eq!(
        count(&[0, 1, 500, 501, 50_000]).await,
        expected,
        "a window begins at its border and ends before the next"
    );
    stage.clock.advance(ms(1));
    let counted = count(&[0, 50_001]).await;
    assert_eq!(counted, LaneCounts { waiting: 293, overdue: 113, in_flight: 7, paused: 0, windows: vec![293] });
    for (status, number) in [
        (TaskStatus::Scheduled, counted.waiting),
        (TaskStatus::Overdue, counted.overdue),
        (TaskStatus::InFlight, counted.in_flight),
    ] {
        let listed = stage.scan_all(TaskFilter { status: Some(status), ..TaskFilter::default() }, 100).await;
        assert_eq!(listed.len() as u64, number, "{status:?}");
    }
}
