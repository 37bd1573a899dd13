//! The answers that users received, the messages that consumers may have received, and whether both obey the laws.
//!
//! A request counts as soon as its call has taken effect, whether or not its answer arrived: a call answered 503 took
//! effect before, or never will. The content of an answer counts only if the answer arrived. If an answer that named a
//! key was lost, a repeated call names the key again while the claim that holds it lasts; later no call names it.

use punctual::task::{Key, Member};
use punctual::timeline::memory::{Change, Twin};
use punctual::timeline::{CancelAnswer, MoveAnswer, PutAnswer, PutMode, PutResult, RequeueAnswer, TaskPauseAnswer};

use super::copies::{Copies, Copy};
use super::cursors::DeadRecords;
use super::rules::{Kind, Rules, Steered, Wish, due_of_score, lane, read_record, small};
use super::world::{key_of, member_of};

/// The last due of a recurring task; the first is 1.
pub(crate) const LAST: u8 = 3;

/// State of users and consumers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    /// By id: the task as its user last requested it.
    wanted: [Option<Wish>; 2],
    /// Occurrences of former tasks that may still be published: an answer named them.
    named: Copies,
    /// Named only in answers that were lost.
    named_in_lost_answer: Copies,
    /// Named by the very put that takes the key; always empty with correct puts.
    too_late: Copies,
    /// Publishes that have begun and may arrive, that no answer named to the user, and that have not ended.
    open: Copies,
    /// Accepted by a sink since it was requested; or dead, and discarded, dropped above the cap or past its retention.
    done: Copies,
    /// Settled as dead since it was requested.
    died: Copies,
    /// Current dead records.
    cursors: DeadRecords,
    /// Requeued and not ended since: it has its key and its own message.
    requeued: Copies,
    /// By id: whether an answer said that the task is paused.
    paused: [bool; 2],
    /// By id: the due that a trigger lets pass.
    passes: [Option<u8>; 2],
}

type Law = Result<(), String>;

fn broken(law: impl Into<String>) -> Law {
    Err(law.into())
}

/// What an answer tells of a task's former occurrences.
struct FormerOccurrences {
    /// Whether the answer arrives.
    heard: bool,
    /// Due of the occurrence that may still be published.
    named: Option<u8>,
    /// The occurrence that replaces it.
    instead: Option<Copy>,
    /// Due of the occurrence in flight.
    flies: Option<u8>,
}

impl Ledger {
    /// A put took effect; `twin` is the shard after it.
    pub(crate) fn put(&mut self, wish: Wish, answer: PutAnswer, heard: bool, twin: &Twin) -> Law {
        let Wish { id, payload, .. } = wish;
        let stands = self.wanted[usize::from(id)];
        let asked = Copy { id, due: wish.due, payload };
        let mut former = FormerOccurrences {
            heard,
            named: answer.in_flight.map(small),
            instead: Some(asked),
            flies: flies(id, twin),
        };
        match answer.result {
            PutResult::Replaced if wish.mode == PutMode::Post => broken("law 9: a post replaced a task"),
            PutResult::Created | PutResult::Replaced => {
                self.tell(id, &former)?;
                self.wanted[usize::from(id)] = Some(wish);
                if answer.result == PutResult::Created {
                    // The former task has ended, and its pause with it.
                    (self.paused[usize::from(id)], self.passes[usize::from(id)]) = (false, None);
                }
                if answer.paused != self.paused[usize::from(id)] {
                    return broken(format!("law 13: a put was answered as paused: {}", answer.paused));
                }
                for due in wish.due..=wish.last() {
                    self.done.drop_key(id, due);
                    self.died.drop_key(id, due);
                }
                Ok(())
            }
            PutResult::Unchanged | PutResult::KeyReused if stands.is_none() => {
                broken(format!("law 9: a put was answered {:?}, but no task stands", answer.result))
            }
            PutResult::Unchanged if heard => {
                // From now on the user counts on this message at that due.
                let due = small(answer.due);
                let same = |it: &Wish| (it.payload, it.kind) == (payload, wish.kind) && it.covers(due);
                if stands.filter(same).is_none_or(|it| stands_at(id, it, twin) != Some(answer.due.as_millis())) {
                    return broken("law 9: a put was answered `unchanged`, but something else stands");
                }
                former.instead = Some(Copy { due, ..asked });
                self.tell(id, &former)
            }
            _ => Ok(()),
        }
    }

