//! Messages that every door rejects, whatever its broker.

/// The headers of a message, and the code that it is rejected with.
pub(super) type BadMessage = (Vec<(&'static str, String)>, &'static str);

/// One of each kind; `LONG` is a text of 5000 letters.
const KINDS: [(&str, &str); 33] = [
    ("x=y", "missing_field"),
    ("punctual-in=soon", "bad_duration"),
    ("punctual-in=-5m", "bad_duration"),
    ("punctual-in=99999999999d", "bad_duration"),
    ("punctual-in=1s; punctual-at=1795262460000", "exclusive_fields"),
    ("punctual-every=1s; punctual-cron=* * * * *", "exclusive_fields"),
    ("punctual-at=tomorrow", "bad_time"),
    ("punctual-at=1795262460", "bad_time"),
    ("punctual-at=2026-13-01T00:00:00Z", "bad_time"),
    ("punctual-at=253402300800000", "bad_time"),
    ("punctual-every=0s", "bad_duration"),
    ("punctual-cron=every day", "bad_cron"),
    ("punctual-cron=61 * * * *", "bad_cron"),
    ("punctual-cron=0 0 31 2 *", "never_due"),
    ("punctual-cron=0 0 * * *; punctual-zone=Mars/Olympus", "bad_zone"),
    ("punctual-in=1s; punctual-zone=UTC", "not_applicable"),
    ("punctual-every=1s; punctual-limit=many", "wrong_type"),
    ("punctual-every=1s; punctual-limit=0", "out_of_range"),
    ("punctual-every=1s; punctual-start=later", "bad_time"),
    ("punctual-every=1s; punctual-end=2020-01-01T00:00:00Z", "end_before_first"),
    ("punctual-in=1s; punctual-nosuch=1", "unknown_field"),
    ("punctual-in=1s; punctual-id=a b", "bad_id"),
    ("punctual-in=1s; punctual-id=LONG", "bad_id"),
    ("punctual-do=explode", "bad_value"),
    ("punctual-do=cancel", "missing_field"),
    ("punctual-do=cancel; punctual-id=a; punctual-in=1s", "not_applicable"),
    ("punctual-in=1s; punctual-lane=no lane", "bad_lane"),
    ("punctual-in=1s; punctual-lane=nosuch", "unknown_lane"),
    ("punctual-in=1s; punctual-destination=LONG", "bad_value"),
    ("punctual-in=1s; punctual-key=LONG", "bad_value"),
    ("punctual-in=1s; punctual-catch-up=maybe", "bad_value"),
    ("punctual-in=1s; punctual-retry={", "not_json"),
    ("punctual-in=1s; punctual-retry={\"max\":-1}", "out_of_range"),
];

/// One message of each kind. Its destination is `out`, unless that is what is wrong.
pub(super) fn kinds() -> Vec<BadMessage> {
    let header = |text: &'static str| {
        let (name, value) = text.split_once('=').expect("a value");
        (name, value.replace("LONG", &"x".repeat(5000)))
    };
    let message = |text: &'static str| {
        let mut headers: Vec<_> = text.split("; ").map(header).collect();
        if !headers.iter().any(|(name, _)| ["punctual-destination", "punctual-do"].contains(name)) {
            headers.push(("punctual-destination", "out".to_owned()));
        }
        headers
    };
    let no_destination = (vec![header("punctual-in=1s")], "missing_field");
    KINDS.map(|(text, code)| (message(text), code)).into_iter().chain([no_destination]).collect()
}
