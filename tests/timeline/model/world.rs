//! The world of the model: one shard, two instances, calls on their way, and everybody's memory.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use punctual::clock::Timestamp;
use punctual::task::{Counts, Key, Member, TaskId};
use punctual::timeline::memory::Twin;
use punctual::timeline::{Burial, Put, PutResult, Rest, Settle, Settled, Settlement, Token, Verdict};

use super::choices::{Action, Named, Way};
use super::ledger::{Copy, LAST, Ledger};
use super::rules::{Budget, Kind, LEASE, Rules, Wish, due, lane, read_record, record, time};
use super::search::fingerprint;
use super::structure::check_structure;

/// Everything that the next step depends on.
#[derive(Clone, Debug)]
pub(crate) struct World {
    /// Shared by the worlds of steps that do not touch it.
    pub(crate) twin: Arc<Twin>,
    /// Stands for the twin.
    print: u64,
    /// Ticks since the start.
    pub(crate) now: u8,
    /// What each instance knows.
    pub(crate) instances: [Vec<Claim>; 2],
    /// Calls that were sent and have not arrived.
    pub(crate) network: Vec<Call>,
    pub(crate) ledger: Ledger,
    pub(crate) left: Budget,
}

/// A claim as its holder knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    token: u8,
    lane: u8,
    /// The tick at which the lease ends that was confirmed last; of a claim whose reply is missing, its `not_after`.
    pub(crate) until: u8,
    /// What it holds; `None` while the reply is missing.
    pub(crate) items: Option<Vec<Item>>,
    /// A settle whose answer is missing: it is repeated before anything else is settled.
    pub(crate) sent: Option<Sent>,
}

/// An occurrence as its holder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Item {
    copy: Copy,
    kind: Kind,
    lane: u8,
    /// The score of a requeued occurrence, whose key is in `copy`.
    requeued: Option<u8>,
    pub(crate) status: Status,
}

/// What its holder knows of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Status {
    Idle,
    /// A publish began; there is no definite answer.
    Begun,
    Accepted,
    Rejected,
}

/// What a settle names, and what becomes of the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sent {
    named: Vec<Item>,
    back: bool,
}

/// A call on its way.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Call {
    Put { sent: u8, wish: u8 },
    Cancel { sent: u8, id: u8 },
    Requeue { sent: u8, id: u8, due: u8 },
    Claim { sent: u8, token: u8, lane: u8, suspects_only: bool },
    Settle { token: u8, lane: u8, what: Sent },
}

fn task_id(id: u8) -> TaskId {
    thread_local!(static IDS: [TaskId; 2] = ["x".parse().unwrap(), "y".parse().unwrap()]);
    IDS.with(|ids| ids[usize::from(id)].clone())
}

/// The member of a task.
pub(crate) fn member_of(id: u8) -> Member {
    Member::from(&task_id(id))
}

/// The key of an occurrence.
pub(crate) fn key_of(id: u8, at: u8) -> Key {
    Key { task: task_id(id), due: due(at) }
}

fn token(number: u8) -> Token {
    Token(format!("t{number}"))
}

impl Item {
    fn member(&self) -> Member {
        match self.requeued {
            Some(_) => Member::requeued(&key_of(self.copy.id, self.copy.due)),
            None => member_of(self.copy.id),
        }
    }

    fn score(&self) -> u8 {
        self.requeued.unwrap_or(self.copy.due)
    }

    fn settlement(&self, rules: Rules) -> Settlement {
        let goes_on = self.kind == Kind::Every && self.requeued.is_none() && self.copy.due < LAST;
        let next = due(self.copy.due + 1);
        let counts = Counts::default();
        let burial = || Burial {
            record: record(self.kind, self.copy.due, self.copy.payload, self.lane),
            reason: "rejected".into(),
            words: String::new(),
        };
        let verdict = match self.status {
            Status::Idle => Verdict::Back { begun: false },
            Status::Begun => Verdict::Back { begun: rules.tells_begun() },
            Status::Accepted if goes_on => Verdict::Next { due: next, counts },
            Status::Accepted => Verdict::Finished,
            Status::Rejected if goes_on => Verdict::DeadNext { burial: burial(), due: next, counts },
            Status::Rejected => Verdict::Dead(burial()),
        };
        Settlement { member: self.member(), due: due(self.score()), verdict }
    }
}

