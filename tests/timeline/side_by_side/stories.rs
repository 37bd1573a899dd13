//! A few verbs in the order in which some rules need them. What stands there from the stories before comes between.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use punctual::timeline::{PutMode, Rest};

use super::steps::{Body, Due, Kind, Order, Step, Word, any_body, any_id, any_lane, any_step, any_word};

/// What a story is about.
#[derive(Clone, Debug)]
struct About {
    id: usize,
    other: usize,
    lane: usize,
    body: Body,
    words: Vec<Word>,
    key: Index,
    flag: bool,
    count: u32,
}

/// One verb at random, or a story.
pub(crate) fn any_story() -> impl Strategy<Value = Vec<Step>> {
    let words = prop::collection::vec(any_word(), 5);
    let about = (any_id(), any_id(), any_lane(), any_body(), words, any::<Index>(), any::<bool>(), 0..6_u32);
    let about = about.prop_map(|(id, other, lane, body, words, key, flag, count)| About {
        id,
        other,
        lane,
        body,
        words,
        key,
        flag,
        count,
    });
    let story: fn(About) -> Vec<Step> = in_flight;
    // What is easily spoilt by what stands there already comes twice as often.
    let stories = select(vec![
        story,
        in_flight,
        cancelled_in_flight,
        cancelled_in_flight,
        handed_out,
        handed_out,
        counted,
        unreadable,
        unreadable,
        suspects,
        suspects,
        requeued,
        buried_twice,
        buried_twice,
        buried_twice,
        too_old,
        stranded,
        left_lane,
        looks,
        clock_steps,
        in_parts,
        lost_record,
        lost_record,
        many,
        too_late,
        ends,
        discarded,
        browsed,
        reset,
    ]);
    prop_oneof![
        2 => any_step().prop_map(|step| vec![step]),
        3 => (stories, about).prop_map(|(story, about)| story(about)),
    ]
}

fn put(id: usize, due: Due, body: Body, lane: usize) -> Step {
    Step::Put { puts: vec![(id, due, body, lane, 0)], mode: PutMode::Put, late: false }
}

fn claim(about: &About, kind: Kind, max: usize) -> Step {
    let (id, lane, max_bytes) = (about.id, about.lane, 4 << 20);
    Step::Claim { id, lane, max, max_bytes, kind, after: None, lease: 15_000, late: false }
}

/// Of the last claim.
fn settle(words: Vec<Word>, rest: Rest, quiet: bool) -> Step {
    Step::Settle { claim: None, verdicts: words, rest, dead_cap: 100, quiet, order: Order::Kept }
}

fn reap(about: &About) -> Step {
    Step::Reap { id: about.id, lane: about.lane, served: true, late: false }
}

fn glance(about: &About, served: bool) -> Step {
    Step::Glance { id: about.id, lanes: vec![(about.lane, served)], depth: false }
}

/// Moved, or put again as it is, while it is in flight.
fn in_flight(about: About) -> Vec<Step> {
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
            1..=3 => settle(vec![Word::Unnamed], Rest::Back, about.flag),
            _ => settle(about.words, Rest::Back, true),
        },
    ]
}

fn cancelled_in_flight(about: About) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let anew = if about.count == 3 { put(id, Due::Now(3), about.body, lane) } else { Step::Get { id } };
    let end = if about.flag { settle(vec![Word::Finished], Rest::Back, false) } else { reap(&about) };
    vec![
        put(id, Due::Now(0), about.body, lane),
        claim(&about, Kind::Ordinary, 400),
        Step::Cancel { id, late: false },
        anew,
        Step::Advance(15_000),
        end,
    ]
}

/// It was handed out before: put again at the same due with the same or another message, at another due, or cancelled.
fn handed_out(about: About) -> Vec<Step> {
    let (id, lane, body) = (about.id, about.lane, about.body);
    let last = match about.count {
        0 => Step::Cancel { id, late: false },
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

/// A recurring task that goes on, is counted, and put anew.
fn counted(about: About) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    vec![
        put(id, Due::Now(-1), Body::Every("a"), lane),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![Word::Next(1)], Rest::Keep, false),
        Step::Advance(3),
        claim(&about, Kind::Ordinary, 400),
        settle(about.words, Rest::Back, about.flag),
        put(id, Due::Now(3), Body::Every("b"), lane),
    ]
}

/// It has a mark that it cannot be read, and perhaps a count.
fn unreadable(about: About) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let mut steps = vec![
        put(id, Due::Start(-5), Body::At("a"), lane),
        Step::Mark { id, count: about.flag.then_some(about.count), unreadable: true },
        Step::Get { id },
        claim(&about, Kind::Ordinary, 400),
    ];
    let settle = |word| vec![claim(&about, Kind::Unreadable, 400), settle(vec![word], Rest::Back, false)];
    steps.extend(match about.count {
        0 => vec![put(id, Due::Now(3), about.body, lane)],
        1 => vec![Step::Cancel { id, late: false }],
        2 => vec![claim(&about, Kind::Unreadable, 3), Step::Advance(15_000), reap(&about)],
        3 => settle(Word::Unreadable),
        _ => settle(Word::Back(about.key.index(2) == 0)),
    });
    steps
}

