//! What was promised for each task and what was read of it, in compact form once a task has ended correctly.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::time::Duration;

use super::Violation;
use super::by_message::ByMessage;
use super::entry::{DefiniteAnswer, Entry, MIN_RECONNECT_TIME, Seen};
use super::figures::Lateness;
use super::version::Plan;

/// A message in the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Its idempotency key.
    pub(super) key: String,
    /// Its payload.
    pub(super) payload: String,
    /// Its header `traceparent`.
    pub(super) trace: Option<String>,
    /// Its header `punctual-rejected`, the code of a message that a door rejected.
    pub(super) rejected: Option<String>,
    /// When the sink accepted it at the latest, in the timeline's ms.
    pub(super) stamp: i64,
    /// Whether it may have been read before.
    pub(super) again: bool,
}

/// The trace of every put of a task, which its messages carry.
pub(super) fn trace_of(id: &str) -> String {
    let part = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, id).hash(&mut hasher);
        hasher.finish().max(1)
    };
    format!("00-{:016x}{:016x}-{:016x}-01", part(1), part(2), part(3))
}

/// The prefix of ids in the lane that nothing else uses.
pub(super) const QUIET: &str = "quiet-";

/// Maximum number of violations shown per law.
const SHOWN: usize = 100;

/// The account without the final judgement (see `judge`).
pub(super) struct Ledger {
    /// By id.
    pub(super) tasks: HashMap<String, Entry>,
    /// Tasks with generated ids that are not known yet, by the name in their payload.
    pub(super) unnamed: HashMap<String, Entry>,
    /// The name in the payload, if it is not the id.
    names: HashMap<String, String>,
    /// The ids by name, until they are used.
    ids: HashMap<String, String>,
    /// Messages with unknown ids, by id.
    pub(super) unknown_keys: HashMap<String, Vec<Message>>,
    ended: Ended,
    /// What users sent to the door.
    pub(super) by_message: ByMessage,
    pub(super) counted: Counted,
    pub(super) violations: Violations,
    /// Whether the sink drops a message whose key it has seen shortly before.
    pub(super) deduplicates: bool,
    /// The time after which an instance may have sent a request to Redis twice.
    pub(super) min_repeat_time: Duration,
}

/// Counters.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) promised: u64,
    pub(super) allowed: u64,
    pub(super) untold: u64,
    pub(super) published: u64,
    pub(super) copies: u64,
    pub(super) late: Lateness,
    /// For the lane that nothing else uses: due and lateness.
    pub(super) quiet: Vec<(i64, i64)>,
    /// The same for its repeated messages.
    pub(super) quiet_copies: Vec<(i64, i64)>,
}

impl Counted {
    /// Counts a message whose key and payload were read before.
    fn copy(&mut self, message: &Message) {
        if message.again {
            return;
        }
        self.copies += 1;
        if let Some((id, due)) = parts(&message.key)
            && id.starts_with(QUIET)
        {
            self.quiet_copies.push((due, message.stamp - due));
        }
    }
}

/// Violations, by law.
#[derive(Debug, Default)]
pub(super) struct Violations {
    pub(super) all: Vec<Violation>,
    pub(super) broken: BTreeMap<&'static str, u64>,
}

impl Violations {
    /// Notes a violation; only the first ones of each law are shown.
    pub(super) fn add(&mut self, law: &'static str, key: impl Into<String>, evidence: impl Into<String>) {
        let count = self.broken.entry(law).or_default();
        *count += 1;
        if *count <= SHOWN as u64 {
            self.all.push(Violation { law, key: key.into(), evidence: evidence.into() });
        }
    }
}

/// Keys of tasks that have ended, with their possible payloads: 16 bytes per key.
struct Ended {
    hasher: RandomState,
    /// Key to payload; 0 if it must not be published.
    payloads: HashMap<u64, u64>,
    /// Further possible payloads of a key.
    others: HashSet<(u64, u64)>,
}

impl Ended {
    fn key(&self, key: &str) -> u64 {
        self.hasher.hash_one(key)
    }

    fn payload(payload: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        payload.hash(&mut hasher);
        hasher.finish().max(1)
    }

    fn may(&mut self, key: &str, payload: &str) {
        let (key, payload) = (self.key(key), Ended::payload(payload));
        let first = self.payloads.entry(key).or_insert(payload);
        if *first == 0 {
            *first = payload;
        } else if *first != payload {
            self.others.insert((key, payload));
        }
    }

    fn never(&mut self, key: &str) {
        let key = self.key(key);
        self.payloads.entry(key).or_insert(0);
    }
}