impl World {
    /// The world at the start of a plan.
    pub(crate) fn new(rules: Rules) -> World {
        let mut world = World {
            twin: Arc::default(),
            print: 0,
            now: 0,
            instances: Default::default(),
            network: Vec::new(),
            ledger: Ledger::default(),
            left: rules.plan.budget,
        };
        for wish in rules.plan.standing {
            world.put(rules, 0, *wish).unwrap();
        }
        world.print = fingerprint(&world.twin);
        world
    }

    /// The world after a step, or the law that it breaks.
    pub(crate) fn step(&self, action: Action, rules: Rules) -> Result<World, String> {
        let mut world = self.clone();
        world.act(action, rules)?;
        if !Arc::ptr_eq(&world.twin, &self.twin) {
            world.print = fingerprint(&world.twin);
        }
        world.instances.iter_mut().for_each(|claims| claims.sort());
        world.instances.sort();
        world.network.sort();
        Ok(world)
    }

    fn act(&mut self, action: Action, rules: Rules) -> Result<(), String> {
        let sent = self.now;
        match action {
            Action::Put(wish, number, way) => {
                self.left.puts -= 1;
                match self.goes(way) {
                    true => self.put(rules, sent, wish)?,
                    false => self.network.push(Call::Put { sent, wish: number }),
                }
            }
            Action::Cancel(id, way) => {
                self.left.cancels -= 1;
                match self.goes(way) {
                    true => self.cancel(rules, sent, id)?,
                    false => self.network.push(Call::Cancel { sent, id }),
                }
            }
            Action::Requeue(id, due, way) => {
                self.left.requeues -= 1;
                match self.goes(way) {
                    true => self.requeue(rules, sent, id, due)?,
                    false => self.network.push(Call::Requeue { sent, id, due }),
                }
            }
            Action::Claim { by, lane, suspects_only, way } => {
                let token = rules.plan.budget.claims - self.left.claims;
                self.left.claims -= 1;
                let items = match self.goes(way) {
                    true => self.claim(rules, sent, token, (lane, suspects_only)),
                    false => {
                        self.network.push(Call::Claim { sent, token, lane, suspects_only });
                        Vec::new()
                    }
                };
                if way == Way::Heard && !items.is_empty() {
                    let until = sent + ticks();
                    self.instances[by].push(Claim { token, lane, until, items: Some(items), sent: None });
                } else if way != Way::Heard {
                    self.instances[by].push(Claim { token, lane, until: sent, items: None, sent: None });
                }
            }
            Action::PublishAccepted { by, claim, item } => self.publish(by, claim, item, Status::Accepted)?,
            Action::PublishUnanswered { by, claim, item } => self.publish(by, claim, item, Status::Begun)?,
            Action::PublishRejected { by, claim, item } => self.publish(by, claim, item, Status::Rejected)?,
            Action::Settle { by, claim, named, way } => {
                let what = self.instances[by][claim].names(named);
                self.instances[by][claim].sent = Some(what.clone());
                let (number, lane) = (self.instances[by][claim].token, self.instances[by][claim].lane);
                if self.goes(way) {
                    let settled = self.settle(rules, number, lane, &what);
                    if way == Way::Heard {
                        self.heard(by, claim, &settled);
                    }
                } else {
                    self.network.push(Call::Settle { token: number, lane, what });
                }
            }
            Action::RepeatSettle { by, claim } => {
                let held = &self.instances[by][claim];
                let (number, lane, what) = (held.token, held.lane, held.sent.clone().unwrap());
                let settled = self.settle(rules, number, lane, &what);
                self.heard(by, claim, &settled);
            }
            Action::Extend { by, claim, heard } => {
                self.left.extends -= 1;
                self.left.losses -= u8::from(!heard);
                let (number, at) = (self.instances[by][claim].token, lane(self.instances[by][claim].lane));
                let lives = Arc::make_mut(&mut self.twin).extend(time(self.now), &[(at, token(number))], LEASE)[0];
                if heard && lives {
                    self.instances[by][claim].until = self.now + ticks();
                } else if heard {
                    self.instances[by].remove(claim);
                }
            }
            Action::Arrive(number) => self.arrive(rules, number)?,
            Action::Crash(by) => {
                self.left.crashes -= 1;
                self.instances[by].clear();
            }
            Action::Tick => {
                self.left.ticks -= 1;
                self.now += 1;
            }
            Action::Reap => rules.reap(Arc::make_mut(&mut self.twin), self.now),
        }
        Ok(())
    }

