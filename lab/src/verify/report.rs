//! The result of a campaign: for people, and as JSON.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

use serde::Serialize;

use super::Fault;
use super::account::{Tally, Violation};
use super::samples::Row;

/// Maximum number of violations of one round that are shown to people.
const SHOWN: usize = 20;

/// The result of a campaign.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The kind of sink: `redis`, `kafka`, `rabbitmq`, `nats`.
    pub sink: &'static str,
    /// The seed of the first round; each later one has the next.
    pub seed: u64,
    /// Number of instances.
    pub instances: usize,
    /// Tasks put per second.
    pub rate: u32,
    /// Seconds of faults in each round.
    pub seconds: u64,
    /// What could not be done here, and why.
    pub left_out: Vec<String>,
    /// Faults of all rounds.
    pub faults: usize,
    /// Kills of all rounds whose target held a claim.
    pub kills_held: usize,
    /// Faults of all rounds by kind.
    pub kinds: BTreeMap<&'static str, Counted>,
    /// Broken laws of all rounds.
    pub violations: u64,
    /// Each round.
    pub rounds: Vec<Round>,
}

/// Faults of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counted {
    /// Number of executed faults.
    pub faults: usize,
    /// How many targets held a claim; for a server: while any instance held one.
    pub held: usize,
}

/// One round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Round {
    /// Its seed, with which the same faults are planned again.
    pub seed: u64,
    /// Faults that were carried out.
    pub faults: usize,
    /// Faults that could not be executed: no target was well in time, or there was no connection.
    pub skipped: u64,
    /// How many instances that ended in order were checked for claims.
    pub ends_judged: u64,
    /// Faults by kind.
    pub kinds: BTreeMap<&'static str, Counted>,
    /// Bytes that reached a server after their sender had closed the connection.
    pub late_bytes: u64,
    /// The answers to second requests, to requests that steer and to look-ups, and how many messages users sent to
    /// the door.
    pub races: BTreeMap<String, u64>,
    /// Counters.
    pub tally: Tally,
    /// How often each law was broken.
    pub broken: BTreeMap<&'static str, u64>,
    /// The first violations of each law.
    pub violations: Vec<Violation>,
    /// Lines at ERROR in the logs of the instances that are not about dead occurrences; no violations by themselves.
    pub errors: u64,
    /// The first of them.
    pub error_lines: Vec<String>,
    /// Where the logs of the instances are kept, if a law was broken.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logs: Option<String>,
    /// Resources of instances and Redis.
    pub resources: BTreeMap<String, Row>,
    /// Whether it was ended early.
    pub ended_early: bool,
    /// What could not be removed from the user's servers, and why.
    pub left_behind: Vec<String>,
}

/// Counts faults by kind.
pub(super) fn count(faults: &[Fault]) -> BTreeMap<&'static str, Counted> {
    let mut kinds: BTreeMap<&'static str, Counted> = BTreeMap::new();
    for fault in faults {
        let counted = kinds.entry(fault.kind).or_default();
        counted.faults += 1;
        counted.held += usize::from(fault.held);
    }
    kinds
}

impl Report {
    /// Whether a round had no fault, no promise or no message, so that the result means nothing.
    #[must_use]
    pub fn shows_nothing(&self) -> bool {
        let empty = |round: &Round| round.faults == 0 || round.tally.promised == 0 || round.tally.published == 0;
        self.rounds.is_empty() || self.rounds.iter().any(empty)
    }

    /// Adds the result of another round.
    pub(super) fn add(&mut self, round: Round) {
        self.faults += round.faults;
        self.violations += round.broken.values().sum::<u64>();
        for (kind, counted) in &round.kinds {
            let sum = self.kinds.entry(kind).or_default();
            sum.faults += counted.faults;
            sum.held += counted.held;
        }
        self.kills_held = self.kinds.get("kill").map_or(0, |kills| kills.held);
        self.rounds.push(round);
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for round in &self.rounds {
            writeln!(f, "{round}")?;
        }
        self.left_out.iter().try_for_each(|detail| writeln!(f, "left out: {detail}"))?;
        writeln!(f, "{:<20} {:>8} {:>8}", "fault", "times", "held")?;
        for (kind, Counted { faults, held }) in &self.kinds {
            writeln!(f, "{kind:<20} {faults:>8} {held:>8}")?;
        }
        writeln!(
            f,
            "\n{}: {} faults in {} rounds of {} s, {} instances, {} tasks/s, seed {}",
            self.sink,
            self.faults,
            self.rounds.len(),
            self.seconds,
            self.instances,
            self.rate,
            self.seed
        )?;
        match self.violations {
            0 => f.write_str("violations: 0\n"),
            count => writeln!(f, "violations: {count}"),
        }
    }
}

impl Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { tasks, tasks_per_second, promised, published, copies, repeated, late_ms, quiet_ms, .. } =
            &self.tally;
        let early = if self.ended_early { ", ended early" } else { "" };
        writeln!(f, "seed {}: {} faults, {} met nothing{early}", self.seed, self.faults, self.skipped)?;
        writeln!(f, "  tasks {tasks}, {tasks_per_second:.0} each second")?;
        writeln!(f, "  promised {promised}, read {published}, copies {copies}, requests repeated {repeated}")?;
        writeln!(f, "  {} bytes reached their server late", self.late_bytes)?;
        writeln!(f, "  late p50 {} ms, p99 {} ms, most {} ms", late_ms[0], late_ms[1], late_ms[2])?;
        match quiet_ms {
            [0, 0, 0] => writeln!(f, "  in calm: nothing was due")?,
            [half, most, all] => writeln!(f, "  in calm p50 {half} ms, p99 {most} ms, most {all} ms")?,
        }
        if !self.races.is_empty() {
            let races: Vec<String> = self.races.iter().map(|(answer, count)| format!("{answer} {count}")).collect();
            writeln!(f, "  second requests, and messages to the door: {}", races.join(", "))?;
        }
        let heads = ["4th/2nd", "of means"];
        writeln!(
            f,
            "  {:<28} {:>11} {:>11} {:>11} {:>11} {:>8} {:>8}",
            "median of quarter", 1, 2, 3, 4, heads[0], heads[1]
        )?;
        for (name, Row { medians: [a, b, c, d], last_to_second, mean_last_to_second, .. }) in &self.resources {
            let [ratio, of_means] = [last_to_second, mean_last_to_second]
                .map(|ratio| ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}")));
            writeln!(f, "  {name:<28} {a:>11.0} {b:>11.0} {c:>11.0} {d:>11.0} {ratio:>8} {of_means:>8}")?;
        }
        if self.errors > 0 {
            writeln!(f, "  lines at ERROR: {}", self.errors)?;
            self.error_lines.iter().try_for_each(|line| writeln!(f, "    {}", visible(line)))?;
        }
        for (law, count) in &self.broken {
            writeln!(f, "  VIOLATION {law}: {count}")?;
            let shown = self.violations.iter().filter(|violation| violation.law == *law).take(SHOWN);
            for Violation { key, evidence, .. } in shown {
                writeln!(f, "    {}: {}", visible(key), visible(evidence))?;
            }
        }
        self.left_behind.iter().try_for_each(|detail| writeln!(f, "  left behind: {detail}"))?;
        self.logs.iter().try_for_each(|folder| writeln!(f, "  the logs of the instances are kept in {folder}"))
    }
}

/// Text from outside without characters that a terminal interprets.
fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            // Writing to a String cannot fail.
            write!(shown, "\\u{:04x}", u32::from(character)).unwrap_or_default();
        } else {
            shown.push(character);
        }
    }
    shown
}
