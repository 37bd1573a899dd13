//! The messages that users sent to a door, and the messages that the sink received for them. Pure; the tests feed it by
//! hand.
//!
//! The doors of several instances read side by side. A door that stood still may put a task again that other doors have
//! put and changed since. So any of the messages under one id may be the last that takes effect. Two promises hold all
//! the same: each message is published under at most one key, with the due that follows from it; and of the messages
//! under one id at least one is published.

use std::collections::HashMap;

use super::ledger::{Message, Violations, parts};

/// The prefix of the names of tasks that users sent to a door.
pub(super) const BY_MESSAGE: &str = "message-";

/// The name of a campaign's door, which begins the ids that it makes.
pub(in crate::verify) const DOOR: &str = "in";

/// A message that asks for a task, as it is sent: once.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    /// The payload of the task.
    pub(super) payload: String,
    /// The bounds of its due, in the timeline's ms.
    pub(super) due: (i64, i64),
    /// Whether the broker has confirmed it.
    pub(super) is_accepted: bool,
    /// The keys of its messages in the sink.
    pub(super) keys: Vec<String>,
}

/// All messages that name one task.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    /// Whether they carry its name as its id.
    pub(super) has_id: bool,
    pub(super) asked: Vec<Asked>,
    /// Whether a message asked to cancel it.
    pub(super) is_cancelled: bool,
    /// Whether no task can be made of it.
    pub(super) is_bad: bool,
    /// How often a message with its name was read in the destination for rejected messages.
    rejected: usize,
}

/// Everything that users sent to the door, by the name of the task.
#[derive(Debug, Default)]
pub(super) struct ByMessage {
    named: HashMap<String, Named>,
}

