//! A sorted set as in Redis: members sorted by score, then by their bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};

/// A sorted set.
#[derive(Clone, Debug)]
pub struct Zset<M> {
    scores: BTreeMap<M, i64>,
    /// `None` sorts before every member and so marks the start of a range.
    order: BTreeSet<(i64, Option<M>)>,
}

impl<M: Ord + Clone> Zset<M> {
    /// Number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.scores.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scores.is_empty()
    }

    /// The score of a member.
    #[must_use]
    pub fn score(&self, member: &M) -> Option<i64> {
        self.scores.get(member).copied()
    }

    /// Sets the score of a member, adding it if needed.
    pub fn set(&mut self, member: M, score: i64) {
        if let Some(old) = self.scores.insert(member.clone(), score) {
            if old == score {
                return;
            }
            self.order.remove(&(old, Some(member.clone())));
        }
        self.order.insert((score, Some(member)));
    }

    /// Removes a member. Returns whether it was there.
    pub fn remove(&mut self, member: &M) -> bool {
        match self.scores.remove(member) {
            Some(score) => self.order.remove(&(score, Some(member.clone()))),
            None => false,
        }
    }

    /// All members, the smallest score first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (i64, &M)> {
        self.order.iter().filter_map(|(score, member)| Some((*score, member.as_ref()?)))
    }

    /// Members with a score from `low` to `high`, the smallest first.
    pub fn between(&self, low: i64, high: i64) -> impl DoubleEndedIterator<Item = (i64, &M)> + Clone {
        let end = high.saturating_add(1).max(low);
        self.order.range((low, None)..(end, None)).filter_map(|(score, member)| Some((*score, member.as_ref()?)))
    }

    /// Members with a score below 0, the smallest first.
    pub fn negative(&self) -> impl Iterator<Item = (i64, &M)> {
        self.iter().take_while(|(score, _)| *score < 0)
    }

    /// The member with the smallest score.
    #[must_use]
    pub fn first(&self) -> Option<(i64, &M)> {
        self.iter().next()
    }

    /// The member with the greatest score.
    #[must_use]
    pub fn last(&self) -> Option<(i64, &M)> {
        self.iter().next_back()
    }
}

impl<M> Default for Zset<M> {
    fn default() -> Self {
        Zset { scores: BTreeMap::new(), order: BTreeSet::new() }
    }
}

impl<M: PartialEq> PartialEq for Zset<M> {
    fn eq(&self, other: &Self) -> bool {
        self.scores == other.scores
    }
}

impl<M: Eq> Eq for Zset<M> {}

// `order` contains the same data.
impl<M: Hash> Hash for Zset<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.scores.hash(state);
    }
}
