//! Random verbs on few tasks, dues and lanes.

use proptest::prelude::*;
use proptest::sample::{Index, select};
use punctual::clock::Timestamp;
use punctual::timeline::{DeadCap, RestOfClaim, TaskStatus};

/// How tasks are put.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepMode {
    Put,
    Post,
    /// With a revision as condition: that of the first task (`true`), or a wrong one.
    Match(bool),
    Absent,
}

/// One verb, with small numbers for its arguments.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Put {
        puts: Vec<(usize, Due, Body, usize, u8)>,
        mode: StepMode,
        late: bool,
    },
    /// Hundreds of tasks in one call, due in one millisecond or three per millisecond.
    Many {
        id: usize,
        due: Due,
        spread: bool,
        count: usize,
    },
    /// `revision`, if any, is the condition: the revision of the task (`true`), or a wrong one.
    Cancel {
        id: usize,
        revision: Option<bool>,
        late: bool,
    },
    Get {
        id: usize,
    },
    Claim {
        id: usize,
        lane: usize,
        max: usize,
        max_bytes: usize,
        kind: Kind,
        after: Option<(Index, bool)>,
        lease: u64,
        late: bool,
    },
    /// `claim`: one of the latest, or the last.
    Settle {
        claim: Option<Index>,
        verdicts: Vec<StepVerdict>,
        rest: RestOfClaim,
        dead_cap: DeadCap,
        quiet: bool,
        order: Order,
    },
    Extend {
        claims: Vec<Index>,
    },
    Reap {
        id: usize,
        lane: usize,
        served: bool,
        late: bool,
    },
    Glance {
        id: usize,
        lanes: Vec<(usize, bool)>,
        depth: bool,
    },
    Requeue {
        key: Index,
        meant: Option<bool>,
        late: bool,
    },
    /// `meant`: any record of the key, exactly the existing one, or another one.
    Discard {
        key: Index,
        meant: Option<bool>,
        late: bool,
    },
    /// After one of the dead records, or from the first.
    Browse {
        id: usize,
        after: Option<Index>,
        from: Option<i64>,
        to: Option<i64>,
        lane: Option<usize>,
        prefix: &'static str,
        reason: Option<&'static str>,
        max: usize,
        whole: bool,
    },
    Show {
        key: Index,
    },
    /// Pauses a task, or resumes it.
    Pause {
        id: usize,
        pause: bool,
        late: bool,
    },
    /// Triggers a task, or skips its next occurrence by this long; rarely with another due or revision than it has.
    Move {
        id: usize,
        skip: Option<(i64, bool)>,
        new_key: bool,
        late: bool,
    },
    /// Pauses a lane, without end or for this long, or resumes it.
    PauseLane {
        id: usize,
        lane: usize,
        pause: Option<Option<i64>>,
        late: bool,
    },
    /// All lists of a lane.
    List {
        id: usize,
        lane: usize,
        status: Option<TaskStatus>,
        prefix: &'static str,
        text: &'static str,
        from: Option<i64>,
        to: Option<i64>,
        max: usize,
    },
    Advance(i64),
    /// No verb does this: deletes the leases of a lane.
    Strand {
        id: usize,
        lane: usize,
    },
    /// No verb does this in one step: marks a waiting task.
    Mark {
        id: usize,
        count: Option<u32>,
        unreadable: bool,
    },
    /// No verb does this: deletes the record of a waiting task.
    LoseRecord {
        id: usize,
    },
}

/// Which occurrences a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Ordinary,
    Newest,
    Suspects,
    Unreadable,
}

/// Order of the verdicts, and whether one belongs to no occurrence of the claim.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    Kept,
    Reversed,
    Foreign(Index),
}

/// A due, relative to something.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Due {
    Start(i64),
    Now(i64),
    At(i64),
}

/// A task's kind and payload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    At(&'static str),
    In(&'static str),
    Every(&'static str),
}

/// What a settle says of one occurrence.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StepVerdict {
    Unnamed,
    Finished,
    Next(i64),
    Dead,
    DeadNext(i64),
    Back(bool),
    Unreadable,
}