/// Several whose claims ended without word, some of them twice.
fn suspects(about: About) -> Vec<Step> {
    let (lane, other) = (about.lane, about.other);
    let count = Some(2 + about.count / 3);
    let mut steps = vec![
        put(about.id, Due::Start(-5), about.body, lane),
        put(other, Due::Start(0), Body::At("a"), lane),
        Step::Mark { id: about.id, count: Some(2), unreadable: false },
        Step::Mark { id: other, count, unreadable: false },
        claim(&about, Kind::Ordinary, 1),
        claim(&about, Kind::Suspects, [1, 2, 3, 64][about.count as usize % 4]),
    ];
    steps.push(if about.flag { Step::Advance(15_000) } else { settle(about.words.clone(), Rest::Back, false) });
    steps.push(reap(&about));
    steps
}

/// It dies, is requeued, and put under the same due.
fn requeued(about: About) -> Vec<Step> {
    let (id, lane, due) = (about.id, about.lane, Due::Start(-5));
    let requeue = || Step::Requeue { key: about.key, meant: None, late: false };
    vec![
        put(id, due, Body::At("a"), lane),
        claim(&about, Kind::Ordinary, 1),
        settle(vec![Word::Dead], Rest::Back, false),
        requeue(),
        Step::Requeue { key: about.key, meant: None, late: false },
        put(id, due, Body::At("b"), lane),
        claim(&about, Kind::Ordinary, 2),
        settle(about.words.clone(), Rest::Back, false),
    ]
}

/// It dies, is put under the same due again, and dies again.
fn buried_twice(about: About) -> Vec<Step> {
    let (id, lane, due) = (about.id, about.lane, Due::Start(-5));
    let dies = || [claim(&about, Kind::Ordinary, 400), settle(vec![Word::Dead], Rest::Keep, false)];
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

/// Dead for so long that it goes, or one too many.
fn too_old(about: About) -> Vec<Step> {
    let (id, other, lane) = (about.id, about.other, about.lane);
    let buried = Step::Settle {
        claim: None,
        verdicts: vec![Word::Dead],
        rest: Rest::Keep,
        dead_cap: 1,
        quiet: false,
        order: Order::Kept,
    };
    vec![
        put(id, Due::Now(0), Body::At("a"), lane),
        put(other, Due::Now(0), Body::At("b"), lane),
        claim(&about, Kind::Ordinary, 400),
        buried,
        Step::Advance(if about.flag { 20_000 } else { 1000 }),
        glance(&about, true),
        reap(&about),
    ]
}

/// The leases are gone, the claims not.
fn stranded(about: About) -> Vec<Step> {
    vec![
        put(about.id, Due::Now(0), about.body, about.lane),
        claim(&about, Kind::Ordinary, 400),
        Step::Strand { id: about.id, lane: about.lane },
        glance(&about, about.flag),
        reap(&about),
    ]
}

/// A lane that nobody serves is emptied.
fn left_lane(about: About) -> Vec<Step> {
    let about = About { lane: 2, ..about };
    vec![
        put(about.id, Due::Start(-5), about.body, 2),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![Word::Finished], Rest::Keep, false),
        Step::Advance(15_000),
        reap(&about),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![Word::Finished], Rest::Keep, false),
        glance(&about, false),
        Step::Reap { id: about.id, lane: 2, served: false, late: false },
        glance(&about, false),
    ]
}

/// Looks that come as they should, late, and very late.
fn looks(about: About) -> Vec<Step> {
    let pauses = [[900; 4], [24_000; 4], [18_100; 4], [24_000, 900, 900, 24_000]][about.count as usize % 4];
    let mut steps = vec![put(about.id, Due::Now(0), about.body, about.lane), claim(&about, Kind::Ordinary, 400)];
    steps.push(Step::Extend { claims: vec![about.key] });
    for pause in pauses {
        steps.extend([Step::Advance(pause), glance(&about, true)]);
    }
    steps
}

/// The clock steps back while something is in flight.
fn clock_steps(about: About) -> Vec<Step> {
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

/// A claim that is settled a part at a time.
fn in_parts(about: About) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..3)
        .map(|n| put((about.id + n) % 4, Due::Now(-1), if n == 1 { about.body } else { Body::Every("a") }, about.lane))
        .collect();
    steps.push(claim(&about, Kind::Ordinary, 400));
    let one = |word| vec![word, Word::Unnamed, Word::Unnamed, Word::Unnamed, Word::Unnamed];
    let others = |word| vec![Word::Unnamed, word, word, word, word];
    steps.push(settle(one(Word::Finished), Rest::Keep, false));
    steps.push(Step::Extend { claims: vec![about.key] });
    steps.push(settle(if about.flag { about.words.clone() } else { others(Word::Next(7)) }, Rest::Keep, true));
    steps.push(settle(vec![Word::Back(about.flag)], Rest::Back, false));
    steps
}

