//! A map from names to values that forgets: each entry expires some time after it was last touched, and a full map drops
//! the older half. Callers can make up names without end, so every note about a name belongs in such a map.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Maximum time after which the next call removes expired entries again.
const MAX_SWEEP_INTERVAL: Duration = Duration::from_secs(10);

/// Remembers up to `max` names, each for `expiry` after it was last touched.
pub struct RecentMap<V> {
    entries: HashMap<String, Entry<V>>,
    expiry: Duration,
    max: usize,
    last_sweep: Option<Instant>,
}

struct Entry<V> {
    touched: Instant,
    value: V,
}

impl<V> RecentMap<V> {
    /// An empty map.
    #[must_use]
    pub fn new(expiry: Duration, max: usize) -> RecentMap<V> {
        RecentMap { entries: HashMap::new(), expiry, max, last_sweep: None }
    }

    /// The value of a name, unless it has expired.
    #[must_use]
    pub fn get(&self, name: &str, now: Instant) -> Option<&V> {
        self.entries.get(name).filter(|entry| self.is_recent(entry, now)).map(|entry| &entry.value)
    }

    /// The value of a name, expired or not, to change it without a touch.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut V> {
        self.entries.get_mut(name).map(|entry| &mut entry.value)
    }

    /// Touches a name and returns its value, which `new` makes if there is none. A value that has expired and is not removed
    /// yet is kept.
    pub fn touch(&mut self, name: &str, now: Instant, new: impl FnOnce() -> V) -> &mut V {
        self.sweep(now);
        if !self.entries.contains_key(name) && self.entries.len() >= self.max {
            self.drop_older_half();
        }
        let entry = self.entries.entry(name.to_owned()).or_insert_with(|| Entry { touched: now, value: new() });
        entry.touched = now;
        &mut entry.value
    }

    /// Removes a name. Returns its value, unless it had expired.
    pub fn remove(&mut self, name: &str, now: Instant) -> Option<V> {
        let entry = self.entries.remove(name)?;
        self.is_recent(&entry, now).then_some(entry.value)
    }

    /// Whether any entry has not expired.
    pub fn has_recent(&mut self, now: Instant) -> bool {
        self.sweep(now);
        self.entries.values().any(|entry| self.is_recent(entry, now))
    }

    /// All names with their values, unless they have expired.
    pub fn iter(&self, now: Instant) -> impl Iterator<Item = (&str, &V)> {
        let recent = self.entries.iter().filter(move |(_, entry)| self.is_recent(entry, now));
        recent.map(|(name, entry)| (name.as_str(), &entry.value))
    }

    /// All values, expired or not.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.entries.values_mut().map(|entry| &mut entry.value)
    }

    /// Number of entries, of which some may have expired lately.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Removes expired entries, unless it did so within the last 10 s, or a quarter of `expiry` if that is shorter.
    pub fn sweep(&mut self, now: Instant) {
        let interval = (self.expiry / 4).min(MAX_SWEEP_INTERVAL);
        if self.last_sweep.is_some_and(|last| now.duration_since(last) < interval) {
            return;
        }
        self.last_sweep = Some(now);
        let expiry = self.expiry;
        self.entries.retain(|_, entry| now.duration_since(entry.touched) <= expiry);
    }

    fn is_recent(&self, entry: &Entry<V>, now: Instant) -> bool {
        now.duration_since(entry.touched) <= self.expiry
    }

    fn drop_older_half(&mut self) {
        let mut touched: Vec<Instant> = self.entries.values().map(|entry| entry.touched).collect();
        let half = touched.len() / 2;
        let Some((_, median, _)) = (half > 0).then(|| touched.select_nth_unstable(half)) else { return };
        let median = *median;
        // Many entries may have been touched at the same moment.
        let mut equals = half - touched.iter().filter(|touched| **touched < median).count();
        self.entries.retain(|_, entry| {
            if entry.touched == median && equals > 0 {
                equals -= 1;
                return false;
            }
            entry.touched >= median
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPIRY: Duration = Duration::from_secs(4);

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn entries_expire_after_their_last_touch() {
        let (mut map, start) = (RecentMap::new(EXPIRY, 10), Instant::now());
        assert!(!map.has_recent(start) && map.is_empty());
        *map.touch("a", start, || 0) += 1;
        *map.touch("a", after(start, 1000), || 0) += 1;
        assert_eq!(map.get("a", after(start, 5000)), Some(&2));
        assert!(map.has_recent(after(start, 5000)) && !map.has_recent(after(start, 5001)));
        assert_eq!(map.get("a", after(start, 5001)), None);
        assert_eq!(map.remove("a", after(start, 5001)), None, "it had expired");
        map.touch("b", after(start, 6000), || 7);
        assert_eq!((map.remove("b", after(start, 6001)), map.len()), (Some(7), 0));
    }

    #[test]
    fn expired_entries_are_removed_by_later_touches() {
        let (mut map, start) = (RecentMap::new(EXPIRY, 10), Instant::now());
        for name in ["a", "b", "c"] {
            map.touch(name, start, || ());
        }
        map.touch("d", after(start, 5001), || ());
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn a_full_map_drops_the_older_half() {
        let (mut map, start) = (RecentMap::new(EXPIRY, 1000), Instant::now());
        for number in 0..1000 {
            map.touch(&number.to_string(), after(start, number), || ());
        }
        map.touch("0", after(start, 1000), || ());
        assert_eq!(map.len(), 1000, "a name that it knows needs no place");
        map.touch("new", after(start, 1000), || ());
        assert_eq!(map.len(), 501);
        let kept = |name: &str| map.get(name, after(start, 1000)).is_some();
        assert!(kept("new") && kept("0") && kept("999") && !kept("1") && !kept("499"));
    }

    #[test]
    fn a_full_map_with_entries_of_the_same_time_drops_half_too() {
        let (mut map, start) = (RecentMap::new(EXPIRY, 1000), Instant::now());
        for number in 0..3000 {
            map.touch(&number.to_string(), start, || ());
            assert!(map.len() <= 1000 && (number < 1000 || map.len() > 500));
        }
    }
}
