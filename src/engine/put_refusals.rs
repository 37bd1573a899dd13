//! Whether the timeline refuses puts, for `/readyz` and the log.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::timeline::{PutAnswer, PutResult, TimelineError};

/// How long a refused put is reported. After that, a put has to be tried again to learn the state.
const REFUSED_FOR: Duration = Duration::from_secs(5);

/// A successful put ends the report only this long after the last refusal, because at the limit of its memory Redis
/// refuses every other put.
const REFUSED_AT_LEAST: Duration = Duration::from_secs(1);

/// What is known of refused puts.
#[derive(Default)]
pub(super) struct PutRefusals {
    /// When the timeline last refused a put or did not confirm one, with its error text. `None` once a put succeeded.
    last: Mutex<Option<(Instant, String)>>,
}

impl PutRefusals {
    /// The error text of a refused put, if that was lately.
    pub(super) fn lately(&self) -> Option<String> {
        self.last.lock().as_ref().filter(|(at, _)| at.elapsed() < REFUSED_FOR).map(|(_, detail)| detail.clone())
    }

    /// Notes that the timeline refused or did not confirm a put, and logs the first one.
    pub(super) fn note(&self, error: &TimelineError) {
        let (TimelineError::Refused(detail) | TimelineError::Unkept(detail)) = error else { return };
        if self.last.lock().replace((Instant::now(), detail.clone())).is_some() {
            return;
        }
        if matches!(error, TimelineError::Unkept(_)) {
            warn!(words = detail, "redis does not confirm writes; puts are answered 503 timeline_unknown");
        } else {
            warn!(words = detail, "redis refuses puts; waiting tasks are still published");
        }
    }

    /// Notes that the timeline accepts puts. Only a written task counts, because a full Redis still answers
    /// `unchanged`.
    pub(super) fn answered(&self, answers: &[PutAnswer]) {
        let written = |answer: &PutAnswer| matches!(answer.result, PutResult::Created | PutResult::Replaced);
        if answers.iter().any(written) && self.last.lock().take_if(|(at, _)| at.elapsed() >= REFUSED_AT_LEAST).is_some()
        {
            info!("redis accepts puts again");
        }
    }
}