/// The payload of a version: task and version, with a length that depends on both.
pub(super) fn payload(name: &str, version: usize) -> String {
    let sum = name.bytes().fold(version, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
    let length = if sum % 97 == 0 { 4000 } else { sum % 40 };
    format!("{{\"task\": \"{name}\", \"version\":{version}, \"pad\":\"{}\"}}", "x".repeat(length))
}

/// The name in a payload.
pub(super) fn name_in(payload: &str) -> Option<&str> {
    payload.split('"').nth(3)
}

/// The destination of a message with this payload.
pub(super) fn destination<'a>(payload: &str, destinations: &'a [String]) -> &'a str {
    let sum: usize = payload.bytes().map(usize::from).sum();
    destinations.get(sum % destinations.len().max(1)).map_or("", String::as_str)
}

/// Task and due of a key.
pub(super) fn parts(key: &str) -> Option<(&str, i64)> {
    let (task, due) = key.rsplit_once(':')?;
    Some((task, due.parse().ok()?))
}

impl Ledger {
    /// An empty one.
    pub(super) fn new(deduplicates: bool) -> Ledger {
        Ledger {
            tasks: HashMap::new(),
            unnamed: HashMap::new(),
            names: HashMap::new(),
            ids: HashMap::new(),
            unknown_keys: HashMap::new(),
            ended: Ended { hasher: RandomState::new(), payloads: HashMap::new(), others: HashSet::new() },
            by_message: ByMessage::default(),
            counted: Counted::default(),
            violations: Violations::default(),
            min_repeat_time: MIN_RECONNECT_TIME,
            deduplicates,
        }
    }

    /// A put is about to be sent; returns its payload.
    pub(super) fn put(&mut self, id: &str, plan: Plan, lane: &'static str, detail: &str) -> String {
        let entry = self.tasks.entry(id.to_owned()).or_default();
        entry.history.push_str(detail);
        let version = entry.put(plan, lane);
        payload(id, version)
    }

    /// The same for a task with a generated id; `name` is in its payload.
    pub(super) fn post(&mut self, name: &str, plan: Plan, lane: &'static str) -> String {
        let entry = self.unnamed.entry(name.to_owned()).or_default();
        entry.is_untraced = true;
        let version = entry.put(plan, lane);
        payload(name, version)
    }

    /// Sets the id of a posted task.
    pub(super) fn name(&mut self, name: &str, id: &str) {
        let Some(entry) = self.unnamed.remove(name) else { return };
        self.tasks.insert(id.to_owned(), entry);
        self.names.insert(id.to_owned(), name.to_owned());
        self.ids.insert(name.to_owned(), id.to_owned());
        for message in self.unknown_keys.remove(id).into_iter().flatten() {
            self.see(&message);
        }
    }

    /// The id of a posted task, if it is known; can be asked once.
    pub(super) fn id_of(&mut self, name: &str) -> Option<String> {
        self.ids.remove(name)
    }

    /// A task by its id, or by its name until that is known.
    pub(super) fn entry(&mut self, id: &str) -> Option<&mut Entry> {
        self.tasks.get_mut(id).or_else(|| self.unnamed.get_mut(id))
    }

    /// The current task is about to be put again unchanged, if it is known: its payload, due and lane.
    pub(super) fn put_again(&mut self, id: &str, detail: &str) -> Option<(String, i64, &'static str)> {
        let entry = self.tasks.get_mut(id)?;
        let Some(Plan::At(due)) = entry.standing().map(|version| version.plan) else { return None };
        let version = entry.put_again()?;
        entry.history.push_str(detail);
        Some((payload(id, version), due, entry.versions[version].lane))
    }

    /// A definite answer; `at` is the latest time, on the timeline's clock, at which it arrived.
    pub(super) fn note_answer(&mut self, id: &str, answer: DefiniteAnswer, at: i64) {
        let Some(entry) = self.tasks.get_mut(id) else { return };
        if let Err(detail) = entry.note_answer(answer, at, self.min_repeat_time) {
            self.violations.add("wrong_answer", id, format!("{detail}; {}", entry.history));
        }
    }

    /// An answer that no correct instance can give.
    pub(super) fn wrong_answer(&mut self, id: &str, detail: &str) {
        let history = self.tasks.get(id).map_or("", |entry| &entry.history);
        let evidence = format!("{detail:.400}; {history}");
        self.violations.add("wrong_answer", id, evidence);
    }

    /// No more requests are made about a task.
    pub(super) fn end(&mut self, id: &str) {
        if let Some(entry) = self.entry(id) {
            entry.end();
        }
        self.fold(id);
    }

    /// A message was read.
    pub(super) fn saw(&mut self, message: &Message) {
        self.counted.published += 1;
        match parts(&message.key) {
            Some((_, due)) => self.check_time(message, due),
            None => return self.violations.add("wrong_key", &message.key, message.payload.clone()),
        }
        self.see(message);
    }

    /// The same for a message of a task that a user sent to the door under this name; `is_rejected` if it was in the
    /// destination for rejected messages.
    pub(super) fn saw_by_message(&mut self, name: &str, message: &Message, is_rejected: bool) {
        self.counted.published += 1;
        if let Some((_, due)) = parts(&message.key) {
            self.check_time(message, due);
        }
        if self.by_message.saw(name, message, is_rejected, &mut self.violations) && !message.again {
            self.counted.copies += 1;
        }
    }