fn lost_record(about: About) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    vec![
        put(id, Due::Start(-5), about.body, lane),
        Step::Mark { id, count: Some(about.count / 2), unreadable: about.flag && about.count > 3 },
        Step::LoseRecord { id },
        claim(&about, Kind::Ordinary, 400),
        claim(&about, if about.flag { Kind::Unreadable } else { Kind::Suspects }, 400),
    ]
}

/// Hundreds in one claim, of which some leave.
fn many(about: About) -> Vec<Step> {
    let about = About { lane: 0, ..about };
    vec![
        Step::Many { id: about.id, due: Due::Start(-5), spread: about.flag, count: 300 },
        claim(&about, if about.count == 0 { Kind::Newest } else { Kind::Ordinary }, 400),
        settle(about.words, Rest::Keep, false),
        settle(vec![Word::Finished], Rest::Keep, false),
    ]
}

/// A time-out that is reset while it waits, and after it was handed out.
fn reset(about: About) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let again = |due| put(id, due, Body::In("a"), lane);
    vec![
        again(Due::Now(3)),
        again(Due::Now(7)),
        again(Due::Now(2)),
        Step::Mark { id, count: Some(about.count), unreadable: about.flag },
        again(Due::Now(2)),
        again(Due::Now(9)),
        if about.flag { Step::Cancel { id, late: false } } else { Step::Get { id } },
    ]
}

/// Nothing of it may take effect.
fn too_late(about: About) -> Vec<Step> {
    let (id, lane) = (about.id, about.lane);
    let claim = |kind| match claim(&about, kind, 400) {
        Step::Claim { id, lane, max, max_bytes, kind, after, lease, .. } => {
            Step::Claim { id, lane, max, max_bytes, kind, after, lease, late: true }
        }
        other => other,
    };
    vec![
        Step::Put { puts: vec![(id, Due::Now(0), about.body, lane, 0)], mode: PutMode::Put, late: true },
        Step::Cancel { id, late: true },
        claim(Kind::Ordinary),
        claim(Kind::Suspects),
        Step::Reap { id, lane, served: false, late: true },
        Step::Requeue { key: about.key, meant: None, late: true },
        put(id, Due::At(0), about.body, lane),
    ]
}

/// Claims of the newest, behind a place, and of few bytes.
fn ends(about: About) -> Vec<Step> {
    let mut steps: Vec<Step> = [(0, -5), (1, 0), (2, 3), (3, 3)]
        .map(|(n, due)| put((about.id + n) % 4, Due::Start(due), Body::At("a"), about.lane))
        .into();
    let give_back = || settle(vec![Word::Unnamed], Rest::Back, false);
    steps.extend([claim(&about, Kind::Ordinary, 400), give_back()]);
    for (kind, max, max_bytes, behind) in
        [(Kind::Newest, 1, 4 << 20, false), (Kind::Ordinary, 400, 4 << 20, true), (Kind::Ordinary, 400, 150, false)]
    {
        let after = behind.then_some((about.key, about.flag));
        let (id, lane) = (about.id, about.lane);
        steps.extend([Step::Claim { id, lane, max, max_bytes, kind, after, lease: 40_000, late: false }, give_back()]);
    }
    steps.push(Step::Mark { id: (about.id + 3) % 4, count: Some(2), unreadable: false });
    let (id, lane, after) = (about.id, about.lane, Some((about.key, about.flag)));
    let (max, max_bytes, kind) = (3, 4 << 20, Kind::Suspects);
    steps.extend([Step::Claim { id, lane, max, max_bytes, kind, after, lease: 15_000, late: false }, give_back()]);
    steps
}

/// Somebody forgets the dead.
fn discarded(about: About) -> Vec<Step> {
    let (key, late) = (about.key, false);
    vec![
        put(about.id, Due::Start(-5), about.body, about.lane),
        claim(&about, Kind::Ordinary, 400),
        settle(vec![Word::Dead], Rest::Keep, false),
        Step::Discard { key, meant: about.flag.then_some(true), late },
        Step::Cancel { id: about.id, late },
        Step::Discard { key, meant: Some(false), late },
        Step::Requeue { key, meant: Some(false), late },
    ]
}

/// Several are dead, and looked at one by one and all together.
fn browsed(about: About) -> Vec<Step> {
    let mut steps: Vec<Step> =
        (0..3).map(|n| put((about.id + n) % 4, Due::Start(-5), about.body, about.lane)).collect();
    steps.extend([claim(&about, Kind::Ordinary, 400), settle(vec![Word::Dead], Rest::Keep, false)]);
    for (max, after) in [(1, None), (1, Some(about.key)), (1000, None)] {
        let (whole, reason) = (about.flag, (about.count == 0).then_some("rejected"));
        steps.push(Step::Browse { id: about.id, after, from: None, to: None, lane: None, reason, max, whole });
    }
    steps
}
