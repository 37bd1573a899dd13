//! What users were told and what consumers may have got, and whether both fit the laws.

use punctual::task::Key;
use punctual::timeline::memory::{Change, Twin};
use punctual::timeline::{CancelAnswer, PutAnswer, PutMode, PutResult, RequeueAnswer};

use super::rules::{Kind, Rules, Wish, lane, read_record};
use super::world::{key_of, member_of};

/// The last due of a recurring task; the first is 1.
pub(crate) const LAST: u8 = 3;

/// An occurrence with its payload: what a consumer can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Copy {
    pub(crate) id: u8,
    pub(crate) due: u8,
    pub(crate) payload: u8,
}

/// A set of copies, one bit each: two ids, four dues, two payloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Copies(u16);

impl Copy {
    fn bit(self) -> u16 {
        1 << (self.id * 8 + (self.due - 1) * 2 + self.payload)
    }

    fn other_payload(self) -> Copy {
        Copy { payload: 1 - self.payload, ..self }
    }
}

impl Copies {
    fn has(self, copy: Copy) -> bool {
        self.0 & copy.bit() != 0
    }

    fn add(&mut self, copy: Copy) {
        self.0 |= copy.bit();
    }

    fn drop(&mut self, copy: Copy) {
        self.0 &= !copy.bit();
    }

    fn drop_key(&mut self, id: u8, due: u8) {
        self.drop(Copy { id, due, payload: 0 });
        self.drop(Copy { id, due, payload: 1 });
    }

    fn drop_task(&mut self, id: u8) {
        self.0 &= !(0xff << (id * 8));
    }

    fn of_task(self, id: u8) -> impl Iterator<Item = Copy> {
        let all = (1..=4).flat_map(move |due| [0, 1].map(|payload| Copy { id, due, payload }));
        all.filter(move |copy| self.has(*copy))
    }
}

/// Both sides' memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ledger {
    /// By id: the task that stands, as users were told last.
    wanted: [Option<Wish>; 2],
    /// Occurrences of former tasks that may still be published: their users were told so.
    told: Copies,
    /// Keys that may come with a second message: ended, or told before.
    excused: Copies,
    /// Publishes that ever began without being refused for good.
    begun: Copies,
    /// Those of them that may arrive, of which nobody was told, and which have not ended.
    open: Copies,
    /// What a sink has accepted since it was wanted.
    accepted: Copies,
    /// What was settled as dead since it was wanted.
    buried: Copies,
    /// What died last under each key.
    graves: Copies,
    /// What was requeued and has not ended since.
    requeued: Copies,
}

type Law = Result<(), String>;

fn broken(law: impl Into<String>) -> Law {
    Err(law.into())
}

impl Ledger {
    /// A put was answered.
    pub(crate) fn put_answered(&mut self, wish: Wish, answer: PutAnswer) -> Law {
        let Wish { id, due, payload, .. } = wish;
        let told = answer.in_flight.map(|due| u8::try_from(due.as_millis()).unwrap());
        let stands = self.wanted[usize::from(id)];
        match answer.result {
            PutResult::Replaced if wish.mode == PutMode::Post => {
                return broken("law 9: a post replaced a task");
            }
            PutResult::Created | PutResult::Replaced => {}
            PutResult::Unchanged | PutResult::KeyReused if stands.is_none() => {
                return broken(format!("law 9: a put was answered {:?}, but no task stands", answer.result));
            }
            PutResult::Unchanged if wish.mode == PutMode::Post && stands.is_some_and(|it| it.payload != payload) => {
                return broken("law 9: a post was answered `unchanged`, but another message stands");
            }
            _ => return Ok(()),
        }
        self.tell(id, told, Some(Copy { id, due, payload }))?;
        self.wanted[usize::from(id)] = Some(wish);
        for due in due..=if wish.kind == Kind::Every { LAST } else { due } {
            self.accepted.drop_key(id, due);
            self.buried.drop_key(id, due);
        }
        Ok(())
    }

    /// A cancel was answered.
    pub(crate) fn cancel_answered(&mut self, id: u8, answer: CancelAnswer, twin: &Twin) -> Law {
        let told = match answer {
            CancelAnswer::Cancelled { handed_out } => handed_out,
            CancelAnswer::InFlight { due } => Some(due),
            CancelAnswer::Unknown => {
                self.stands_or_ended(id, twin).map_err(|law| format!("law 9: 404, but {law}"))?;
                None
            }
        };
        self.tell(id, told.map(|due| u8::try_from(due.as_millis()).unwrap()), None)?;
        if matches!(answer, CancelAnswer::Cancelled { .. }) {
            self.told.drop_task(id);
        }
        self.wanted[usize::from(id)] = None;
        Ok(())
    }

