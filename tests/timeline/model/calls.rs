//! Calls in transit, and their effect when they arrive.

use std::rc::Rc;
use std::sync::Arc;

use punctual::task::Member;
use punctual::timeline::memory::Twin;
use punctual::timeline::{DeadCap, Put, PutResult, RestOfClaim, Settle, Settled};

use super::choices::Take;
use super::holder::{Item, Sent, Status};
use super::rules::{Rules, Steering, Wish, due, lane, record, time};
use super::world::{World, key_of, task_id, token};

/// A call in transit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    Put { sent: u8, wish: u8 },
    Cancel { sent: u8, id: u8 },
    Requeue { sent: u8, id: u8, due: u8 },
    Claim { sent: u8, token: u8, lane: u8, take: Take },
    Settle { token: u8, lane: u8, what: Sent },
    Extend { token: u8, lane: u8 },
    Reap { sent: u8 },
}

/// A user's request for a task: the number of a wish, or the task's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Asked {
    Put(u8),
    Cancel(u8),
}

impl Asked {
    pub(super) fn id(self, rules: Rules) -> u8 {
        match self {
            Asked::Put(wish) => rules.plan.wishes[usize::from(wish)].id,
            Asked::Cancel(id) => id,
        }
    }

    pub(super) fn call(self, sent: u8) -> Call {
        match self {
            Asked::Put(wish) => Call::Put { sent, wish },
            Asked::Cancel(id) => Call::Cancel { sent, id },
        }
    }
}

impl World {
    /// Whether a call of this task's user may still take effect. Until it cannot, the user gets no answer and waits.
    pub(super) fn waits(&self, rules: Rules, id: u8) -> bool {
        self.network.iter().any(|call| match call {
            Call::Put { sent, wish } => *sent >= self.now && rules.plan.wishes[usize::from(*wish)].id == id,
            Call::Cancel { sent, id: of } => *sent >= self.now && *of == id,
            _ => false,
        })
    }

    /// A call arrives; `heard` tells whether the caller gets the answer. A caller that has waited too long does not.
    pub(super) fn arrives(&mut self, rules: Rules, call: Call, heard: bool) -> Result<(), String> {
        match call {
            Call::Put { sent, wish } => self.put(rules, sent, rules.plan.wishes[usize::from(wish)], heard),
            Call::Cancel { sent, id } => self.cancel(rules, sent, id, heard),
            Call::Requeue { sent, id, due } => self.requeue(rules, sent, id, due),
            Call::Claim { sent, token, lane, take } => self.claim(rules, sent, token, lane, take).map(drop),
            Call::Settle { token, lane, what } => {
                self.settle(rules, token, lane, &what);
                Ok(())
            }
            Call::Extend { token, lane } => {
                self.extend(rules, token, lane);
                Ok(())
            }
            Call::Reap { sent } => {
                let (before, now) = (self.twin.clone(), self.now);
                if !self.on_shard(("reap", sent), |twin| rules.reap(twin, now, sent)) {
                    return self.wrote_nothing(&before, "a late reap");
                }
                self.ledger.reaped(rules, self.now);
                Ok(())
            }
        }
    }

    pub(super) fn put(&mut self, rules: Rules, sent: u8, wish: Wish, heard: bool) -> Result<(), String> {
        let (before, now) = (self.twin.clone(), self.now);
        let answer = self.on_shard(("put", sent, wish), |twin| {
            let record = record(wish.kind, wish.due, wish.payload, wish.lane);
            let put = Put { id: task_id(wish.id), lane: lane(wish.lane), due: due(wish.due), record };
            rules.put(twin, now, sent, &put, wish.mode).ok()
        });
        let Some(answer) = answer else { return self.wrote_nothing(&before, "a late put") };
        if !matches!(answer.result, PutResult::Created | PutResult::Replaced) {
            self.wrote_nothing(&before, "a put whose answer says that it wrote nothing")?;
        }
        // A put that was answered 503 is not part of what users count on, whatever it does.
        if self.now > sent { Ok(()) } else { self.ledger.put(wish, answer, heard, &self.twin) }
    }

