//! Fault points: where a test ends this process between two steps of a claim's life, as `kill -9` would.
//!
//! Only with the cargo feature `fault-points`; without it a point is nothing. `PUNCTUAL_FAULT_POINT=<name>[:<n>]` names the
//! point, and at which passing of it the process ends; with `PUNCTUAL_FAULT_ID=<task>` only those passings count that are
//! about that task. The points between the halves of a batch are for a single claim of several occurrences for one destination.

words! {
    /// A step after or before which nothing more may come.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Point {
        /// A claim's reply is there, and nothing was done with it.
        AfterClaim = "after_claim",
        /// The messages are made, and none is with the sink.
        BeforePublish = "before_publish",
        /// Half of a batch was answered, the other half never handed over.
        MidPublish = "mid_publish",
        /// The first of several outcomes is there.
        MidBatch = "mid_batch",
        /// All outcomes are there, and no verdict is on its way.
        AfterPublish = "after_publish",
        /// Verdicts are about to be written.
        BeforeSettle = "before_settle",
        /// The verdicts of a part of a claim are written; the rest is still held.
        AfterPartSettle = "after_part_settle",
        /// The last verdicts are written, and nothing was done with the reply.
        AfterSettle = "after_settle",
        /// Leases that are held are about to be renewed.
        BeforeExtend = "before_extend",
        /// They are renewed, and nothing was done with the reply.
        AfterExtend = "after_extend",
        /// It is this instance's turn to reap.
        BeforeReap = "before_reap",
        /// It has ended others' claims, and nothing was done with the reply.
        AfterReap = "after_reap",
    }
}

#[cfg(not(feature = "fault-points"))]
mod armed {
    use super::Point;

    /// Nothing.
    #[inline(always)]
    pub(in crate::engine) fn reached(_: Point) {}

    /// Nothing.
    #[inline(always)]
    pub(in crate::engine) fn part_settled(_: usize) {}

    /// Nothing.
    #[inline(always)]
    pub(in crate::engine) fn reached_with<'a, T: Iterator<Item = &'a str>>(_: Point, _: impl FnOnce() -> T) {}
}

#[cfg(feature = "fault-points")]
mod armed {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

    use super::Point;

    impl Point {
        /// Whether it is reached only once the first half of a batch is settled.
        #[must_use]
        pub fn is_after_half(self) -> bool {
            matches!(self, Point::AfterPartSettle | Point::BeforeExtend | Point::AfterExtend)
        }
    }

    /// Where this process ends.
    struct Plan {
        point: Point,
        /// Passings that are left, the last one included.
        left: AtomicU64,
        task: Option<String>,
    }

    fn plan() -> Option<&'static Plan> {
        static PLAN: OnceLock<Option<Plan>> = OnceLock::new();
        PLAN.get_or_init(|| std::env::var("PUNCTUAL_FAULT_POINT").ok().map(|text| read(&text))).as_ref()
    }

    /// A test that names no point would prove nothing.
    fn read(text: &str) -> Plan {
        let (name, passing) = text.split_once(':').unwrap_or((text, "1"));
        let point = Point::of(name);
        let (Some(point), Ok(left)) = (point, passing.parse()) else {
            panic!("PUNCTUAL_FAULT_POINT=`{text}` names no fault point")
        };
        Plan { point, left: AtomicU64::new(left), task: std::env::var("PUNCTUAL_FAULT_ID").ok() }
    }

    /// Passes a point; does not return from the one that was asked for.
    pub(in crate::engine) fn reached(point: Point) {
        reached_with(point, std::iter::empty);
    }

    /// Passes a point that is about tasks.
    pub(in crate::engine) fn reached_with<'a, T: Iterator<Item = &'a str>>(point: Point, tasks: impl FnOnce() -> T) {
        let Some(plan) = plan().filter(|plan| plan.point == point) else { return };
        if point.is_after_half() && UNSETTLED.load(Ordering::SeqCst) > 0 {
            return;
        }
        let meant = plan.task.as_ref().is_none_or(|task| tasks().any(|one| one == task));
        if meant && plan.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            // No unwinding, no flush, no destructor: every thread ends here.
            std::process::abort();
        }
    }

    /// Of the first half of a batch, those whose verdicts are not written; all ones as long as there was no half.
    static UNSETTLED: AtomicUsize = AtomicUsize::new(usize::MAX);

    /// Some verdicts are written, and more of their claim is held.
    pub(in crate::engine) fn part_settled(count: usize) {
        let left = |unsettled: usize| (unsettled != usize::MAX).then(|| unsettled.saturating_sub(count));
        // Without a half there is nothing to count.
        UNSETTLED.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).ok();
        reached(Point::AfterPartSettle);
    }

    /// Whether a batch goes out in halves, so that the point can be reached: this many at first, and the others as if the sink
    /// did not answer, since the process is to end before.
    pub(in crate::engine) fn first_half(of: usize) -> Option<usize> {
        let between = |point: Point| point == Point::MidPublish || point.is_after_half();
        let half = plan().filter(|plan| between(plan.point) && of > 1).map(|_| of / 2)?;
        UNSETTLED.store(half, Ordering::SeqCst);
        Some(half)
    }
}

#[cfg(feature = "fault-points")]
pub(super) use armed::first_half;
pub(super) use armed::{part_settled, reached, reached_with};
