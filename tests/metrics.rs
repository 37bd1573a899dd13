//! The table of metrics in docs/metrics.md, the board and the alert rules name what `/metrics` shows, and nothing else.
//! Each alert has a section in docs/runbook.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use punctual::clock::LocalClock;
use punctual::metrics::Metrics;
use punctual::timeline::Timeline;
use punctual::timeline::memory::MemoryTimeline;
use serde_json::Value;

/// Labels that Prometheus adds to every scrape.
const OF_THE_SCRAPE: [&str; 2] = ["job", "instance"];

/// The alerts that every operator needs.
const NEEDED: [&str; 5] =
    ["PunctualLate", "PunctualDead", "PunctualBreakerOpen", "PunctualLaneUnserved", "PunctualRedisAway"];

type Labels = BTreeSet<String>;

/// Text of `/metrics` once each metric has a value.
fn live() -> String {
    let metrics = Metrics::new("1.2.3", "i1");
    metrics.put("created", 1);
    metrics.cancel("cancelled");
    metrics.requeue("requeued", 1);
    metrics.discard("discarded", 1);
    metrics.action("pause_lane", "paused");
    metrics.dead("default", "rejected", 1);
    metrics.timeline_call("claim", "ok", 0.001);
    metrics.request("/v1/tasks/{id}", 200);
    metrics.lane("default").lateness.observe(0.001);
    metrics.door("in").rejected("bad_duration");
    metrics.sink("default").publish_seconds.observe(0.001);
    metrics.text()
}

/// Every name of a sample, with its labels: the names that expressions may use.
fn samples(text: &str) -> BTreeMap<String, Labels> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let parted = samples.map(|line| {
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let labels = labels.trim_end_matches('}').split("\",").filter_map(|label| label.split_once('='));
        (name.to_owned(), labels.map(|(label, _)| label.to_owned()).collect())
    });
    parted.collect()
}

/// Every metric by its name in expressions, with its type and labels.
fn metrics(text: &str) -> BTreeMap<String, (String, Labels)> {
    let samples = samples(text);
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let named = types.map(|(name, kind)| {
        let (asked, sample) = match kind {
            "counter" => (format!("{name}_total"), format!("{name}_total")),
            "info" => (format!("{name}_info"), format!("{name}_info")),
            "histogram" => (name.to_owned(), format!("{name}_count")),
            _ => (name.to_owned(), name.to_owned()),
        };
        let labels = samples.get(&sample).unwrap_or_else(|| panic!("no sample of `{sample}` in\n{text}"));
        (asked, (kind.to_owned(), labels.clone()))
    });
    named.collect()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap()
}

#[test]
fn the_pages_table_and_the_code_name_the_same_metrics() {
    let section = read("docs/metrics.md");
    let mut table = BTreeMap::new();
    for row in section.lines().filter(|line| line.starts_with("| `punctual_")) {
        let [_, name, kind, labels, meaning, _] = row.split('|').map(str::trim).collect::<Vec<_>>()[..] else {
            panic!("{row}")
        };
        let names = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        assert!(!meaning.is_empty(), "{row}");
        let first =
            table.insert(names(name).remove(0), (kind.to_owned(), names(labels).into_iter().collect::<Labels>()));
        assert_eq!(first, None, "twice: {row}");
    }
    assert_eq!(table, metrics(&live()));
}

/// The metrics that an expression names, each with the labels that it is chosen by; and the labels that it groups by.
fn named(expression: &str) -> (Vec<(String, Vec<String>)>, Vec<String>) {
    let (mut metrics, mut groups) = (Vec::new(), Vec::new());
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut rest = expression;
    while let Some(start) = rest.find(|c: char| is_name(c) || c == '"') {
        rest = &rest[start..];
        if let Some(text) = rest.strip_prefix('"') {
            rest = text.split_once('"').unwrap_or_else(|| panic!("a text without end: {expression}")).1;
            continue;
        }
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        rest = after;
        if word.starts_with("punctual_") {
            let mut chosen = Vec::new();
            if let Some(matchers) = after.strip_prefix('{') {
                let (matchers, after) = matchers.split_once('}').unwrap();
                let labels = matchers.split('"').step_by(2).map(|label| label.trim_matches([',', '=', '~', '!', ' ']));
                chosen.extend(labels.filter(|label| !label.is_empty()).map(str::to_owned));
                rest = after;
            }
            metrics.push((word.to_owned(), chosen));
        } else if ["by", "without", "on", "ignoring"].contains(&word) {
            let list = after.trim_start().strip_prefix('(').and_then(|list| list.split_once(')'));
            let (list, after) = list.unwrap_or_else(|| panic!("`{word}` without a list: {expression}"));
            groups.extend(list.split(',').map(|label| label.trim().to_owned()));
            rest = after;
        }
    }
    (metrics, groups)
}

