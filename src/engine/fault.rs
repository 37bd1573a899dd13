//! Fault points: the steps at which a test ends this process, like `kill -9`.
//!
//! Compiled only with the cargo feature `fault-points`; without it a point does nothing.
//! `PUNCTUAL_FAULT_POINT=<name>[:<n>]` selects a point, and optionally its n-th passing. With
//! `PUNCTUAL_FAULT_ID=<task>` only passings that concern this task count. Only `before_publish` knows its tasks, so no
//! other point may be selected with it. `mid_publish`, `after_part_settle`, `before_extend` and `after_extend` are reached
//! between two halves of a batch. They need a claim of several occurrences for one destination, and no other claim.

string_enum! {
    /// A step at which the process can end.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Point {
        /// The reply of a claim has arrived and is not processed.
        AfterClaim = "after_claim",
        /// The messages are built and not handed to the sink.
        BeforePublish = "before_publish",
        /// Half of a batch is answered, the other half is never handed over.
        MidPublish = "mid_publish",
        /// The first of several outcomes has arrived.
        MidBatch = "mid_batch",
        /// All outcomes have arrived, and the last verdicts are not sent.
        AfterPublish = "after_publish",
        /// Verdicts are about to be sent.
        BeforeSettle = "before_settle",
        /// Some verdicts of a claim are written; the claim still holds the others.
        AfterPartSettle = "after_part_settle",
        /// The last verdicts are written and the reply is not processed.
        AfterSettle = "after_settle",
        /// Leases are about to be renewed.
        BeforeExtend = "before_extend",
        /// Leases are renewed and the reply is not processed.
        AfterExtend = "after_extend",
        /// This instance is about to reap.
        BeforeReap = "before_reap",
        /// A reap has ended claims and the reply is not processed.
        AfterReap = "after_reap",
        /// The instructions of a door's messages have taken effect, and the messages are not acknowledged.
        BeforeAcknowledge = "before_acknowledge",
    }
}

#[cfg(not(feature = "fault-points"))]
mod armed {
    use super::Point;

    /// Does nothing.
    #[inline(always)]
    pub(crate) fn reached(_: Point) {}

    /// Does nothing.
    #[inline(always)]
    pub(in crate::engine) fn part_settled(_: usize) {}

    /// Does nothing.
    #[inline(always)]
    pub(in crate::engine) fn reached_with<'a, T: Iterator<Item = &'a str>>(_: Point, _: impl FnOnce() -> T) {}
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::Point;

    impl Point {
        /// Whether the point is reached only after the first half of a batch is settled.
        #[must_use]
        pub fn is_after_half(self) -> bool {
            matches!(self, Point::AfterPartSettle | Point::BeforeExtend | Point::AfterExtend)
        }
    }

    /// The point at which this process ends.
    struct Plan {
        point: Point,
        /// Remaining passings, including the last one.
        left: AtomicU64,
        task: Option<String>,
    }

    fn plan() -> Option<&'static Plan> {
        static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
        PLAN.get_or_init(|| std::env::var("PUNCTUAL_FAULT_POINT").ok().map(|text| read(&text))).as_ref()
    }

    /// Panics at an unknown name, or at a task with a point that knows none: a test that never reaches its point would prove
    /// nothing.
    fn read(text: &str) -> Plan {
        let (name, passing) = text.split_once(':').unwrap_or((text, "1"));
        let point = Point::of(name);
        let (Some(point), Ok(left)) = (point, passing.parse()) else {
            panic!("PUNCTUAL_FAULT_POINT=`{text}` names no fault point")
        };
        let task = std::env::var("PUNCTUAL_FAULT_ID").ok();
        assert!(
            task.is_none() || point == Point::BeforePublish,
            "only `before_publish` knows the task of PUNCTUAL_FAULT_ID"
        );
        Plan { point, left: AtomicU64::new(left), task }
    }

    /// Passes a point. At the selected point, this ends the process.
    pub(crate) fn reached(point: Point) {
        reached_with(point, std::iter::empty);
    }

    /// Passes a point that concerns tasks.
    pub(in crate::engine) fn reached_with<'a, T: Iterator<Item = &'a str>>(point: Point, tasks: impl FnOnce() -> T) {
        let Some(plan) = plan().filter(|plan| plan.point == point) else { return };
        if point.is_after_half() && UNSETTLED.load(Ordering::SeqCst) > 0 {
            return;
        }
        let is_selected = plan.task.as_ref().is_none_or(|task| tasks().any(|id| id == task));
        if is_selected && plan.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Ends every thread without unwinding, flushes or destructors.
            std::process::abort();
        }
    }

    /// Number of occurrences of the first half without a written verdict; `MAX` if the batch is not split.
    static UNSETTLED: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Some verdicts are written, and the claim holds more.
    pub(in crate::engine) fn part_settled(count: usize) {
        let left = |unsettled: usize| (unsettled != usize::MAX).then(|| unsettled.saturating_sub(count));
        // An error means that the batch is not split.
        UNSETTLED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).ok();
        reached(Point::AfterPartSettle);
    }

    /// Whether to split a batch so that the selected point can be reached. Returns the size of the first half. The
    /// second half is never handed to the sink, because the process ends first.
    pub(in crate::engine) fn first_half(of: usize) -> Option<usize> {
        let between = |point: Point| point == Point::MidPublish || point.is_after_half();
        let half = plan().filter(|plan| between(plan.point) && of > 1).map(|_| of / 2)?;
        UNSETTLED.store(half, Ordering::SeqCst);
        Some(half)
    }
}

#[cfg(feature = "fault-points")]
pub(super) use armed::first_half;
pub(crate) use armed::reached;
pub(super) use armed::{part_settled, reached_with};
