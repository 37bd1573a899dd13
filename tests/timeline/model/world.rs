//! The world of the model: one shard, two instances, calls in transit, and what users and consumers know.

use std::cell::RefCell;
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;

use punctual::task::{Key, Member, TaskId};
use punctual::timeline::Token;
use punctual::timeline::memory::Twin;

use super::calls::{Asked, Call};
use super::choices::{Action, Way};
use super::holder::{Claim, Item, Status};
use super::ledger::Ledger;
use super::rules::{Budget, Rules, due, lane};
use super::search::fingerprint;
use super::shards::Shards;

/// Everything that the next step depends on.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) twin: Arc<Twin>,
    /// Fingerprint of the twin.
    pub(super) print: u64,
    /// Shared by all worlds of a search.
    pub(super) shards: Rc<RefCell<Shards>>,
    /// The server's time in ticks; it may jump.
    pub(crate) now: u8,
    /// Ticks that have passed: the time by which instances count leases.
    pub(crate) age: u8,
    /// Age from which instances may reap again: after the server's clock leaps forward, holders get one lease to
    /// extend.
    pub(crate) reaps_from: u8,
    /// What each instance knows.
    pub(crate) instances: [Vec<Claim>; 2],
    /// Calls that were sent and have not arrived.
    pub(crate) network: Vec<Call>,
    /// By id: the unanswered request that its user repeats before any other.
    pub(crate) asked: [Option<Asked>; 2],
    pub(crate) ledger: Ledger,
    pub(crate) left: Budget,
}

