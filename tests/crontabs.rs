//! Cron expressions as people write them: the due times of three crontabs around clock changes, and the page on cron.

#![expect(clippy::unwrap_used, reason = "a test fails by it, wherever it stands")]

mod walker;

use jiff::civil::date;
use jiff::tz::TimeZone;
use punctual::Timestamp;
use punctual::task::{Schedule, When};

use self::walker::Walker;

/// Zones whose clocks change by an hour, half an hour and two hours, at midnight, and south of the equator.
const ZONES: [&str; 8] = [
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "Atlantic/Azores",
    "Africa/Cairo",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
];

const CRONTABS: [&str; 3] = [
    include_str!("crontabs/shop.crontab"),
    include_str!("crontabs/plant.crontab"),
    include_str!("crontabs/host.crontab"),
];

/// The expressions of a crontab: all words of a line but the last.
fn expressions(crontab: &str) -> impl Iterator<Item = String> {
    let lines = crontab.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[..words.len() - 1].join(" ")
    })
}

/// The first `count` due times later than `after`, all in seconds since 1970.
fn dues(expression: &str, zone: &str, after: i64, count: usize) -> Vec<i64> {
    let when = When::Cron { expression: expression.to_owned(), zone: Some(zone.to_owned()), start: None };
    let schedule = Schedule { when, end: None, limit: None, spread: None };
    let at = |second: i64| Timestamp::from_millis(second * 1000);
    let next = |after: i64| {
        let next = schedule.next_after(&"a".parse().unwrap(), at(0), at(after)).unwrap();
        next.map(|due| due.as_millis() / 1000)
    };
    std::iter::successors(next(after), |due| next(*due)).take(count).collect()
}

/// Two days before each clock change of 2027 in a zone.
fn before_changes(zone: &str) -> Vec<i64> {
    let year = date(2027, 1, 1).to_zoned(TimeZone::UTC).unwrap().timestamp();
    let zone = TimeZone::get(zone).unwrap();
    let changes: Vec<i64> = zone.following(year).take(2).map(|change| change.timestamp().as_second()).collect();
    changes.into_iter().map(|change| change - 2 * 86_400).collect()
}

#[test]
fn three_crontabs_are_due_when_a_walk_over_the_minutes_says() {
    let mut compared = 0;
    for expression in CRONTABS.into_iter().flat_map(expressions) {
        for zone in ZONES {
            let walker = Walker::new(&expression, zone);
            for from in before_changes(zone) {
                let found = dues(&expression, zone, from, 20);
                assert_eq!(found, walker.dues(from, 20), "`{expression}` in {zone} after {from}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 47 * ZONES.len() * 2);
}

/// The rows `| expression | zone | after | due times |` of the page.
#[test]
fn examples_of_the_cron_page_are_due_at_the_times_that_it_lists() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/cron.md")).unwrap();
    let mut examples = 0;
    for line in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(|cell| cell.trim().trim_matches('`')).collect();
        let [expression, zone, after, times] = cells[..] else { continue };
        let second = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
        let times: Vec<i64> = times.split("`, `").map(second).collect();
        assert_eq!(dues(expression, zone, second(after), times.len()), times, "{line}");
        examples += 1;
    }
    assert!(examples >= 15, "{examples}");
}