    /// A cancel took effect; `twin` is the shard before it.
    pub(crate) fn cancel(&mut self, id: u8, answer: CancelAnswer, heard: bool, twin: &Twin) -> Law {
        (self.paused[usize::from(id)], self.passes[usize::from(id)]) = (false, None);
        let named = match answer {
            CancelAnswer::Cancelled { handed_out } => handed_out,
            CancelAnswer::InFlight { due } => Some(due),
            CancelAnswer::Mismatch => return broken("law 9: a cancel without a condition was refused"),
            CancelAnswer::Unknown => {
                self.stands_or_ended(id, twin).map_err(|law| format!("law 9: 404, but {law}"))?;
                None
            }
        };
        self.tell(id, &FormerOccurrences { heard, named: named.map(small), instead: None, flies: flies(id, twin) })?;
        if matches!(answer, CancelAnswer::Cancelled { .. }) {
            // It may still arrive, but no publish of it starts.
            self.named.drop_task(id);
        }
        self.wanted[usize::from(id)] = None;
        Ok(())
    }

    /// The user learns which former occurrence may still arrive, and thereby that no other does.
    fn tell(&mut self, id: u8, former: &FormerOccurrences) -> Law {
        // An occurrence that only a lost answer named is named again while it is in flight.
        let lost = self.named_in_lost_answer;
        let gone = |copy: Copy| lost.has(copy) && Some(copy.due) != former.flies;
        let may =
            |copy: Copy| Some(copy.due) == former.named || Some(copy) == former.instead || self.too_late.has(copy);
        let silent = |copy: &Copy| !may(*copy) && !gone(*copy);
        if let Some(copy) = self.open.of_task(id).find(silent).filter(|_| former.heard) {
            return broken(format!("law 9: {copy:?} may still arrive, and no answer named it"));
        }
        let known = |copy: Copy, named: Copies| named.has(copy) && !lost.has(copy);
        let before = self.named;
        self.named.drop_task(id);
        for copy in former.named.into_iter().flat_map(|due| Copy::under_key(id, due)) {
            self.named.add(copy);
            if former.instead.is_some_and(|instead| instead.due == copy.due) {
                self.too_late.add(copy);
            } else if !former.heard && !known(copy, before) {
                self.named_in_lost_answer.add(copy);
            }
        }
        for copy in self.open.of_task(id).filter(|_| former.heard) {
            if Some(copy) != former.instead && !self.too_late.has(copy) {
                self.open.drop(copy);
            }
        }
        if former.heard {
            self.named_in_lost_answer.drop_task(id);
            if let Some(copy) = former.instead.filter(|copy| lost.has(*copy) && self.open.has(*copy)) {
                self.named_in_lost_answer.add(copy);
            }
        }
        Ok(())
    }

    /// Whether an answer to the user of this task said that it is paused.
    pub(crate) fn is_paused(&self, id: u8) -> bool {
        self.paused[usize::from(id)]
    }

    /// Whether a trigger lets an occurrence of a paused task pass.
    pub(crate) fn has_pass(&self, id: u8) -> bool {
        self.passes[usize::from(id)].is_some()
    }

