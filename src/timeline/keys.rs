//! The names of all keys of the timeline in Redis. `lua/README.md` describes their values.

use super::scripts::Script;
use crate::task::{Lane, Namespace, Shard};

/// The version of the layout described in `lua/README.md` while nothing was ever paused.
pub const LAYOUT_VERSION: u32 = 1;

/// The version once something was paused. Versions of punctual that do not know pauses refuse such a timeline.
pub const LAYOUT_VERSION_WITH_PAUSES: u32 = 2;

/// The key that stores the layout version and the number of shards of an installation.
#[must_use]
pub fn layout(namespace: &Namespace) -> String {
    format!("punctual:{{{namespace}}}:layout")
}

/// A key that never exists. A delete of it shows whether a server accepts writes.
#[must_use]
pub fn nothing(namespace: &Namespace) -> String {
    format!("punctual:{{{namespace}}}:nothing")
}

/// The channel on which the instances of an installation send their beats.
#[must_use]
pub fn beats(namespace: &Namespace) -> String {
    format!("punctual:{{{namespace}}}:beats")
}

/// The beginning of the value of [`layout`] in a new timeline: `<layout version> <shards>`. A space and the
/// [mark](split_layout) follow.
#[must_use]
pub fn layout_value(shards: u16) -> String {
    format!("{LAYOUT_VERSION} {shards}")
}

/// The beginning of the value of [`layout`] once something was paused.
#[must_use]
pub fn layout_value_with_pauses(shards: u16) -> String {
    format!("{LAYOUT_VERSION_WITH_PAUSES} {shards}")
}

/// Whether this version of punctual, with this number of shards, can use a timeline with this value of [`layout`].
#[must_use]
pub fn is_own_layout(value: &str, shards: u16) -> bool {
    let (version_and_shards, _) = split_layout(value);
    version_and_shards == layout_value(shards) || version_and_shards == layout_value_with_pauses(shards)
}

/// Splits a value of [`layout`] into `<layout version> <shards>` and the mark: random digits, by which an instance sees that
/// another timeline has taken the place of the one that it knew. The mark is empty in a timeline of an older version.
#[must_use]
pub fn split_layout(value: &str) -> (&str, &str) {
    match value.match_indices(' ').nth(1) {
        Some((at, _)) => (&value[..at], &value[at + 1..]),
        None => (value, ""),
    }
}

