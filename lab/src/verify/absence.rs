//! The report of the campaign with an absent sink.

use std::fmt;

use serde::Serialize;

use super::metrics::Lateness;

/// The effects of an absent sink.
#[derive(Clone, Debug, Serialize)]
pub struct Absence {
    /// Number of instances.
    pub instances: usize,
    /// Tasks put per second, for each of two lanes.
    pub rate: u32,
    /// How long the sink was away.
    pub away_seconds: f64,
    /// Tasks of both lanes that were answered as created.
    pub put: u64,
    /// Tasks whose key is in neither sink at the end, including dead ones that were never published.
    pub lost: u64,
    /// Messages beyond one per key.
    pub copies: u64,
    /// Number of dead occurrences.
    pub dead: u64,
    /// As many tasks as the sink will miss, all due at one moment before the absence.
    pub full: Drain,
    /// The backlog when the sink is back, counted from its first publish.
    pub backlog: Drain,
    /// The rate of the backlog divided by the full rate.
    pub backlog_to_full: f64,
    /// Time from the return of the sink to its first publish.
    pub first_after_seconds: f64,
    /// Lateness of the other lane: before, during the absence, during the backlog, afterwards.
    pub other_lane: [Lateness; 4],
    /// Lateness of the lane of the sink before and afterwards.
    pub own_lane: [Lateness; 2],
    /// Lateness of new tasks in the lane of the sink during the backlog.
    pub fresh: Lateness,
}

/// Many occurrences, and how fast they were published.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Drain {
    /// Number of occurrences.
    pub occurrences: u64,
    /// Time until all of them were published.
    pub seconds: f64,
    /// Publishes of the lane per second in that time, including new tasks.
    pub rate: f64,
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Absence { full, backlog, .. } = self;
        let span =
            |Drain { occurrences, seconds, rate }: &Drain| format!("{occurrences} in {seconds:.1} s, {rate:.0}/s");
        writeln!(f, "{} instances, {} tasks/s in each of two lanes", self.instances, self.rate)?;
        writeln!(
            f,
            "away for {:.0} s; put {}, lost {}, dead {}, copies {}",
            self.away_seconds, self.put, self.lost, self.dead, self.copies
        )?;
        writeln!(f, "all due at one moment while all is well: {}", span(full))?;
        writeln!(f, "the backlog: {}; {:.2} of that rate", span(backlog), self.backlog_to_full)?;
        writeln!(f, "first publish {:.1} s after the return", self.first_after_seconds)?;
        let when = ["before", "while away", "while its backlog went", "after"];
        for (when, late) in when.iter().zip(&self.other_lane) {
            writeln!(f, "other lane, {when}: {late}")?;
        }
        for (when, late) in ["before", "after"].iter().zip(&self.own_lane) {
            writeln!(f, "own lane, {when}: {late}")?;
        }
        writeln!(f, "own lane, tasks that became due while its backlog went: {}", self.fresh)
    }
}
