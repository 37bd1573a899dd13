//! The messages of a stream that a door has read lately, so that it knows one that comes again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The messages that were read over one connection.
///
/// The server sends a message again while it is not acknowledged. What it sent before an acknowledgement may be read after
/// it, from a pull that was open then, so a message is known for a while longer.
#[derive(Default)]
pub(super) struct ReadMessages {
    /// By place: the number of the last pull when the message was acknowledged; `None` if it is not.
    acknowledged: HashMap<String, Option<u64>>,
    /// Number of pulls so far.
    pulls: u64,
}

impl ReadMessages {
    /// A pull begins. Forgets what was acknowledged two pulls ago or earlier.
    pub(super) fn begin_pull(&mut self) {
        let pulls = self.pulls;
        self.acknowledged.retain(|_, pull| pull.is_none_or(|pull| pull + 1 >= pulls));
        self.pulls += 1;
    }

    /// Notes a message by its place. Returns whether it is new.
    pub(super) fn add(&mut self, place: &str) -> bool {
        match self.acknowledged.entry(place.to_owned()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(new) => {
                new.insert(None);
                true
            }
        }
    }

    /// Notes that the server has taken the acknowledgement of a message.
    pub(super) fn acknowledge(&mut self, place: &str) {
        self.acknowledged.insert(place.to_owned(), Some(self.pulls));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_known_until_two_pulls_after_its_acknowledgement() {
        let mut messages = ReadMessages::default();
        messages.begin_pull();
        assert!(messages.add("1-500") && messages.add("2-500"));
        assert!(!messages.add("1-500"), "the server sends it again");
        assert!(messages.add("1-501"), "the stream was made again, and this is another message");
        (0..10).for_each(|_| messages.begin_pull());
        assert!(!messages.add("1-500"), "it is not acknowledged yet");
        ["1-500", "1-501", "2-500"].into_iter().for_each(|place| messages.acknowledge(place));
        assert!(!messages.add("1-500"), "it was sent again before the acknowledgement");
        messages.begin_pull();
        assert!(!messages.add("1-500"));
        messages.begin_pull();
        assert!(!messages.add("1-500"));
        messages.begin_pull();
        assert!(messages.acknowledged.is_empty());
    }
}
