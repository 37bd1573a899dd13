//! The possible next steps.

use super::calls::Asked;
use super::holder::{Claim, Status};
use super::ledger::LAST;
use super::rules::{Kind, Rules, Steering, lane};
use super::world::{World, key_of};

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It takes effect and is answered.
    Heard,
    /// It takes effect; its answer is lost.
    Unheard,
    /// It takes effect later, or never; it is not answered.
    Parked,
}

/// Which occurrences a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Take {
    /// The oldest, as many as there are.
    Oldest,
    /// The one that became due last.
    Newest,
    /// Those after the first task's first due.
    Behind,
    /// Only suspects.
    Suspects,
    /// Only occurrences that an instance could not read.
    Unreadable,
}

/// Which occurrences a settle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// All of the claim.
    All,
    /// Only those that have ended; the others stay.
    Decided,
    /// Those that have ended, have begun or cannot be read; it returns the others.
    Touched,
    /// None; it returns all.
    Nothing,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Ask(Asked, Way),
    /// No answer came: the user repeats the request.
    AskAgain(Asked),
    /// A user finds a dead record. Whether the answer arrives does not change what may follow.
    Requeue {
        id: u8,
        due: u8,
        way: Way,
    },
    Discard {
        id: u8,
        due: u8,
    },
    Steer(u8, Steering),
    Claim {
        by: usize,
        lane: u8,
        take: Take,
        way: Way,
    },
    PublishAccepted {
        by: usize,
        claim: usize,
        item: usize,
    },
    /// The item becomes [`Status::Begun`]: no answer comes, or none in time.
    PublishUnanswered {
        by: usize,
        claim: usize,
        item: usize,
    },
    PublishRejected {
        by: usize,
        claim: usize,
        item: usize,
    },
    /// The instance cannot read the record.
    CannotRead {
        by: usize,
        claim: usize,
        item: usize,
    },
    Settle {
        by: usize,
        claim: usize,
        named: Named,
        way: Way,
    },
    RepeatSettle {
        by: usize,
        claim: usize,
    },
    Extend {
        by: usize,
        claim: usize,
        way: Way,
    },
    Arrive(usize),
    Crash(usize),
    Tick,
    /// Only the server's clock moves, a tick forward or back.
    ClockLeaps,
    ClockStepsBack,
    /// Whether or not a reap is due.
    Reap(Way),
}

impl World {
    /// All possible next steps.
    pub(crate) fn actions(&self, rules: Rules) -> Vec<Action> {
        let mut actions = Vec::new();
        (0..rules.plan.ids).for_each(|id| self.user_actions(rules, id, &mut actions));
        self.dead_actions(rules, &mut actions);
        // Two instances with equal state count as one.
        let twins = usize::from(self.instances[0] == self.instances[1]);
        for by in 0..2 - twins {
            self.instance_actions(rules, by, &mut actions);
        }
        actions.extend((0..self.network.len()).map(Action::Arrive));
        if self.left.ticks > 0 {
            actions.push(Action::Tick);
        }
        if self.left.steps > 0 {
            actions.push(Action::ClockLeaps);
            actions.extend((self.now > 0).then_some(Action::ClockStepsBack));
        }
        if self.age >= self.reaps_from {
            actions.push(Action::Reap(Way::Heard));
            if self.left.losses > 0 && rules.plan.parks_reaps {
                actions.push(Action::Reap(Way::Parked));
            }
        }
        actions
    }

