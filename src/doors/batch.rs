//! The order in which the instructions of a batch take effect.
//!
//! A call to the timeline contains no id twice, so a batch is cut into parts that take effect one after the other. If a
//! message replaces or cancels a task of the same part, and was sent before the first due of that task, the task is not put.
//! Otherwise a door that is behind would publish what its user has cancelled in time.

use std::collections::HashMap;

use super::dialects::{Instruction, PutInstruction};
use crate::clock::Timestamp;
use crate::engine::intake::NewTask;
use crate::task::TaskId;

/// Instructions that take effect at once. Each has the number of its message in the batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BatchPart {
    /// Tasks whose id no other message has.
    pub(super) posts: Vec<(usize, NewTask)>,
    /// Tasks whose id the message names.
    pub(super) puts: Vec<(usize, NewTask)>,
    pub(super) cancels: Vec<(usize, TaskId)>,
}

/// The parts of a batch, and the messages whose tasks are not put.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct BatchPlan {
    pub(super) parts: Vec<BatchPart>,
    pub(super) superseded: Vec<usize>,
}

/// An instruction for a message, and when that was sent.
pub(super) struct Sent {
    pub(super) number: usize,
    pub(super) time: Option<Timestamp>,
    pub(super) instruction: Instruction,
}

/// What the last message with an id does, and the number of its part.
struct Former {
    part: usize,
    /// The first due of a put; `None` for a cancel.
    due: Option<Timestamp>,
}

/// Cuts a batch into parts.
pub(super) fn plan(batch: Vec<Sent>) -> BatchPlan {
    let mut plan = BatchPlan { parts: vec![BatchPart::default()], superseded: Vec::new() };
    let mut formers = HashMap::<TaskId, Former>::new();
    for Sent { number, time, instruction } in batch {
        match instruction {
            Instruction::Skip(_) => {}
            Instruction::Put(put) if !put.names_id => plan.last_part().posts.push((number, put.new)),
            Instruction::Put(put) => {
                let PutInstruction { new, due, .. } = *put;
                let id = new.id.clone();
                plan.free_id(&id, time, &formers);
                plan.last_part().puts.push((number, new));
                formers.insert(id, Former { part: plan.parts.len() - 1, due: Some(due) });
            }
            Instruction::Cancel(id) | Instruction::CancelTooLate(id) => {
                plan.free_id(&id, time, &formers);
                plan.last_part().cancels.push((number, id.clone()));
                formers.insert(id, Former { part: plan.parts.len() - 1, due: None });
            }
        }
    }
    plan
}

impl BatchPlan {
    fn last_part(&mut self) -> &mut BatchPart {
        let last = self.parts.len() - 1;
        &mut self.parts[last]
    }

