//! Never lost; one holder; settled in one step; returned with the same due.

use punctual::clock::Timestamp;
use punctual::task::Counts;
use punctual::timeline::{CancelAnswer, ClaimRequest, PutResult, RestOfClaim, Settlement, Token, Verdict};

use super::stage::{
    BACK, BACK_BEGUN, LEASE, Stage, at, dead_record, every, key, lane, member, ms, next, once, settlement,
};

super::laws! {
    a_task_is_never_in_flight_twice,
    each_claim_keeps_the_lease_length_that_it_was_made_with,
    a_killed_holders_occurrences_come_back,
    reap_restores_the_due_time,
    back_restores_the_due_time,
    a_lost_lease_cannot_settle,
    a_lease_is_lost_when_it_is_reaped_and_not_when_it_expires,
    an_extended_lease_is_not_reaped,
    settle_is_one_step,
    a_settle_repeated_changes_nothing,
    a_settle_keeps_unnamed_occurrences_in_the_claim_or_returns_them,
    a_claim_whose_reply_is_missing_is_settled_back,
    a_replaced_task_in_flight_takes_effect_when_its_claim_ends,
    a_cancelled_task_in_flight_ends_with_its_claim,
    a_cancelled_waiting_task_is_never_claimed,
    a_reap_frees_and_counts_occurrences_claimed_without_a_lease,
}

/// Instances have different leases, for example while a change is rolled out. A reaper does not shorten a longer lease.
async fn each_claim_keeps_the_lease_length_that_it_was_made_with(stage: Stage) {
    let ids = stage.ids(3);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let long = LEASE * 4;
    let claim = async |token: Token| {
        let request = ClaimRequest { token: token.clone(), max: 1, lease: long, ..stage.request() };
        assert_eq!(stage.claim_as(request).await.occurrences.len(), 1);
        token
    };
    let reported = claim(Token::new("i", 1, long)).await;
    // A token of an older instance, which does not contain its lease; and one whose last part is no number.
    let untold = claim(Token("i.2".into())).await;
    let odd = claim(Token("i.3.x".into())).await;
    stage.reap().await;
    let ends: Vec<_> =
        [&reported, &untold, &odd].map(|token| stage.state().leases[&lane()].score(token).unwrap()).into();
    let end = |lease| at(0).plus(lease).as_millis();
    assert_eq!(ends, [end(long), end(LEASE), end(LEASE)]);
    assert_eq!(stage.reap_after_lease().await.claims, 2);
    assert!(stage.extend(&reported).await, "its holder lives");
    // When the clock steps back, the lease is cut to its original length.
    stage.clock.set(at(-1_000_000));
    stage.reap().await;
    assert_eq!(stage.state().leases[&lane()].score(&reported), Some(at(-1_000_000).plus(long).as_millis()));
}

async fn a_task_is_never_in_flight_twice(stage: Stage) {
    let ids = stage.ids(3);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let (_, first) = stage.claim().await;
    assert_eq!(first.occurrences.len(), 3);
    for time in [0, 1, 14_999, 60_000] {
        // Even after the lease has expired: expiry alone does not end a claim.
        stage.clock.set(at(time));
        assert!(stage.claim().await.1.occurrences.is_empty());
        let put = stage.put(once(&ids[0], at(time + 7), "b")).await;
        assert_eq!(put.in_flight, Some(at(0)));
        assert!(stage.claim().await.1.occurrences.is_empty());
    }
    let state = stage.state();
    assert_eq!((state.leases[&lane()].len(), state.claims[&lane()].len()), (1, 1));
}

async fn a_killed_holders_occurrences_come_back(stage: Stage) {
    let ids = stage.ids(5);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let (_, first) = stage.claim().await;
    stage.clock.advance(LEASE - ms(1));
    assert_eq!(stage.reap().await.claims, 0, "the lease lasts");
    stage.clock.advance(ms(1));
    let reaped = stage.reap().await;
    assert_eq!((reaped.claims, reaped.occurrences, reaped.stranded, reaped.more), (1, 5, 0, false));
    let (_, again) = stage.claim().await;
    assert_eq!(again.occurrences, first.occurrences);
}