    /// A pause, a resume or a trigger was answered; `twin` is the shard before it.
    pub(crate) fn steered(&mut self, id: u8, steered: Steered, twin: &Twin) -> Law {
        let (stands, number) = (twin.place(&member_of(id)).is_some(), usize::from(id));
        match steered {
            Steered::Paused(TaskPauseAnswer::Unknown) | Steered::Moved(MoveAnswer::Unknown) => {
                let cancelled = twin.changes.get(&member_of(id)) == Some(&Change::Cancelled);
                if stands && !cancelled {
                    return broken("law 13: a task that exists cannot be paused");
                }
                // It has ended, and its pause with it.
                (self.paused[number], self.passes[number]) = (false, None);
            }
            Steered::Paused(TaskPauseAnswer::Paused { in_flight, .. }) => {
                if in_flight.map(small) < flies(id, twin) {
                    return broken("law 13: a pause does not name what is in flight");
                }
                (self.paused[number], self.passes[number]) = (true, None);
            }
            Steered::Paused(TaskPauseAnswer::Resumed { .. }) => {
                (self.paused[number], self.passes[number]) = (false, None);
            }
            Steered::Moved(MoveAnswer::Moved { due, .. }) => self.passes[number] = Some(small(due)),
            Steered::Paused(TaskPauseAnswer::Unchanged { .. }) | Steered::Moved(_) => {}
        }
        Ok(())
    }

    /// A claim took an occurrence of a task.
    pub(crate) fn claimed(&self, copy: Copy) -> Law {
        let number = usize::from(copy.id);
        if self.paused[number] && self.passes[number] != Some(copy.due) {
            return broken(format!("law 13: {copy:?} is claimed although its task is paused"));
        }
        Ok(())
    }

    /// A requeue took effect; whether its answer arrives makes no difference. `twin` is the shard before it.
    pub(crate) fn requeue(&mut self, id: u8, due: u8, answer: RequeueAnswer, twin: &Twin) -> Law {
        let lies = self.cursors.find(id, due);
        let alive = Copy::under_key(id, due).into_iter().any(|copy| self.requeued.has(copy));
        match (answer, lies) {
            (RequeueAnswer::Requeued, Some(copy)) => {
                self.cursors.take(copy);
                self.requeued.add(copy);
            }
            (RequeueAnswer::InFlight, _) if alive || has_due(id, due, twin) => {}
            (RequeueAnswer::Unknown, None) => {}
            _ => return broken(format!("law 9: a requeue was answered {answer:?}, while {lies:?} lay there")),
        }
        Ok(())
    }

    /// A discard took effect.
    pub(crate) fn discard(&mut self, id: u8, due: u8, was_dead: bool) -> Law {
        let lies = self.cursors.find(id, due);
        if let Some(copy) = lies {
            self.cursors.take(copy);
            self.done.add(copy);
        }
        if lies.is_some() == was_dead { Ok(()) } else { broken(format!("law 9: a discard found {lies:?}: {was_dead}")) }
    }

    /// A reap took effect.
    pub(crate) fn reaped(&mut self, rules: Rules, now: u8) {
        for copy in self.cursors.outlived(rules.plan, now) {
            self.done.add(copy);
        }
    }

    /// An instance begins a publish; `refused`: the sink has definitely rejected it.
    pub(crate) fn begins(&mut self, copy: Copy, requeued: bool, refused: bool) -> Law {
        let covers = |wish: Wish| wish.payload == copy.payload && wish.covers(copy.due);
        let wanted = self.wanted[usize::from(copy.id)].is_some_and(covers);
        let may = if requeued { self.requeued.has(copy) } else { wanted || self.named.has(copy) };
        if !may {
            return broken(format!("law 9: {copy:?} is published, but no user wants it and no answer named it"));
        }
        let other = copy.other_payload();
        let former = self.open.has(other) && !self.named_in_lost_answer.has(other);
        if former || (!requeued && self.requeued.has(other)) {
            return broken(format!("law 3: {copy:?} has the key of another message, and no answer named that key"));
        }
        if wanted && !requeued && !self.named.has(copy) {
            self.named_in_lost_answer.drop(copy);
        }
        let reported = self.named.has(copy) && !self.named_in_lost_answer.has(copy) && !self.too_late.has(copy);
        if !refused && !requeued && !reported {
            self.open.add(copy);
        }
        Ok(())
    }

    /// The sink has accepted a publish.
    pub(crate) fn accepted(&mut self, copy: Copy) {
        self.done.add(copy);
    }

