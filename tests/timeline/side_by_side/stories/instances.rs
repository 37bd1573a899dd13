//! Stories of claims, leases and marks.

use punctual::timeline::{DeadCap, RestOfClaim};

use super::super::steps::{Body, Due, Kind, Order, Step, StepMode, StepVerdict};
use super::{StoryArguments, claim, glance, put, reap, settle};

/// An occurrence is marked as unreadable, with or without a count.
pub(super) fn unreadable(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let counts = about.flag || about.count == 3 && about.key.index(2) == 0;
    let mut steps = vec![
        put(id, Due::Start(-5), Body::At("a"), lane),
        Step::Mark { id, count: counts.then_some(about.count), unreadable: true },
        Step::Get { id },
        claim(&about, Kind::Ordinary, 400),
    ];
    let settle = |word| vec![claim(&about, Kind::Unreadable, 400), settle(vec![word], RestOfClaim::Back, false)];
    steps.extend(match about.count {
        0 => vec![put(id, Due::Now(3), about.body, lane)],
        1 => vec![Step::Cancel { id, revision: None, late: false }],
        2 => vec![claim(&about, Kind::Unreadable, 3), Step::Advance(15_000), reap(&about)],
        3 => settle(StepVerdict::Unreadable),
        _ => settle(StepVerdict::Back(about.key.index(2) == 0)),
    });
    steps
}

/// Two occurrences, each of whose claims expired two or three times.
pub(super) fn suspects(about: StoryArguments) -> Vec<Step> {
    let lane = about.lane;
    let other = if about.other == about.id { (about.id + 1) % 4 } else { about.other };
    let count = Some(2 + about.count / 3);
    let mut steps = vec![
        put(about.id, Due::Start(-5), about.body, lane),
        put(other, Due::Start(0), Body::At("a"), lane),
        Step::Mark { id: about.id, count: Some(2), unreadable: false },
        Step::Mark { id: other, count, unreadable: false },
        claim(&about, Kind::Ordinary, 1),
        claim(&about, Kind::Suspects, [1, 2, 3, 64][about.count as usize % 4]),
    ];
    steps.push(if about.flag { Step::Advance(15_000) } else { settle(about.detail.clone(), RestOfClaim::Back, false) });
    steps.push(reap(&about));
    steps
}

/// A dead record whose retention ends, or one above the cap.
pub(super) fn too_old(about: StoryArguments) -> Vec<Step> {
    let (id, other, lane) = (about.id, about.other, about.lane);
    let died = Step::Settle {
        claim: None,
        verdicts: vec![StepVerdict::Dead],
        rest: RestOfClaim::Keep,
        dead_cap: DeadCap::of(1),
        quiet: false,
        order: Order::Kept,
    };
    vec![
        put(id, Due::Now(0), Body::At("a"), lane),
        put(other, Due::Now(0), Body::At("b"), lane),
        claim(&about, Kind::Ordinary, 400),
        died,
        Step::Advance(if about.flag { 20_000 } else { 1000 }),
        glance(&about, true),
        reap(&about),
    ]
}

/// The leases are gone, the claims are not.
pub(super) fn stranded(about: StoryArguments) -> Vec<Step> {
    vec![
        put(about.id, Due::Now(0), about.body, about.lane),
        claim(&about, Kind::Ordinary, 400),
        Step::Strand { id: about.id, lane: about.lane },
        glance(&about, about.flag),
        reap(&about),
    ]
}

/// A lane becomes empty, and no instance serves it any more: a reap removes it.
pub(super) fn lane_no_longer_served(about: StoryArguments) -> Vec<Step> {
    let about = StoryArguments { lane: 2, ..about };
    vec![
        put(about.id, Due::Start(-5), about.body, 2),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Finished], RestOfClaim::Keep, false),
        Step::Advance(15_000),
        reap(&about),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Finished], RestOfClaim::Keep, false),
        glance(&about, false),
        Step::Reap { id: about.id, lane: 2, served: false, late: false },
        glance(&about, false),
    ]
}

/// Glances that come on time, late, and very late.
pub(super) fn late_glances(about: StoryArguments) -> Vec<Step> {
    let pauses = [[900; 4], [24_000; 4], [18_100; 4], [24_000, 900, 900, 24_000]][about.count as usize % 4];
    let mut steps = vec![put(about.id, Due::Now(0), about.body, about.lane), claim(&about, Kind::Ordinary, 400)];
    steps.push(Step::Extend { claims: vec![about.key] });
    for pause in pauses {
        steps.extend([Step::Advance(pause), glance(&about, true)]);
    }
    steps
}

/// The clock steps back while an occurrence is in flight.
pub(super) fn clock_steps(about: StoryArguments) -> Vec<Step> {
    vec![
        put(about.id, Due::Now(0), about.body, about.lane),
        claim(&about, Kind::Ordinary, 1),
        claim(&about, Kind::Ordinary, 400),
        glance(&about, true),
        Step::Advance(-20_000),
        glance(&about, true),
        Step::Advance(900),
        glance(&about, true),
        reap(&about),
    ]
}

