//! The judgement: compares what was published, is dead or left over with what was promised.

use std::collections::HashMap;

use super::entry::Entry;
use super::ledger::{Ledger, name_in};
use super::{Fault, Tally};

/// A dead occurrence in the timeline, read after the last put.
#[derive(Clone, Debug)]
pub(super) struct Dead {
    pub(super) key: String,
    pub(super) died: i64,
    pub(super) reason: String,
    pub(super) detail: String,
}

/// How long before a put there must have been no fault for its moment to count as calm.
const CALM: i64 = 10_000;

/// Without a wake-up, a lane is only found by the glance of each instance once a second. With five instances, half of
/// such tasks would be later than this.
const MAX_WOKEN_LATENESS_MS: i64 = 100;

/// Minimum number of calm moments for a judgement.
const ENOUGH: usize = 5;

/// Judges the ledger and the timeline; `left` is what should not be there.
pub(super) fn judge(ledger: &mut Ledger, dead: &[Dead], left: &[(String, String)], faults: &[Fault]) -> Tally {
    let dead: HashMap<&str, &Dead> = dead.iter().map(|dead| (dead.key.as_str(), dead)).collect();
    let mut ids: Vec<String> = ledger.tasks.keys().cloned().collect();
    ids.sort_unstable();
    for id in &ids {
        for (law, due, detail) in ledger.faults(id) {
            ledger.violations.add(law, format!("{id}:{due}"), detail);
        }
        let Some(entry) = ledger.tasks.remove(id) else { continue };
        ledger.count(&entry);
        for due in missing(&entry, ledger.deduplicates) {
            let key = format!("{id}:{due}");
            if !dead.contains_key(key.as_str()) {
                ledger.violations.add("lost", key, format!("never published; {}", entry.history));
            }
        }
        if entry
            .versions
            .iter()
            .enumerate()
            .any(|(index, version)| version.some && !entry.seen.iter().any(|seen| seen.version == Some(index)))
        {
            ledger.violations.add("lost", id, format!("never published at all; {}", entry.history));
        }
        ledger.tasks.insert(id.clone(), entry);
    }
    judge_dead(ledger, &dead, faults);
    judge_unknown_ids(ledger);
    ledger.counted.promised += ledger.by_message.judge(&mut ledger.violations);
    for (key, detail) in left {
        ledger.violations.add("left_over", key, detail);
    }
    let quiet = judge_quiet(ledger, faults);
    let counted = &ledger.counted;
    Tally {
        tasks: 0,
        tasks_per_second: 0.0,
        promised: counted.promised,
        allowed: counted.allowed,
        untold: counted.untold,
        published: counted.published,
        copies: counted.copies,
        repeated: 0,
        late_ms: counted.late.quantiles(),
        quiet_ms: quiet,
    }
}

/// Required occurrences that were not published.
fn missing(entry: &Entry, deduplicates: bool) -> Vec<i64> {
    let mut missing = Vec::new();
    for (index, version) in entry.versions.iter().enumerate() {
        // Only the end of a series can be cut: all occurrences before a published one must be published too.
        let last = entry.seen.iter().filter(|seen| seen.version == Some(index) && version.is_cut());
        let last = last.map(|seen| seen.due).max().unwrap_or(i64::MIN);
        for due in version.dues().take_while(|due| *due < version.must_below.max(last)) {
            // If the sink deduplicates by key, any message with this key counts.
            let twin = || deduplicates && entry.seen.iter().any(|seen| seen.due == due && seen.version.is_some());
            if !entry.has(index, due) && !twin() {
                missing.push(due);
            }
        }
    }
    missing
}

/// No task may die: users allow enough retries, and failures of an absent or faulty sink do not count.
fn judge_dead(ledger: &mut Ledger, dead: &HashMap<&str, &Dead>, faults: &[Fault]) {
    for Dead { key, died, reason, detail } in dead.values() {
        let fault = faults.iter().rfind(|fault| fault.kind.starts_with("sink") && fault.from <= *died);
        let when = fault.map_or_else(
            || "before any fault of the sink".to_owned(),
            |fault| {
                format!("{} ms after `{}` began, which lasted {} ms", died - fault.from, fault.kind, fault.lasted())
            },
        );
        ledger.violations.add("dead", key, format!("dead at {died}, `{reason}` ({detail:.200}): {when}"));
    }
}

/// Messages with unknown ids: an unanswered POST explains them.
fn judge_unknown_ids(ledger: &mut Ledger) {
    for (id, messages) in std::mem::take(&mut ledger.unknown_keys) {
        for message in messages {
            let name = name_in(&message.payload).unwrap_or("");
            match ledger.unnamed.get(name) {
                Some(entry) if entry.request_may_take_effect => ledger.counted.untold += 1,
                _ => {
                    let evidence = format!("nobody was promised this key; task `{id}`: {:.300}", message.payload);
                    ledger.violations.add("wrong_key", message.key, evidence);
                }
            }
        }
    }
}

/// In calm moments wake-ups find the tasks, not the glance once a second, and each message is published once.
fn judge_quiet(ledger: &mut Ledger, faults: &[Fault]) -> [i64; 3] {
    let calm = |due: i64, late: i64| {
        faults.iter().all(|fault| fault.until + CALM <= due - CALM / 10 || fault.from >= due + late)
    };
    let mut taken = super::figures::Lateness::default();
    let mut judged = 0;
    for (_, late) in ledger.counted.quiet.iter().filter(|(due, late)| calm(*due, *late)) {
        taken.add(*late);
        judged += 1;
    }
    let figures = taken.quantiles();
    if judged < ENOUGH {
        return figures;
    }
    if figures[0] > MAX_WOKEN_LATENESS_MS {
        let evidence = format!("of {judged} one-shots in calm moments half were {} ms late or more", figures[0]);
        ledger.violations.add("not_woken", "quiet", evidence);
    }
    // Some copies are possible on a machine that paused; copies of more than half of the one-shots are not.
    let copies = ledger.counted.quiet_copies.iter().filter(|(due, late)| calm(*due, *late)).count();
    if copies * 2 > judged {
        let evidence = format!("{judged} one-shots in calm moments were published {copies} times more than once each");
        ledger.violations.add("copied", "quiet", evidence);
    }
    figures
}
