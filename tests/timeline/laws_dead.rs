//! Dead records: listed in the order in which they were recorded, in pages of bounded size, while other verbs run.

use std::collections::BTreeSet;

use punctual::task::{Counts, Key, TaskId};
use punctual::timeline::{
    BrowseRequest, Browsed, ClaimRequest, DeadCap, DeadCursor, DeadFilter, MAX_BROWSED, MAX_BROWSED_BYTES, PutMode,
    RequeueAnswer, RestOfClaim, Settle, Settlement, Verdict,
};

use super::stage::{LEASE, Stage, at, dead_record, every, key, lane, lane_named, ms, next, once, once_in, settlement};

super::laws! {
    the_dead_are_shown_in_the_order_of_their_deaths,
    every_dead_is_shown_once_though_others_go_and_come,
    a_filter_shows_only_the_dead_occurrences_that_match_it,
    a_requeue_or_discard_that_names_a_time_of_death_affects_only_that_death,
    of_two_deaths_under_one_key_that_of_the_task_is_kept,
    a_look_at_the_dead_is_bounded_in_entries_and_bytes,
    dead_records_are_kept_exactly_as_they_were_written,
}

impl Stage {
    /// Records an occurrence of each task as dead, all in one millisecond, in the default lane.
    async fn make_dead(&self, ids: &[TaskId], reason: &str, payload: &str) -> Vec<Key> {
        for ids in ids.chunks(500) {
            let puts = ids.iter().map(|id| once(id, at(0), payload)).collect();
            self.timeline.put(self.shard(), PutMode::Put, puts, self.soon()).await.unwrap();
            loop {
                let (token, claimed) = self.claim().await;
                if claimed.occurrences.is_empty() {
                    break;
                }
                let dead =
                    claimed.occurrences.iter().map(|one| settlement(one, Verdict::Dead(dead_record(one, reason))));
                let settle = Settle {
                    token,
                    verdicts: dead.collect(),
                    rest: RestOfClaim::Keep,
                    lease: LEASE,
                    dead_cap: DeadCap::of(1 << 40),
                    quiet: false,
                };
                self.timeline.settle(self.shard(), &lane(), settle).await.unwrap();
            }
        }
        ids.iter().map(|id| key(id, at(0))).collect()
    }

    async fn browse(&self, filter: &DeadFilter, after: Option<DeadCursor>, max: usize) -> Browsed {
        let request = BrowseRequest { filter: filter.clone(), after, max, whole: false };
        self.timeline.browse(self.shard(), request).await.unwrap()
    }

    /// All matching records, page by page, and the number of pages.
    async fn browse_all(&self, filter: &DeadFilter, max: usize) -> (Vec<Key>, usize) {
        let (mut keys, mut after, mut looks) = (Vec::new(), None, 0);
        loop {
            let browsed = self.browse(filter, after.clone(), max).await;
            keys.extend(browsed.dead.iter().map(|dead| dead.cursor.key.clone()));
            looks += 1;
            assert!(browsed.last.is_none() || browsed.last > after, "it goes on");
            after = browsed.last;
            if after.is_none() {
                return (keys, looks);
            }
        }
    }
}

async fn the_dead_are_shown_in_the_order_of_their_deaths(stage: Stage) {
    let ids = stage.ids(7);
    let mut died = Vec::new();
    // Later ids first; two in one millisecond are ordered by key.
    for part in [&ids[5..7], &ids[2..4], &ids[0..1]] {
        stage.clock.advance(ms(5));
        died.extend(stage.make_dead(part, "rejected", "a").await);
    }
    for max in [1, 2, 5, 1000] {
        assert_eq!(stage.browse_all(&DeadFilter::default(), max).await.0, died, "{max} at a time");
    }
    let first = stage.browse(&DeadFilter::default(), None, 1).await;
    assert_eq!(first.last, Some(DeadCursor { died: at(5), key: died[0].clone() }));
    assert_eq!(stage.browse(&DeadFilter::default(), None, 5).await.last, None, "there are no others");
}

async fn every_dead_is_shown_once_though_others_go_and_come(stage: Stage) {
    let ids = stage.ids(40);
    let died = stage.make_dead(&ids[..30], "rejected", "a").await;
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let browsed = stage.browse(&DeadFilter::default(), after, 3).await;
        for dead in &browsed.dead {
            seen.push(dead.cursor.key.clone());
            // The record that the next page continues after is gone by then.
            assert_eq!(stage.timeline.discard(stage.shard(), &dead.cursor.key, None, stage.soon()).await, Ok(true));
        }
        if seen.len() == 15 {
            stage.clock.advance(ms(1));
            stage.make_dead(&ids[30..], "rejected", "a").await;
        }
        let Some(last) = browsed.last else { break };
        after = Some(last);
    }
    assert_eq!(seen[..30], died);
    assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), 40);
    assert!(stage.state().dead.is_empty());
}

