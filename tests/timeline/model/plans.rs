//! What a search begins with, and how often what may happen.

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
    Budget { puts, cancels, requeues, claims, publishes: 2, extends: 0, losses: 1, crashes: 1, ticks: 2, steps: 0 }
}

/// What most plans have in common.
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

/// One one-shot task, put again with the same and another message and due, cancelled, created anew.
pub(crate) static ONE_SHOT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[wish(0, 1, 0, Kind::At), wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    budget: budget(2, 1, 0, 2),
    ..PLAN
};

/// A time-out that is reset: the same message, another due, back to the first due.
pub(crate) static RESET: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::In)],
    wishes: &[wish(0, 1, 0, Kind::In), wish(0, 2, 0, Kind::In), wish(0, 2, 1, Kind::In)],
    ids: 1,
    lanes: 1,
    budget: Budget { crashes: 0, ..budget(2, 1, 0, 2) },
    ..PLAN
};

/// A time-out that is posted: repeated under its key, posted with another message, put and cancelled meanwhile.
pub(crate) static POSTED: Plan = Plan {
    standing: &[post(1, 0)],
    wishes: &[post(2, 0), post(2, 1), wish(0, 2, 1, Kind::In)],
    ids: 1,
    lanes: 1,
    budget: Budget { crashes: 0, ..budget(2, 1, 0, 2) },
    ..PLAN
};

/// A task that is put into another lane and back, while it waits and while it is in flight.
pub(crate) static MOVED: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[there(wish(0, 1, 0, Kind::At)), there(wish(0, 2, 1, Kind::At)), wish(0, 1, 0, Kind::At)],
    ids: 1,
    lanes: 2,
    budget: Budget { losses: 0, ticks: 1, ..budget(2, 1, 0, 2) },
    ..PLAN
};

/// One recurring task of three occurrences.
pub(crate) static RECURRING: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 2, 0, Kind::Every), wish(0, 2, 1, Kind::Every), wish(0, 3, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    budget: Budget { publishes: 3, crashes: 0, ticks: 1, ..budget(1, 1, 0, 3) },
    ..PLAN
};

/// A task that dies, is requeued, and put anew meanwhile.
pub(crate) static DEAD: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 1, 0, Kind::At)],
    ids: 1,
    lanes: 1,
    rejects: true,
    budget: Budget { publishes: 2, crashes: 0, ticks: 1, ..budget(1, 0, 1, 3) },
    ..PLAN
};

/// A task that died is requeued, and meanwhile put with another message under its very due.
pub(crate) static REQUEUED: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At)],
    rejects: true,
    budget: Budget { losses: 0, ..budget(1, 0, 1, 3) },
    ..PLAN
};

/// Two tasks in one claim: settled whole, by the short cut, and in parts.
pub(crate) static TWO: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 1, 0, Kind::Every)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(1, 2, 1, Kind::At)],
    ids: 2,
    lanes: 1,
    budget: Budget { ticks: 1, crashes: 0, ..budget(1, 1, 0, 2) },
    ..PLAN
};

/// A task whose claims keep ending without word: put, cancelled and claimed alone meanwhile, leases extended.
pub(crate) static SUSPECT: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At)],
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    ids: 1,
    lanes: 1,
    budget: Budget { extends: 1, losses: 0, ticks: 3, ..budget(1, 1, 0, 3) },
    ..PLAN
};

/// What a plan does not ask for does not happen.
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
    steps: 0,
};

/// A holder of a time-out that is reset dies.
pub(crate) static RESET_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(2, 1, 0, 2) }, ..RESET };

/// A holder of a time-out that is posted dies.
pub(crate) static POSTED_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(2, 1, 0, 2) }, ..POSTED };

/// Answers get lost while a task moves between lanes.
pub(crate) static MOVED_LOST: Plan = Plan { budget: Budget { crashes: 0, ..budget(2, 0, 0, 2) }, ..MOVED };

/// A holder of a recurring task dies.
pub(crate) static RECURRING_CRASH: Plan =
    Plan { budget: Budget { publishes: 3, losses: 0, ..budget(1, 1, 0, 3) }, ..RECURRING };

/// A holder dies of what dies, of what was requeued, or before the death is settled.
pub(crate) static DEAD_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(1, 1, 1, 3) }, ..DEAD };

/// What was requeued is claimed by one who dies; its task comes back meanwhile; answers get lost.
pub(crate) static REQUEUED_LOST: Plan =
    Plan { budget: Budget { publishes: 3, ticks: 1, ..budget(1, 1, 2, 3) }, ..REQUEUED };

/// Few dead are kept, and not for long; what is dead is discarded.
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

/// The holder of a claim of two dies, once some of it was settled.
pub(crate) static TWO_CRASH: Plan = Plan { budget: Budget { losses: 0, ..budget(1, 0, 0, 2) }, ..TWO };

/// Answers get lost around a suspect.
pub(crate) static SUSPECT_LOST: Plan =
    Plan { budget: Budget { crashes: 0, ticks: 3, publishes: 1, ..budget(1, 0, 0, 3) }, ..SUSPECT };

/// Two suspects that crashed together are claimed together, and one alone from then on.
pub(crate) static SUSPECTS: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 1, 0, Kind::At)],
    wishes: &[wish(0, 2, 1, Kind::At)],
    ids: 2,
    budget: Budget { puts: 1, claims: 4, publishes: 2, ticks: 3, ..NOTHING },
    ..PLAN
};

/// Claims of the newest, and of what stands behind a place, beside claims of the oldest.
pub(crate) static ENDS: Plan = Plan {
    standing: &[wish(0, 1, 0, Kind::At), wish(1, 2, 0, Kind::Every)],
    wishes: &[wish(0, 3, 1, Kind::At), wish(1, 1, 1, Kind::At)],
    ids: 2,
    takes: &[Take::Newest, Take::Behind],
    budget: Budget { puts: 1, claims: 3, publishes: 2, crashes: 1, ticks: 1, ..NOTHING },
    ..PLAN
};

/// Instances that cannot read a record, and such that can.
pub(crate) static UNREADABLE: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    unreadable: true,
    budget: Budget { losses: 0, ..budget(1, 1, 0, 3) },
    ..PLAN
};

/// What was requeued cannot be read any more.
pub(crate) static UNREADABLE_REQUEUED: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At)],
    unreadable: true,
    rejects: true,
    budget: Budget { losses: 0, ..budget(1, 0, 1, 3) },
    ..PLAN
};

/// The server's clock leaps ahead and steps back, while leases are extended and reaped.
pub(crate) static CLOCK: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    lease: 2,
    budget: Budget { puts: 1, claims: 2, publishes: 2, extends: 1, crashes: 1, ticks: 3, steps: 2, ..NOTHING },
    ..PLAN
};

/// Reaps and extends that come late, or not at all.
pub(crate) static LATE: Plan = Plan {
    wishes: &[wish(0, 1, 1, Kind::At), wish(0, 2, 1, Kind::At)],
    parks_reaps: true,
    lease: 2,
    budget: Budget { puts: 1, claims: 2, publishes: 1, extends: 1, losses: 2, ticks: 3, ..NOTHING },
    ..PLAN
};