/// Asserts that an expression names only existing metrics and labels. Returns the labels that it groups by.
fn check(expression: &str, samples: &BTreeMap<String, Labels>) -> Vec<String> {
    let (metrics, groups) = named(expression);
    // Prometheus' own `up` covers an instance that cannot be scraped.
    assert!(!metrics.is_empty() || expression.starts_with("up{"), "no metric of punctual: {expression}");
    let of_the_scrape = |label: &str| OF_THE_SCRAPE.contains(&label);
    // A vector joined with `on` only selects; it does not take part in the grouping.
    let joined = expression.split_once(" and on ").map_or("", |(_, joined)| joined);
    for (name, chosen) in &metrics {
        let labels = samples.get(name).unwrap_or_else(|| panic!("no metric `{name}`: {expression}"));
        let has = |label: &String| of_the_scrape(label) || labels.contains(label);
        let grouped = groups.iter().filter(|_| !joined.contains(name.as_str()));
        let unknown: Vec<_> = chosen.iter().chain(grouped).filter(|label| !has(label)).collect();
        assert!(unknown.is_empty(), "`{name}` has no label {unknown:?}: {expression}");
    }
    groups
}

/// Each metric with a label and the value that selects it: `name{label="value"`.
fn chosen_values(expression: &str) -> Vec<(String, String)> {
    let chosen = expression.split("punctual_").skip(1).filter_map(|part| part.split_once('{'));
    let chosen = chosen.filter(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
    let lists = chosen.flat_map(|(name, rest)| {
        let matchers = rest.split('}').next().unwrap().split(',');
        matchers.map(move |matcher| (format!("punctual_{name}{{"), matcher.to_owned()))
    });
    lists.filter(|(_, matcher)| matcher.contains("=\"")).filter(|(_, matcher)| !matcher.contains("!=")).collect()
}

#[test]
fn counters_used_by_alerts_are_shown_at_zero_before_they_increase() {
    // A counter whose first value is 1 has never been seen to increase.
    let metrics = Arc::new(Metrics::new("1.2.3", "i1"));
    MemoryTimeline::new(Arc::new(LocalClock::new()), 1).count_calls(Arc::clone(&metrics));
    metrics.request("/v1/stats", 200);
    let (_, _, _) = (metrics.lane("default"), metrics.sink("default"), metrics.door("in"));
    let text = metrics.text();
    let mut seen = 0;
    for rule in rules(&read("examples/alerts.yml")) {
        for (name, matcher) in chosen_values(&rule["expr"]) {
            let at_zero = |line: &str| line.starts_with(&name) && line.contains(&matcher) && line.ends_with(" 0");
            assert!(text.lines().any(at_zero), "nothing at zero of {name}{matcher}}} in\n{text}");
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen}");
}

#[test]
fn every_alert_has_a_section_in_the_runbook_and_links_to_it() {
    let (alerts, runbook) = (read("examples/alerts.yml"), read("docs/runbook.md"));
    let names: BTreeSet<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    let sections: BTreeSet<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(names, sections);
    for name in names {
        let link = format!("runbook: \"docs/runbook.md#{}\"", name.to_lowercase());
        assert!(alerts.contains(&link), "{name} has no link `{link}`");
    }
}

/// The labels that a text names between `{{` and `}}`, after a prefix.
fn shown(text: &str, prefix: &str) -> Vec<String> {
    let parts = text.split("{{").skip(1).map(|part| part.split("}}").next().unwrap().trim());
    parts.filter_map(|part| part.strip_prefix(prefix)).map(|label| label.trim().to_owned()).collect()
}

#[test]
fn the_board_asks_for_metrics_that_there_are() {
    let (board, samples) = (serde_json::from_str::<Value>(&read("examples/grafana.json")).unwrap(), samples(&live()));
    let variables = board["templating"]["list"].as_array().unwrap();
    let variables: Vec<&str> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables, ["datasource", "job", "instance"]);
    for query in board["templating"]["list"].as_array().unwrap().iter().filter(|variable| variable["type"] == "query") {
        check(query["definition"].as_str().unwrap(), &samples);
        assert_eq!(query["definition"], query["query"]["query"]);
    }
    let (mut ids, mut asked) = (BTreeSet::new(), BTreeSet::new());
    for panel in board["panels"].as_array().unwrap() {
        assert!(ids.insert(panel["id"].as_i64().unwrap()), "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        assert!(!panel["description"].as_str().unwrap().is_empty(), "{panel}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}");
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let groups = check(expression, &samples);
            let chosen = named(expression).0;
            assert!(chosen.iter().all(|(_, labels)| labels.starts_with(&["job".into(), "instance".into()])));
            asked.extend(chosen.into_iter().map(|(name, _)| name));
            for label in shown(target["legendFormat"].as_str().unwrap(), "") {
                assert!(groups.contains(&label), "{{{{{label}}}}} of {expression}");
            }
        }
    }
    for name in [
        "lateness_seconds_bucket",
        "published_total",
        "pending",
        "in_flight",
        "oldest_due_seconds",
        "breaker",
        "dead_total",
        "leases_reaped_total",
        "timeline_call_seconds_bucket",
        "http_requests_total",
    ] {
        assert!(asked.contains(&format!("punctual_{name}")), "the board does not show {name}");
    }
}

