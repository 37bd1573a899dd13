//! A cache of the effects of calls on shards. A search meets hundreds of thousands of worlds, but only hundreds or
//! thousands of different shards. So the effect of each call on each shard is computed once.

use std::any::Any;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::quality::FixedState;
use punctual::timeline::memory::Twin;

use super::rules::Rules;
use super::search::fingerprint;
use super::structure::check_structure;
use super::world::World;

/// What is known of the shards of one search. A search has one set of rules.
#[derive(Default)]
pub(crate) struct Shards {
    /// By fingerprint of a shard, its time and the call.
    effects: HashMap<u64, Effect, FixedState>,
    /// By fingerprint of a shard, and its time.
    rests: HashMap<(u64, u8), AtRest, FixedState>,
}

/// What a call does to a shard.
struct Effect {
    after: Arc<Twin>,
    print: u64,
    answer: Box<dyn Any>,
}

/// A shard once only reaps have run until every lease has expired.
pub(super) struct AtRest {
    pub(super) twin: Twin,
    /// Times of the reaps that took effect.
    pub(super) reaps: Vec<u8>,
}

impl World {
    /// Calls the shard. `call` is all that the effect depends on, besides the shard and its time.
    pub(super) fn on_shard<A: Clone + 'static>(&mut self, call: impl Hash, act: impl FnOnce(&mut Twin) -> A) -> A {
        let shards = self.shards.clone();
        let mut shards = shards.borrow_mut();
        let effect = shards.effects.entry(fingerprint(&(self.print, self.now, call))).or_insert_with(|| {
            let mut twin = Twin::clone(&self.twin);
            let answer = Box::new(act(&mut twin));
            let print = fingerprint(&twin);
            let after = if twin == *self.twin { self.twin.clone() } else { Arc::new(twin) };
            Effect { after, print, answer }
        });
        (self.twin, self.print) = (effect.after.clone(), effect.print);
        effect.answer.downcast_ref::<A>().expect("each kind of call has its kind of answer").clone()
    }

    /// The shard once only reaps have run until every lease has expired. An error is a law that is broken now or by then.
    pub(super) fn at_rest<R>(&self, rules: Rules, look: impl FnOnce(&AtRest) -> R) -> Result<R, String> {
        let rests = &mut self.shards.borrow_mut().rests;
        let rest = match rests.entry((self.print, self.now)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => place.insert(AtRest::of(rules, &self.twin, self.now)?),
        };
        Ok(look(rest))
    }
}

impl AtRest {
    fn of(rules: Rules, twin: &Twin, now: u8) -> Result<AtRest, String> {
        if !rules.outside_only {
            check_structure(twin)?;
        }
        let mut rest = AtRest { twin: twin.clone(), reaps: Vec::new() };
        for now in (2..6).map(|later| now + later) {
            if !rest.twin.leases.is_empty() && rules.reap(&mut rest.twin, now, now) {
                rest.reaps.push(now);
            }
        }
        let twin = &rest.twin;
        if twin.due.values().any(|line| line.negative().next().is_some()) {
            return Err("law 2: a claim that nobody holds does not end".into());
        }
        if !(twin.changes.is_empty() && twin.claims.is_empty() && twin.leases.is_empty()) {
            return Err("law 10: at rest something is left of claims".into());
        }
        Ok(rest)
    }
}
