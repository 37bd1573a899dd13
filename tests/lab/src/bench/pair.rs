//! What an occurrence takes in Redis, beside what it takes the naked loop at the same time.
//!
//! Both work at once: instances on their timeline, the naked loop on records of its own in the same Redis, with the same
//! sink. What a call costs depends on what else goes on in the machine, which differs from second to second: one after
//! the other, the same work may differ by a third. Side by side both have the same seconds.
//!
//! Redis has a core of its own meanwhile: else a call that takes longer than a slice of the scheduler's waits in its middle,
//! for as long as all others like, and that would be told as its cost.

use std::time::Duration;

use tokio::try_join;

use super::Tell;
use super::cores::OwnCore;
use super::ground::Ground;
use super::limits;
use super::moment::Load;
use super::naked;
use super::report::{Report, over};
use super::tasks::TaskNamespace;
use punctual::clock::{Clock, Timestamp};

/// How long after the moment the naked loop begins.
const LATER: Duration = Duration::from_millis(5);

/// More tasks tell nothing more about one.
pub(super) const MOST: u64 = 200_000;

/// What is to be known where it could not be helped.
const NO_CORE: &str = "Redis had no core of its own: times of scripts hold waits for one";

/// Time in scripts of Redis for an occurrence, in us.
pub(super) struct Pair {
    /// Of all that instances call.
    own_us: Option<f64>,
    /// Of the naked loop.
    floor_us: Option<f64>,
    /// Whether Redis had a core of its own.
    has_core: bool,
}

impl Pair {
    /// Measures `load`, up to a bound, and as many tasks for the naked loop.
    ///
    /// # Errors
    /// When something is not published.
    pub(super) async fn measure(
        ground: &Ground,
        shelf: &TaskNamespace,
        load: &Load<'_>,
        tell: Tell<'_>,
    ) -> anyhow::Result<Pair> {
        let load = Load { tasks: load.tasks.min(MOST), lead: Duration::ZERO, ..*load };
        let (destination, out) = limits::open(ground, &format!("floor-{}", load.prefix), load.payload).await?;
        let (namespace, clock) = (ground.floor_namespace()?, ground.probe.clock());
        let put = async |due: Timestamp| {
            // A moment that came too early is tried again.
            ground.empty(&namespace).await?;
            limits::records(ground, load.form, load.tasks, load.payload, due).await.map(drop)
        };
        let moment = load.ready(ground, shelf, tell, put).await?;
        let floor = async {
            // A claim that came a moment early would find nothing, and end.
            clock.sleep_until(moment.due.plus(LATER)).await;
            naked::drain(ground, &namespace, load.form, load.tasks, Some(&out)).await
        };
        let core = ground.redis_pid().and_then(OwnCore::of);
        let (past, floor) = try_join!(moment.pass(ground, shelf, &load, tell), floor)?;
        let has_core = core.is_some();
        drop(core);
        moment.fleet.end().await?;
        limits::close(ground, &destination, out, load.tasks).await?;
        ground.empty(&namespace).await?;
        Ok(Pair { own_us: past.script_us(), floor_us: floor.script_us, has_core })
    }

    /// Shows both, and their ratio.
    pub(super) fn show(&self, report: &mut Report) {
        self.figures(report, "");
        report.ratio("scripts_to_floor", self.own_us, self.floor_us, "budget: at most 1.3");
    }

    /// Shows both; their names begin with `prefix`.
    pub(super) fn figures(&self, report: &mut Report, prefix: &str) {
        let (own, floor) = (format!("{prefix}script_us"), format!("{prefix}floor_us"));
        report.figure(own, self.own_us, "of Redis in all scripts, for an occurrence, beside the naked loop");
        report.figure(floor, self.floor_us, "of Redis in the naked loop, for one of its own meanwhile");
        if !self.has_core && !report.notes.iter().any(|note| note == NO_CORE) {
            report.notes.push(NO_CORE.to_owned());
        }
    }

    /// How much more an occurrence takes than one of the naked loop.
    pub(super) fn to_floor(&self) -> Option<f64> {
        over(self.own_us, self.floor_us)
    }
}
