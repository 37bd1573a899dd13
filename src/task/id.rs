//! Names: task ids, lanes, namespaces, idempotency keys, members of the timeline, and the shard of a task.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;

/// A name that breaks its rule; the text says which rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadName(pub String);

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;

            fn from_str(text: &str) -> Result<Self, BadName> {
                $check(text)?;
                Ok($name(text.into()))
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;

            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", &self.0)
            }
        }
    };
}

name!(
    /// Id of a task: 1 to 200 of `A-Z a-z 0-9 . _ : -`, the first a letter or digit.
    TaskId,
    check_task_id
);
name!(
    /// Name of a lane: 1 to 32 of `a-z 0-9 -`.
    Lane,
    check_short_name
);
name!(
    /// Name of an installation on a shared Redis or broker: 1 to 32 of `a-z 0-9 -`.
    Namespace,
    check_short_name
);
name!(
    /// A member of a lane: a task id, or `!<key>` for a requeued occurrence.
    Member,
    check_member
);

impl Default for Lane {
    /// The lane that always exists.
    fn default() -> Lane {
        Lane("default".into())
    }
}

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace("default".into())
    }
}

impl From<&TaskId> for Member {
    fn from(id: &TaskId) -> Member {
        Member(id.0.clone())
    }
}

impl Member {
    /// The member for the occurrence with this key once it is requeued.
    #[must_use]
    pub fn requeued(key: &Key) -> Member {
        Member(format!("!{key}").into())
    }

    /// The key of the requeued occurrence, if this member is one.
    #[must_use]
    pub fn requeued_key(&self) -> Option<Key> {
        self.0.strip_prefix('!').and_then(|key| key.parse().ok())
    }

    /// The task that determines the shard: the task itself, or the original task of a requeued occurrence.
    #[must_use]
    pub fn task(&self) -> TaskId {
        match self.requeued_key() {
            Some(key) => key.task,
            None => TaskId(self.0.clone()),
        }
    }

    /// The idempotency key of this member's occurrence at `due`.
    #[must_use]
    pub fn key(&self, due: Timestamp) -> Key {
        self.requeued_key().unwrap_or_else(|| Key { task: TaskId(self.0.clone()), due })
    }
}

/// The idempotency key of an occurrence, `<task id>:<due ms>`. It stays the same over all retries and crashes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// The task.
    pub task: TaskId,
    /// When the occurrence is due.
    pub due: Timestamp,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.task, self.due.as_millis())
    }
}

impl FromStr for Key {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Key, BadName> {
        let bad = || BadName(format!("`{text}` is not an idempotency key: `<task id>:<due ms>` is expected"));
        let (task, due) = text.rsplit_once(':').ok_or_else(bad)?;
        let canonical = due.bytes().all(|b| b.is_ascii_digit()) && !due.starts_with('0');
        let due = Timestamp::from_millis(due.parse().map_err(|_| bad())?);
        if !canonical || !due.is_valid_due() {
            return Err(bad());
        }
        Ok(Key { task: task.parse()?, due })
    }
}

/// A part of the timeline that is stored on one Redis node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shard(u16);

impl Shard {
    /// The first shard, which every timeline has.
    pub const FIRST: Shard = Shard(0);

    /// The shard of a task: `xxh3-64(task id) mod shards`; `shards` is at least 1.
    #[must_use]
    pub fn of(task: &TaskId, shards: u16) -> Shard {
        let hash = xxhash_rust::xxh3::xxh3_64(task.as_str().as_bytes());
        Shard(u16::try_from(hash % u64::from(shards.max(1))).unwrap_or(0))
    }

    /// All shards of a timeline with this many.
    pub fn all(shards: u16) -> impl Iterator<Item = Shard> {
        (0..shards).map(Shard)
    }

    /// Its number, from 0.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn check_task_id(text: &str) -> Result<(), BadName> {
    let rest = |b: u8| b.is_ascii_alphanumeric() || b"._:-".contains(&b);
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if (1..=200).contains(&text.len()) && first && text.bytes().all(rest) {
        return Ok(());
    }
    Err(BadName("a task id is 1 to 200 of `A-Z a-z 0-9 . _ : -`, the first a letter or digit".into()))
}

fn check_short_name(text: &str) -> Result<(), BadName> {
    if (1..=32).contains(&text.len()) && text.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')) {
        return Ok(());
    }
    Err(BadName("a name is 1 to 32 of `a-z 0-9 -`".into()))
}

fn check_member(text: &str) -> Result<(), BadName> {
    match text.strip_prefix('!') {
        Some(key) => key.parse::<Key>().map(|_| ()),
        None => check_task_id(text),
    }
}