/// One rule of the file: value by key.
type Rule = BTreeMap<String, String>;

/// Parses the rules. Accepts the few forms of YAML that the file uses and panics at any other.
fn rules(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut folded: Option<(String, usize)> = None;
    let lines = text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut lines = lines.skip_while(|line| *line != "    rules:");
    assert_eq!(lines.next(), Some("    rules:"));
    for line in lines {
        let (indent, detail) = (line.len() - line.trim_start().len(), line.trim());
        if let Some((key, deeper)) = &folded
            && indent >= *deeper
        {
            let value = rules.last_mut().unwrap().get_mut(key).unwrap();
            *value = format!("{value} {detail}").trim().to_owned();
            continue;
        }
        folded = None;
        let detail = match (indent, detail.strip_prefix("- ")) {
            (6, Some(first)) => {
                rules.push(Rule::new());
                first
            }
            (8 | 10, None) => detail,
            _ => panic!("not a line of a rule: {line}"),
        };
        let (key, value) = detail.split_once(':').unwrap_or_else(|| panic!("no key: {line}"));
        let value = value.trim();
        match (key, value) {
            ("annotations", "") => continue,
            (_, "") => panic!("no value: {line}"),
            (_, ">-") => folded = Some((key.to_owned(), indent + 2)),
            // A quoted value ends with a quote; an unquoted one contains no YAML syntax.
            _ if value.starts_with('"') => assert!(value.len() > 2 && value.ends_with('"'), "{line}"),
            _ => assert!(!value.contains(": ") || key == "labels", "{line}"),
        }
        let value = if folded.is_some() { "" } else { value.trim_matches('"') };
        let first = rules.last_mut().unwrap().insert(key.to_owned(), value.to_owned());
        assert_eq!(first, None, "twice: {line}");
    }
    rules
}

#[test]
fn alerts_use_existing_metrics_and_have_a_description() {
    let (rules, samples) = (rules(&read("examples/alerts.yml")), samples(&live()));
    let names: Vec<&str> = rules.iter().map(|rule| &*rule["alert"]).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    for needed in NEEDED {
        assert!(names.contains(&needed), "no `{needed}` among {names:?}");
    }
    for rule in &rules {
        let groups = check(&rule["expr"], &samples);
        for text in ["summary", "description"] {
            assert!(!rule[text].is_empty(), "{rule:?}");
            let labels = shown(&rule[text], "$labels.");
            let has = |label: &String| groups.contains(label) || rule["expr"].starts_with("up{");
            assert!(labels.iter().all(has), "{labels:?} of {rule:?}");
        }
        assert!(["{ severity: page }", "{ severity: ticket }"].contains(&&*rule["labels"]), "{rule:?}");
        let known = ["alert", "annotations", "description", "expr", "for", "labels", "runbook", "summary"];
        assert!(rule.keys().all(|key| known.contains(&&**key)), "{rule:?}");
    }
}