/// A claim that is settled in parts.
pub(super) fn in_parts(about: StoryArguments) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..3)
        .map(|n| put((about.id + n) % 4, Due::Now(-1), if n == 1 { about.body } else { Body::Every("a") }, about.lane))
        .collect();
    steps.push(claim(&about, Kind::Ordinary, 400));
    let one = |word| vec![word, StepVerdict::Unnamed, StepVerdict::Unnamed, StepVerdict::Unnamed, StepVerdict::Unnamed];
    let others = |word| vec![StepVerdict::Unnamed, word, word, word, word];
    steps.push(settle(one(StepVerdict::Finished), RestOfClaim::Keep, false));
    steps.push(Step::Extend { claims: vec![about.key] });
    steps.push(settle(
        if about.flag { about.detail.clone() } else { others(StepVerdict::Next(7)) },
        RestOfClaim::Keep,
        true,
    ));
    steps.push(settle(vec![StepVerdict::Back(about.flag)], RestOfClaim::Back, false));
    steps
}

pub(super) fn lost_record(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    vec![
        put(id, Due::Start(-5), about.body, lane),
        Step::Mark { id, count: Some(about.count / 2), unreadable: about.flag && about.count > 3 },
        Step::LoseRecord { id },
        claim(&about, Kind::Ordinary, 400),
        claim(&about, if about.flag { Kind::Unreadable } else { Kind::Suspects }, 400),
    ]
}

/// Calls after their `not_after`: none may take effect.
pub(super) fn too_late(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let claim = |kind| match claim(&about, kind, 400) {
        Step::Claim { id, lane, max, max_bytes, kind, after, lease, .. } => {
            Step::Claim { id, lane, max, max_bytes, kind, after, lease, late: true }
        }
        other => other,
    };
    vec![
        Step::Put { puts: vec![(id, Due::Now(0), about.body, lane, 0)], mode: StepMode::Put, late: true },
        Step::Cancel { id, revision: None, late: true },
        claim(Kind::Ordinary),
        claim(Kind::Suspects),
        Step::Reap { id, lane, served: false, late: true },
        Step::Requeue { key: about.key, meant: None, late: true },
        put(id, Due::At(0), about.body, lane),
    ]
}

/// Claims of the newest, after a position, of few bytes, and of suspects.
pub(super) fn claims_from_both_ends(about: StoryArguments) -> Vec<Step> {
    let mut steps: Vec<Step> = [(0, -5), (1, 0), (2, 3), (3, 3)]
        .map(|(n, due)| put((about.id + n) % 4, Due::Start(due), Body::At("a"), about.lane))
        .into();
    let return_all = || settle(vec![StepVerdict::Unnamed], RestOfClaim::Back, false);
    steps.extend([claim(&about, Kind::Ordinary, 400), return_all()]);
    for (kind, max, max_bytes, behind) in
        [(Kind::Newest, 1, 4 << 20, false), (Kind::Ordinary, 400, 4 << 20, true), (Kind::Ordinary, 400, 150, false)]
    {
        let after = behind.then_some((about.key, about.flag));
        let (id, lane) = (about.id, about.lane);
        steps.extend([Step::Claim { id, lane, max, max_bytes, kind, after, lease: 40_000, late: false }, return_all()]);
    }
    steps.push(Step::Mark { id: (about.id + 3) % 4, count: Some(2), unreadable: false });
    let (id, lane, after) = (about.id, about.lane, Some((about.key, about.flag)));
    let (max, max_bytes, kind) = (3, 4 << 20, Kind::Suspects);
    steps.extend([Step::Claim { id, lane, max, max_bytes, kind, after, lease: 15_000, late: false }, return_all()]);
    steps
}

/// A lane is paused while occurrences wait and are in flight, then resumed.
pub(super) fn paused_lane(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let pause = |pause, late| Step::PauseLane { id, lane, pause, late };
    let until = about.flag.then_some(900);
    let mut steps = vec![
        put(id, Due::Start(-5), about.body, lane),
        claim(&about, Kind::Ordinary, 1),
        pause(Some(until), false),
        put(about.other, Due::Now(0), Body::At("b"), lane),
        claim(&about, Kind::Ordinary, 400),
        claim(&about, Kind::Suspects, 64),
        glance(&about, true),
        settle(vec![StepVerdict::Back(true)], RestOfClaim::Back, false),
        pause(Some(None), true),
    ];
    if until.is_some() {
        steps.extend([Step::Advance(900), glance(&about, true)]);
    }
    steps.extend([pause(None, false), claim(&about, Kind::Ordinary, 400)]);
    steps
}

/// An empty lane that is not served is not forgotten while it is paused.
pub(super) fn paused_empty_lane(about: StoryArguments) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let pause = |pause| Step::PauseLane { id, lane, pause, late: false };
    let not_served = Step::Reap { id, lane, served: false, late: false };
    vec![
        put(id, Due::Now(1000), about.body, lane),
        Step::Cancel { id, revision: None, late: false },
        Step::Advance(15_000),
        reap(&about),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![StepVerdict::Finished; 5], RestOfClaim::Back, false),
        pause(Some(None)),
        not_served.clone(),
        pause(None),
        not_served,
    ]
}
