//! Pauses of tasks and lanes: who paused it, when and why.

use crate::clock::Timestamp;

/// What a caller says about a pause.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PauseNote {
    /// The name of the caller's token.
    pub by: Option<String>,
    /// Why, in one line.
    pub note: String,
}

/// A paused lane.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LanePause {
    /// When it ends by itself.
    pub until: Option<Timestamp>,
    /// When it began.
    pub at: Timestamp,
    /// Who paused it, and why.
    pub about: PauseNote,
}

/// A paused task.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TaskPause {
    /// A due that is published nevertheless, because the task was triggered.
    pub pass: Option<Timestamp>,
    /// When it began.
    pub at: Timestamp,
    /// Who paused it, and why.
    pub about: PauseNote,
}

/// The request to pause or resume a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskPauseRequest {
    /// Pauses it.
    Pause(PauseNote),
    /// Resumes it.
    Resume,
}

/// The answer to a [`TaskPauseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TaskPauseAnswer {
    /// The task is paused.
    Paused {
        /// The due that it keeps.
        due: Timestamp,
        /// The due of an occurrence that is in flight, or was handed out, and may still be published.
        in_flight: Option<Timestamp>,
    },
    /// The task is not paused any more.
    Resumed {
        /// Its due.
        due: Timestamp,
        /// The due of the occurrence in flight.
        in_flight: Option<Timestamp>,
    },
    /// It was paused already, or is to be resumed and was not paused.
    Unchanged {
        /// Its due.
        due: Timestamp,
    },
    /// There is no such task.
    Unknown,
}

/// The request to pause or resume a lane in one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LanePauseRequest {
    /// Pauses it; replaces an earlier pause.
    Pause {
        /// When the pause ends by itself.
        until: Option<Timestamp>,
        /// Who pauses it, and why.
        about: PauseNote,
    },
    /// Resumes it.
    Resume,
}

/// The answer to a [`LanePauseRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LanePauseAnswer {
    /// What happened.
    pub result: LanePauseResult,
    /// Number of occurrences in flight, which may still be published.
    pub in_flight: u64,
}

string_enum! {
    /// What a request did with a lane.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum LanePauseResult {
        /// It is paused.
        Paused = "paused",
        /// It was paused, and is not any more.
        Resumed = "resumed",
        /// It was not paused.
        Unchanged = "unchanged",
    }
}

impl PauseNote {
    /// The value in the timeline: `<by, or ->`, a line break, the note.
    #[must_use]
    pub fn pack(&self) -> String {
        format!("{}\n{}", self.by.as_deref().unwrap_or("-"), self.note)
    }

    fn unpack(text: &str) -> PauseNote {
        let (by, note) = text.split_once('\n').unwrap_or((text, ""));
        PauseNote { by: Some(by.to_owned()).filter(|by| by != "-"), note: note.to_owned() }
    }
}

impl LanePause {
    /// The value in the timeline: until (0 for no end), at, then the [note](PauseNote::pack), separated by spaces.
    #[must_use]
    pub fn pack(&self) -> String {
        pack(self.until, self.at, &self.about)
    }

    /// Parses the value of [`pack`](LanePause::pack); `None` if it is damaged.
    #[must_use]
    pub fn unpack(text: &str) -> Option<LanePause> {
        unpack(text).map(|(until, at, about)| LanePause { until, at, about })
    }

    /// Whether it still holds at `now`.
    #[must_use]
    pub fn holds(&self, now: Timestamp) -> bool {
        self.until.is_none_or(|until| until > now)
    }
}

impl TaskPause {
    /// The value in the timeline: pass (0 for none), at, then the [note](PauseNote::pack), separated by spaces.
    #[must_use]
    pub fn pack(&self) -> String {
        pack(self.pass, self.at, &self.about)
    }

    /// Parses the value of [`pack`](TaskPause::pack); `None` if it is damaged.
    #[must_use]
    pub fn unpack(text: &str) -> Option<TaskPause> {
        unpack(text).map(|(pass, at, about)| TaskPause { pass, at, about })
    }

    /// Whether the task is not claimed at this due.
    pub(super) fn keeps_back(&self, due: Timestamp) -> bool {
        self.pass != Some(due)
    }
}

fn pack(first: Option<Timestamp>, at: Timestamp, about: &PauseNote) -> String {
    format!("{} {} {}", first.map_or(0, Timestamp::as_millis), at.as_millis(), about.pack())
}

fn unpack(text: &str) -> Option<(Option<Timestamp>, Timestamp, PauseNote)> {
    let mut parts = text.splitn(3, ' ');
    let mut time = || parts.next()?.parse().ok().map(Timestamp::from_millis);
    let (first, at) = (time()?, time()?);
    Some((Some(first).filter(|first| first.as_millis() > 0), at, PauseNote::unpack(parts.next()?)))
}

/// What is added to the due of a paused task that no claim holds. Claims ask for scores up to now, so they do not see it.
const PAUSED_OFFSET: i64 = 1_000_000_000_000_000;

/// The score of a paused task with this due.
pub(super) fn paused_score(due: Timestamp) -> i64 {
    PAUSED_OFFSET + due.as_millis()
}

/// Whether a score is that of a paused task.
pub(super) fn is_paused_score(score: i64) -> bool {
    score >= PAUSED_OFFSET
}

/// The due of a task with this score: negative while a claim holds it.
pub(super) fn due_of_score(score: i64) -> Timestamp {
    Timestamp::from_millis(if is_paused_score(score) { score - PAUSED_OFFSET } else { score.saturating_abs() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stored_pause_is_read_as_it_was_written() {
        let at = Timestamp::from_millis(1_795_262_400_123);
        let about = PauseNote { by: Some("ops".into()), note: "broker moves: see 12 34".into() };
        for (until, about, text) in [
            (None, PauseNote::default(), "0 1795262400123 -\n"),
            (Some(at), about, "1795262400123 1795262400123 ops\nbroker moves: see 12 34"),
        ] {
            let pause = LanePause { until, at, about };
            assert_eq!(pause.pack(), text);
            assert_eq!(LanePause::unpack(text), Some(pause));
        }
        for damaged in ["", "0", "0 1", "x 1 -\n", "0 x -\n"] {
            assert_eq!(LanePause::unpack(damaged), None, "{damaged}");
        }
    }
}