async fn a_filter_shows_only_the_dead_occurrences_that_match_it(stage: Stage) {
    let ids = stage.ids(4);
    stage.clock.set(at(10));
    let rejected = stage.make_dead(&ids[..1], "rejected", "a").await.remove(0);
    stage.clock.set(at(20));
    let late = stage.make_dead(&ids[1..2], "too late", "a").await.remove(0);
    let other = lane_named("other");
    stage.create(once_in(&ids[2], at(0), "a", &other)).await;
    let request = stage.request();
    let token = request.token.clone();
    let claimed = stage.timeline.claim(stage.shard(), &other, request).await.unwrap();
    let one = &claimed.occurrences[0];
    let verdicts = vec![settlement(one, Verdict::Dead(dead_record(one, "rejected")))];
    let settle =
        Settle { token, verdicts, rest: RestOfClaim::Keep, lease: LEASE, dead_cap: DeadCap::of(9), quiet: false };
    stage.timeline.settle(stage.shard(), &other, settle).await.unwrap();
    let elsewhere = key(&ids[2], at(0));

    let all = [&rejected, &late, &elsewhere];
    let filter = |lane: Option<&str>, reason: Option<&str>, from: Option<i64>, to: Option<i64>| DeadFilter {
        lane: lane.map(lane_named),
        reason: reason.map(str::to_owned),
        from: from.map(at),
        to: to.map(at),
        prefix: String::new(),
    };
    let prefix = |prefix: &str| DeadFilter { prefix: prefix.to_owned(), ..DeadFilter::default() };
    let first_id = rejected.task.as_str();
    for (filter, meant) in [
        (filter(None, None, None, None), &all[..]),
        (filter(Some("default"), None, None, None), &all[..2]),
        (filter(Some("other"), None, None, None), &all[2..]),
        (filter(Some("oth"), None, None, None), &[]),
        (filter(None, Some("rejected"), None, None), &[&rejected, &elsewhere]),
        (filter(None, Some("reject"), None, None), &[]),
        (filter(Some("default"), Some("too late"), None, None), &all[1..2]),
        (filter(Some("other"), Some("too late"), None, None), &[]),
        // From one time on, before another.
        (filter(None, None, Some(11), None), &all[1..]),
        (filter(None, None, Some(10), Some(20)), &all[..1]),
        (filter(None, None, None, Some(10)), &[]),
        (filter(None, None, Some(21), None), &[]),
        (filter(None, None, Some(20), Some(10)), &[]),
        // With a prefix.
        (prefix(first_id), &all[..1]),
        (prefix(&format!("{first_id}:")), &[]),
        (prefix(&format!("{first_id}:0")), &[]),
        (prefix(&format!("{first_id}.")), &[]),
        (DeadFilter { prefix: first_id.to_owned(), ..filter(Some("other"), None, None, None) }, &[]),
    ] {
        for max in [1, 1000] {
            let mut shown = stage.browse_all(&filter, max).await.0;
            let mut meant: Vec<Key> = meant.iter().map(|key| (*key).clone()).collect();
            shown.sort();
            meant.sort();
            assert_eq!(shown, meant, "{filter:?}");
        }
    }
}

/// The next due of a task equals that in the key of its requeued occurrence. Both die in one settle, in either order.
async fn of_two_deaths_under_one_key_that_of_the_task_is_kept(stage: Stage) {
    for (number, id) in stage.ids(2).iter().enumerate() {
        let due = at(0);
        stage.create(once(id, due, "old")).await;
        let (token, held) = stage.claim_one().await;
        stage.settle_one(&token, &held, Verdict::Dead(dead_record(&held, "rejected"))).await;
        stage.timeline.requeue(stage.shard(), &key(id, due), None, stage.soon()).await.unwrap();
        stage.create(every(id, at(-5), "new")).await;
        let request = ClaimRequest { max: 1, ..stage.request() };
        let first = stage.claim_as(request.clone()).await;
        stage.settle_one(&request.token, &first.occurrences[0], next(due, 1)).await;
        let (token, both) = stage.claim().await;
        assert_eq!(both.occurrences.len(), 2);
        let counts = Counts { dead: 1, ..Counts::default() };
        let mut verdicts: Vec<Settlement> = both
            .occurrences
            .iter()
            .map(|occurrence| {
                let dead_record = dead_record(occurrence, "rejected");
                let verdict = match occurrence.member.requeued_key() {
                    Some(_) => Verdict::Dead(dead_record),
                    None => Verdict::DeadNext { dead_record, due: at(900_000), counts },
                };
                settlement(occurrence, verdict)
            })
            .collect();
        if number == 0 {
            verdicts.reverse();
        }
        stage.settle(&token, RestOfClaim::Keep, verdicts).await;
        let kept = &stage.state().dead_records[key(id, due).to_string().as_str()];
        assert!(String::from_utf8_lossy(&kept.record).contains("new"), "{kept:?}");
        stage.cancel(id).await;
    }
}