async fn reap_restores_the_due_time(stage: Stage) {
    let ids = stage.ids(2);
    stage.create(once(&ids[0], at(-12_345), "a")).await;
    stage.create(every(&ids[1], at(-1), "b")).await;
    for _ in 0..3 {
        let (_, claimed) = stage.claim().await;
        let suspects = stage.claim_suspects().await.1;
        let mut dues: Vec<_> = claimed.occurrences.iter().chain(&suspects.occurrences).map(|one| one.due).collect();
        dues.extend(stage.claim_suspects().await.1.occurrences.iter().map(|one| one.due));
        assert_eq!(dues, [at(-12_345), at(-1)]);
        stage.reap_after_lease().await;
        let held = stage.get(&ids[0]).await.unwrap();
        assert_eq!((held.due, held.in_flight), (at(-12_345), false));
    }
}

async fn back_restores_the_due_time(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(-7), "a")).await;
    for (verdict, rest) in
        [(Some(BACK), RestOfClaim::Keep), (Some(BACK_BEGUN), RestOfClaim::Keep), (None, RestOfClaim::Back)]
    {
        stage.clock.advance(ms(1000));
        let (token, occurrence) = stage.claim_one().await;
        let verdicts = verdict.into_iter().map(|verdict| settlement(&occurrence, verdict)).collect();
        stage.settle(&token, rest, verdicts).await;
        let held = stage.get(&id).await.unwrap();
        assert_eq!((held.due, held.in_flight), (at(-7), false));
    }
}

async fn a_lost_lease_cannot_settle(stage: Stage) {
    let ids = stage.ids(2);
    stage.create(once(&ids[0], at(0), "a")).await;
    stage.create(every(&ids[1], at(0), "b")).await;
    let (token, claimed) = stage.claim().await;
    stage.reap_after_lease().await;
    let (_, again) = stage.claim().await;
    let before = stage.state();
    let [one, two] = &claimed.occurrences[..] else { panic!("{claimed:?}") };
    let verdicts = [
        vec![settlement(one, Verdict::Finished), settlement(two, next(at(99), 1))],
        vec![settlement(one, Verdict::Dead(dead_record(one, "rejected")))],
        vec![settlement(one, BACK_BEGUN), settlement(two, BACK)],
        vec![],
    ];
    for verdicts in verdicts {
        for rest in [RestOfClaim::Keep, RestOfClaim::Back] {
            assert!(stage.settle(&token, rest, verdicts.clone()).await.lost);
        }
    }
    assert!(!stage.extend(&token).await);
    assert_eq!(stage.state(), before);
    assert_eq!(again.occurrences.len(), 2);
}

async fn a_lease_is_lost_when_it_is_reaped_and_not_when_it_expires(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.clock.advance(LEASE * 3);
    assert!(stage.extend(&token).await);
    assert!(!stage.settle_one(&token, &occurrence, Verdict::Finished).await.lost);
    assert!(!stage.extend(&token).await);
    stage.assert_nothing_is_left();
}