    fn check_time(&mut self, message: &Message, due: i64) {
        if message.stamp < due {
            let evidence = format!("{} ms before its due: {:.200}", due - message.stamp, message.payload);
            self.violations.add("early", &message.key, evidence);
        }
    }

    fn see(&mut self, message: &Message) {
        let Some((id, due)) = parts(&message.key) else { return };
        let Some(entry) = self.tasks.get_mut(id) else { return self.see_late(message) };
        let right_trace = match &message.trace {
            Some(trace) => *trace == trace_of(id),
            None => entry.is_untraced,
        };
        if !right_trace {
            let evidence = format!("trace {:?}, not that of its put; {}", message.trace, entry.history);
            self.violations.add("other_trace", &message.key, evidence);
        }
        let name = self.names.get(id).map_or(id, String::as_str);
        let version = (0..entry.versions.len()).find(|version| payload(name, *version) == message.payload);
        if entry.seen.iter().any(|seen| seen.due == due && seen.version == version) {
            self.counted.copy(message);
            return;
        }
        if version.is_none() {
            entry.history += &format!("; published: {:.300}", message.payload);
        }
        let late = message.stamp - due;
        if id.starts_with(QUIET) {
            self.counted.quiet.push((due, late));
        }
        // A task that was put after its due says nothing about lateness.
        if version.is_some_and(|version| entry.versions[version].answered_at < due) {
            self.counted.late.add(late);
        }
        entry.seen.push(Seen { due, version });
        if entry.over {
            self.fold(id);
        }
    }

    /// A message of a task that has ended, or of an unknown one.
    fn see_late(&mut self, message: &Message) {
        let (key, payload) = (self.ended.key(&message.key), Ended::payload(&message.payload));
        match self.ended.payloads.get(&key) {
            Some(&known) if known == payload || self.ended.others.contains(&(key, payload)) => {
                self.counted.copy(message);
            }
            Some(0) => {
                let evidence = format!("withdrawn before it was in flight: {:.200}", message.payload);
                self.violations.add("cancelled_but_published", &message.key, evidence);
            }
            Some(_) => {
                let evidence = format!("not what was promised under this key: {:.200}", message.payload);
                self.violations.add("other_payload", &message.key, evidence);
            }
            None => {
                let id = parts(&message.key).map_or(&*message.key, |(id, _)| id);
                self.unknown_keys.entry(id.to_owned()).or_default().push(message.clone());
            }
        }
    }

    /// Keeps only the keys of a task, once it has ended and everything is as promised.
    fn fold(&mut self, id: &str) {
        let through = |entry: &Entry| {
            let loose = |version: &super::version::Version| version.any || version.is_cut();
            entry.over && !entry.request_may_take_effect && entry.is_complete() && !entry.versions.iter().any(loose)
        };
        if !self.tasks.get(id).is_some_and(through) || !self.faults(id).is_empty() {
            return;
        }
        let Some(entry) = self.tasks.remove(id) else { return };
        let name = self.names.remove(id);
        self.count(&entry);
        for (number, version) in entry.versions.iter().enumerate() {
            let payload = payload(name.as_deref().unwrap_or(id), number);
            for due in version.dues() {
                let key = format!("{id}:{due}");
                if version.allows(due) { self.ended.may(&key, &payload) } else { self.ended.never(&key) }
            }
        }
    }

    /// Counts the promises of a task and its other messages.
    pub(super) fn count(&mut self, entry: &Entry) {
        let must: u64 = entry.versions.iter().map(|version| version.must().count() as u64).sum();
        self.counted.promised += must;
        for seen in &entry.seen {
            let Some(version) = seen.version.and_then(|version| entry.versions.get(version)) else { continue };
            if !version.dues().any(|due| due == seen.due) {
                self.counted.untold += 1;
            } else if seen.due >= version.must_below {
                self.counted.allowed += 1;
            }
        }
    }

    /// The violations of a task, each as law, due and text.
    pub(super) fn faults(&self, id: &str) -> Vec<(&'static str, i64, String)> {
        let Some(entry) = self.tasks.get(id) else { return Vec::new() };
        let mut faults = Vec::new();
        for seen in &entry.seen {
            let version = seen.version.and_then(|version| entry.versions.get(version));
            if version.is_some_and(|version| version.allows(seen.due)) {
                continue;
            }
            let known = entry.versions.iter().any(|version| version.allows(seen.due));
            let (law, detail) = match version {
                _ if known => ("other_payload", "another version was promised under this key"),
                Some(version) if version.names(seen.due) => ("cancelled_but_published", "it was withdrawn before"),
                _ => ("wrong_key", "nobody was promised this key"),
            };
            let version = seen.version.map_or("no version".to_owned(), |version| format!("version {version}"));
            faults.push((law, seen.due, format!("{version} was published: {detail}; {}", entry.history)));
        }
        faults
    }
}
