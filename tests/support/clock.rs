//! Redis' time as a test knows it.

use std::sync::Arc;

use tokio::time::Instant;

/// The time of a server, as it was once, plus the time that has passed since.
#[derive(Clone)]
pub(crate) struct ServerClock(Arc<(Instant, i64)>);

impl ServerClock {
    /// A clock that shows `now` ms.
    pub(crate) fn new(now: i64) -> ServerClock {
        ServerClock(Arc::new((Instant::now(), now)))
    }

    /// The time in ms, approximately.
    pub(crate) fn now(&self) -> i64 {
        self.0.1 + i64::try_from(self.0.0.elapsed().as_millis()).expect("a short test")
    }
}