fn any_due() -> impl Strategy<Value = Due> {
    let odd = select(vec![i64::MIN, -1, 0, 1, Timestamp::MAX_DUE.as_millis(), Timestamp::MAX_DUE.as_millis() + 1]);
    prop_oneof![
        8 => select(vec![-5, 0, 3, 15_001]).prop_map(Due::Start),
        4 => select(vec![-1, 0, 2, 15_000]).prop_map(Due::Now),
        1 => odd.prop_map(Due::At),
    ]
}

/// Usually one of two.
pub(crate) fn any_id() -> impl Strategy<Value = usize> {
    select(vec![0, 0, 0, 1, 1, 2, 3, 4, 5])
}

/// Usually the first.
pub(crate) fn any_lane() -> impl Strategy<Value = usize> {
    select(vec![0, 0, 0, 1, 2])
}

pub(crate) fn any_body() -> impl Strategy<Value = Body> {
    let text = || select(vec!["a", "b", "a payload that is rather longer than the others are, so that bytes count"]);
    prop_oneof![text().prop_map(Body::At), text().prop_map(Body::In), text().prop_map(Body::Every)]
}

pub(crate) fn any_word() -> impl Strategy<Value = StepVerdict> {
    prop_oneof![
        2 => Just(StepVerdict::Unnamed),
        2 => Just(StepVerdict::Finished),
        2 => select(vec![1, 7, 15_000]).prop_map(StepVerdict::Next),
        2 => Just(StepVerdict::Dead),
        1 => select(vec![1, 7]).prop_map(StepVerdict::DeadNext),
        1 => select(vec![0, -1]).prop_map(StepVerdict::Next).boxed(),
        2 => any::<bool>().prop_map(StepVerdict::Back),
        1 => Just(StepVerdict::Unreadable),
    ]
}