    /// Whether a call takes effect now.
    fn goes(&mut self, way: Way) -> bool {
        self.left.losses -= u8::from(way != Way::Heard);
        way != Way::Parked
    }

    /// A call arrives that was on its way; nobody waits for its answer any more.
    fn arrive(&mut self, rules: Rules, number: usize) -> Result<(), String> {
        match self.network.remove(number) {
            Call::Put { sent, wish } => self.put(rules, sent, rules.plan.wishes[usize::from(wish)]),
            Call::Cancel { sent, id } => self.cancel(rules, sent, id),
            Call::Requeue { sent, id, due } => self.requeue(rules, sent, id, due),
            Call::Claim { sent, token, lane, suspects_only } => {
                self.claim(rules, sent, token, (lane, suspects_only));
                Ok(())
            }
            Call::Settle { token, lane, what } => {
                self.settle(rules, token, lane, &what);
                Ok(())
            }
        }
    }

    fn put(&mut self, rules: Rules, sent: u8, wish: Wish) -> Result<(), String> {
        let record = record(wish.kind, wish.due, wish.payload, wish.lane);
        let put = Put { id: task_id(wish.id), lane: lane(wish.lane), due: due(wish.due), record };
        let before = self.twin.clone();
        let Ok(answer) = rules.put(Arc::make_mut(&mut self.twin), self.now, sent, &put, wish.mode) else {
            return Ok(());
        };
        if !matches!(answer.result, PutResult::Created | PutResult::Replaced) && self.twin != before {
            return Err(format!("law 9: a put was answered {:?} and yet wrote", answer.result));
        }
        // A put whose user was answered 503 is none of what users count on, whatever it does.
        if self.now == sent { self.ledger.put_answered(wish, answer) } else { Ok(()) }
    }

    fn cancel(&mut self, rules: Rules, sent: u8, id: u8) -> Result<(), String> {
        let before = self.twin.clone();
        let Ok(answer) = rules.cancel(Arc::make_mut(&mut self.twin), self.now, sent, &task_id(id)) else {
            return Ok(());
        };
        if self.now == sent { self.ledger.cancel_answered(id, answer, &before) } else { Ok(()) }
    }

    fn requeue(&mut self, rules: Rules, sent: u8, id: u8, due: u8) -> Result<(), String> {
        let Ok(answer) = rules.requeue(Arc::make_mut(&mut self.twin), self.now, sent, &key_of(id, due)) else {
            return Ok(());
        };
        if self.now == sent { self.ledger.requeue_answered(id, due, answer) } else { Ok(()) }
    }

    fn claim(&mut self, rules: Rules, sent: u8, number: u8, (at, suspects_only): (u8, bool)) -> Vec<Item> {
        let token = token(number);
        let claimed = rules.claim(Arc::make_mut(&mut self.twin), self.now, sent, &token, (&lane(at), 2, suspects_only));
        let occurrences = claimed.map(|claimed| claimed.occurrences).unwrap_or_default();
        let item = |occurrence: punctual::timeline::Occurrence| {
            let key = occurrence.member.key(occurrence.due);
            let id = u8::from(key.task != task_id(0));
            let (kind, payload) = read_record(&occurrence.record);
            let small = |time: Timestamp| u8::try_from(time.as_millis()).unwrap();
            let requeued = occurrence.member.requeued_key().map(|_| small(occurrence.due));
            Item { copy: Copy { id, due: small(key.due), payload }, kind, lane: at, requeued, status: Status::Idle }
        };
        occurrences.into_iter().map(item).collect()
    }

