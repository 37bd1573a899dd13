//! The lanes, ids and destinations that a token, or the messages of a door, may use.

use std::str::FromStr;

use punctual_sinks::DestinationPatterns;

use crate::engine::Intake;
use crate::task::{Lane, Message, TaskId};

/// Maximum length of a prefix, so that ids can be made with it.
const MAX_PREFIX_BYTES: usize = 100;

/// The tasks that a token or a door may use; all by default.
#[derive(Clone, Debug, Default)]
pub struct AllowedTasks {
    /// Their lanes; empty means all. A task without a lane is put into the first one, or into `default` if the list is
    /// empty.
    pub lanes: Vec<Lane>,
    /// The beginning of their ids. A caller sends it; a door puts it before the ids of its messages.
    pub prefix: IdPrefix,
    /// The destinations of their messages, whether a task or its lane names them; `None` means all.
    pub destinations: Option<DestinationPatterns>,
}

/// The beginning of ids; empty by default, which means any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdPrefix(String);

/// What is not allowed. The text continues "the token is " or "the door is ".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAllowed {
    /// An id with another beginning.
    #[error("limited to ids that begin with `{0}`")]
    Id(String),
    /// Another lane.
    #[error("limited to the lanes `{0}`")]
    Lane(String),
    /// Another destination.
    #[error("limited to destinations {0}")]
    Destination(String),
}

impl NotAllowed {
    /// Its stable code.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            NotAllowed::Id(_) => "foreign_id",
            NotAllowed::Lane(_) => "foreign_lane",
            NotAllowed::Destination(_) => "foreign_destination",
        }
    }
}

impl IdPrefix {
    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for IdPrefix {
    type Err = String;

    /// # Errors
    /// If no valid task id can begin with the text, or if it is too long. The error says what is expected.
    fn from_str(text: &str) -> Result<IdPrefix, String> {
        let is_id = text.parse::<TaskId>().is_ok() && text.len() <= MAX_PREFIX_BYTES;
        let expected = "the beginning of ids is expected, such as `orders.`";
        if is_id {
            Ok(IdPrefix(text.to_owned()))
        } else {
            Err(format!("{expected}, at most {MAX_PREFIX_BYTES} characters"))
        }
    }
}

impl AllowedTasks {
    /// Whether nothing is limited.
    #[must_use]
    pub fn are_all(&self) -> bool {
        self.lanes.is_empty() && self.prefix.0.is_empty() && self.destinations.is_none()
    }

    /// The lane of tasks that name none.
    #[must_use]
    pub fn default_lane(&self) -> Lane {
        self.lanes.first().cloned().unwrap_or_default()
    }

    /// Whether a lane is one of them.
    #[must_use]
    pub fn has_lane(&self, lane: &Lane) -> bool {
        self.lanes.is_empty() || self.lanes.contains(lane)
    }

    /// Whether the id has the right beginning.
    #[must_use]
    pub fn has_id(&self, id: &TaskId) -> bool {
        id.as_str().starts_with(self.prefix.as_str())
    }

    /// Checks an id, whether there is such a task or not.
    ///
    /// # Errors
    /// [`NotAllowed::Id`].
    pub fn check_id(&self, id: &TaskId) -> Result<(), NotAllowed> {
        if self.has_id(id) { Ok(()) } else { Err(NotAllowed::Id(self.prefix.0.clone())) }
    }

    /// Checks a lane.
    ///
    /// # Errors
    /// [`NotAllowed::Lane`].
    pub fn check_lane(&self, lane: &Lane) -> Result<(), NotAllowed> {
        if self.has_lane(lane) {
            return Ok(());
        }
        let own: Vec<_> = self.lanes.iter().map(Lane::as_str).collect();
        Err(NotAllowed::Lane(own.join("`, `")))
    }

    /// Checks a destination.
    ///
    /// # Errors
    /// [`NotAllowed::Destination`].
    pub fn check_destination(&self, destination: &str) -> Result<(), NotAllowed> {
        match &self.destinations {
            Some(allowed) if !allowed.allow(destination) => Err(NotAllowed::Destination(allowed.to_string())),
            _ => Ok(()),
        }
    }

    /// Checks lane and destination of a message.
    ///
    /// # Errors
    /// [`NotAllowed::Lane`] and [`NotAllowed::Destination`].
    pub fn check_message(&self, intake: &Intake, lane: &Lane, message: &Message) -> Result<(), NotAllowed> {
        self.check_lane(lane)?;
        self.check_destination(intake.destination(lane, message).unwrap_or_default())
    }

    /// Whether a message may be put; `None` is a message of which only the lane could be read. If it may not, the
    /// caller of this function reports no faults of the lane or its sink, because they tell about lanes of others.
    #[must_use]
    pub fn may_put(&self, intake: &Intake, lane: &Lane, message: Option<&Message>) -> bool {
        let destination = message.and_then(|message| intake.destination(lane, message));
        self.has_lane(lane) && destination.is_none_or(|destination| self.check_destination(destination).is_ok())
    }
}