/// A broken law: its name, the key, the evidence.
type Broken = (&'static str, String, String);

impl ByMessage {
    /// A message is about to be sent.
    pub(super) fn ask(&mut self, name: &str, has_id: bool, asked: Asked) {
        let named = self.named.entry(name.to_owned()).or_default();
        named.has_id = has_id;
        named.asked.push(asked);
    }

    /// A message is about to be sent of which no task can be made.
    pub(super) fn ask_badly(&mut self, name: &str, asked: Asked) {
        self.ask(name, false, asked);
        self.with(name, |named| named.is_bad = true);
    }

    /// Changes what is known of a task.
    pub(super) fn with(&mut self, name: &str, change: impl FnOnce(&mut Named)) {
        if let Some(named) = self.named.get_mut(name) {
            change(named);
        }
    }

    /// A message was read; `is_rejected` if it was in the destination for rejected messages. Returns whether it is a
    /// copy.
    pub(super) fn saw(
        &mut self,
        name: &str,
        message: &Message,
        is_rejected: bool,
        violations: &mut Violations,
    ) -> bool {
        let broken = match self.named.get_mut(name) {
            Some(named) => named.saw(name, message, is_rejected),
            None => Err(("wrong_key", message.key.clone(), "nobody sent a message with this name".to_owned())),
        };
        broken.unwrap_or_else(|(law, key, detail)| {
            let named = self.named.get(name);
            violations.add(
                law,
                key,
                format!("{detail}; {:.200}; sent: {:.600}", message.payload, format!("{named:?}")),
            );
            false
        })
    }

    /// Whether everything that must come has come.
    pub(super) fn is_complete(&self) -> bool {
        self.named.values().all(|named| named.missing().is_none())
    }

    /// Notes what did not come; returns the number of keys that had to.
    pub(super) fn judge(&self, violations: &mut Violations) -> u64 {
        for (name, named) in &self.named {
            if let Some(detail) = named.missing() {
                violations.add("lost", name, format!("{detail}; sent: {:.600}", format!("{named:?}")));
            }
        }
        self.named.values().filter(|named| named.must_come()).count() as u64
    }
}

impl Named {
    fn saw(&mut self, name: &str, message: &Message, is_rejected: bool) -> Result<bool, Broken> {
        let broken = |law, detail: String| Err((law, message.key.clone(), detail));
        if is_rejected != self.is_bad {
            return broken("wrong_destination", format!("rejected: {:?}", message.rejected));
        }
        let Some(asked) = self.asked.iter_mut().find(|asked| asked.payload == message.payload) else {
            return broken("other_payload", "nobody sent this payload".to_owned());
        };
        if is_rejected {
            self.rejected += 1;
            return Ok(self.rejected > 1);
        }
        let Some((id, due)) = parts(&message.key) else {
            return broken("wrong_key", "no idempotency key".to_owned());
        };
        let right_id = if self.has_id { id == name } else { id.starts_with(&format!("{DOOR}.")) };
        if !right_id {
            return broken("wrong_key", "another id".to_owned());
        }
        if !(asked.due.0..=asked.due.1).contains(&due) {
            return broken("wrong_key", format!("the due is not within {:?}", asked.due));
        }
        if asked.keys.contains(&message.key) {
            return Ok(true);
        }
        asked.keys.push(message.key.clone());
        if asked.keys.len() > 1 {
            return broken("settled_twice", "one message came under two keys".to_owned());
        }
        Ok(false)
    }

    fn must_come(&self) -> bool {
        !self.is_cancelled && self.asked.iter().any(|asked| asked.is_accepted)
    }

    /// What must come and did not.
    fn missing(&self) -> Option<&'static str> {
        let came = if self.is_bad { self.rejected > 0 } else { self.asked.iter().any(|asked| !asked.keys.is_empty()) };
        (self.must_come() && !came).then_some(match self.is_bad {
            true => "neither put nor rejected",
            false => "none of its messages to the door came",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const D: i64 = 1_000_000;

    /// The code of a message of which no task can be made.
    const BAD: Option<&str> = Some("bad_duration");

    /// One accepted message under this name, due from `D` to `D + 10`, and what its messages in the sink break.
    struct Scenario(ByMessage, Violations);

    impl Scenario {
        fn new(has_id: bool) -> Scenario {
            let mut scenario = Scenario(ByMessage::default(), Violations::default());
            scenario.0.ask("message-1", has_id, asked("one"));
            scenario
        }

        fn saw(&mut self, key: &str, payload: &str) -> bool {
            self.saw_in(key, payload, None)
        }

        fn saw_in(&mut self, key: &str, payload: &str, rejected: Option<&str>) -> bool {
            let (key, payload) = (key.to_owned(), payload.to_owned());
            let (is_rejected, rejected) = (rejected.is_some(), rejected.map(str::to_owned));
            let message = Message { key, payload, trace: None, rejected, stamp: D + 20, again: false };
            self.0.saw("message-1", &message, is_rejected, &mut self.1)
        }

        fn broken(mut self) -> Vec<&'static str> {
            self.0.judge(&mut self.1);
            self.1.broken.into_keys().collect()
        }
    }

    fn asked(payload: &str) -> Asked {
        Asked { payload: payload.to_owned(), due: (D, D + 10), is_accepted: true, keys: Vec::new() }
    }

    #[test]
    fn a_message_comes_once_or_as_copies_under_one_key() {
        let mut scenario = Scenario::new(true);
        assert!(!scenario.0.is_complete());
        assert!(!scenario.saw("message-1:1000000", "one"));
        assert!(scenario.saw("message-1:1000000", "one"), "a copy");
        assert!(scenario.0.is_complete());
        assert!(scenario.broken().is_empty());
        let mut scenario = Scenario::new(false);
        scenario.saw("in.0-7-99:1000010", "one");
        assert!(scenario.broken().is_empty());
    }

    #[test]
    fn two_keys_another_due_another_id_and_another_payload_are_violations() {
        let seen = |has_id, keys: &[&str], payload| {
            let mut scenario = Scenario::new(has_id);
            keys.iter().for_each(|key| _ = scenario.saw(key, payload));
            scenario.broken()
        };
        assert_eq!(seen(false, &["in.0-7-99:1000000", "in.0-7-99:1000001"], "one"), ["settled_twice"]);
        assert_eq!(seen(false, &["in.0-7-99:1000000", "in.0-8-99:1000000"], "one"), ["settled_twice"]);
        assert_eq!(seen(true, &["message-1:1000000", "message-1:1000011"], "one"), ["wrong_key"]);
        assert_eq!(seen(true, &["message-1:1000000", "in.0-7-99:1000000"], "one"), ["wrong_key"]);
        assert_eq!(seen(true, &["message-1:1000000", "message-1:1000000"], "two"), ["lost", "other_payload"]);
    }

    #[test]
    fn nothing_is_lost_but_what_was_accepted_and_not_cancelled() {
        assert_eq!(Scenario::new(true).broken(), ["lost"]);
        let mut scenario = Scenario::new(true);
        scenario.0.with("message-1", |named| named.is_cancelled = true);
        assert!(scenario.broken().is_empty());
        let mut scenario = Scenario::new(true);
        scenario.0.with("message-1", |named| named.asked[0].is_accepted = false);
        assert!(scenario.broken().is_empty());
        let mut scenario = Scenario::new(true);
        scenario.0.ask("message-1", true, asked("two"));
        scenario.saw("message-1:1000003", "one");
        assert!(scenario.broken().is_empty(), "either of two under one id");
    }

    #[test]
    fn what_cannot_be_put_is_rejected_and_never_published_and_nothing_else_is() {
        let mut scenario = Scenario(ByMessage::default(), Violations::default());
        scenario.0.ask_badly("message-1", asked("one"));
        assert!(!scenario.saw_in("", "one", BAD));
        assert!(scenario.saw_in("", "one", BAD), "a copy");
        assert!(scenario.broken().is_empty());
        let mut scenario = Scenario(ByMessage::default(), Violations::default());
        scenario.0.ask_badly("message-1", asked("one"));
        scenario.saw("in.0-7-99:1000000", "one");
        assert_eq!(scenario.broken(), ["lost", "wrong_destination"]);
        for has_id in [false, true] {
            let mut scenario = Scenario::new(has_id);
            scenario.saw_in("", "one", BAD);
            assert_eq!(scenario.broken(), ["lost", "wrong_destination"]);
        }
    }
}