/// Between listing and acting on a key, another client may requeue it, and it may die again for another reason.
async fn a_requeue_or_discard_that_names_a_time_of_death_affects_only_that_death(stage: Stage) {
    let (ids, shard) = (stage.ids(1), stage.shard());
    let key = stage.make_dead(&ids, "rejected", "a").await.remove(0);
    let requeue = |died: Option<i64>| stage.timeline.requeue(shard, &key, died.map(at), stage.soon());
    let discard = |died: Option<i64>| stage.timeline.discard(shard, &key, died.map(at), stage.soon());
    assert_eq!(requeue(Some(0)).await, Ok(RequeueAnswer::Requeued));
    assert_eq!(requeue(Some(0)).await, Ok(RequeueAnswer::Unknown), "another was faster");
    assert_eq!(requeue(None).await, Ok(RequeueAnswer::InFlight));
    stage.clock.advance(ms(5));
    let (token, one) = stage.claim_one().await;
    stage.settle_one(&token, &one, Verdict::Dead(dead_record(&one, "too late"))).await;
    let before = stage.state();
    for other in [0, 4, 6] {
        assert_eq!(requeue(Some(other)).await, Ok(RequeueAnswer::Unknown));
        assert_eq!(discard(Some(other)).await, Ok(false));
    }
    assert_eq!(stage.state(), before);
    assert_eq!(discard(Some(5)).await, Ok(true));
    assert!(stage.state().dead.is_empty());
}

async fn a_look_at_the_dead_is_bounded_in_entries_and_bytes(stage: Stage) {
    let ids = stage.ids(2106);
    stage.make_dead(&ids[..2100], "rejected", "a").await;
    let none = DeadFilter { reason: Some("poison".into()), ..DeadFilter::default() };
    let (found, looks) = stage.browse_all(&none, 1000).await;
    let expected = 2100_usize.div_ceil(MAX_BROWSED);
    assert_eq!((found.len(), looks), (0, expected), "each call browses this many, whether they match or not");
    assert_eq!(stage.browse_all(&DeadFilter::default(), 1000).await.0.len(), 2100);
    assert_eq!(stage.browse_all(&DeadFilter::default(), 5000).await.1, expected, "never more");

    stage.clock.advance(ms(1));
    let large = "x".repeat(MAX_BROWSED_BYTES * 2 / 5);
    stage.make_dead(&ids[2100..2105], "rejected", &large).await;
    stage.clock.advance(ms(1));
    stage.make_dead(&ids[2105..], "rejected", &"x".repeat(MAX_BROWSED_BYTES + 1)).await;
    let meant = DeadFilter { from: Some(at(1)), ..DeadFilter::default() };
    let mut after = None;
    let mut found = Vec::new();
    while found.is_empty() || after.is_some() {
        let request = BrowseRequest { filter: meant.clone(), after, max: 1000, whole: true };
        let browsed = stage.timeline.browse(stage.shard(), request).await.unwrap();
        found.push(browsed.dead.len());
        after = browsed.last;
    }
    assert_eq!(found, [2, 2, 1, 1], "up to so many bytes, the first whatever its size");
    assert_eq!(stage.browse_all(&meant, 1000).await.1, 1, "where nothing is read, bytes do not count");
}

async fn dead_records_are_kept_exactly_as_they_were_written(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "ä\0\n")).await;
    let (token, occurrence) = stage.claim_one().await;
    let mut died = dead_record(&occurrence, "rejected");
    died.detail = "zu groß:\n1 > 0\n".into();
    stage.clock.advance(ms(7));
    stage.settle_one(&token, &occurrence, Verdict::Dead(died.clone())).await;
    let (shard, dead) = (stage.shard(), key(&id, at(0)));
    let shown = stage.timeline.show(shard, &dead).await.unwrap().unwrap();
    assert_eq!(shown.cursor, DeadCursor { died: at(7), key: dead.clone() });
    assert_eq!(shown.dead_record, Some(died));
    let request = BrowseRequest { filter: DeadFilter::default(), after: None, max: 9, whole: true };
    assert_eq!(stage.timeline.browse(shard, request).await.unwrap().dead, [shown]);
    assert_eq!(stage.timeline.show(shard, &key(&id, at(1))).await, Ok(None));
    stage.timeline.discard(shard, &dead, None, stage.soon()).await.unwrap();
    assert_eq!(stage.timeline.show(shard, &dead).await, Ok(None));
}
