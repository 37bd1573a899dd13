//! What the campaign with an absent sink tells.

use std::fmt;

use serde::Serialize;

use super::metrics::Lateness;

/// What an absence of a sink did.
#[derive(Clone, Debug, Serialize)]
pub struct Absence {
    /// Instances.
    pub instances: usize,
    /// Tasks put each second, for each of two lanes.
    pub rate: u32,
    /// How long the sink was away.
    pub away_seconds: f64,
    /// Tasks of both lanes of which an answer said that they were put.
    pub put: u64,
    /// Those of them whose key neither sink holds in the end, dead ones that were never published among them.
    pub lost: u64,
    /// Messages that they hold beyond one of each key.
    pub copies: u64,
    /// Occurrences that are dead.
    pub dead: u64,
    /// As many tasks as the sink will miss, all due at one moment while all is well.
    pub full: Drain,
    /// What had gathered when the sink was back, from the first publish to it on.
    pub backlog: Drain,
    /// The rate of the backlog in the full rate.
    pub backlog_to_full: f64,
    /// From the return of the sink until something was published to it.
    pub first_after_seconds: f64,
    /// How late the other lane was: before, while the sink was away, while its backlog was published, after.
    pub other_lane: [Lateness; 4],
    /// How late the lane of the sink was before and after.
    pub own_lane: [Lateness; 2],
    /// How late what became due in the lane of the sink was, while its backlog was published.
    pub fresh: Lateness,
}

/// Many occurrences, and how fast they were published.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Drain {
    /// Occurrences.
    pub occurrences: u64,
    /// Until all of them were published.
    pub seconds: f64,
    /// Publishes of the lane each second of that time, with what became due meanwhile.
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
        writeln!(f, "the backlog: {}; {:.2} of that", span(backlog), self.backlog_to_full)?;
        writeln!(f, "first publish {:.1} s after the return", self.first_after_seconds)?;
        let when = ["before", "while away", "while its backlog went", "after"];
        for (when, late) in when.iter().zip(&self.other_lane) {
            writeln!(f, "other lane, {when}: {late}")?;
        }
        for (when, late) in ["before", "after"].iter().zip(&self.own_lane) {
            writeln!(f, "own lane, {when}: {late}")?;
        }
        writeln!(f, "own lane, what became due while its backlog went: {}", self.fresh)
    }
}
