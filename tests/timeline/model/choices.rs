//! What can happen next.

use super::ledger::LAST;
use super::rules::{Rules, Wish, lane, time};
use super::world::{Status, World, key_of};

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It takes effect and is answered.
    Heard,
    /// It takes effect; its answer is lost.
    Unheard,
    /// It takes effect later, or never; nobody hears of it.
    Parked,
}

/// What a settle names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// All that the claim holds.
    All,
    /// Only what has ended; the rest stays.
    Decided,
    /// What has ended or begun; the rest goes back.
    Touched,
    /// Nothing; everything goes back.
    Nothing,
}

/// One step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Put(Wish, u8, Way),
    Cancel(u8, Way),
    Requeue(u8, u8, Way),
    Claim {
        by: usize,
        lane: u8,
        suspects_only: bool,
        way: Way,
    },
    /// `Begun`: no answer comes, or none in time.
    PublishAccepted {
        by: usize,
        claim: usize,
        item: usize,
    },
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
        heard: bool,
    },
    Arrive(usize),
    Crash(usize),
    Tick,
    Reap,
}

impl World {
    /// Everything that can happen next.
    pub(crate) fn actions(&self, rules: Rules) -> Vec<Action> {
        let mut actions = Vec::new();
        self.user_actions(rules, &mut actions);
        // Instances that know the same are one.
        let twins = usize::from(self.instances[0] == self.instances[1]);
        for by in 0..2 - twins {
            self.instance_actions(rules, by, &mut actions);
        }
        actions.extend((0..self.network.len()).map(Action::Arrive));
        if self.left.ticks > 0 {
            actions.push(Action::Tick);
        }
        let mut ends = self.twin.leases.values().filter_map(|leases| leases.first());
        if ends.any(|(end, _)| end <= time(self.now).as_millis()) {
            actions.push(Action::Reap);
        }
        actions
    }

    fn user_actions(&self, rules: Rules, actions: &mut Vec<Action>) {
        let ways: &[Way] = if self.left.losses > 0 { &[Way::Heard, Way::Parked] } else { &[Way::Heard] };
        for way in ways.iter().copied() {
            if self.left.puts > 0 {
                let wishes = (0_u8..).zip(rules.plan.wishes);
                actions.extend(wishes.map(|(number, wish)| Action::Put(*wish, number, way)));
            }
            if self.left.cancels > 0 {
                actions.extend((0..rules.plan.ids).map(|id| Action::Cancel(id, way)));
            }
            if self.left.requeues > 0 && !self.twin.dead.is_empty() {
                let keys = (0..rules.plan.ids).flat_map(|id| (1..=LAST).map(move |due| (id, due)));
                let dead = |id, due| self.twin.dead_records.contains_key(key_of(id, due).to_string().as_str());
                actions.extend(keys.filter(|(id, due)| dead(*id, *due)).map(|(id, due)| Action::Requeue(id, due, way)));
            }
        }
    }

    fn instance_actions(&self, rules: Rules, by: usize, actions: &mut Vec<Action>) {
        let ways: &[Way] = if self.left.losses > 0 { &[Way::Heard, Way::Unheard, Way::Parked] } else { &[Way::Heard] };
        let suspects = self.twin.crashes.values().any(|mark| mark.count >= 2);
        for number in 0..if self.left.claims > 0 { rules.plan.lanes } else { 0 } {
            let waits = self.twin.head(&lane(number)).is_some();
            for way in ways.iter().copied().filter(|way| waits || *way == Way::Parked) {
                actions.push(Action::Claim { by, lane: number, suspects_only: false, way });
                if suspects {
                    actions.push(Action::Claim { by, lane: number, suspects_only: true, way });
                }
            }
        }
        if self.left.crashes > 0 && !self.instances[by].is_empty() {
            actions.push(Action::Crash(by));
        }
        for (number, claim) in self.instances[by].iter().enumerate() {
            let settle = |named| ways.iter().map(move |way| Action::Settle { by, claim: number, named, way: *way });
            let Some(items) = &claim.items else {
                // A claim whose reply is missing is settled once it cannot take effect any more.
                if self.now > claim.until && claim.sent.is_none() {
                    actions.extend(settle(Named::Nothing));
                } else if claim.sent.is_some() {
                    actions.push(Action::RepeatSettle { by, claim: number });
                }
                continue;
            };
            if self.left.extends > 0 {
                actions.push(Action::Extend { by, claim: number, heard: true });
                if self.left.losses > 0 {
                    actions.push(Action::Extend { by, claim: number, heard: false });
                }
            }
            if self.left.publishes > 0 && (self.now < claim.until || !rules.looks_at_lease()) {
                self.publishes(rules, by, number, actions);
            }
            if claim.sent.is_some() {
                actions.push(Action::RepeatSettle { by, claim: number });
                continue;
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
