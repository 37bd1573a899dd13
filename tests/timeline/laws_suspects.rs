//! Occurrences that may have killed their holder: marked, claimed alone or with other suspects, and cleared once they
//! have ended.

use punctual::task::TaskId;
use punctual::timeline::{PutResult, RestOfClaim, SuspectsRequest, Verdict};

use super::stage::{BACK_BEGUN, Stage, at, every, member, ms, next, once, settlement};

super::laws! {
    suspects_are_left_out_and_taken_alone,
    suspects_with_two_crashes_share_a_claim_and_with_more_are_claimed_alone,
    a_mark_is_removed_with_the_occurrence_that_it_names,
    unreadable_records_are_left_out_of_claims_and_claimed_separately,
    an_unreadable_record_is_no_suspect_and_keeps_its_key,
    a_holder_that_can_read_an_unreadable_record_may_have_published_it,
}

async fn suspects_are_left_out_and_taken_alone(stage: Stage) {
    let ids = stage.ids(4);
    let first = || SuspectsRequest { max: 1, ..stage.suspects() };
    stage.create(once(&ids[0], at(0), "a")).await;
    stage.create(every(&ids[1], at(0), "a")).await;
    stage.crash(1).await;
    assert_eq!(stage.claim_suspects_as(first()).await.occurrences, [], "once is no suspicion");
    stage.crash(1).await;
    stage.create(once(&ids[2], at(1), "a")).await;
    stage.create(once(&ids[3], at(90_000), "a")).await;
    let (_, claimed) = stage.claim().await;
    assert_eq!((claimed.suspects, claimed.head), (2, Some(at(90_000))));
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| (one.member.clone(), one.crashes)).collect();
    assert_eq!(taken, [(member(&ids[2]), 0)]);
    let request = first();
    let token = request.token.clone();
    let claimed = stage.claim_suspects_as(request).await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| (one.member.clone(), one.due, one.crashes)).collect();
    assert_eq!((taken, claimed.suspects), (vec![(member(&ids[0]), at(0), 2)], 1));
    // A returned suspect is still one; the next due of its task is not.
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    assert_eq!(stage.claim().await.1.suspects, 2);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let request = first();
        tokens.push(request.token.clone());
        let claimed = stage.claim_suspects_as(request).await;
        let verdict = next(at(1000), 1);
        stage.settle_one(&tokens[tokens.len() - 1], &claimed.occurrences[0], verdict).await;
    }
    let (_, claimed) = stage.claim().await;
    assert_eq!((claimed.suspects, claimed.occurrences.len()), (0, 2));
}

async fn suspects_with_two_crashes_share_a_claim_and_with_more_are_claimed_alone(stage: Stage) {
    let ids = stage.ids(7);
    stage.clock.advance(ms(10));
    for (id, due) in ids[..2].iter().zip([1, 4]) {
        stage.create(once(id, at(due), "a")).await;
    }
    stage.crash(2).await;
    for _ in 0..2 {
        stage.claim_suspects_as(SuspectsRequest { max: 1, ..stage.suspects() }).await;
    }
    stage.reap_after_lease().await;
    for (id, due) in ids[2..].iter().zip([0, 2, 3, 5, 6]) {
        stage.create(once(id, at(due), "a")).await;
    }
    stage.crash(2).await;
    let two_and_a_half = stage.state().tasks[&member(&ids[2])].len() * 5 / 2;
    for (max, max_bytes, taken, suspects) in [
        (2, 4 << 20, vec![(0, 2), (2, 2)], 5),
        (9, 4 << 20, vec![(1, 3)], 4),
        (9, two_and_a_half, vec![(3, 2), (5, 2)], 2),
        // The first is claimed whatever its size.
        (9, 1, vec![(4, 3)], 1),
        (9, 1, vec![(6, 2)], 0),
    ] {
        let claimed = stage.claim_suspects_as(SuspectsRequest { max, max_bytes, ..stage.suspects() }).await;
        let seen: Vec<_> = claimed.occurrences.iter().map(|one| (one.due, one.crashes)).collect();
        let expected: Vec<_> = taken.into_iter().map(|(due, crashes)| (at(due), crashes)).collect();
        assert_eq!((seen, claimed.suspects, claimed.head), (expected, suspects, None));
    }
}

