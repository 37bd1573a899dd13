//! What the log says of a door. It has a line when the door stops, one each minute while it is stopped, and one when it
//! goes on. It has about ten lines each minute about rejected messages. It has one line about messages that are not
//! identified, one about headers that are left out, and one about times that are far off.

use std::time::Duration;

use tokio::time::Instant;
use tracing::{info, warn};

use super::dialects::Rejection;
use super::{Door, DoorStatus};
use crate::clock::Timestamp;

/// The pause between two lines about the same thing.
const LOG_PAUSE: Duration = Duration::from_secs(60);

/// Maximum number of lines about rejected messages in that time.
const MAX_REJECTED_LINES: u64 = 10;

/// The time of a message is far off if it differs from now by more than this.
const FAR_OFF: Duration = Duration::from_secs(300);

/// What was logged of a door.
#[derive(Default)]
pub(super) struct DoorLog {
    /// Since when it does not go on, and when that was last logged.
    stopped: Option<(Instant, Instant)>,
    /// Since when lines about rejected messages are counted, and how many there were.
    rejected: Option<(Instant, u64)>,
    /// Whether it was logged that messages are not identified.
    unidentified: bool,
    /// Whether it was logged that headers are left out.
    headers_dropped: bool,
    /// Whether it was logged that times are far off.
    far_off: bool,
}

impl DoorLog {
    /// The door does not go on.
    pub(super) fn stopped(&mut self, door: &Door, status: DoorStatus, detail: &str) {
        let now = Instant::now();
        match &mut self.stopped {
            Some((_, logged)) if now.duration_since(*logged) < LOG_PAUSE => return,
            Some((since, logged)) => {
                *logged = now;
                let outage_s = now.duration_since(*since).as_secs();
                warn!(door = door.name, status = status.as_str(), detail, outage_s, "a door is still stopped");
                return;
            }
            None => self.stopped = Some((now, now)),
        }
        warn!(door = door.name, status = status.as_str(), detail, "a door is stopped; retrying");
    }

    /// The door goes on.
    pub(super) fn resumed(&mut self, door: &Door) {
        if let Some((since, _)) = self.stopped.take() {
            info!(door = door.name, outage_s = since.elapsed().as_secs(), "a door goes on");
        }
    }

    /// A message is rejected.
    pub(super) fn rejected(&mut self, door: &Door, place: &str, why: &Rejection) {
        let now = Instant::now();
        let minute = self.rejected.take().filter(|(since, _)| now.duration_since(*since) < LOG_PAUSE);
        let (since, lines) = minute.unwrap_or((now, 0));
        self.rejected = Some((since, lines + 1));
        if lines < MAX_REJECTED_LINES {
            let (code, detail) = (why.code, why.detail.as_str());
            let dropped = door.rejected.is_none();
            warn!(door = door.name, place, code, detail, dropped, "a message was rejected");
        }
        if lines == MAX_REJECTED_LINES {
            warn!(door = door.name, "more messages were rejected; no more lines in this minute");
        }
    }

    /// A message would become a task with another id or due if it were read again. Logged once: the metric counts them.
    pub(super) fn unidentified(&mut self, door: &Door, place: &str) {
        if !std::mem::replace(&mut self.unidentified, true) {
            warn!(
                door = door.name,
                place,
                "messages have no `message_id`, or no time that a delay could count from: one that is read again is another task, or is due later"
            );
        }
    }

    /// A message was sent at this time, by the clock of its producer or of the broker. Logged once if that is far off: the
    /// metric of the door's lag shows more.
    pub(super) fn sent(&mut self, door: &Door, place: &str, sent: Timestamp, now: Timestamp) {
        let off = now.since(sent).max(sent.since(now));
        if off > FAR_OFF && !std::mem::replace(&mut self.far_off, true) {
            let (sent, off_s) = (sent.to_string(), off.as_secs());
            warn!(
                door = door.name,
                place,
                sent,
                off_s,
                "the time of a message is far from now; delays would count from it: the door is late, or the clock of the producer is wrong"
            );
        }
    }

    /// A task does not have all headers of its message. Logged once: the metric counts them.
    pub(super) fn headers_dropped(&mut self, door: &Door, place: &str, headers: usize) {
        if !std::mem::replace(&mut self.headers_dropped, true) {
            warn!(
                door = door.name,
                place,
                headers,
                "headers are left out: they are no text, and the sink of the lane is of another kind than the door"
            );
        }
    }
}
