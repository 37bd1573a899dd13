//! What is under way on one channel.

use std::collections::{BTreeMap, HashMap};

use super::frames::Refusal;
use crate::window::Room;

/// The messages on a channel that are not answered yet.
#[derive(Default)]
pub(super) struct UnderWay {
    /// By their numbers on the channel: index, and the room that they take.
    messages: BTreeMap<u64, (usize, Room)>,
    /// Those that came back, and why.
    returned: HashMap<u64, Refusal>,
    /// The last that came back: they do in their order.
    last_returned: u64,
    /// The number of the last that was handed over.
    last: u64,
    /// Whether one came back that is none of these.
    doubtful: bool,
}

impl UnderWay {
    pub(super) fn insert(&mut self, tag: u64, index: usize, room: Room) {
        self.last = tag;
        self.messages.insert(tag, (index, room));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Forgets all of them, and tells which they were.
    pub(super) fn clear(&mut self) -> Vec<usize> {
        self.returned.clear();
        std::mem::take(&mut self.messages).into_values().map(|(index, _)| index).collect()
    }

    /// Whether what is said on this channel can be of other messages than it seems.
    pub(super) fn doubtful(&self) -> bool {
        self.doubtful
    }

    /// One came back that is none of these: forgets all, and tells which they were.
    pub(super) fn doubt(&mut self) -> Vec<usize> {
        self.doubtful = true;
        self.clear()
    }

    /// A message came back: the next in their order that it can be.
    ///
    /// # Errors
    /// When it can be none of them; says why it came back.
    pub(super) fn returned(&mut self, refusal: Refusal, is: impl Fn(usize) -> bool) -> Result<(), Refusal> {
        let later = self.messages.range(self.last_returned + 1..);
        let mut candidates = later.chain(self.messages.iter());
        let found = candidates.find(|(tag, (index, _))| is(*index) && !self.returned.contains_key(tag));
        let Some((&tag, _)) = found else { return Err(refusal) };
        self.last_returned = tag;
        self.returned.insert(tag, refusal);
        Ok(())
    }

    /// Takes out the messages that an answer is for, and why they came back if they did. What is said of messages that
    /// were never handed over is said of none.
    pub(super) fn answered(&mut self, tag: u64, multiple: bool) -> Vec<(usize, Option<Refusal>)> {
        let mut answered = BTreeMap::new();
        if multiple && (1..=self.last).contains(&tag) {
            let later = self.messages.split_off(&(tag + 1));
            answered = std::mem::replace(&mut self.messages, later);
        } else if !multiple && let Some(message) = self.messages.remove(&tag) {
            answered.insert(tag, message);
        }
        answered.into_iter().map(|(tag, (index, _))| (index, self.returned.remove(&tag))).collect()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::window::Window;

    fn under_way() -> UnderWay {
        let (window, mut under_way) = (Window::new(16, 1), UnderWay::default());
        let mut share = window.share("a", 4);
        for (tag, index) in [(1, 11), (2, 12), (3, 13), (4, 14)] {
            let room = window.room(&mut share, 1).now_or_never();
            under_way.insert(tag, index, room.expect("there is room"));
        }
        under_way
    }

    fn refusal() -> Refusal {
        Refusal { code: 312, words: "NO_ROUTE".to_owned() }
    }

    #[test]
    fn an_answer_is_for_what_it_names_and_for_nothing_that_was_never_sent() {
        let mut own = under_way();
        for (tag, multiple) in [(0, false), (0, true), (5, false), (5, true), (u64::MAX, false), (u64::MAX, true)] {
            assert_eq!(own.answered(tag, multiple), [], "{tag} {multiple}");
        }
        assert_eq!(own.answered(2, false), [(12, None)]);
        assert_eq!(own.answered(2, false), []);
        assert_eq!(own.answered(3, true), [(11, None), (13, None)]);
        assert_eq!(own.answered(4, true), [(14, None)]);
        assert!(own.is_empty());
    }

    #[test]
    fn a_return_is_for_the_next_that_it_can_be() {
        let mut own = under_way();
        assert_eq!(own.returned(refusal(), |_| false), Err(refusal()));
        assert_eq!(own.returned(refusal(), |index| index > 11), Ok(()));
        assert_eq!(own.returned(refusal(), |index| index > 11), Ok(()));
        assert_eq!(own.returned(refusal(), |index| index == 12), Err(refusal()));
        let expected = [(11, None), (12, Some(refusal())), (13, Some(refusal())), (14, None)];
        assert_eq!(own.answered(4, true), expected);
    }
}
