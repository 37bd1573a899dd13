//! Start states, and how often each event may happen.

use punctual::timeline::PutMode;

use super::choices::Take;
use super::rules::{Budget, Kind, Plan, Wish};

const fn wish(id: u8, due: u8, payload: u8, kind: Kind) -> Wish {
    Wish { id, due, payload, lane: 0, kind, mode: PutMode::Put }
}

const fn there(wish: Wish) -> Wish {
    Wish { lane: 1, ..wish }
}

const fn post(due: u8, payload: u8) -> Wish {
    Wish { mode: PutMode::Post, ..wish(0, due, payload, Kind::In) }
}

const fn budget(puts: u8, cancels: u8, requeues: u8, claims: u8) -> Budget {
    Budget {
        puts,
        cancels,
        requeues,
        claims,
        publishes: 2,
        extends: 0,
        losses: 1,
        crashes: 1,
        ticks: 2,
        pauses: 0,
        steps: 0,
    }
}

/// Common parts of most plans.
const PLAN: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[],
    ids: 1,
    lanes: 1,
    rejects: false,
    unreadable: false,
    takes: &[],
    lease: 1,
    discards: false,
    dead_cap: 9,
    dead_keep: 99,
    parks_reaps: false,
    budget: budget(1, 1, 0, 2),
};

/// A one-shot task, put again with the same and with another message and due, cancelled, created again.
pub(crate) static ONE_SHOT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[wish(0, 1, 0, Kind::At), wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    budget: budget(2, 1, 0, 2),
    ..PLAN
};

/// A timeout that is reset: the same message, another due, back to the first due.
pub(crate) static RESET: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::In)],
    wishes: &[wish(0, 1, 0, Kind::In), wish(0, 2, 0, Kind::In), wish(0, 2, 1, Kind::In)],
    ids: 1,
    lanes: 1,
    budget: Budget { crashes: 0, ..budget(2, 1, 0, 2) },
    ..PLAN
};

/// A timeout from a POST: repeated under its key, posted with another message, put and cancelled in between.
pub(crate) static POSTED: Plan = Plan {
    standing: &[post(1, 0)],
    wishes: &[post(2, 0), post(2, 1), wish(0, 2, 1, Kind::In)],
    ids: 1,
    lanes: 1,
    budget: Budget { crashes: 0, ..budget(2, 1, 0, 2) },
    ..PLAN
};

/// A task that moves to another lane and back, while it waits and while it is in flight.
pub(crate) static MOVED: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[there(wish(0, 1, 0, Kind::At)), there(wish(0, 2, 1, Kind::At)), wish(0, 1, 0, Kind::At)],
    ids: 1,
    lanes: 2,
    budget: Budget { losses: 0, ticks: 1, ..budget(2, 1, 0, 2) },
    ..PLAN
};

/// One recurring task with three occurrences.
pub(crate) static RECURRING: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 2, 0, Kind::Every), wish(0, 2, 1, Kind::Every), wish(0, 3, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    budget: Budget { publishes: 3, crashes: 0, ticks: 1, ..budget(1, 1, 0, 3) },
    ..PLAN
};

/// A task that dies, is requeued, and is put again in between.
pub(crate) static DEAD: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 1, 0, Kind::At)],
    ids: 1,
    lanes: 1,
    rejects: true,
    budget: Budget { publishes: 2, crashes: 0, ticks: 1, ..budget(1, 0, 1, 3) },
    ..PLAN
};

/// A dead task is requeued, and put with another message and the same due in between.
pub(crate) static REQUEUED: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At)],
    rejects: true,
    budget: Budget { losses: 0, ..budget(1, 0, 1, 3) },
    ..PLAN
};

/// Two tasks in one claim: settled together, with the shortcut, and in parts.
pub(crate) static TWO: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(1, 2, 1, Kind::At)],
    ids: 2,
    lanes: 1,
    budget: Budget { ticks: 1, crashes: 0, ..budget(1, 1, 0, 2) },
    ..PLAN
};

/// A task whose holders keep dying: put, cancelled and claimed alone in between, with leases extended.
pub(crate) static SUSPECT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    budget: Budget { extends: 1, losses: 0, ticks: 3, ..budget(1, 1, 0, 3) },
    ..PLAN
};

/// A budget without any event. A plan that starts from it names what may happen.
const NOTHING: Budget = Budget {
    puts: 0,
    cancels: 0,
    requeues: 0,
    claims: 0,
    publishes: 0,
    extends: 0,
    losses: 0,
    crashes: 0,
    ticks: 0,
    pauses: 0,
    steps: 0,
};