    /// The user of a task learns which former occurrence may still arrive, and so that no other does.
    fn tell(&mut self, id: u8, told: Option<u8>, instead: Option<Copy>) -> Law {
        if let Some(copy) = self.open.of_task(id).find(|copy| Some(copy.due) != told && Some(*copy) != instead) {
            return broken(format!("law 9: {copy:?} may still arrive, and its user was not told"));
        }
        self.told.drop_task(id);
        if let Some(due) = told {
            for payload in [0, 1] {
                let copy = Copy { id, due, payload };
                self.told.add(copy);
                // Told by the very put that takes the key is too late.
                if instead.is_none_or(|instead| instead.due != due) {
                    self.excused.add(copy);
                }
            }
        }
        let stays = instead.filter(|copy| self.open.has(*copy));
        self.open.drop_task(id);
        if let Some(copy) = stays {
            self.open.add(copy);
        }
        Ok(())
    }

    /// A requeue was answered.
    pub(crate) fn requeue_answered(&mut self, id: u8, due: u8, answer: RequeueAnswer) -> Law {
        for copy in [0, 1].map(|payload| Copy { id, due, payload }) {
            if answer == RequeueAnswer::Requeued && self.graves.has(copy) {
                self.requeued.add(copy);
            }
        }
        Ok(())
    }

    /// An instance begins a publish; `refused`: the sink has said definitely that it did not and will not accept it.
    pub(crate) fn begins(&mut self, copy: Copy, requeued: bool, refused: bool) -> Law {
        let covers = |wish: Wish| {
            wish.payload == copy.payload
                && (wish.due == copy.due || (wish.kind == Kind::Every && wish.due < copy.due && copy.due <= LAST))
        };
        let wanted = self.wanted[usize::from(copy.id)].is_some_and(covers);
        let may = if requeued { self.requeued.has(copy) } else { wanted || self.told.has(copy) };
        if !may {
            return broken(format!("law 9: {copy:?} is published, which nobody wants and nobody was told of"));
        }
        if self.begun.has(copy.other_payload()) && !self.excused.has(copy) {
            return broken(format!("law 3: {copy:?} has the key of another message, and its user was not told"));
        }
        if !refused {
            self.begun.add(copy);
            if !requeued && !self.told.has(copy) {
                self.open.add(copy);
            }
        }
        Ok(())
    }

    /// The sink has accepted a publish.
    pub(crate) fn accepted(&mut self, copy: Copy) {
        self.accepted.add(copy);
    }

    /// An occurrence was settled for good.
    pub(crate) fn ended(&mut self, copy: Copy, requeued: bool, dead: bool) {
        self.excused.add(copy);
        self.excused.add(copy.other_payload());
        if requeued {
            self.requeued.drop(copy);
        } else {
            self.open.drop_key(copy.id, copy.due);
        }
        if dead {
            self.graves.drop_key(copy.id, copy.due);
            self.graves.add(copy);
            self.buried.add(copy);
        }
    }

    /// Whether everything that is wanted still stands or has ended as it may.
    pub(crate) fn check(&self, rules: Rules, twin: &Twin) -> Law {
        (0..rules.plan.ids).try_for_each(|id| self.stands_or_ended(id, twin).map_err(|law| format!("law 2: {law}")))
    }

    fn stands_or_ended(&self, id: u8, twin: &Twin) -> Law {
        let Some(wish) = self.wanted[usize::from(id)] else { return Ok(()) };
        let last = if wish.kind == Kind::Every { LAST } else { wish.due };
        let stands = stands_at(id, wish, twin).filter(|due| (i64::from(wish.due)..=i64::from(last)).contains(due));
        let upto = stands.unwrap_or(i64::from(last) + 1);
        for due in (wish.due..=last).filter(|due| i64::from(*due) < upto) {
            let copy = Copy { id, due, payload: wish.payload };
            let dead = self.buried.has(copy) && kept(id, due, twin);
            if !dead && !self.accepted.has(copy) {
                return broken(format!("{copy:?} is lost"));
            }
        }
        Ok(())
    }
}

/// The due at which a task with what was wished for stands, or will stand when its claim ends.
fn stands_at(id: u8, wish: Wish, twin: &Twin) -> Option<i64> {
    let member = member_of(id);
    let (_, payload) = read_record(twin.tasks.get(&member)?);
    let (_, score) = twin.place(&member).filter(|(at, _)| *at == lane(wish.lane))?;
    match twin.changes.get(&member) {
        _ if payload != wish.payload => None,
        Some(Change::Cancelled) => None,
        Some(Change::Due(due)) => Some(due.as_millis()),
        None => Some(score.abs()),
    }
}

/// Whether a dead occurrence can be seen and requeued, or was.
fn kept(id: u8, due: u8, twin: &Twin) -> bool {
    let key: Key = key_of(id, due);
    let member = punctual::task::Member::requeued(&key);
    let requeued = twin.tasks.contains_key(&member) && twin.place(&member).is_some();
    requeued || twin.dead_records.contains_key(key.to_string().as_str())
}