    /// Makes the id free in the last part: removes the former put of the id if that is superseded, from whatever part it is
    /// in; otherwise begins the next part if the former message is in the last one.
    fn free_id(&mut self, id: &TaskId, time: Option<Timestamp>, formers: &HashMap<TaskId, Former>) {
        let Some(former) = formers.get(id) else { return };
        if former.due.zip(time).is_some_and(|(due, time)| time < due) {
            let puts = &mut self.parts[former.part].puts;
            let at = puts.iter().position(|(_, new)| new.id == *id);
            self.superseded.extend(at.map(|at| puts.remove(at).0));
        } else if former.part == self.parts.len() - 1 {
            self.parts.push(BatchPart::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::{Message, Schedule, Task, When};

    const NOON: i64 = 1_795_262_400_000;

    fn id(text: &str) -> TaskId {
        text.parse().unwrap()
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(NOON + ms)
    }

    fn new(name: &str, due: i64) -> NewTask {
        let schedule = Schedule { when: When::At(at(due)), end: None, limit: None, spread: None };
        let task = Task { schedule, message: Message::default(), retry: None, catch_up: None };
        NewTask { id: id(name), lane: "default".parse().unwrap(), task, trace: None }
    }

    /// `put a 5`, `cancel a` or `post a 5`, each sent at its time.
    fn planned(batch: &[(i64, &str)]) -> String {
        let sent = batch.iter().enumerate().map(|(number, (time, text))| {
            let words: Vec<&str> = text.split(' ').collect();
            let due = words.get(2).map_or(0, |due| due.parse().unwrap());
            let put = |names_id| Box::new(PutInstruction { new: new(words[1], due), names_id, due: at(due) });
            let instruction = match words[0] {
                "put" => Instruction::Put(put(true)),
                "post" => Instruction::Put(put(false)),
                "cancel" => Instruction::Cancel(id(words[1])),
                _ => Instruction::Skip("loop"),
            };
            Sent { number, time: (*time >= 0).then(|| at(*time)), instruction }
        });
        let plan = plan(sent.collect());
        let numbers = |part: &BatchPart| {
            let posts = part.posts.iter().map(|(number, _)| format!("post {number}"));
            let puts = part.puts.iter().map(|(number, _)| format!("put {number}"));
            let cancels = part.cancels.iter().map(|(number, _)| format!("cancel {number}"));
            posts.chain(puts).chain(cancels).collect::<Vec<_>>().join(", ")
        };
        let parts: Vec<String> = plan.parts.iter().map(numbers).collect();
        format!("{}; superseded {:?}", parts.join(" | "), plan.superseded)
    }

    #[test]
    fn instructions_for_different_ids_are_one_part() {
        assert_eq!(
            planned(&[(0, "put a 5"), (1, "cancel b"), (2, "post c 5")]),
            "post 2, put 0, cancel 1; superseded []"
        );
        assert_eq!(planned(&[(0, "skip"), (1, "post a 5"), (2, "post a 5")]), "post 1, post 2; superseded []");
    }

    #[test]
    fn what_was_replaced_or_cancelled_before_its_due_is_not_put() {
        assert_eq!(planned(&[(0, "put a 5"), (4, "cancel a")]), "cancel 1; superseded [0]");
        assert_eq!(planned(&[(0, "put a 5"), (4, "put a 9"), (8, "put a 20")]), "put 2; superseded [0, 1]");
        assert_eq!(planned(&[(0, "put a 5"), (4, "put a 9"), (8, "cancel a")]), "cancel 2; superseded [0, 1]");
    }

    #[test]
    fn what_was_sent_at_the_due_or_later_or_at_an_unknown_time_takes_effect_after_it() {
        assert_eq!(planned(&[(0, "put a 5"), (5, "cancel a")]), "put 0 | cancel 1; superseded []");
        assert_eq!(planned(&[(0, "put a 5"), (6, "put a 9")]), "put 0 | put 1; superseded []");
        assert_eq!(planned(&[(-1, "put a 5"), (-1, "put a 9")]), "put 0 | put 1; superseded []");
        assert_eq!(planned(&[(0, "cancel a"), (1, "put a 9")]), "cancel 0 | put 1; superseded []");
        assert_eq!(planned(&[(0, "put a 5"), (5, "put a 9"), (6, "cancel a")]), "put 0 | cancel 2; superseded [1]");
        assert_eq!(
            planned(&[(0, "put a 5"), (1, "put b 5"), (5, "cancel a"), (6, "cancel b")]),
            "put 0, put 1 | cancel 2, cancel 3; superseded []"
        );
    }

    #[test]
    fn a_put_in_an_earlier_part_is_superseded_too() {
        assert_eq!(
            planned(&[(0, "put a 10"), (1, "put b 5"), (6, "cancel b"), (7, "cancel a")]),
            "put 1 | cancel 2, cancel 3; superseded [0]"
        );
        assert_eq!(
            planned(&[(0, "put a 10"), (1, "put b 5"), (6, "cancel b"), (7, "put a 20"), (8, "put a 30")]),
            "put 1 | put 4, cancel 2; superseded [0, 3]"
        );
    }
}
