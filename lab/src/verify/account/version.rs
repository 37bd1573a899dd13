//! A version: what one put makes, and which of its occurrences must, may and must not be published.

use super::entry::Op;

/// The dues of a version, as far as its answer tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dues {
    /// Unknown.
    Untold,
    /// One due.
    One(i64),
    /// From the first to the last, every `step` ms.
    Series { first: i64, step: i64, last: i64 },
}

/// The schedule of a put; times in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Once, at a time.
    At(i64),
    /// Once, some time after the put.
    In,
    /// Every `step`, `limit` times, none later than `end`. The first is `start` if that is in the future.
    Series { start: Option<i64>, step: i64, limit: i64, end: Option<i64> },
}

/// A put that took effect, or may have.
#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) plan: Plan,
    /// The lane that it waits in.
    pub(super) lane: &'static str,
    pub(super) dues: Dues,
    /// Whether it may also be published with dues that no answer named.
    pub(super) any: bool,
    /// Whether it must be published at least once, with any due.
    pub(super) some: bool,
    /// Occurrences due before this must be published, ...
    pub(super) must_below: i64,
    /// ... those before this may be, later ones must not.
    pub(super) may_below: i64,
    /// When its answer arrived at the latest.
    pub(super) answered_at: i64,
    /// The due of the former version's occurrence that was in flight at the put. Until that has ended, this version is
    /// not handed out.
    pub(super) behind: Option<i64>,
    /// Whether it had ended before it was put again.
    pub(super) ran: EndedBefore,
    /// Dues that a trigger made.
    pub(super) added: Vec<i64>,
    /// Dues that were skipped, and whether each may still be published.
    pub(super) removed: Vec<(i64, bool)>,
}

/// Whether a version had ended before it was put again; a later change does not affect its occurrences then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndedBefore {
    No,
    Maybe,
    Yes,
}

impl Version {
    /// Whether it may be published with this due.
    pub(super) fn allows(&self, due: i64) -> bool {
        due < self.may_below && self.names(due)
    }

    /// Whether this due is one of its own, withdrawn or not.
    pub(super) fn names(&self, due: i64) -> bool {
        let scheduled = match self.dues {
            Dues::Untold => false,
            Dues::One(one) => one == due,
            Dues::Series { first, step, last } => (first..=last).contains(&due) && (due - first) % step == 0,
        };
        self.any
            || self.added.contains(&due)
            || self.removed.contains(&(due, true))
            || scheduled && !self.removed.contains(&(due, false))
    }

    /// All its dues but those that were skipped, the earliest first.
    pub(super) fn dues(&self) -> impl Iterator<Item = i64> + use<> {
        let removed: Vec<i64> = self.removed.iter().map(|(due, _)| *due).collect();
        let mut added = self.added.clone();
        added.sort_unstable();
        let mut scheduled = self.scheduled().filter(move |due| !removed.contains(due)).peekable();
        let mut added = added.into_iter().peekable();
        std::iter::from_fn(move || match (scheduled.peek(), added.peek()) {
            (Some(one), Some(other)) if other < one => added.next(),
            (None, _) => added.next(),
            _ => scheduled.next(),
        })
    }

    /// The dues of its schedule.
    fn scheduled(&self) -> impl Iterator<Item = i64> + use<> {
        let (first, step, last) = match self.dues {
            Dues::Untold => (1, 1, 0),
            Dues::One(due) => (due, 1, due),
            Dues::Series { first, step, last } => (first, step, last),
        };
        (0..).map(move |n| first + n * step).take_while(move |due| *due <= last)
    }

    /// The dues that must be published.
    pub(super) fn must(&self) -> impl Iterator<Item = i64> + use<> {
        let below = self.must_below;
        self.dues().take_while(move |due| *due < below)
    }

    /// Whether it is a series that was cut short.
    pub(super) fn is_cut(&self) -> bool {
        matches!(self.dues, Dues::Series { last, .. } if self.must_below <= last)
    }

    /// A trigger was answered with this due. `handed_out` is the due that it had, if that may still be published.
    pub(super) fn triggered(&mut self, due: i64, handed_out: Option<i64>) {
        self.added.push(due);
        match &mut self.dues {
            // It is due once.
            Dues::One(one) => self.removed.push((*one, handed_out == Some(*one))),
            // A trigger counts for the limit. An earlier one that is uncertain may have counted, too.
            Dues::Series { last, step, .. } => {
                if self.must_below <= *last {
                    self.must_below -= *step;
                }
                *last -= *step;
            }
            Dues::Untold => {}
        }
    }

