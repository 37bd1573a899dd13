//! Answers that are kept back until the body has ended, for clients that read only then. They take bounded memory: beyond
//! that, successes are only counted.

use std::collections::BTreeMap;

use super::{AnswerView, write};

/// Up to this many bytes, all answers are kept. Beyond, successes are only counted.
const MAX_BYTES: usize = 1 << 20;

/// Up to this many bytes, the answers to faults are kept. Beyond, they are only counted, too.
const MAX_BYTES_WITH_FAULTS: usize = 2 << 20;

/// The answers to the lines so far.
#[derive(Default)]
pub(super) struct KeptBack {
    answers: Vec<u8>,
    /// The first line from which on successes are only counted.
    counted_from: Option<u64>,
    /// Lines by result since then.
    counts: BTreeMap<&'static str, u64>,
}

impl KeptBack {
    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    /// Adds the answer to one line. `has_memory`: whether the memory for bodies has room for it.
    pub(super) fn add(&mut self, line: u64, result: &'static str, is_fault: bool, answer: &[u8], has_memory: bool) {
        if self.counted_from.is_none() && (!has_memory || self.answers.len() + answer.len() > MAX_BYTES) {
            self.counted_from = Some(line);
        }
        if self.counted_from.is_some() {
            *self.counts.entry(result).or_default() += 1;
        }
        let fits = has_memory && self.answers.len() + answer.len() <= MAX_BYTES_WITH_FAULTS;
        if self.counted_from.is_none() || (is_fault && fits) {
            self.answers.extend_from_slice(answer);
        }
    }

    /// All answers, and the counts if there are any.
    pub(super) fn finish(mut self) -> Vec<u8> {
        if let Some(counted_from_line) = self.counted_from {
            write(&mut self.answers, &AnswerView::Counts { counted_from_line, counts: self.counts });
        }
        self.answers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_its_bound_successes_are_counted_and_faults_listed() {
        let mut kept = KeptBack::default();
        let (success, fault) = ("s".repeat(99) + "\n", "f".repeat(99) + "\n");
        for line in 1..=100_000 {
            let is_fault = line % 100 == 0;
            let (result, answer) = if is_fault { ("invalid", &fault) } else { ("created", &success) };
            kept.add(line, result, is_fault, answer.as_bytes(), true);
        }
        let text = String::from_utf8(kept.finish()).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.iter().filter(|line| line.starts_with('f')).count(), 1000, "every fault is listed");
        let last = r#"{"counted_from_line":10486,"counts":{"created":88619,"invalid":896}}"#;
        assert_eq!((lines.last(), text.len() < MAX_BYTES_WITH_FAULTS), (Some(&last), true));
    }

    #[test]
    fn faults_without_end_are_bounded_too() {
        let mut kept = KeptBack::default();
        (1..=100_000).for_each(|line| kept.add(line, "invalid", true, "f".repeat(100).as_bytes(), true));
        assert!(kept.finish().len() <= MAX_BYTES_WITH_FAULTS + 100);
        let mut without_memory = KeptBack::default();
        (1..=1000).for_each(|line| without_memory.add(line, "invalid", true, b"fault\n", false));
        assert_eq!(without_memory.finish(), b"{\"counted_from_line\":1,\"counts\":{\"invalid\":1000}}\n");
    }
}
