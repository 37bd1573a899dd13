//! What an instance says of itself once a second.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::recent::{OutcomeCounter, OutcomeCounts};
use crate::task::Lane;

/// The largest beat that is sent. Lanes that do not fit are left to others, which is right for them and costs this instance
/// only its place.
const MAX_BEAT_BYTES: usize = 4096;

/// Lanes take at most so much of a beat, so that there is space for its report.
const MAX_LANE_BYTES: usize = 2048;

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
    /// The sinks whose breaker is open.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unavailable_sinks: Vec<String>,
    /// The outcomes since the last beat that had those of the lane.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) outcomes: BTreeMap<Lane, OutcomeCounts>,
}

impl Beat {
    /// Adds the outcomes that were counted since the last beat, as many as fit. `last` is the last lane whose outcomes were
    /// sent: the lanes after it come first, so that with many lanes each has its turn.
    pub(super) fn take_outcomes<'a>(
        &mut self,
        counters: impl Iterator<Item = (&'a Lane, &'a OutcomeCounter)>,
        last: &mut Option<Lane>,
    ) {
        let mut bytes = self.pack().len() + r#","outcomes":{}"#.len();
        let mut all: Vec<_> = counters.collect();
        let next = all.iter().position(|(lane, _)| last.as_ref().is_some_and(|last| *lane > last));
        all.rotate_left(next.unwrap_or(0));
        for (lane, counter) in all {
            let counts = counter.take();
            if counts.is_empty() {
                continue;
            }
            let size = serde_json::to_string(&counts).map_or(0, |text| text.len());
            // Quotes, colon and comma.
            bytes += size + lane.as_str().len() + 4;
            if bytes > MAX_BEAT_BYTES {
                return counter.put_back(&counts);
            }
            self.report.outcomes.insert(lane.clone(), counts);
            *last = Some(lane.clone());
        }
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
        match serde_json::to_string(&self.report) {
            Ok(report) if text.len() + 1 + report.len() <= MAX_BEAT_BYTES => text + " " + &report,
            _ => text,
        }
    }

    /// `None` if the text is no beat. A report that cannot be read, such as that of another version, counts as empty.
    pub(super) fn unpack(text: &str) -> Option<Beat> {
        let mut parts = text.splitn(3, ' ');
        let (instance, lanes) = (parts.next()?, parts.next()?);
        let lanes = lanes.split(',').filter(|lane| !lane.is_empty()).map(|lane| lane.parse().ok());
        let report = parts.next().and_then(|report| serde_json::from_str(report).ok()).unwrap_or_default();
        let is_beat = !instance.is_empty() && text.len() <= MAX_BEAT_BYTES;
        Some(Beat { instance: instance.to_owned(), lanes: lanes.collect::<Option<_>>()?, report }).filter(|_| is_beat)
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
        full.take_outcomes([(&lane, &counter)].into_iter(), &mut None);
        assert!(full.report.outcomes.is_empty());
        counter.accepted(Duration::from_millis(3));
        counter.retry();
        full.take_outcomes([(&lane, &counter)].into_iter(), &mut None);
        assert!(counter.take().is_empty() && full.report.outcomes[&lane].retry == 1);
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

    #[test]
    fn a_beat_is_at_most_4_kib_and_outcomes_that_do_not_fit_are_sent_later() {
        let lanes: Vec<Lane> = (0..1000).map(|n| format!("lane-{n}").parse().unwrap()).collect();
        let counters: Vec<_> = lanes.iter().map(|_| OutcomeCounter::default()).collect();
        let all = lanes.iter().zip(&counters);
        let count = || all.clone().for_each(|(_, counter)| counter.accepted(Duration::from_secs(1000)));
        let (mut last, mut sent) = (None, BTreeMap::<Lane, OutcomeCounts>::new());
        count();
        for beats in 1.. {
            let mut beat = beat(&lanes.iter().map(Lane::as_str).collect::<Vec<_>>());
            let sorted: BTreeMap<&Lane, &OutcomeCounter> = all.clone().collect();
            beat.take_outcomes(sorted.into_iter(), &mut last);
            let text = beat.pack();
            assert!(text.len() > 3800 && text.len() <= MAX_BEAT_BYTES || beats > 50, "{}", text.len());
            let unpacked = Beat::unpack(&text).unwrap();
            assert!(unpacked.lanes.len() > 200);
            for (lane, counts) in unpacked.report.outcomes {
                sent.entry(lane).or_default().add(&counts);
            }
            if sent.len() == lanes.len() {
                assert!(beats < 100, "{beats}");
                break;
            }
        }
        let counted = sent.values().map(|counts| counts.accepted).sum::<u64>();
        assert_eq!(counted, 1000);
    }
}