    /// It is unknown whether a trigger took effect.
    pub(super) fn perhaps_triggered(&mut self) {
        self.any = true;
        match self.dues {
            // At one time or another it is published.
            Dues::One(_) | Dues::Untold => (self.some, self.must_below) = (true, i64::MIN),
            Dues::Series { step, last, .. } => self.must_below = self.must_below.min(last + 1).saturating_sub(step),
        }
    }

    /// A skip was answered: this due is not published, unless it was handed out before, and the next one is `next`. What
    /// came due in between was skipped with it, and counts as one for the limit.
    pub(super) fn skipped(&mut self, due: i64, handed_out: bool, next: i64) {
        let Dues::Series { step, last, .. } = &mut self.dues else { return };
        let skipped = (next - due) / *step;
        *last += *step * (skipped - 1);
        let step = *step;
        self.removed.extend((0..skipped).map(|n| (due + n * step, handed_out && n == 0)));
    }

    /// It is unknown whether a skip took effect, at `at` or before.
    pub(super) fn perhaps_skipped(&mut self, due: i64, at: i64) {
        let Dues::Series { step, .. } = self.dues else { return };
        self.removed.extend((0..).map(|n| due + n * step).take_while(|due| *due <= at + step).map(|due| (due, true)));
        (self.any, self.must_below) = (true, self.must_below.min(due));
    }

    pub(super) fn cut(&mut self, must_below: i64, may_below: i64) {
        if self.ran != EndedBefore::Yes {
            (self.must_below, self.may_below) = (must_below, may_below);
            self.some = false;
        }
    }

    /// It was waiting and was withdrawn. Of a series, past occurrences may have been published; a one-shot is not.
    pub(super) fn withdraw(&mut self, at: i64) {
        match self.plan {
            Plan::Series { .. } => self.cut(i64::MIN, at + 1),
            _ if self.ran == EndedBefore::Maybe => self.cut(i64::MIN, at + 1),
            _ => self.cut(i64::MIN, i64::MIN),
        }
    }

    /// It was withdrawn while the occurrence with this due was in flight: its own, or one of the version before it.
    pub(super) fn withdraw_in_flight(&mut self, due: i64, surely: bool, at: i64) {
        match self.plan {
            _ if self.ran == EndedBefore::Maybe => self.cut(i64::MIN, at + 1),
            // Its first due may be before that, if the put took long.
            Plan::Series { .. } if self.behind == Some(due) => self.cut(i64::MIN, due + 1),
            Plan::Series { .. } => self.cut(if surely { due } else { i64::MIN }, due + 1),
            _ if self.names(due) => self.cut(i64::MIN, due + 1),
            _ => self.cut(i64::MIN, i64::MIN),
        }
    }

    /// A put was answered with its first due.
    pub(super) fn promise(&mut self, due: i64, op: Op, unchanged: bool) {
        let first = match self.plan {
            // The first request may have started it long ago.
            Plan::Series { start, .. } => !unchanged || start == Some(due),
            _ => true,
        };
        self.dues = if first { self.plan.dues(due) } else { Dues::One(due) };
        self.must_below = i64::MAX;
        self.may_below = i64::MAX;
        self.ran = if op.unsure { EndedBefore::Maybe } else { EndedBefore::No };
        // The first request may have had another due; it may have ended, and the task been created again.
        self.any = op.unsure && !matches!(self.plan, Plan::At(_));
        // A request that may still take effect would give it another due.
        self.some = op.may_take_effect_later && self.plan == Plan::In;
        if self.some {
            self.must_below = i64::MIN;
        }
    }
}

impl Plan {
    /// The dues that follow from the first one.
    fn dues(self, first: i64) -> Dues {
        match self {
            Plan::At(_) | Plan::In => Dues::One(first),
            Plan::Series { step, limit, end, .. } => {
                let last = first + (limit - 1) * step;
                let last = end.map_or(last, |end| last.min(first + (end - first).div_euclid(step) * step));
                Dues::Series { first, step, last }
            }
        }
    }
}