    fn cancel(&mut self, rules: Rules, sent: u8, id: u8, heard: bool) -> Result<(), String> {
        let (before, now) = (self.twin.clone(), self.now);
        let answer = self.on_shard(("cancel", sent, id), |twin| rules.cancel(twin, now, sent, &task_id(id)).ok());
        let Some(answer) = answer else { return self.wrote_nothing(&before, "a late cancel") };
        if self.now > sent { Ok(()) } else { self.ledger.cancel(id, answer, heard, &before) }
    }

    fn requeue(&mut self, rules: Rules, sent: u8, id: u8, due: u8) -> Result<(), String> {
        let (before, now) = (self.twin.clone(), self.now);
        let requeue = |twin: &mut Twin| rules.requeue(twin, now, sent, &key_of(id, due)).ok();
        let answer = self.on_shard(("requeue", sent, id, due), requeue);
        let Some(answer) = answer else { return self.wrote_nothing(&before, "a late requeue") };
        if self.now > sent { Ok(()) } else { self.ledger.requeue(id, due, answer, &before) }
    }

    pub(super) fn discard(&mut self, sent: u8, id: u8, due: u8) -> Result<(), String> {
        let now = self.now;
        let discard = |twin: &mut Twin| twin.discard(time(now), &key_of(id, due), None, time(sent)).unwrap().answer;
        let was_dead = self.on_shard(("discard", sent, id, due), discard);
        self.ledger.discard(id, due, was_dead)
    }

    /// A pause, a resume or a trigger, which is answered.
    pub(super) fn steer(&mut self, rules: Rules, id: u8, steering: Steering) -> Result<(), String> {
        let (before, now) = (self.twin.clone(), self.now);
        let steered = self.on_shard(("steer", id, steering), |twin| rules.steer(twin, now, &task_id(id), steering));
        self.ledger.steered(id, steered, &before)
    }

    pub(super) fn claim(
        &mut self,
        rules: Rules,
        sent: u8,
        number: u8,
        at: u8,
        take: Take,
    ) -> Result<Vec<Item>, String> {
        let now = self.now;
        let items = self.on_shard(("claim", sent, number, at, take), |twin| {
            let claimed = rules.claim(twin, now, sent, &token(rules, number), (&lane(at), take));
            let id = |member: &Member| u8::from(member.task() != task_id(0));
            let occurrences = claimed.map(|claimed| claimed.occurrences).unwrap_or_default();
            occurrences.iter().map(|one| Item::new(one, id(&one.member), at)).collect::<Vec<_>>()
        });
        items.iter().filter(|item| item.requeued.is_none()).try_for_each(|item| self.ledger.claimed(item.copy))?;
        Ok(items)
    }

    pub(super) fn settle(&mut self, rules: Rules, number: u8, at: u8, what: &Sent) -> Rc<Settled> {
        let now = self.now;
        let settled = self.on_shard(("settle", number, at, what), |twin| {
            let verdicts: Vec<_> = what.named.iter().map(|item| item.settlement(rules)).collect();
            let rest = if what.back { RestOfClaim::Back } else { RestOfClaim::Keep };
            let dead_cap = DeadCap::of(u64::from(rules.plan.dead_cap));
            let settle =
                Settle { token: token(rules, number), verdicts, rest, lease: rules.lease(), dead_cap, quiet: false };
            Rc::new(rules.settle(twin, now, &lane(at), &settle))
        });
        for item in what.named.iter().filter(|_| !settled.lost) {
            let member = item.member();
            if settled.changed.contains(&member) {
                self.ledger.changed(item.copy);
            }
            if settled.skipped.contains(&member) || item.status <= Status::Begun {
                continue;
            }
            self.ledger.ended(item.copy, item.requeued.is_some());
            if item.status == Status::Rejected && !settled.changed.contains(&member) {
                self.ledger.died(rules, self.now, item.copy);
            }
        }
        settled
    }

    pub(super) fn extend(&mut self, rules: Rules, number: u8, at: u8) -> bool {
        let now = time(self.now);
        let extend = |twin: &mut Twin| twin.extend(now, &[(lane(at), token(rules, number))], rules.lease())[0];
        self.on_shard(("extend", number, at), extend)
    }

    fn wrote_nothing(&self, before: &Arc<Twin>, what: &str) -> Result<(), String> {
        if self.twin == *before { Ok(()) } else { Err(format!("law 9: {what} wrote something")) }
    }
}
