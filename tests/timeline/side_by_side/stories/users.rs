//! Stories of users, and what happens to their tasks in between.

use punctual::timeline::{RestOfClaim, TaskStatus};

use super::super::steps::{Body, Due, Kind, Step, StepVerdict};
use super::{StoryArguments, claim, put, reap, settle};

/// A task in flight is put: with the same due, with another due, unchanged, and perhaps into another lane.
pub(super) fn in_flight(about: StoryArguments) -> Vec<Step> {
    let (id, lane, body) = (about.id, about.lane, about.body);
    vec![
        put(id, Due::Now(0), body, lane),
        claim(&about, Kind::Ordinary, 400),
        put(id, Due::Now(0), if about.flag { body } else { Body::At("another") }, lane),
        put(id, Due::Now(7), Body::At("b"), lane),
        put(id, Due::Now(7), Body::At("b"), lane),
        Step::Get { id },
        if about.flag { put(id, Due::Now(9), body, (lane + 1) % 3) } else { Step::Advance(15_000) },
        match about.count {
            0 => reap(&about),
            1..=3 => settle(vec![StepVerdict::Unnamed], RestOfClaim::Back, about.flag),
            _ => settle(about.detail, RestOfClaim::Back, true),
        },
    ]
}

pub(super) fn cancelled_in_flight(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let anew = if about.count == 3 { put(id, Due::Now(3), about.body, lane) } else { Step::Get { id } };
    let end = if about.flag { settle(vec![StepVerdict::Finished], RestOfClaim::Back, false) } else { reap(&about) };
    vec![
        put(id, Due::Now(0), about.body, lane),
        claim(&about, Kind::Ordinary, 400),
        Step::Cancel { id, revision: None, late: false },
        anew,
        Step::Advance(15_000),
        end,
    ]
}

/// The occurrence was handed out before. Its task is put with the same due and the same or another message, put with
/// another due, or cancelled.
pub(super) fn handed_out(about: StoryArguments) -> Vec<Step> {
    let (id, lane, body) = (about.id, about.lane, about.body);
    let last = match about.count {
        0 | 5 => Step::Cancel { id, revision: None, late: false },
        1 => put(id, Due::Start(3), body, (lane + 1) % 3),
        _ => put(id, Due::Start(15_001), body, lane),
    };
    vec![
        put(id, Due::Start(-5), body, lane),
        Step::Mark { id, count: Some(about.count % 2), unreadable: false },
        put(id, Due::Start(-5), body, lane),
        put(id, Due::Start(-5), Body::At("another"), lane),
        last,
    ]
}

/// A recurring task that continues, has counts, and is put again.
pub(super) fn counted(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    vec![
        put(id, Due::Now(-1), Body::Every("a"), lane),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Next(1)], RestOfClaim::Keep, false),
        Step::Advance(3),
        claim(&about, Kind::Ordinary, 400),
        settle(about.detail, RestOfClaim::Back, about.flag),
        put(id, Due::Now(3), Body::Every("b"), lane),
    ]
}

/// It dies, is requeued, and is put with the same due.
pub(super) fn requeued(about: StoryArguments) -> Vec<Step> {
    let (id, lane, due) = (about.id, about.lane, Due::Start(-5));
    let requeue = || Step::Requeue { key: about.key, meant: None, late: false };
    vec![
        put(id, due, Body::At("a"), lane),
        claim(&about, Kind::Ordinary, 1),
        settle(vec![StepVerdict::Dead], RestOfClaim::Back, false),
        requeue(),
        requeue(),
        put(id, due, Body::At("b"), lane),
        claim(&about, Kind::Ordinary, 2),
        settle(about.detail.clone(), RestOfClaim::Back, false),
    ]
}

/// It dies, is put with the same due, and dies again.
pub(super) fn died_twice(about: StoryArguments) -> Vec<Step> {
    let (id, lane, due) = (about.id, about.lane, Due::Start(-5));
    let dies = || [claim(&about, Kind::Ordinary, 400), settle(vec![StepVerdict::Dead], RestOfClaim::Keep, false)];
    let mut steps = vec![put(id, due, Body::At("a"), lane)];
    steps.extend(dies());
    steps.push(put(id, due, about.body, lane));
    for _ in 0..2 {
        steps.push(Step::Requeue { key: about.key, meant: None, late: false });
    }
    steps.extend(dies());
    steps.push(Step::Show { key: about.key });
    steps
}

/// Hundreds in one claim, some of which leave it. Most of the others end, too; otherwise each later comparison of states
/// takes ten times as long.
pub(super) fn many(about: StoryArguments) -> Vec<Step> {
    let about = StoryArguments { lane: 0, ..about };
    vec![
        Step::Many { id: about.id, due: Due::Start(-5), spread: about.flag, count: 300 },
        claim(&about, if about.count == 0 { Kind::Newest } else { Kind::Ordinary }, 400),
        settle(about.detail.clone(), RestOfClaim::Keep, false),
        settle(vec![StepVerdict::Finished], RestOfClaim::Keep, false),
        Step::Advance(15_000),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Finished], RestOfClaim::Keep, false),
    ]
}

/// A timeout that is reset while it waits, and after it was handed out.
pub(super) fn reset(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let again = |due| put(id, due, Body::In("a"), lane);
    vec![
        again(Due::Now(3)),
        again(Due::Now(7)),
        again(Due::Now(2)),
        Step::Mark { id, count: Some(about.count), unreadable: about.flag },
        again(Due::Now(2)),
        again(Due::Now(9)),
        if about.flag { Step::Cancel { id, revision: None, late: false } } else { Step::Get { id } },
    ]
}

