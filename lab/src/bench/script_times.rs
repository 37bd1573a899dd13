//! The cost of an occurrence in Redis, beside its cost in the baseline loop at the same time.
//!
//! Instances work on their timeline while the baseline loop works on its own records in the same Redis and with the
//! same sink. The cost of a call depends on what else the machine does, which changes from second to second: one after
//! the other, the same work may differ by a third. Side by side, both run under the same conditions.
//!
//! Redis has a core of its own meanwhile. Otherwise the operating system may interrupt a long call, and the wait would count
//! as its cost.

use std::time::Duration;

use tokio::try_join;

use super::Tell;
use super::baseline;
use super::cores::OwnCore;
use super::limits;
use super::moment::Load;
use super::report::{Report, over};
use super::setup::BenchSetup;
use super::tasks::TaskNamespace;
use punctual::clock::{Clock, Timestamp};

/// The baseline loop begins this long after the moment at which the tasks are due.
const START_DELAY: Duration = Duration::from_millis(5);

/// Maximum number of tasks; more would not improve the figures.
pub(super) const MAX_TASKS: u64 = 200_000;

/// A note for the report.
const NO_CORE: &str = "Redis had no core of its own: the times of scripts include waiting for a core";

/// Time in scripts of Redis per occurrence, in us.
pub(super) struct ScriptTimes {
    /// Of all scripts of the instances.
    own_us: Option<f64>,
    /// Of the baseline loop.
    floor_us: Option<f64>,
    /// Whether Redis had a core of its own.
    has_core: bool,
}

impl ScriptTimes {
    /// Measures `load`, up to a limit, and as many tasks for the baseline loop.
    ///
    /// # Errors
    /// If an occurrence is not published.
    pub(super) async fn measure(
        setup: &BenchSetup,
        task_namespace: &TaskNamespace,
        load: &Load<'_>,
        tell: Tell<'_>,
    ) -> anyhow::Result<ScriptTimes> {
        let load = Load { tasks: load.tasks.min(MAX_TASKS), lead: Duration::ZERO, ..*load };
        let (destination, out) = limits::open(setup, &format!("floor-{}", load.prefix), load.payload).await?;
        let (namespace, clock) = (setup.baseline_namespace()?, setup.probe.clock());
        let put = async |due: Timestamp| {
            // An earlier attempt may have left records.
            setup.empty(&namespace).await?;
            limits::records(setup, load.schedule_kind, load.tasks, load.payload, due).await.map(drop)
        };
        let moment = load.ready(setup, task_namespace, tell, put).await?;
        let floor = async {
            // A claim a moment too early would find nothing, and end.
            clock.sleep_until(moment.due.plus(START_DELAY)).await;
            baseline::drain(setup, &namespace, load.schedule_kind, load.tasks, Some(&out)).await
        };
        let core = setup.redis_pid().and_then(OwnCore::of);
        let (past, floor) = try_join!(moment.pass(setup, task_namespace, &load, tell), floor)?;
        let has_core = core.is_some();
        drop(core);
        moment.fleet.end().await?;
        limits::close(setup, &destination, out, load.tasks).await?;
        setup.empty(&namespace).await?;
        Ok(ScriptTimes { own_us: past.script_us(), floor_us: floor.script_us, has_core })
    }

    /// Adds both figures and their ratio to the report.
    pub(super) fn show(&self, report: &mut Report) {
        self.figures(report, "");
        report.ratio("scripts_to_floor", self.own_us, self.floor_us, "budget: at most 1.3");
    }

    /// Adds both figures, with a prefix.
    pub(super) fn figures(&self, report: &mut Report, prefix: &str) {
        let (own, floor) = (format!("{prefix}script_us"), format!("{prefix}floor_us"));
        report.figure(
            own,
            self.own_us,
            "time of Redis in all scripts for one occurrence, while the baseline loop runs",
        );
        report.figure(
            floor,
            self.floor_us,
            "time of Redis in the baseline loop for one of its occurrences, while instances run",
        );
        if !self.has_core && !report.notes.iter().any(|note| note == NO_CORE) {
            report.notes.push(NO_CORE.to_owned());
        }
    }

    /// The ratio of the two.
    pub(super) fn to_floor(&self) -> Option<f64> {
        over(self.own_us, self.floor_us)
    }
}
