//! What may have killed its holder: marked, taken alone or with its like, and cleared once its occurrence has ended.

use punctual::timeline::{ClaimRequest, Rest};

use super::stage::{BACK_BEGUN, Stage, at, every, member, ms, next, once};

super::laws! {
    suspects_are_left_out_and_taken_alone,
    what_crashed_twice_is_taken_with_its_like_and_what_did_more_often_alone,
    a_mark_goes_with_the_occurrence_it_names,
}

async fn suspects_are_left_out_and_taken_alone(stage: Stage) {
    let ids = stage.ids(4);
    let first = || ClaimRequest { suspects_only: true, max: 1, ..stage.request() };
    stage.create(once(&ids[0], at(0), "a")).await;
    stage.create(every(&ids[1], at(0), "a")).await;
    stage.crash(1).await;
    assert_eq!(stage.claim_as(first()).await.occurrences, [], "once is no suspicion");
    stage.crash(1).await;
    stage.create(once(&ids[2], at(1), "a")).await;
    stage.create(once(&ids[3], at(90_000), "a")).await;
    let (_, claimed) = stage.claim().await;
    assert_eq!((claimed.suspects, claimed.head), (2, Some(at(90_000))));
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| (one.member.clone(), one.crashes)).collect();
    assert_eq!(taken, [(member(&ids[2]), 0)]);
    let request = first();
    let token = request.token.clone();
    let claimed = stage.claim_as(request).await;
    let taken: Vec<_> = claimed.occurrences.iter().map(|one| (one.member.clone(), one.due, one.crashes)).collect();
    assert_eq!((taken, claimed.suspects), (vec![(member(&ids[0]), at(0), 2)], 1));
    // Given back it is a suspect still; the next due of a task that went on is none.
    stage.settle(&token, Rest::Back, Vec::new()).await;
    assert_eq!(stage.claim().await.1.suspects, 2);
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let request = first();
        tokens.push(request.token.clone());
        let claimed = stage.claim_as(request).await;
        let verdict = next(at(1000), 1);
        stage.settle_one(&tokens[tokens.len() - 1], &claimed.occurrences[0], verdict).await;
    }
    let (_, claimed) = stage.claim().await;
    assert_eq!((claimed.suspects, claimed.occurrences.len()), (0, 2));
}

async fn what_crashed_twice_is_taken_with_its_like_and_what_did_more_often_alone(stage: Stage) {
    let ids = stage.ids(7);
    stage.clock.advance(ms(10));
    for (id, due) in ids[..2].iter().zip([1, 4]) {
        stage.create(once(id, at(due), "a")).await;
    }
    stage.crash(2).await;
    for _ in 0..2 {
        stage.claim_as(ClaimRequest { suspects_only: true, max: 1, ..stage.request() }).await;
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
        // The first is taken whatever its size.
        (9, 1, vec![(4, 3)], 1),
        (9, 1, vec![(6, 2)], 0),
    ] {
        let claimed = stage.claim_as(ClaimRequest { suspects_only: true, max, max_bytes, ..stage.request() }).await;
        let seen: Vec<_> = claimed.occurrences.iter().map(|one| (one.due, one.crashes)).collect();
        let expected: Vec<_> = taken.into_iter().map(|(due, crashes)| (at(due), crashes)).collect();
        assert_eq!((seen, claimed.suspects, claimed.head), (expected, suspects, None));
    }
}

async fn a_mark_goes_with_the_occurrence_it_names(stage: Stage) {
    let id = stage.id();
    let count = |stage: &Stage| stage.state().crashes.get(&member(&id)).map(|mark| (mark.due, mark.count));
    stage.create(every(&id, at(0), "a")).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    assert_eq!(count(&stage), Some((at(0), 0)));
    stage.crash(1).await;
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, BACK_BEGUN).await;
    assert_eq!(count(&stage), Some((at(0), 1)), "a mark that is there already keeps its count");
    let (token, occurrence) = stage.claim_one().await;
    stage.settle_one(&token, &occurrence, next(at(500), 1)).await;
    assert_eq!(count(&stage), None);
    stage.crash(1).await;
    assert_eq!(count(&stage), Some((at(500), 1)));
    stage.put(every(&id, at(600), "b")).await;
    assert_eq!(count(&stage), None);
    stage.crash(1).await;
    stage.cancel(&id).await;
    assert_eq!(count(&stage), None);
    stage.assert_nothing_is_left();
}
