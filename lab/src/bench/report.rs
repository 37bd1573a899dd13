//! The result of a bench: for people, and as JSON with stable names.

use std::collections::BTreeMap;
use std::fmt::{self, Display};

use secrecy::ExposeSecret;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::Options;

/// The result of a bench.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The name of the bench.
    pub bench: &'static str,
    /// Its options.
    pub options: BTreeMap<&'static str, Value>,
    /// The figures; each name ends in its unit.
    #[serde(serialize_with = "by_name")]
    pub figures: Vec<Figure>,
    /// Ratios of figures of this run, which can be compared between machines.
    #[serde(serialize_with = "by_name")]
    pub ratios: Vec<Figure>,
    /// Notes for the reader of the figures.
    pub notes: Vec<String>,
}

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// Its name, which is stable, also in JSON.
    pub name: String,
    /// `None` if it could not be measured.
    pub value: Option<f64>,
    /// Its meaning, for people.
    pub text: String,
}

impl Report {
    /// An empty one, with the options that benches have in common.
    pub(super) fn new(options: &Options) -> Report {
        let mut report = Report {
            bench: options.bench.name(),
            options: BTreeMap::new(),
            figures: Vec::new(),
            ratios: Vec::new(),
            notes: Vec::new(),
        };
        if options.bench.publishes() {
            report.option("sink", options.kind.name());
            if let (Some(sink), Some(redis)) = (&options.sink, &options.redis)
                && sink.expose_secret() == redis.expose_secret()
            {
                report.notes.push("tasks wait in the Redis that is published to: its CPU is that of both".to_owned());
            }
        }
        report.option("own_redis", options.redis.is_none());
        if cfg!(debug_assertions) {
            report.notes.push("this program was not built for release: its figures mean nothing".to_owned());
        }
        report
    }

    /// Adds an option.
    pub(super) fn option(&mut self, name: &'static str, value: impl Into<Value>) {
        self.options.insert(name, value.into());
    }

    /// Adds a figure.
    pub(super) fn figure(&mut self, name: impl Into<String>, value: impl Into<Option<f64>>, text: impl Into<String>) {
        self.figures.push(Figure { name: name.into(), value: value.into().map(rounded), text: text.into() });
    }

    /// Adds a ratio; `None` if a part is missing, or the lower one is not positive.
    pub(super) fn ratio(
        &mut self,
        name: impl Into<String>,
        above: impl Into<Option<f64>>,
        below: impl Into<Option<f64>>,
        text: impl Into<String>,
    ) {
        let value = over(above.into(), below.into());
        self.ratios.push(Figure { name: name.into(), value: value.map(rounded), text: text.into() });
    }
}

/// A ratio; `None` if a part is missing, or the lower one is not positive.
pub(super) fn over(above: Option<f64>, below: Option<f64>) -> Option<f64> {
    above.zip(below.filter(|below| *below > 0.0)).map(|(above, below)| above / below)
}

/// Rounds to a thousandth; no figure is more precise.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Serialises figures as an object with a member for each.
fn by_name<S: Serializer>(figures: &[Figure], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(figures.len()))?;
    for Figure { name, value, .. } in figures {
        map.serialize_entry(name, value)?;
    }
    map.end()
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<String> =
            self.options.iter().map(|(name, value)| format!("{name} {}", plain(value))).collect();
        writeln!(f, "bench {}: {}\n", self.bench, options.join(", "))?;
        self.figures.iter().try_for_each(|figure| figure.fmt(f))?;
        if !self.ratios.is_empty() {
            writeln!(f, "\nratios")?;
            self.ratios.iter().try_for_each(|figure| figure.fmt(f))?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "\nnote: {note}"))
    }
}

/// A value in plain text.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

impl Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = match self.value {
            None => "-".to_owned(),
            Some(value) if value.abs() >= 1000.0 || value.fract() == 0.0 => format!("{value:.0}"),
            Some(value) if value.abs() >= 100.0 => format!("{value:.1}"),
            Some(value) => format!("{value:.3}"),
        };
        writeln!(f, "  {:<38} {value:>12}  {}", self.name, self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Bench;
    use super::*;
    use crate::servers::Program;

    fn report() -> Report {
        let options = Options::new(Bench::Throughput, Program::nowhere(), "bench-1".to_owned());
        let mut report = Report::new(&options);
        report.figure("tasks_per_second", 1234.5678, "all of it");
        report.figure("instance_cpu_us", None, "of one occurrence");
        report.ratio("half", 1.0, 2.0, "at least 0.75");
        report.ratio("of_nothing", 1.0, 0.0, "");
        report.ratio("of_none", 1.0, None, "");
        report
    }

    #[test]
    fn a_report_in_json_is_one_object_with_a_member_for_each_figure() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!(json["bench"], "throughput");
        assert_eq!(json["options"], serde_json::json!({ "sink": "redis", "own_redis": true }));
        assert_eq!(json["figures"], serde_json::json!({ "tasks_per_second": 1234.568, "instance_cpu_us": null }));
        assert_eq!(json["ratios"], serde_json::json!({ "half": 0.5, "of_nothing": null, "of_none": null }));
    }

    #[test]
    fn a_report_in_text_has_a_line_for_each_figure() {
        let text = report().to_string();
        assert!(text.starts_with("bench throughput: own_redis true, sink redis\n"), "{text}");
        assert!(text.contains("  tasks_per_second                               1235  all of it\n"), "{text}");
        assert!(text.contains(" -  of one occurrence\n") && text.contains(" 0.500  at least 0.75\n"), "{text}");
    }
}