/// The keys of one shard, all in one hash slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// The keys of a shard of an installation.
    #[must_use]
    pub fn new(namespace: &Namespace, shard: Shard) -> Keys {
        Keys { prefix: format!("punctual:{{{namespace}:{shard}}}:") }
    }

    /// Sorted set: member to due in ms, positive while it waits, negative while it is claimed; 10^15 + due while it is
    /// paused and no claim holds it.
    #[must_use]
    pub fn due(&self, lane: &Lane) -> String {
        self.of_lane("due", lane)
    }

    /// Sorted set: claim token to the end of its lease.
    #[must_use]
    pub fn leases(&self, lane: &Lane) -> String {
        self.of_lane("leases", lane)
    }

    /// Hash: claim token to the occurrences of the claim.
    #[must_use]
    pub fn claims(&self, lane: &Lane) -> String {
        self.of_lane("claims", lane)
    }

    /// String: the time of the next reap.
    #[must_use]
    pub fn reap_at(&self, lane: &Lane) -> String {
        self.of_lane("reap-at", lane)
    }

    /// Hash: member to record.
    #[must_use]
    pub fn tasks(&self) -> String {
        self.of_shard("tasks")
    }

    /// Hash: member to the put or cancel that takes effect when its claim ends.
    #[must_use]
    pub fn changes(&self) -> String {
        self.of_shard("changes")
    }

    /// Hash: member to the number of expired claims of its current occurrence.
    #[must_use]
    pub fn crashes(&self) -> String {
        self.of_shard("crashes")
    }

    /// Hash: recurring task to the counters of its past occurrences.
    #[must_use]
    pub fn counts(&self) -> String {
        self.of_shard("counts")
    }

    /// Sorted set: idempotency key of a dead occurrence to its time of death in ms.
    #[must_use]
    pub fn dead(&self) -> String {
        self.of_shard("dead")
    }

    /// Hash: idempotency key of a dead occurrence to its record, reason and error text.
    #[must_use]
    pub fn dead_records(&self) -> String {
        self.of_shard("dead:records")
    }

    /// Sorted set with scores of 0: the dead by lane and time of death.
    #[must_use]
    pub fn dead_order(&self) -> String {
        self.of_shard("dead:order")
    }

    /// Hash: lane to the size of its dead, in bytes.
    #[must_use]
    pub fn dead_bytes(&self) -> String {
        self.of_shard("dead:bytes")
    }

    /// Hash: paused task to the due that a trigger lets pass, since when, by whom and why.
    #[must_use]
    pub fn pauses(&self) -> String {
        self.of_shard("pauses")
    }

    /// Hash: paused lane to until when, since when, by whom and why.
    #[must_use]
    pub fn paused_lanes(&self) -> String {
        self.of_shard("pauses:lanes")
    }

    /// Set: the lanes that had a task. A reap removes an empty lane that its caller does not serve.
    #[must_use]
    pub fn lanes(&self) -> String {
        self.of_shard("lanes")
    }

    /// String: upper bound of the size of all records, in bytes.
    #[must_use]
    pub fn largest(&self) -> String {
        self.of_shard("largest")
    }

    /// A key that never exists. A delete of it shows whether a server serves the slot of the shard. Every call names it, so
    /// that no script starts while the slot moves.
    #[must_use]
    pub fn nothing(&self) -> String {
        self.of_shard("nothing")
    }

    /// Channel: wake-ups, as `<lane> <due>`.
    #[must_use]
    pub fn wake(&self) -> String {
        self.of_shard("wake")
    }

    /// The keys of a script, by the names in its table. A last name that ends in `..` stands for keys of each lane, whose names are joined by
    /// `+`. The other keys of lanes are those of the first one.
    #[must_use]
    pub fn of_script(&self, script: &Script, lanes: &[Lane]) -> Vec<String> {
        let mut keys = Vec::with_capacity(script.keys.len() + lanes.len());
        for name in script.keys {
            match (name.strip_suffix(".."), *name, lanes.first()) {
                (Some(names), ..) => {
                    let of_lane = |lane| names.split('+').map(move |name| self.of_lane(name, lane));
                    keys.extend(lanes.iter().flat_map(of_lane));
                }
                (None, "due" | "leases" | "claims" | "reap-at", Some(lane)) => keys.push(self.of_lane(name, lane)),
                _ => keys.push(self.of_shard(name)),
            }
        }
        keys
    }

    fn of_shard(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn of_lane(&self, name: &str, lane: &Lane) -> String {
        format!("{}{name}:{lane}", self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_keys_of_a_shard_have_one_hash_tag_and_differ() {
        let (namespace, lane): (Namespace, Lane) = ("n".parse().unwrap(), "orders".parse().unwrap());
        let keys = Keys::new(&namespace, Shard::all(4).nth(3).unwrap());
        let mut all = [
            keys.due(&lane),
            keys.leases(&lane),
            keys.claims(&lane),
            keys.reap_at(&lane),
            keys.tasks(),
            keys.changes(),
            keys.crashes(),
            keys.counts(),
            keys.dead(),
            keys.dead_records(),
            keys.dead_order(),
            keys.dead_bytes(),
            keys.pauses(),
            keys.paused_lanes(),
            keys.lanes(),
            keys.largest(),
            keys.wake(),
            keys.nothing(),
        ];
        assert_eq!(all[0], "punctual:{n:3}:due:orders");
        assert!(all.iter().all(|key| key.starts_with("punctual:{n:3}:")));
        all.sort();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
        assert_eq!(layout(&namespace), "punctual:{n}:layout");
        for (value, is_own) in
            [("1 64", true), ("1 64 ab", true), ("2 64 ab", true), ("1 641", false), ("3 64 ab", false)]
        {
            assert_eq!(is_own_layout(value, 64), is_own, "{value}");
        }
        assert_eq!((split_layout("2 64 ab"), split_layout("1 64")), (("2 64", "ab"), ("1 64", "")));
    }
}
