//! Records the messages that must be published, and those that may be. Compares them with the published messages.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::published::Published;

/// Expected keys, which the tests compute with plain arithmetic.
#[derive(Default)]
pub(crate) struct Ledger {
    keys: BTreeMap<String, Expected>,
    /// Tasks with an unanswered request whose answer would have reported one more due.
    untold: BTreeSet<String>,
}

struct Expected {
    must: bool,
    payloads: BTreeSet<String>,
}

/// Counts of a run without faults.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Keys that had to be published.
    pub(crate) expected: usize,
    /// Keys that were published and did not have to be.
    pub(crate) allowed: usize,
    /// Published keys that no answer reported, of tasks with an unanswered request.
    pub(crate) untold: usize,
    /// Total number of messages.
    pub(crate) messages: usize,
    /// Messages whose key had been published before.
    pub(crate) copies: usize,
    /// How late the broker received the messages: the median, the 99th percentile and the maximum; in ms.
    pub(crate) late: [i64; 3],
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tally { expected, allowed, untold, messages, copies, late: [half, most, all] } = self;
        write!(
            f,
            "{expected} keys expected, missing 0, unexpected 0, early 0; {messages} messages, {copies} copies, "
        )?;
        write!(
            f,
            "{allowed} that need not have come, {untold} untold; late by {half} ms (50 %), {most} (99 %), {all} (all)"
        )
    }
}

impl Ledger {
    /// This occurrence must be published with this payload.
    pub(crate) fn must(&mut self, id: &str, due: i64, payload: &str) {
        self.add(id, due, payload).must = true;
    }

    /// This occurrence may be published, with this payload.
    pub(crate) fn may(&mut self, id: &str, due: i64, payload: &str) {
        self.add(id, due, payload);
    }

    /// This task may be published once more, with a due that no answer reported.
    pub(crate) fn untold(&mut self, id: &str) {
        self.untold.insert(id.to_owned());
    }

    /// Minimum number of keys.
    pub(crate) fn expected(&self) -> usize {
        self.keys.values().filter(|expected| expected.must).count()
    }

    /// Compares the messages with the ledger and reports all faults at once.
    pub(crate) fn check(&self, published: &[Published]) -> Result<Tally, String> {
        let mut faults = Faults::default();
        let mut found: BTreeMap<&str, &str> = BTreeMap::new();
        let mut untold: BTreeMap<&str, &str> = BTreeMap::new();
        for message in published {
            let (task, due) = message.parts();
            if message.stamp < due {
                faults.add("early", format!("{} by {} ms", message.key, due - message.stamp));
            }
            match self.keys.get(&message.key) {
                Some(expected) if expected.payloads.contains(&message.payload) => {}
                Some(expected) => {
                    faults
                        .add("wrong payload", format!("{}: {} {:?}", message.key, message.payload, expected.payloads));
                }
                None if self.untold.contains(task) && *untold.entry(task).or_insert(&message.key) == message.key => {}
                None => faults.add("unexpected", message.key.clone()),
            }
            let first = found.entry(&message.key).or_insert(&message.payload);
            let alone = self.keys.get(&message.key).is_none_or(|expected| expected.payloads.len() < 2);
            if *first != message.payload && alone {
                faults.add("unlike its copy", format!("{}: {} and {first}", message.key, message.payload));
            }
        }
        for (key, _) in self.keys.iter().filter(|(key, expected)| expected.must && !found.contains_key(key.as_str())) {
            faults.add("missing", key.clone());
        }
        if !faults.0.is_empty() {
            return Err(faults.to_string());
        }
        let mut late: Vec<i64> = published.iter().map(|message| message.stamp - message.parts().1).collect();
        late.sort_unstable();
        let at =
            |part: usize| late.get((late.len() * part / 100).min(late.len().saturating_sub(1))).copied().unwrap_or(0);
        Ok(Tally {
            expected: self.expected(),
            allowed: found.len() - untold.len() - self.expected(),
            untold: untold.len(),
            messages: published.len(),
            copies: published.len() - found.len(),
            late: [at(50), at(99), at(100)],
        })
    }

    fn add(&mut self, id: &str, due: i64, payload: &str) -> &mut Expected {
        let entry = self.keys.entry(format!("{id}:{due}"));
        let expected = entry.or_insert_with(|| Expected { must: false, payloads: BTreeSet::new() });
        expected.payloads.insert(payload.to_owned());
        expected
    }
}

/// Faults by kind.
#[derive(Default)]
struct Faults(BTreeMap<&'static str, Vec<String>>);

impl Faults {
    fn add(&mut self, kind: &'static str, what: String) {
        self.0.entry(kind).or_default().push(what);
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, all) in &self.0 {
            writeln!(f, "{kind}: {}, as {}", all.len(), all[..all.len().min(12)].join(", "))?;
        }
        Ok(())
    }
}

#[test]
fn a_ledger_reports_every_kind_of_fault() {
    let mut ledger = Ledger::default();
    ledger.must("a", 1000, "1");
    ledger.must("b", 1000, "1");
    ledger.may("c", 1000, "1");
    ledger.untold("d");
    let message = |key: &str, payload: &str, stamp| Published { key: key.into(), payload: payload.into(), stamp };
    let good = [message("a:1000", "1", 1000), message("a:1000", "1", 9000), message("b:1000", "1", 1001)];
    let more = [message("c:1000", "1", 1002), message("d:1003", "x", 1003)];
    let tally = ledger.check(&[&good[..], &more].concat()).expect("no fault");
    assert_eq!((tally.expected, tally.allowed, tally.untold, tally.messages, tally.copies), (2, 1, 1, 5, 1));
    assert_eq!(tally.late, [1, 8000, 8000]);
    let fault = |messages: &[Published]| ledger.check(messages).expect_err("a fault");
    assert!(fault(&good[..1]).contains("missing: 1, as b:1000"));
    for (bad, detail) in [
        (message("a:1000", "1", 999), "early: 1, as a:1000 by 1 ms"),
        (message("a:1001", "1", 1001), "unexpected: 1, as a:1001"),
        (message("a:1000", "2", 1001), "wrong payload: 1, as a:1000"),
        (message("a:1000", "2", 1001), "unlike its copy: 1, as a:1000"),
        (message("d:1004", "x", 1004), "unexpected: 1, as d:1004"),
    ] {
        let reported = fault(&[&good[..], &more, &[bad]].concat());
        assert!(reported.contains(detail), "{reported}");
    }
}