pub(super) fn task_id(id: u8) -> TaskId {
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

/// Token of a claim; its end contains the lease.
pub(super) fn token(rules: Rules, number: u8) -> Token {
    Token::new("i", number.into(), rules.lease())
}

impl World {
    /// The world at the start of a plan.
    pub(crate) fn new(rules: Rules) -> World {
        let mut world = World {
            twin: Arc::default(),
            print: fingerprint(&Twin::default()),
            shards: Rc::default(),
            now: 1,
            age: 1,
            reaps_from: 1,
            instances: Default::default(),
            network: Vec::new(),
            asked: Default::default(),
            ledger: Ledger::default(),
            left: rules.plan.budget,
        };
        for wish in rules.plan.standing {
            world.put(rules, world.now, *wish, true).unwrap();
        }
        world
    }

    /// The world after a step, or the law that it breaks.
    pub(crate) fn step(&self, action: Action, rules: Rules) -> Result<World, String> {
        let mut world = self.clone();
        world.act(action, rules)?;
        world.instances.iter_mut().for_each(|claims| claims.sort());
        world.instances.sort();
        world.network.sort();
        Ok(world)
    }

    fn act(&mut self, action: Action, rules: Rules) -> Result<(), String> {
        let sent = self.now;
        match action {
            Action::Ask(asked, way) => self.ask(rules, asked, way)?,
            Action::AskAgain(asked) => {
                *self.asked_of(rules, asked) = None;
                self.arrives(rules, asked.call(sent), true)?;
            }
            Action::Requeue { id, due, way } => {
                self.left.requeues -= 1;
                self.send(rules, Call::Requeue { sent, id, due }, way)?;
            }
            Action::Discard { id, due } => {
                self.left.requeues -= 1;
                self.discard(sent, id, due)?;
            }
            Action::Steer(id, steering) => {
                self.left.pauses -= 1;
                self.steer(rules, id, steering)?;
            }
            Action::Claim { by, lane, take, way } => {
                let token = rules.plan.budget.claims - self.left.claims;
                self.left.claims -= 1;
                let items = match self.goes(way) {
                    true => self.claim(rules, sent, token, lane, take)?,
                    false => {
                        self.network.push(Call::Claim { sent, token, lane, take });
                        Vec::new()
                    }
                };
                let until = self.age + if way == Way::Heard { rules.plan.lease } else { 0 };
                if way != Way::Heard || !items.is_empty() {
                    let items = (way == Way::Heard).then_some(items);
                    self.instances[by].push(Claim { token, lane, until, items, sent: None });
                }
            }
            Action::PublishAccepted { by, claim, item } => self.publish(rules, by, claim, item, Status::Accepted)?,
            Action::PublishUnanswered { by, claim, item } => self.publish(rules, by, claim, item, Status::Begun)?,
            Action::PublishRejected { by, claim, item } => self.publish(rules, by, claim, item, Status::Rejected)?,
            Action::CannotRead { by, claim, item } => {
                self.instances[by][claim].items.as_mut().unwrap()[item].status = Status::Unreadable;
            }
            Action::Settle { by, claim, named, way } => {
                let what = self.instances[by][claim].names(named);
                self.instances[by][claim].sent = Some(what.clone());
                let (number, lane) = (self.instances[by][claim].token, self.instances[by][claim].lane);
                if self.goes(way) {
                    let settled = self.settle(rules, number, lane, &what);
                    if way == Way::Heard {
                        self.settled(rules, by, claim, &settled);
                    }
                } else {
                    self.network.push(Call::Settle { token: number, lane, what });
                }
            }
            Action::RepeatSettle { by, claim } => {
                let held = &self.instances[by][claim];
                let (number, lane, what) = (held.token, held.lane, held.sent.clone().unwrap());
                let settled = self.settle(rules, number, lane, &what);
                self.settled(rules, by, claim, &settled);
            }
            Action::Extend { by, claim, way } => self.renew(rules, by, claim, way),
            Action::Arrive(number) => {
                let call = self.network.remove(number);
                self.arrives(rules, call, false)?;
            }
            Action::Crash(by) => {
                self.left.crashes -= 1;
                self.instances[by].clear();
            }
            Action::Tick => {
                self.left.ticks -= 1;
                (self.now, self.age) = (self.now + 1, self.age + 1);
            }
            Action::ClockLeaps => {
                self.left.steps -= 1;
                (self.now, self.reaps_from) = (self.now + 1, self.age + rules.plan.lease);
            }
            Action::ClockStepsBack => {
                self.left.steps -= 1;
                self.now -= 1;
            }
            Action::Reap(way) => self.send(rules, Call::Reap { sent }, way)?,
        }
        Ok(())
    }

    /// A user's call; its answer may be lost.
    fn ask(&mut self, rules: Rules, asked: Asked, way: Way) -> Result<(), String> {
        match asked {
            Asked::Put(_) => self.left.puts -= 1,
            Asked::Cancel(_) => self.left.cancels -= 1,
        }
        if way != Way::Heard {
            *self.asked_of(rules, asked) = Some(asked);
        }
        self.send(rules, asked.call(self.now), way)
    }

    fn asked_of(&mut self, rules: Rules, asked: Asked) -> &mut Option<Asked> {
        &mut self.asked[usize::from(asked.id(rules))]
    }

    fn send(&mut self, rules: Rules, call: Call, way: Way) -> Result<(), String> {
        if self.goes(way) {
            return self.arrives(rules, call, way == Way::Heard);
        }
        self.network.push(call);
        Ok(())
    }

    /// Whether a call takes effect now.
    fn goes(&mut self, way: Way) -> bool {
        self.left.losses -= u8::from(way != Way::Heard);
        way != Way::Parked
    }

    /// The holder of a claim extends its lease.
    fn renew(&mut self, rules: Rules, by: usize, claim: usize, way: Way) {
        self.left.extends -= 1;
        let held = &self.instances[by][claim];
        let (number, at) = (held.token, held.lane);
        if !self.goes(way) {
            return self.network.push(Call::Extend { token: number, lane: at });
        }
        let lives = self.extend(rules, number, at);
        if way == Way::Heard && lives {
            self.instances[by][claim].until = self.age + rules.plan.lease;
        } else if way == Way::Heard {
            self.instances[by].remove(claim);
        }
    }

    fn publish(&mut self, rules: Rules, by: usize, claim: usize, item: usize, outcome: Status) -> Result<(), String> {
        self.left.publishes -= 1;
        let held = &self.instances[by][claim];
        let one = held.items.as_ref().unwrap()[item];
        let same = |other: &Item| (other.member(), other.score()) == (one.member(), one.score());
        let holds = |claim: &&Claim| claim.items.iter().flatten().any(|item| same(item) && !claim.lets_go_of(item));
        let holders = self.instances.iter().flatten().filter(|other| other.until > self.age).filter(holds).count();
        let claims = self.twin.claims.get(&lane(held.lane)).and_then(|claims| claims.get(&token(rules, held.token)));
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

    /// The holder of a claim gets the answer of its settle.
    fn settled(&mut self, rules: Rules, by: usize, claim: usize, settled: &punctual::timeline::Settled) {
        let held = &mut self.instances[by][claim];
        let sent = held.sent.take().unwrap();
        if let Some(items) = &mut held.items {
            items.retain(|item| !sent.named.iter().any(|named| named.member() == item.member()));
        }
        if settled.lost || sent.back || held.items.as_ref().is_none_or(Vec::is_empty) {
            self.instances[by].remove(claim);
        } else {
            held.until = self.age + rules.plan.lease;
        }
    }

    /// Rules that hold in every state.
    pub(crate) fn check(&self, rules: Rules) -> Result<(), String> {
        self.ledger.check(rules, &self.twin)?;
        // From any state, all claims end without help.
        self.at_rest(rules, |rest| {
            let mut ledger = self.ledger.clone();
            rest.reaps.iter().for_each(|now| ledger.reaped(rules, *now));
            ledger.check(rules, &rest.twin).map_err(|law| format!("{law}, once all claims have ended"))
        })?
    }
}

impl Hash for World {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let clocks = (self.now, self.age, self.reaps_from.max(self.age));
        (self.print, clocks, &self.instances, &self.network, self.asked, &self.ledger, self.left).hash(state);
    }
}