    fn ways(&self) -> &'static [Way] {
        if self.left.losses > 0 { &[Way::Heard, Way::Unheard, Way::Parked] } else { &[Way::Heard] }
    }

    fn user_actions(&self, rules: Rules, id: u8, actions: &mut Vec<Action>) {
        let wishes = (0_u8..).zip(rules.plan.wishes).filter(|(_, wish)| wish.id == id);
        if let Some(asked) = self.asked[usize::from(id)] {
            if self.waits(rules, id) {
                return;
            }
            // No call can take effect any more, so the user repeats the request. An `in` counts anew.
            actions.push(Action::AskAgain(asked));
            if let Asked::Put(first) = asked {
                let first = rules.plan.wishes[usize::from(first)];
                let later = wishes.filter(|(_, wish)| wish.kind == Kind::In && wish.due != first.due);
                let same = later.filter(|(_, wish)| super::rules::Wish { due: first.due, ..**wish } == first);
                actions.extend(same.map(|(number, _)| Action::AskAgain(Asked::Put(number))));
            }
            return;
        }
        if self.left.puts > 0 {
            for (number, _) in wishes {
                actions.extend(self.ways().iter().map(|way| Action::Ask(Asked::Put(number), *way)));
            }
        }
        if self.left.pauses > 0 && self.ledger.is_paused(id) {
            actions.extend([Action::Steer(id, Steering::Resume), Action::Steer(id, Steering::Trigger)]);
        }
        if self.left.pauses > 0 && (!self.ledger.is_paused(id) || self.ledger.has_pass(id)) {
            actions.push(Action::Steer(id, Steering::Pause));
        }
        if self.left.cancels > 0 {
            actions.extend(self.ways().iter().map(|way| Action::Ask(Asked::Cancel(id), *way)));
        }
    }

    fn dead_actions(&self, rules: Rules, actions: &mut Vec<Action>) {
        if self.left.requeues == 0 {
            return;
        }
        for (id, due) in (0..rules.plan.ids).flat_map(|id| (1..=LAST).map(move |due| (id, due))) {
            let key = key_of(id, due);
            let dead = self.twin.dead_records.contains_key(key.to_string().as_str());
            let requeued = self.twin.tasks.contains_key(&punctual::task::Member::requeued(&key));
            if dead || requeued {
                actions.push(Action::Requeue { id, due, way: Way::Heard });
                if self.left.losses > 0 {
                    actions.push(Action::Requeue { id, due, way: Way::Parked });
                }
            }
            if dead && rules.plan.discards {
                actions.push(Action::Discard { id, due });
            }
        }
    }

    fn instance_actions(&self, rules: Rules, by: usize, actions: &mut Vec<Action>) {
        if self.left.claims > 0 {
            self.claims(rules, by, actions);
        }
        if self.left.crashes > 0 && !self.instances[by].is_empty() {
            actions.push(Action::Crash(by));
        }
        for (number, claim) in self.instances[by].iter().enumerate() {
            self.holder_actions(rules, (by, number), claim, actions);
        }
    }

    fn claims(&self, rules: Rules, by: usize, actions: &mut Vec<Action>) {
        let suspects = self.twin.crashes.values().any(|mark| mark.count >= Some(2));
        let unreadable = self.twin.crashes.values().any(|mark| mark.unreadable);
        for number in 0..rules.plan.lanes {
            let waits = self.twin.head(&lane(number)).is_some();
            for way in self.ways().iter().copied().filter(|way| waits || *way == Way::Parked) {
                let mut takes = vec![Take::Oldest];
                takes.extend(rules.plan.takes);
                takes.extend(suspects.then_some(Take::Suspects));
                takes.extend(unreadable.then_some(Take::Unreadable));
                actions.extend(takes.into_iter().map(|take| Action::Claim { by, lane: number, take, way }));
            }
        }
    }

    fn holder_actions(&self, rules: Rules, (by, number): (usize, usize), claim: &Claim, actions: &mut Vec<Action>) {
        let settle = |named| self.ways().iter().map(move |way| Action::Settle { by, claim: number, named, way: *way });
        let Some(items) = &claim.items else {
            // A claim without a reply is settled once it cannot take effect any more.
            if self.age > claim.until && claim.sent.is_none() {
                actions.extend(settle(Named::Nothing));
            } else if claim.sent.is_some() {
                actions.push(Action::RepeatSettle { by, claim: number });
            }
            return;
        };
        if self.left.extends > 0 {
            actions.extend(self.ways().iter().map(|way| Action::Extend { by, claim: number, way: *way }));
        }
        if rules.plan.unreadable {
            let idle =
                (0..items.len()).filter(|item| items[*item].status == Status::Idle && !claim.lets_go_of(&items[*item]));
            actions.extend(idle.map(|item| Action::CannotRead { by, claim: number, item }));
        }
        if self.left.publishes > 0 && (self.age < claim.until || !rules.looks_at_lease()) {
            self.publishes(rules, by, number, actions);
        }
        if claim.sent.is_some() {
            actions.push(Action::RepeatSettle { by, claim: number });
            return;
        }
        let decided = items.iter().filter(|item| item.status > Status::Begun).count();
        let idle = items.iter().filter(|item| item.status == Status::Idle).count();
        actions.extend(settle(Named::All));
        if (1..items.len()).contains(&decided) {
            actions.extend(settle(Named::Decided));
        }
        if (1..items.len()).contains(&idle) {
            actions.extend(settle(Named::Touched));
        } else if idle > 0 {
            actions.extend(settle(Named::Nothing));
        }
    }

    fn publishes(&self, rules: Rules, by: usize, claim: usize, actions: &mut Vec<Action>) {
        let held = &self.instances[by][claim];
        for (item, one) in held.items.iter().flatten().enumerate() {
            if one.status > Status::Begun || held.lets_go_of(one) {
                continue;
            }
            actions.push(Action::PublishAccepted { by, claim, item });
            if one.status == Status::Idle {
                actions.push(Action::PublishUnanswered { by, claim, item });
            }
            if rules.plan.rejects {
                actions.push(Action::PublishRejected { by, claim, item });
            }
        }
    }
}
