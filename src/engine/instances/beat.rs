//! What an instance says of itself once a second.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::InstanceState;
use super::recent::{OutcomeCounter, OutcomeCounts};
use crate::task::Lane;
use crate::timeline::MAX_BEAT_BYTES;

/// Maximum size of a beat up to the end of its lanes, in bytes. For a lane that does not fit, other instances compute
/// their ranks as if this instance did not serve it.
const MAX_LANE_BYTES: usize = 2048;

/// Maximum size of the names of unavailable sinks in a beat, in bytes.
const MAX_SINK_BYTES: usize = 512;

/// A beat. As text: the id of the instance, a space, its lanes, separated by commas, a space, and its report in JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Beat {
    pub(super) instance: String,
    /// The lanes that it claims.
    pub(super) lanes: BTreeSet<Lane>,
    pub(super) report: BeatReport,
}

/// What others show of an instance. Nothing depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct BeatReport {
    pub(super) version: String,
    /// The sinks whose breaker is open, as many as fit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unavailable_sinks: Vec<String>,
    /// The outcomes of each lane since the last beat that contained outcomes of this lane.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) outcomes: BTreeMap<Lane, OutcomeCounts>,
}

impl Beat {
    /// The beat of an instance that has published nothing.
    pub(super) fn new(state: &InstanceState) -> Beat {
        let mut bytes = 0;
        let fits = |sink: &&String| {
            bytes += sink.len() + 3;
            bytes <= MAX_SINK_BYTES
        };
        let unavailable_sinks = state.unavailable_sinks.iter().take_while(fits).cloned().collect();
        let report = BeatReport { version: state.version.clone(), unavailable_sinks, outcomes: BTreeMap::new() };
        Beat { instance: state.id.clone(), lanes: state.lanes.clone(), report }
    }