/// Any verb; collisions are likely.
pub(crate) fn any_step() -> impl Strategy<Value = Step> {
    let (id, lane) = (any_id, any_lane);
    let late = || prop::bool::weighted(0.08);
    let puts = prop::collection::vec((id(), any_due(), any_body(), lane(), 0..3_u8), 1..4);
    let mode = select(vec![
        StepMode::Put,
        StepMode::Put,
        StepMode::Put,
        StepMode::Post,
        StepMode::Match(true),
        StepMode::Match(false),
        StepMode::Absent,
    ]);
    use Kind::{Newest, Ordinary, Suspects, Unreadable};
    let kind = select(vec![Ordinary, Ordinary, Ordinary, Ordinary, Newest, Suspects, Suspects, Unreadable]);
    let after = prop::option::weighted(0.3, (any::<Index>(), any::<bool>()));
    let claim = (
        id(),
        lane(),
        select(vec![1, 2, 3, 4, 400]),
        select(vec![4 << 20, 4 << 20, 330, 1]),
        kind,
        after,
        select(vec![15_000, 15_000, 40_000]),
        late(),
    );
    let rest = select(vec![RestOfClaim::Keep, RestOfClaim::Keep, RestOfClaim::Back]);
    let detail = prop::collection::vec(any_word(), 5);
    let order =
        prop_oneof![3 => Just(Order::Kept), 1 => Just(Order::Reversed), 1 => any::<Index>().prop_map(Order::Foreign)];
    let many = (id(), any_due(), any::<bool>(), select(vec![100, 260, 300]));
    let glance = (id(), prop::collection::vec((lane(), prop::bool::weighted(0.7)), 0..3), any::<bool>());
    let span = select(vec![1, 3, 900, 1000, 5000, 15_000, 15_000, 18_100, -20_000]);
    let time = || prop::option::weighted(0.3, select(vec![0, 1, 3, 5000, 15_000]));
    let meant = || prop::option::of(prop::bool::weighted(0.7));
    let reason = prop::option::weighted(0.4, select(vec!["rejected", "retries", "reject"]));
    let browse = (
        id(),
        prop::option::of(any::<Index>()),
        time(),
        time(),
        (prop::option::weighted(0.3, lane()), select(vec!["", "", "x", "y", "x:1:"])),
        reason,
        select(vec![1, 2, 1000]),
        any::<bool>(),
    );
    // A record has some 60 bytes and more.
    let bytes = select(vec![1, 150, 1 << 40]);
    let caps = (select(vec![1, 2, 100]), bytes).prop_map(|(entries, bytes)| DeadCap { entries, bytes });
    // Mostly short, because nothing else happens in a paused lane.
    let pause = prop::option::weighted(0.4, prop::option::weighted(0.9, select(vec![1, 900, 5000])));
    let skip = prop::option::of((select(vec![1, 500, 5000]), prop::bool::weighted(0.2)));
    let status = select(vec![
        None,
        Some(TaskStatus::Scheduled),
        Some(TaskStatus::Overdue),
        Some(TaskStatus::InFlight),
        Some(TaskStatus::Paused),
    ]);
    let list = (
        id(),
        lane(),
        status,
        select(vec!["", "", "x", "y", "many"]),
        select(vec!["", "", ":1", "."]),
        time(),
        time(),
        select(vec![1, 2, 256]),
    );
    prop_oneof![
        8 => (puts, mode, late()).prop_map(|(puts, mode, late)| Step::Put { puts, mode, late }),
        1 => many.prop_map(|(id, due, spread, count)| Step::Many { id, due, spread, count }),
        3 => (id(), prop::option::weighted(0.3, any::<bool>()), late())
            .prop_map(|(id, revision, late)| Step::Cancel { id, revision, late }),
        1 => id().prop_map(|id| Step::Get { id }),
        8 => claim.prop_map(|(id, lane, max, max_bytes, kind, after, lease, late)| {
            Step::Claim { id, lane, max, max_bytes, kind, after, lease, late }
        }),
        8 => (any::<Index>().prop_map(Some), detail, rest, caps, prop::bool::weighted(0.3), order).prop_map(
            |(claim, verdicts, rest, dead_cap, quiet, order)| Step::Settle { claim, verdicts, rest, dead_cap, quiet, order }
        ),
        1 => prop::collection::vec(any::<Index>(), 1..4).prop_map(|claims| Step::Extend { claims }),
        5 => (id(), lane(), prop::bool::weighted(0.7), late())
            .prop_map(|(id, lane, served, late)| Step::Reap { id, lane, served, late }),
        6 => glance.prop_map(|(id, lanes, depth)| Step::Glance { id, lanes, depth }),
        3 => (any::<Index>(), meant(), late()).prop_map(|(key, meant, late)| Step::Requeue { key, meant, late }),
        2 => (any::<Index>(), meant(), late()).prop_map(|(key, meant, late)| Step::Discard { key, meant, late }),
        3 => browse.prop_map(|(id, after, from, to, (lane, prefix), reason, max, whole)| {
            Step::Browse { id, after, from, to, lane, prefix, reason, max, whole }
        }),
        1 => any::<Index>().prop_map(|key| Step::Show { key }),
        2 => (id(), prop::bool::weighted(0.4), late()).prop_map(|(id, pause, late)| Step::Pause { id, pause, late }),
        3 => (id(), skip, any::<bool>(), late())
            .prop_map(|(id, skip, new_key, late)| Step::Move { id, skip, new_key, late }),
        1 => (id(), lane(), pause, late()).prop_map(|(id, lane, pause, late)| Step::PauseLane { id, lane, pause, late }),
        3 => list.prop_map(|(id, lane, status, prefix, text, from, to, max)| {
            Step::List { id, lane, status, prefix, text, from, to, max }
        }),
        5 => span.prop_map(Step::Advance),
        1 => (id(), lane()).prop_map(|(id, lane)| Step::Strand { id, lane }),
        1 => (id(), prop::option::of(0..4_u32), any::<bool>())
            .prop_map(|(id, count, unreadable)| Step::Mark { id, count, unreadable: unreadable || count.is_none() }),
        1 => id().prop_map(|id| Step::LoseRecord { id }),
    ]
}