    fn publish(&mut self, by: usize, claim: usize, item: usize, outcome: Status) -> Result<(), String> {
        self.left.publishes -= 1;
        let held = &self.instances[by][claim];
        let one = held.items.as_ref().unwrap()[item];
        let same = |other: &Item| (other.member(), other.score()) == (one.member(), one.score());
        let holds = |claim: &&Claim| claim.items.iter().flatten().any(|item| same(item) && !claim.lets_go_of(item));
        let holders = self.instances.iter().flatten().filter(|other| other.until > self.now).filter(holds).count();
        let claims = self.twin.claims.get(&lane(held.lane)).and_then(|claims| claims.get(&token(held.token)));
        let pair = (one.member(), due(one.score()));
        if holders > 1 || !claims.is_some_and(|claim| claim.pairs.contains(&pair)) {
            return Err(format!("law 4: {:?} is published by one who does not hold it alone", one.copy));
        }
        self.ledger.begins(one.copy, one.requeued.is_some(), outcome == Status::Rejected)?;
        if outcome == Status::Accepted {
            self.ledger.accepted(one.copy);
        }
        self.instances[by][claim].items.as_mut().unwrap()[item].status = outcome;
        Ok(())
    }

    fn settle(&mut self, rules: Rules, number: u8, at: u8, what: &Sent) -> Settled {
        let verdicts: Vec<_> = what.named.iter().map(|item| item.settlement(rules)).collect();
        let rest = if what.back { Rest::Back } else { Rest::Keep };
        let settle = Settle { token: token(number), verdicts, rest, lease: LEASE, dead_cap: 9 };
        let settled = rules.settle(Arc::make_mut(&mut self.twin), self.now, &lane(at), &settle);
        for item in what.named.iter().filter(|_| !settled.lost) {
            let (member, ended) = (item.member(), item.status > Status::Begun);
            let changed = settled.changed.contains(&member);
            if changed || (ended && !settled.skipped.contains(&member)) {
                let dead = item.status == Status::Rejected && !changed;
                self.ledger.ended(item.copy, item.requeued.is_some(), dead);
            }
        }
        settled
    }

    /// The holder of a claim hears what its settle did.
    fn heard(&mut self, by: usize, claim: usize, settled: &Settled) {
        let held = &mut self.instances[by][claim];
        let sent = held.sent.take().unwrap();
        if let Some(items) = &mut held.items {
            items.retain(|item| !sent.named.iter().any(|named| named.member() == item.member()));
        }
        if settled.lost || sent.back || held.items.as_ref().is_none_or(Vec::is_empty) {
            self.instances[by].remove(claim);
        } else {
            held.until = self.now + ticks();
        }
    }

    /// What must be so in every state.
    pub(crate) fn check(&self, rules: Rules) -> Result<(), String> {
        if !rules.outside_only {
            check_structure(&self.twin)?;
        }
        self.ledger.check(rules, &self.twin)?;
        // Whatever state everything is left in, it comes to rest by itself.
        let mut twin = (*self.twin).clone();
        for later in 2..5 {
            if !twin.leases.is_empty() {
                rules.reap(&mut twin, self.now + later);
            }
        }
        if twin.due.values().any(|line| line.negative().next().is_some()) {
            return Err("law 2: a claim that nobody holds does not end".into());
        }
        if !(twin.changes.is_empty() && twin.claims.is_empty() && twin.leases.is_empty()) {
            return Err("law 10: at rest something is left of claims".into());
        }
        self.ledger.check(rules, &twin).map_err(|law| format!("{law}, once all claims have ended"))
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.print, self.now, &self.instances, &self.network, &self.ledger, self.left).hash(state);
    }
}

impl Claim {
    /// Whether a settle was sent that ends its hold of an item.
    pub(crate) fn lets_go_of(&self, item: &Item) -> bool {
        self.sent.as_ref().is_some_and(|sent| sent.back || sent.named.iter().any(|named| named.copy == item.copy))
    }

    fn names(&self, named: Named) -> Sent {
        let items = self.items.iter().flatten().copied();
        let (least, back) = match named {
            Named::All => (Status::Idle, false),
            Named::Decided => (Status::Accepted, false),
            Named::Touched => (Status::Begun, true),
            Named::Nothing => return Sent { named: Vec::new(), back: true },
        };
        Sent { named: items.filter(|item| item.status >= least).collect(), back }
    }
}

/// The lease in ticks.
fn ticks() -> u8 {
    u8::try_from(LEASE.as_millis()).unwrap()
}
