//! Who of several instances asks first for the due tasks of a lane in a shard.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::task::Shard;

/// How long after the owner a deputy asks. An owner has claimed by then, unless it is gone or has no capacity.
const DEPUTY_PAUSE: Duration = Duration::from_millis(25);

/// Instances that are neither owner nor deputy ask for what is overdue by this much.
const OTHER_PAUSE: Duration = Duration::from_millis(250);

/// A worse rank applies after this time, because not all instances hear of a change at the same moment.
pub(super) const WORSE_RANK_PAUSE: Duration = Duration::from_secs(1);

/// When an instance asks for the due tasks of a lane in a shard. The first one is the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) enum Rank {
    /// When they are due.
    Owner,
    /// A moment later.
    Deputy,
    /// Once they are overdue.
    Other,
}

impl Rank {
    /// The rank of the instance at this place among `count` ones that serve the lane, sorted by id. Instances that know the
    /// same others get ranks that fit together: each shard has one owner, and the shards of one owner have different
    /// deputies.
    pub(super) fn of(place: usize, count: usize, shard: Shard) -> Rank {
        let (count, shard) = (count.max(1), usize::from(shard.number()));
        let owner = shard % count;
        let deputy = if count > 1 { (owner + 1 + (shard / count) % (count - 1)) % count } else { owner };
        if place == owner {
            Rank::Owner
        } else if place == deputy {
            Rank::Deputy
        } else {
            Rank::Other
        }
    }

    /// When an instance of this rank asks for what is due at `due`; `None` if it leaves that to others.
    pub(in crate::engine) fn asks_at(self, due: Timestamp, now: Timestamp) -> Option<Timestamp> {
        match self {
            Rank::Owner => Some(due),
            Rank::Deputy => Some(due.plus(DEPUTY_PAUSE)),
            Rank::Other => (due.plus(OTHER_PAUSE) <= now).then_some(due),
        }
    }
}

/// The rank of this instance for a lane in a shard.
#[derive(Debug)]
pub(in crate::engine) struct OwnRank(Mutex<Current>);

#[derive(Debug)]
struct Current {
    rank: Rank,
    /// Since when it should be worse.
    worse_since: Option<Instant>,
}

impl Default for OwnRank {
    /// Until other instances are heard of, this one owns everything.
    fn default() -> OwnRank {
        OwnRank(Mutex::new(Current { rank: Rank::Owner, worse_since: None }))
    }
}

impl OwnRank {
    pub(in crate::engine) fn get(&self) -> Rank {
        self.0.lock().rank
    }

    /// Takes the rank over: a better one at once, a worse one after a while. Returns whether it is better now.
    pub(super) fn follow(&self, rank: Rank, now: Instant) -> bool {
        let mut current = self.0.lock();
        let is_better = rank < current.rank;
        if rank > current.rank {
            let since = *current.worse_since.get_or_insert(now);
            if now.saturating_duration_since(since) < WORSE_RANK_PAUSE {
                return false;
            }
        }
        *current = Current { rank, worse_since: None };
        is_better
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rank of each of `count` instances for a shard.
    fn ranks(count: usize, shard: Shard) -> Vec<Rank> {
        (0..count).map(|place| Rank::of(place, count, shard)).collect()
    }

    #[test]
    fn each_shard_has_one_owner_and_one_deputy() {
        assert_eq!(ranks(1, Shard::all(1).next().unwrap()), [Rank::Owner]);
        for count in [2, 3, 5, 20, 100] {
            for shard in Shard::all(64) {
                let ranks = ranks(count, shard);
                let number = |wanted: Rank| ranks.iter().filter(|rank| **rank == wanted).count();
                assert_eq!((number(Rank::Owner), number(Rank::Deputy)), (1, 1), "{count} instances, {shard}");
            }
        }
    }

    #[test]
    fn the_shards_of_one_owner_have_different_deputies() {
        let of_first = |shard: &Shard| ranks(5, *shard)[0] == Rank::Owner;
        let deputy = |shard: Shard| ranks(5, shard).iter().position(|rank| *rank == Rank::Deputy);
        let deputies: BTreeSet<_> = Shard::all(64).filter(of_first).map(deputy).collect();
        assert_eq!(deputies.len(), 4, "all others");
    }

    #[test]
    fn an_owner_asks_at_the_due_a_deputy_later_and_others_once_it_is_overdue() {
        let at = |ms: i64| Timestamp::from_millis(1_800_000_000_000 + ms);
        assert_eq!(Rank::Owner.asks_at(at(0), at(-50)), Some(at(0)));
        assert_eq!(Rank::Deputy.asks_at(at(0), at(-50)), Some(at(25)));
        assert_eq!(Rank::Other.asks_at(at(0), at(249)), None);
        assert_eq!(Rank::Other.asks_at(at(0), at(250)), Some(at(0)));
    }

    #[test]
    fn a_better_rank_applies_at_once_and_a_worse_one_after_a_second() {
        let (rank, start) = (OwnRank::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(!rank.follow(Rank::Other, at(0)));
        assert!(!rank.follow(Rank::Deputy, at(999)));
        assert_eq!(rank.get(), Rank::Owner);
        assert!(!rank.follow(Rank::Deputy, at(1000)));
        assert_eq!(rank.get(), Rank::Deputy);
        assert!(!rank.follow(Rank::Other, at(1100)));
        assert!(rank.follow(Rank::Owner, at(1200)), "better: it has to look");
        assert!(!rank.follow(Rank::Deputy, at(2300)), "the second begins anew");
        assert_eq!(rank.get(), Rank::Owner);
        assert!(!rank.follow(Rank::Owner, at(3000)));
        assert!(!rank.follow(Rank::Deputy, at(3500)), "it was not worse in between");
        assert_eq!(rank.get(), Rank::Owner);
    }
}