    /// An occurrence left its claim because of a request of its user.
    pub(crate) fn changed(&mut self, copy: Copy) {
        self.named.drop_key(copy.id, copy.due);
    }

    /// An occurrence was settled for good.
    pub(crate) fn ended(&mut self, copy: Copy, requeued: bool) {
        if requeued {
            self.requeued.drop(copy);
        } else {
            self.open.drop_key(copy.id, copy.due);
        }
    }

    /// An occurrence was settled as dead.
    pub(crate) fn died(&mut self, rules: Rules, now: u8, copy: Copy) {
        self.died.add(copy);
        for copy in self.cursors.add_dead(rules.plan, now, copy) {
            self.done.add(copy);
        }
    }

    /// Whether every requested occurrence still exists or has ended correctly.
    pub(crate) fn check(&self, rules: Rules, twin: &Twin) -> Law {
        self.cursors.check(twin)?;
        for copy in (0..rules.plan.ids).flat_map(|id| self.requeued.of_task(id)) {
            let member = Member::requeued(&key_of(copy.id, copy.due));
            if twin.place(&member).is_none() || read_record(&twin.tasks[&member]).1 != copy.payload {
                return broken(format!("law 2: {copy:?} was requeued and is lost"));
            }
        }
        (0..rules.plan.ids).try_for_each(|id| self.stands_or_ended(id, twin).map_err(|law| format!("law 2: {law}")))
    }

    fn stands_or_ended(&self, id: u8, twin: &Twin) -> Law {
        let Some(wish) = self.wanted[usize::from(id)] else { return Ok(()) };
        let (first, last) = (i64::from(wish.due), i64::from(wish.last()));
        let stands = stands_at(id, wish, twin).filter(|due| (first..=last).contains(due));
        let upto = stands.unwrap_or(last + 1);
        for due in (wish.due..=wish.last()).filter(|due| i64::from(*due) < upto) {
            let copy = Copy { id, due, payload: wish.payload };
            let dead = self.died.has(copy) && kept(id, due, twin);
            if !dead && !self.done.has(copy) {
                return broken(format!("{copy:?} is lost"));
            }
        }
        Ok(())
    }
}

impl Wish {
    /// Due of its last occurrence.
    fn last(&self) -> u8 {
        if self.kind == Kind::Every { LAST } else { self.due }
    }

    fn covers(&self, due: u8) -> bool {
        (self.due..=self.last()).contains(&due)
    }
}

/// Due of a task's occurrence in flight.
fn flies(id: u8, twin: &Twin) -> Option<u8> {
    let score = twin.place(&member_of(id))?.1;
    u8::try_from(-score).ok()
}

/// Whether a task has this due, now or when its claim ends.
fn has_due(id: u8, at: u8, twin: &Twin) -> bool {
    let member = member_of(id);
    let waits = twin.place(&member).is_some_and(|(_, score)| due_of_score(score) == i64::from(at));
    waits || matches!(twin.changes.get(&member), Some(Change::Due(due)) if small(*due) == at)
}

/// Due of the requested message, now or when its claim ends.
fn stands_at(id: u8, wish: Wish, twin: &Twin) -> Option<i64> {
    let member = member_of(id);
    let (_, payload) = read_record(twin.tasks.get(&member)?);
    let (_, score) = twin.place(&member).filter(|(at, _)| *at == lane(wish.lane))?;
    match twin.changes.get(&member) {
        _ if payload != wish.payload => None,
        Some(Change::Cancelled) => None,
        Some(Change::Due(due)) => Some(due.as_millis()),
        None => Some(due_of_score(score)),
    }
}

/// Whether a dead record can be listed and requeued, or has been requeued.
fn kept(id: u8, due: u8, twin: &Twin) -> bool {
    let key: Key = key_of(id, due);
    let member = Member::requeued(&key);
    let requeued = twin.tasks.contains_key(&member) && twin.place(&member).is_some();
    requeued || twin.dead_records.contains_key(key.to_string().as_str())
}