/// A user discards dead records.
pub(super) fn discarded(about: StoryArguments) -> Vec<Step> {
    let (key, late) = (about.key, false);
    vec![
        put(about.id, Due::Start(-5), about.body, about.lane),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Dead], RestOfClaim::Keep, false),
        Step::Discard { key, meant: about.flag.then_some(true), late },
        Step::Cancel { id: about.id, revision: None, late },
        Step::Discard { key, meant: Some(false), late },
        Step::Requeue { key, meant: Some(false), late },
    ]
}

/// Several dead records, listed one by one and all together.
pub(super) fn browsed(about: StoryArguments) -> Vec<Step> {
    let mut steps: Vec<Step> =
        (0..3).map(|n| put((about.id + n) % 4, Due::Start(-5), about.body, about.lane)).collect();
    steps.extend([claim(&about, Kind::Ordinary, 400), settle(vec![StepVerdict::Dead], RestOfClaim::Keep, false)]);
    for (max, after) in [(1, None), (1, Some(about.key)), (1000, None)] {
        let (whole, reason) = (about.flag, (about.count == 0).then_some("rejected"));
        let (lane, prefix) = (None, "");
        steps.push(Step::Browse { id: about.id, after, from: None, to: None, lane, prefix, reason, max, whole });
    }
    steps
}

/// Tasks that wait, are overdue and are in flight, listed by each filter.
pub(super) fn listed(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let mut steps = vec![
        put(id, Due::Start(-5), about.body, lane),
        put((id + 1) % 4, Due::Now(0), Body::At("a"), lane),
        claim(&about, Kind::Ordinary, 1),
        Step::Advance(1000),
        put((id + 2) % 4, Due::Now(3), Body::At("a"), lane),
    ];
    let list = |status, (prefix, text), (from, to), max| Step::List { id, lane, status, prefix, text, from, to, max };
    let any = ("", "");
    steps.extend([
        list(Some(TaskStatus::Scheduled), any, (None, None), 1),
        list(Some(TaskStatus::Overdue), ("x", ""), (None, None), 2),
        list(Some(TaskStatus::InFlight), ("", "."), (None, None), 256),
        list(None, ("y", ""), (Some(-5), None), 1),
        list(None, any, (None, Some(15_000)), 256),
    ]);
    steps
}

/// A task is paused while it waits or is in flight; then it is put, cancelled, ended or its holder dies.
pub(super) fn paused(about: StoryArguments) -> Vec<Step> {
    let (id, lane, late) = (about.id, about.lane, false);
    let pause = |pause| Step::Pause { id, pause, late };
    let mut steps = vec![
        Step::Pause { id, pause: false, late },
        put(id, Due::Start(-5), about.body, lane),
        pause(true),
        put(id, Due::Start(-5), about.body, lane),
        put(id, Due::Now(0), Body::Every("b"), lane),
        Step::List { id, lane, status: Some(TaskStatus::Paused), prefix: "", text: "", from: None, to: None, max: 2 },
    ];
    if about.flag {
        steps.extend([pause(false), claim(&about, Kind::Ordinary, 400), pause(true)]);
    }
    steps.extend(match about.count {
        0 => vec![settle(about.detail.clone(), RestOfClaim::Back, false)],
        1 => vec![settle(vec![StepVerdict::Finished; 5], RestOfClaim::Back, false)],
        2 => vec![Step::Advance(15_000), reap(&about)],
        3 => vec![Step::Cancel { id, revision: None, late }, reap(&about)],
        4 => vec![settle(vec![StepVerdict::Next(500); 5], RestOfClaim::Back, false)],
        _ => vec![put(id, Due::Now(3), Body::At("c"), lane), Step::Get { id }, pause(true)],
    });
    steps.extend([pause(false), pause(false)]);
    steps
}

/// A task that was handed out before is paused; or nobody has put it.
pub(super) fn paused_after_a_publish(about: StoryArguments) -> Vec<Step> {
    let (id, late) = (about.id, false);
    vec![
        Step::Cancel { id, revision: None, late },
        Step::Pause { id, pause: true, late },
        put(id, Due::Start(-5), about.body, about.lane),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Back(true); 5], RestOfClaim::Back, false),
        Step::Pause { id, pause: true, late },
        Step::Pause { id, pause: false, late: true },
        Step::Pause { id, pause: false, late },
    ]
}

/// A task is triggered and skipped: while it waits, is paused, was handed out or is in flight.
pub(super) fn moved(about: StoryArguments) -> Vec<Step> {
    let (id, late) = (about.id, false);
    let new_key = about.count.is_multiple_of(2);
    let trigger = |late| Step::Move { id, skip: None, new_key, late };
    let skip = |by, wrong| Step::Move { id, skip: Some((by, wrong)), new_key, late };
    let mut steps = vec![
        Step::Cancel { id, revision: None, late },
        trigger(false),
        put(id, Due::Now(5000), about.body, about.lane),
        trigger(true),
        skip(500, false),
        skip([1, 500, 5000][about.count as usize % 3], true),
        Step::Cancel { id, revision: Some(false), late },
    ];
    if about.flag {
        steps.push(Step::Pause { id, pause: true, late });
        steps.push(skip(500, false));
        // A trigger of the due that it missed, and a pause before its publish.
        steps.extend([Step::Advance(6000), trigger(false), Step::Pause { id, pause: true, late }]);
    }
    steps.extend([
        trigger(false),
        trigger(false),
        Step::Advance(1),
        claim(&about, Kind::Ordinary, 400),
        trigger(false),
    ]);
    if about.flag {
        steps.push(Step::Pause { id, pause: true, late });
    }
    steps.push(settle(vec![StepVerdict::Back(true); 5], RestOfClaim::Back, false));
    steps.extend([skip(5000, false), Step::Get { id }]);
    if about.flag {
        steps.push(Step::Pause { id, pause: false, late });
    }
    steps
}