async fn a_mark_is_removed_with_the_occurrence_that_it_names(stage: Stage) {
    let id = stage.id();
    let count = |stage: &Stage| stage.state().crashes.get(&member(&id)).map(|mark| (mark.due, mark.count));
    stage.create(every(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    assert_eq!(count(&stage), Some((at(0), Some(0))));
    stage.crash(1).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    assert_eq!(count(&stage), Some((at(0), Some(1))), "a mark that is there already keeps its count");
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, next(at(500), 1)).await;
    assert_eq!(count(&stage), None);
    stage.crash(1).await;
    assert_eq!(count(&stage), Some((at(500), Some(1))));
    stage.put(every(&id, at(600), "b")).await;
    assert_eq!(count(&stage), None);
    stage.crash(1).await;
    stage.cancel(&id).await;
    assert_eq!(count(&stage), None);
    stage.assert_nothing_is_left();
}

async fn unreadable_records_are_left_out_of_claims_and_claimed_separately(stage: Stage) {
    let ids = stage.ids(6);
    for (id, due) in ids[..5].iter().zip(-5..) {
        stage.create(once(id, at(due), "new")).await;
    }
    let (token, claimed) = stage.claim().await;
    let verdicts = claimed.occurrences[..4].iter().map(|one| settlement(one, Verdict::Unreadable)).collect();
    stage.settle(&token, RestOfClaim::Back, verdicts).await;
    stage.create(once(&ids[5], at(0), "old")).await;
    let (token, claimed) = stage.claim().await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| one.member.clone()).collect();
    assert_eq!((taken, claimed.unreadable), (vec![member(&ids[4]), member(&ids[5])], 4));
    assert_eq!((claimed.suspects, claimed.head), (0, None));
    assert!(stage.get(&ids[0]).await.unwrap().unreadable && !stage.get(&ids[4]).await.unwrap().unreadable);
    stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
    // A few per call, each from where the last call stopped.
    let (mut after, mut seen) = (None, Vec::new());
    loop {
        let request = SuspectsRequest { unreadable: true, max: 3, after, ..stage.suspects() };
        let token = request.token.clone();
        let claimed = stage.claim_suspects_as(request).await;
        if claimed.occurrences.is_empty() {
            break;
        }
        seen.extend(claimed.occurrences.iter().map(|one| one.member.clone()));
        let verdicts = claimed.occurrences.iter().map(|one| settlement(one, Verdict::Unreadable)).collect();
        stage.settle(&token, RestOfClaim::Keep, verdicts).await;
        after = claimed.last;
    }
    assert_eq!(seen, ids[..4].iter().map(member).collect::<Vec<_>>());
    // An instance that can read them settles them like any others. A put or a cancel clears the mark.
    assert_eq!(stage.put(once(&ids[1], at(-4), "anew")).await.result, PutResult::Replaced, "nothing of it was sent");
    stage.cancel(&ids[2]).await;
    let request = SuspectsRequest { unreadable: true, ..stage.suspects() };
    let token = request.token.clone();
    let claimed = stage.claim_suspects_as(request).await;
    let verdicts = claimed.occurrences.iter().map(|one| settlement(one, Verdict::Finished)).collect();
    stage.settle(&token, RestOfClaim::Keep, verdicts).await;
    let (token, claimed) = stage.claim().await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| one.member.clone()).collect();
    assert_eq!((taken, claimed.unreadable), ([&ids[1], &ids[4], &ids[5]].map(member).to_vec(), 0));
    let verdicts = claimed.occurrences.iter().map(|one| settlement(one, Verdict::Finished)).collect();
    stage.settle(&token, RestOfClaim::Keep, verdicts).await;
    stage.assert_nothing_is_left();
}

async fn a_holder_that_can_read_an_unreadable_record_may_have_published_it(stage: Stage) {
    let unreadable = || SuspectsRequest { unreadable: true, ..stage.suspects() };
    let marked = async |id: &TaskId| {
        stage.create(once(id, at(0), "a")).await;
        let (token, occurrence) = stage.claim_one().await;
        stage.settle_one(&token, &occurrence, Verdict::Unreadable).await;
    };
    let mark = |id: &TaskId| stage.state().crashes.get(&member(id)).copied();
    let ids = stage.ids(3);
    // The holder dies.
    marked(&ids[0]).await;
    stage.claim_suspects_as(unreadable()).await;
    stage.reap_after_lease().await;
    assert_eq!(mark(&ids[0]).map(|mark| (mark.count, mark.unreadable)), Some((Some(0), true)));
    assert_eq!(stage.put(once(&ids[0], at(90_000), "b")).await.in_flight, Some(at(0)));
    // The holder returns it, with or without having begun a publish.
    for (id, begun) in [(&ids[1], true), (&ids[2], false)] {
        marked(id).await;
        let request = unreadable();
        let token = request.token.clone();
        let claimed = stage.claim_suspects_as(request).await;
        stage.settle_one(&token, &claimed.occurrences[0], Verdict::Back { begun }).await;
        assert_eq!(mark(id).map(|mark| (mark.count, mark.unreadable)), begun.then_some((Some(0), false)));
        let (token, occurrence) = stage.claim_one().await;
        assert_eq!(occurrence.member, member(id), "claims take it again");
        stage.settle(&token, RestOfClaim::Back, Vec::new()).await;
        assert_eq!(stage.put(once(id, at(90_000), "b")).await.in_flight, begun.then_some(at(0)));
    }
}

async fn an_unreadable_record_is_no_suspect_and_keeps_its_key(stage: Stage) {
    let id = stage.id();
    stage.create(every(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, Verdict::Unreadable).await;
    let mark = || stage.state().crashes[&member(&id)];
    assert_eq!((mark().due, mark().count, mark().unreadable), (at(0), Some(0), true), "it was handed out before");
    assert_eq!(stage.put(every(&id, at(0), "b")).await.result, PutResult::InFlight);
    // Instances that ask for it and die do not raise its count.
    for _ in 0..3 {
        let request = SuspectsRequest { unreadable: true, ..stage.suspects() };
        assert_eq!(stage.claim_suspects_as(request).await.occurrences.len(), 1);
        stage.reap_after_lease().await;
    }
    assert_eq!((mark().count, mark().unreadable), (Some(0), true));
    assert_eq!(stage.claim_suspects().await.1.occurrences, []);
    assert_eq!(stage.put(every(&id, at(90_000), "b")).await.in_flight, Some(at(0)), "its key may have been sent");
    stage.cancel(&id).await;
    stage.assert_nothing_is_left();
}