    /// Adds the outcomes that were counted since the last beat, as many as fit. Returns whether these are all.
    pub(super) fn take_outcomes<'a>(&mut self, counters: impl Iterator<Item = (&'a Lane, &'a OutcomeCounter)>) -> bool {
        let mut bytes = self.pack().len() + r#","outcomes":{}"#.len();
        let mut counters: Vec<_> = counters.collect();
        // Starts at a random lane; otherwise the same lanes would be left out whenever the outcomes do not fit.
        let first = if counters.is_empty() { 0 } else { rand::random_range(0..counters.len()) };
        counters.rotate_left(first);
        for (lane, counter) in counters {
            let counts = counter.take();
            if counts.is_empty() {
                continue;
            }
            // Quotes, colon and comma.
            bytes += serde_json::to_string(&counts).map_or(0, |text| text.len()) + lane.as_str().len() + 4;
            if bytes > MAX_BEAT_BYTES {
                counter.put_back(&counts);
                return false;
            }
            self.report.outcomes.insert(lane.clone(), counts);
        }
        true
    }

    pub(super) fn pack(&self) -> String {
        let mut text = format!("{} ", self.instance);
        for (number, lane) in self.lanes.iter().enumerate() {
            if text.len() + 1 + lane.as_str().len() > MAX_LANE_BYTES {
                break;
            }
            text.push_str(if number > 0 { "," } else { "" });
            text.push_str(lane.as_str());
        }
        let report = serde_json::to_string(&self.report).unwrap_or_default();
        text + " " + &report
    }

    /// `None` if the text is no beat. A report that cannot be read, such as that of another version, counts as empty.
    pub(super) fn unpack(text: &str) -> Option<Beat> {
        if text.len() > MAX_BEAT_BYTES {
            return None;
        }
        let mut parts = text.splitn(3, ' ');
        let (instance, lanes) = (parts.next().filter(|instance| !instance.is_empty())?, parts.next()?);
        let lanes = lanes.split(',').filter(|lane| !lane.is_empty()).map(|lane| lane.parse().ok());
        let report = parts.next().and_then(|report| serde_json::from_str(report).ok()).unwrap_or_default();
        Some(Beat { instance: instance.to_owned(), lanes: lanes.collect::<Option<_>>()?, report })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn beat(lanes: &[&str]) -> Beat {
        let lanes = lanes.iter().map(|lane| lane.parse().unwrap()).collect();
        Beat { instance: "i.1".into(), lanes, report: BeatReport { version: "0.1.0".into(), ..BeatReport::default() } }
    }

    #[test]
    fn a_beat_is_unpacked_as_it_was_packed() {
        for lanes in [&[][..], &["default"], &["default", "mail"]] {
            assert_eq!(Beat::unpack(&beat(lanes).pack()), Some(beat(lanes)));
        }
        assert_eq!(beat(&["b", "a"]).pack(), r#"i.1 a,b {"version":"0.1.0"}"#);
        let mut full = beat(&["a"]);
        let (lane, counter) = ("a".parse().unwrap(), OutcomeCounter::default());
        full.report.unavailable_sinks.push("orders".into());
        assert!(full.take_outcomes([(&lane, &counter)].into_iter()) && full.report.outcomes.is_empty());
        counter.accepted(Duration::from_millis(3));
        counter.retry();
        assert!(full.take_outcomes([(&lane, &counter)].into_iter()));
        assert!(counter.take().is_empty() && full.report.outcomes[&lane].retry == 1);
        assert!(full.pack().ends_with(r#""outcomes":{"a":{"accepted":1,"retry":1,"lateness":[0,0,0,0,1]}}}"#));
        assert_eq!(Beat::unpack(&full.pack()), Some(full));
        let unknown = Beat { report: BeatReport::default(), ..beat(&["a", "b"]) };
        for report in ["", " of a later version", " {\"version\": 3}", " {\"outcomes\":{\"B?\":{}}}"] {
            assert_eq!(Beat::unpack(&format!("i.1 a,b{report}")), Some(unknown.clone()), "{report}");
        }
        for text in ["", "i.1", " a", "i.1 a,B?!"] {
            assert_eq!(Beat::unpack(text), None, "{text}");
        }
        assert_eq!(Beat::unpack(&format!("i.1 {}", "a,".repeat(3000))), None);
    }

    /// The most lanes, and the most sinks that are unavailable.
    #[test]
    fn a_beat_has_at_most_4_kib_and_outcomes_that_do_not_fit_are_sent_next() {
        let lanes: Vec<Lane> = (0..1000).map(|n| format!("lane-{n}").parse().unwrap()).collect();
        let counters: Vec<_> = lanes.iter().map(|_| OutcomeCounter::default()).collect();
        let state = InstanceState {
            id: "i.1".into(),
            version: "0.1.0".into(),
            lanes: lanes.iter().cloned().collect(),
            unavailable_sinks: (0..200).map(|n| format!("sink-{n}")).collect(),
        };
        counters.iter().for_each(|counter| counter.accepted(Duration::from_secs(1000)));
        let (mut all, mut beats) = (BTreeMap::<Lane, OutcomeCounts>::new(), 0);
        loop {
            let mut beat = Beat::new(&state);
            let are_all = beat.take_outcomes(lanes.iter().zip(&counters));
            let text = beat.pack();
            assert!(text.len() <= MAX_BEAT_BYTES && (are_all || text.len() > 3900), "{}", text.len());
            let unpacked = Beat::unpack(&text).unwrap();
            assert!(unpacked.lanes.len() > 200 && unpacked.report.unavailable_sinks.len() > 30);
            unpacked.report.outcomes.into_iter().for_each(|(lane, counts)| all.entry(lane).or_default().add(&counts));
            beats += 1;
            if are_all {
                break;
            }
        }
        assert!(all.len() == 1000 && all.values().all(|counts| counts.accepted == 1), "{}", all.len());
        assert!((10..100).contains(&beats), "{beats}");
    }
}