async fn an_extended_lease_is_not_reaped(stage: Stage) {
    let id = stage.id();
    stage.create(once(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    for _ in 0..5 {
        stage.clock.advance(LEASE - ms(1));
        assert_eq!(stage.reap().await.claims, 0);
        assert!(stage.extend(&token).await);
    }
    assert!(!stage.settle_one(&token, &occurrence, Verdict::Finished).await.lost);
}

async fn settle_is_one_step(stage: Stage) {
    let ids = stage.ids(5);
    for id in &ids {
        stage.create(every(id, at(0), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    let held = &claimed.occurrences;
    let counts = Counts { accepted: 3, dead: 2, passed_over: 1, last_due: Some(at(0)) };
    let dead = |n: usize| dead_record(&held[n], "rejected");
    let settled = stage
        .settle(
            &token,
            RestOfClaim::Keep,
            vec![
                settlement(&held[0], Verdict::Finished),
                settlement(&held[1], Verdict::Next { due: at(1000), counts }),
                settlement(&held[2], Verdict::Dead(dead(2))),
                settlement(&held[3], Verdict::DeadNext { dead_record: dead(3), due: at(2000), counts }),
                settlement(&held[4], BACK),
            ],
        )
        .await;
    assert_eq!(settled, punctual::timeline::Settled::default());
    let mut dues = Vec::new();
    for id in &ids {
        dues.push(stage.get(id).await.map(|held| (held.due, held.in_flight, held.counts)));
    }
    let none = Counts::default();
    let after =
        [None, Some((at(1000), false, counts)), None, Some((at(2000), false, counts)), Some((at(0), false, none))];
    assert_eq!(dues, after);
    let state = stage.state();
    assert!(state.claims.is_empty() && state.leases.is_empty());
    let kept: Vec<_> = state.dead_records.into_iter().collect();
    let name = |n: usize| key(&ids[n], at(0)).to_string().into();
    assert_eq!(kept, [(name(2), dead(2)), (name(3), dead(3))]);
}

async fn a_settle_repeated_changes_nothing(stage: Stage) {
    let ids = stage.ids(3);
    for id in &ids {
        stage.create(every(id, at(0), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    let held = &claimed.occurrences;
    let part = vec![settlement(&held[0], next(at(0).plus(ms(1)), 1)), settlement(&held[1], Verdict::Finished)];
    stage.settle(&token, RestOfClaim::Keep, part.clone()).await;
    // Meanwhile another claim takes the first, and the second is created again.
    stage.clock.advance(ms(1));
    stage.create(once(&ids[1], at(1), "b")).await;
    let (other, again) = stage.claim().await;
    assert_eq!(again.occurrences.len(), 2);
    let before = stage.state();
    let repeat = stage.settle(&token, RestOfClaim::Keep, part.clone()).await;
    assert_eq!(repeat.skipped.len(), 2);
    // Only the lease of the remaining occurrence may change.
    let mut after = stage.state();
    after.leases.clone_from(&before.leases);
    assert_eq!(after, before);
    // This call names as many occurrences as the claim still holds, but another one.
    let one = vec![settlement(&held[0], next(at(5), 9))];
    assert_eq!(stage.settle(&token, RestOfClaim::Keep, one).await.skipped, [member(&ids[0])]);
    // Nor does this call: its due is only the first digits of the due of the remaining one.
    let alike = Timestamp::from_millis(held[2].due.as_millis() / 100);
    let one = vec![Settlement { due: alike, ..settlement(&held[2], Verdict::Finished) }];
    assert_eq!(stage.settle(&token, RestOfClaim::Keep, one).await.skipped, [member(&ids[2])]);
    let mut after = stage.state();
    after.leases.clone_from(&before.leases);
    assert_eq!(after, before);
    stage.settle_one(&token, &held[2], Verdict::Finished).await;
    assert!(stage.settle(&token, RestOfClaim::Keep, part).await.lost);
    let both = again.occurrences.iter().map(|one| settlement(one, Verdict::Finished)).collect();
    assert!(!stage.settle(&other, RestOfClaim::Keep, both).await.lost);
    stage.assert_nothing_is_left();
}

async fn a_settle_keeps_unnamed_occurrences_in_the_claim_or_returns_them(stage: Stage) {
    let ids = stage.ids(3);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    stage.clock.advance(ms(5000));
    stage.settle_one(&token, &claimed.occurrences[0], Verdict::Finished).await;
    assert_eq!(stage.glance(&lane(), true).await.first_lease, Some(stage.now().plus(LEASE)), "a fresh lease");
    assert!(stage.claim().await.1.occurrences.is_empty());
    stage.settle(&token, RestOfClaim::Back, vec![settlement(&claimed.occurrences[1], Verdict::Finished)]).await;
    assert!(!stage.extend(&token).await);
    let (_, last) = stage.claim_one().await;
    assert_eq!((last.member, last.due), (member(&ids[2]), at(0)));
    assert!(stage.state().crashes.is_empty(), "nothing of it had begun");
}

async fn a_claim_whose_reply_is_missing_is_settled_back(stage: Stage) {
    let ids = stage.ids(2);
    for id in &ids {
        stage.create(once(id, at(0), "a")).await;
    }
    let before = stage.state();
    // The caller knows only its token.
    let (token, _reply_lost) = stage.claim().await;
    assert!(!stage.settle(&token, RestOfClaim::Back, Vec::new()).await.lost);
    assert_eq!(stage.state(), before);
    // The claim may never have arrived, too.
    assert!(stage.settle(&stage.token(), RestOfClaim::Back, Vec::new()).await.lost);
    assert_eq!(stage.state(), before);
}

async fn a_replaced_task_in_flight_takes_effect_when_its_claim_ends(stage: Stage) {
    let id = stage.id();
    for ending in 0..5 {
        stage.clock.set(at(0));
        assert_eq!(stage.put(every(&id, at(0), "a")).await.result, PutResult::Created);
        let (token, occurrence) = stage.claim_one().await;
        for (due, payload) in [(3000, "b"), (90_000, "c")] {
            let put = stage.put(once(&id, at(due), payload)).await;
            assert_eq!((put.result, put.due, put.in_flight), (PutResult::Replaced, at(due), Some(at(0))));
        }
        let held = stage.get(&id).await.unwrap();
        assert_eq!((held.due, held.in_flight, held.due_after_claim), (at(0), true, Some(at(90_000))));
        let settled = match ending {
            0 => stage.settle_one(&token, &occurrence, Verdict::Finished).await.changed,
            1 => stage.settle_one(&token, &occurrence, next(at(1000), 1)).await.changed,
            2 => {
                stage.settle_one(&token, &occurrence, Verdict::Dead(dead_record(&occurrence, "rejected"))).await.changed
            }
            3 => stage.settle(&token, RestOfClaim::Back, Vec::new()).await.changed,
            _ => {
                stage.reap_after_lease().await;
                vec![member(&id)]
            }
        };
        assert_eq!(settled, [member(&id)]);
        let held = stage.get(&id).await.unwrap();
        assert_eq!(
            (held.due, held.in_flight, held.due_after_claim, held.counts),
            (at(90_000), false, None, Counts::default())
        );
        let state = stage.state();
        assert!(state.changes.is_empty() && state.crashes.is_empty() && state.dead_records.is_empty());
        assert_eq!(stage.cancel(&id).await, CancelAnswer::Cancelled { handed_out: None });
    }
}

async fn a_cancelled_task_in_flight_ends_with_its_claim(stage: Stage) {
    let id = stage.id();
    for reaped in [false, true] {
        stage.clock.set(at(0));
        stage.create(every(&id, at(0), "a")).await;
        let (token, occurrence) = stage.claim_one().await;
        for _ in 0..2 {
            assert_eq!(stage.cancel(&id).await, CancelAnswer::InFlight { due: at(0) });
            assert_eq!(stage.get(&id).await, None);
        }
        if reaped {
            stage.reap_after_lease().await;
        } else {
            stage.settle_one(&token, &occurrence, next(at(1000), 1)).await;
        }
        assert_eq!(stage.cancel(&id).await, CancelAnswer::Unknown);
        stage.assert_nothing_is_left();
    }
}

async fn a_cancelled_waiting_task_is_never_claimed(stage: Stage) {
    let ids = stage.ids(2);
    for id in &ids {
        stage.create(every(id, at(0), "a")).await;
    }
    assert_eq!(stage.cancel(&ids[0]).await, CancelAnswer::Cancelled { handed_out: None });
    assert_eq!(stage.cancel(&ids[0]).await, CancelAnswer::Unknown);
    let (_, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.member, member(&ids[1]));
    stage.clock.advance(LEASE * 2);
    stage.reap().await;
    let (_, occurrence) = stage.claim_one().await;
    assert_eq!(occurrence.member, member(&ids[1]));
}

async fn a_reap_frees_and_counts_occurrences_claimed_without_a_lease(stage: Stage) {
    let ids = stage.ids(3);
    for id in &ids {
        stage.create(once(id, at(-3), "a")).await;
    }
    let (token, claimed) = stage.claim().await;
    stage.put(once(&ids[1], at(70_000), "b")).await;
    stage.cancel(&ids[2]).await;
    // No verb does this; if a verb had such a bug, the reaper's scan would find it.
    stage.strand();
    let look = stage.glance(&lane(), true).await;
    assert_eq!((look.stranded, look.reap, look.depth), (true, false, Some((0, 3))));
    stage.clock.advance(LEASE);
    assert!(stage.glance(&lane(), true).await.reap);
    let reaped = stage.reap().await;
    assert_eq!((reaped.claims, reaped.occurrences, reaped.stranded), (0, 0, 3));
    assert!(stage.settle_one(&token, &claimed.occurrences[0], Verdict::Finished).await.lost);
    assert_eq!(stage.get(&ids[0]).await.map(|held| (held.due, held.in_flight)), Some((at(-3), false)));
    assert_eq!(stage.get(&ids[1]).await.map(|held| (held.due, held.in_flight)), Some((at(70_000), false)));
    assert_eq!(stage.get(&ids[2]).await, None);
    let (_, again) = stage.claim_one().await;
    assert_eq!(again.member, member(&ids[0]));
}
