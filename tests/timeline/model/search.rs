//! Breadth-first search over all possible steps, up to a number of states.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::hash::{BuildHasher, Hash};

use foldhash::quality::FixedState;

use super::choices::Action;
use super::rules::Rules;
use super::world::World;

/// Result of a search.
pub(crate) struct Report {
    /// Different states.
    pub(crate) states: usize,
    /// Steps taken from them.
    pub(crate) steps: usize,
    /// Length of the longest path.
    pub(crate) depth: usize,
    /// Whether every state was searched.
    pub(crate) complete: bool,
    /// The broken law, with the shortest path to it.
    pub(crate) broken: Option<Broken>,
}

/// A broken law and the shortest path to it.
pub(crate) struct Broken {
    pub(crate) law: String,
    pub(crate) way: Vec<Action>,
}

/// How a state was first reached: its predecessor and the number of the step.
type From = (u64, u16);

/// How each state was first reached, by its fingerprint.
type Seen = HashMap<u64, From, FixedState>;

/// Searches all states that `start` leads to, `most` at most, up to the first broken law.
pub(crate) fn search(start: &World, rules: Rules, most: usize) -> Report {
    let mut seen: Seen = HashMap::from_iter([(fingerprint(start), (0, 0))]);
    let mut frontier = vec![start.clone()];
    let mut report = Report { states: 1, steps: 0, depth: 0, complete: false, broken: None };
    while !frontier.is_empty() {
        report.depth += 1;
        let mut next = Vec::new();
        for world in frontier {
            if seen.len() >= most {
                report.states = seen.len();
                return report;
            }
            let here = fingerprint(&world);
            for (number, action) in world.actions(rules).into_iter().enumerate() {
                report.steps += 1;
                let number = u16::try_from(number).unwrap();
                let found = world.step(action, rules).and_then(|after| {
                    let print = fingerprint(&after);
                    if let Entry::Vacant(place) = seen.entry(print) {
                        after.check(rules)?;
                        place.insert((here, number));
                        next.push(after);
                    }
                    Ok(())
                });
                if let Err(law) = found {
                    let mut way = way_to(here, &seen, start, rules);
                    way.push(action);
                    report.states = seen.len();
                    report.broken = Some(Broken { law, way });
                    return report;
                }
            }
        }
        frontier = next;
    }
    report.states = seen.len();
    report.complete = true;
    report
}

/// A state is identified by 64 bits: among ten million states the chance that two are equal is below one in 300 000. The
/// hasher of the standard library would take half of the time of a search.
pub(crate) fn fingerprint(state: &impl Hash) -> u64 {
    FixedState::default().hash_one(state)
}

/// The steps from `start` to the state with this fingerprint.
fn way_to(to: u64, seen: &Seen, start: &World, rules: Rules) -> Vec<Action> {
    let first = fingerprint(start);
    let (mut numbers, mut at) = (Vec::new(), to);
    while at != first {
        let (before, number) = seen[&at];
        numbers.push(usize::from(number));
        at = before;
    }
    let mut world = start.clone();
    let mut way = Vec::new();
    for number in numbers.into_iter().rev() {
        let action = world.actions(rules)[number];
        way.push(action);
        world = world.step(action, rules).unwrap_or_else(|law| panic!("{law} on the way to a state that was seen"));
    }
    way
}

impl Broken {
    /// The law and the steps that break it, one per line.
    pub(crate) fn tell(&self) -> String {
        let mut text = format!("{}\n", self.law);
        for action in &self.way {
            writeln!(text, "  {action:?}").unwrap();
        }
        text
    }
}