/// The holder of a timeout that is reset dies.
pub(crate) static RESET_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(2, 1, 0, 2) }, ..RESET };

/// The holder of a timeout from a POST dies.
pub(crate) static POSTED_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(2, 1, 0, 2) }, ..POSTED };

/// Answers are lost while a task moves between lanes.
pub(crate) static MOVED_LOST: Plan = Plan { budget: Budget { crashes: 0, ..budget(2, 0, 0, 2) }, ..MOVED };

/// The holder of a recurring task dies.
pub(crate) static RECURRING_CRASH: Plan =
    Plan { budget: Budget { publishes: 3, losses: 0, ..budget(1, 1, 0, 3) }, ..RECURRING };

/// An instance dies while it holds a message that the sink rejects, while it holds a requeued one, or before it settles the
/// rejected one.
pub(crate) static DEAD_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(1, 1, 1, 3) }, ..DEAD };

/// The holder of a requeued occurrence dies; its task is created again; answers are lost.
pub(crate) static REQUEUED_LOST: Plan =
    Plan { budget: Budget { publishes: 3, ticks: 1, ..budget(1, 1, 2, 3) }, ..REQUEUED };

/// Few dead records are kept, for a short time; dead records are discarded.
pub(crate) static KEPT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every), wish(1, 1, 0, Kind::At)],
    wishes: &[wish(1, 1, 1, Kind::At)],
    ids: 2,
    rejects: true,
    discards: true,
    dead_cap: 1,
    dead_keep: 1,
    budget: Budget { puts: 1, requeues: 1, claims: 2, publishes: 3, ticks: 2, ..NOTHING },
    ..PLAN
};

/// The holder of a claim of two dies after it settled one.
pub(crate) static TWO_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(1, 0, 0, 2) }, ..TWO };

/// Answers are lost around a suspect.
pub(crate) static SUSPECT_LOST: Plan =
    Plan { budget: Budget { crashes: 0, ticks: 3, publishes: 1, ..budget(1, 0, 0, 3) }, ..SUSPECT };

/// Two suspects whose claim expired are claimed together once, then one at a time.
pub(crate) static SUSPECTS: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 1, 0, Kind::At)],
    wishes: &[wish(0, 2, 1, Kind::At)],
    ids: 2,
    budget: Budget { puts: 1, claims: 4, publishes: 2, ticks: 3, ..NOTHING },
    ..PLAN
};

/// Claims of the newest, and of those after a due, beside claims of the oldest.
pub(crate) static ENDS: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 2, 0, Kind::Every)],
    wishes: &[wish(0, 3, 1, Kind::At), wish(1, 1, 1, Kind::At)],
    ids: 2,
    takes: &[Take::Newest, Take::Behind],
    budget: Budget { puts: 1, claims: 3, publishes: 2, crashes: 1, ticks: 1, ..NOTHING },
    ..PLAN
};

/// Instances that cannot read a record, and others that can.
pub(crate) static UNREADABLE: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    unreadable: true,
    budget: Budget { losses: 0, ..budget(1, 1, 0, 3) },
    ..PLAN
};

/// A requeued record becomes unreadable.
pub(crate) static UNREADABLE_REQUEUED: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At)],
    unreadable: true,
    rejects: true,
    budget: Budget { losses: 0, ..budget(1, 0, 1, 3) },
    ..PLAN
};

/// A task is paused, resumed and triggered while it waits, is in flight, is put and cancelled.
pub(crate) static PAUSED: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 2, 1, Kind::Every)],
    budget: Budget { puts: 1, cancels: 1, claims: 3, publishes: 2, ticks: 1, pauses: 3, ..NOTHING },
    ..PLAN
};

/// The holder of a paused task dies, rejects it or cannot settle it.
pub(crate) static PAUSED_CRASH: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At)],
    rejects: true,
    budget: Budget { puts: 1, claims: 2, publishes: 1, losses: 1, crashes: 1, ticks: 2, pauses: 2, ..NOTHING },
    ..PLAN
};

/// The server's clock jumps forward and back, while leases are extended and reaped.
pub(crate) static CLOCK: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    lease: 2,
    budget: Budget { puts: 1, claims: 2, publishes: 2, extends: 1, crashes: 1, ticks: 3, steps: 2, ..NOTHING },
    ..PLAN
};

/// Reaps and extends that arrive late or never.
pub(crate) static LATE: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    parks_reaps: true,
    lease: 2,
    budget: Budget { puts: 1, claims: 2, publishes: 1, extends: 1, losses: 2, ticks: 3, ..NOTHING },
    ..PLAN
};
