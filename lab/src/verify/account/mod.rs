//! The campaign's own account: what users put and were promised, what its consumer read, and the judgement.

mod by_message;
mod clock;
mod entry;
mod figures;
mod fleet;
mod judge;
mod ledger;
mod read;
mod rest;
#[cfg(test)]
mod tests;
mod users;
mod version;
mod write;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(super) use self::by_message::DOOR;
use self::clock::Clock;
use self::fleet::Fleet;
use self::ledger::Ledger;
use self::read::Inlet;
pub(super) use self::read::stream_name;
use self::rest::Rest;
use self::users::Users;
pub(in crate::verify) use self::write::{Writer, open as open_source};
use super::{Fault, Kind, Place, TimelinePlace};

/// The lanes that instances must serve, all with the one sink. Tasks move between the first two; the last one shows in
/// calm moments whether claimers are woken.
pub const LANES: [&str; 3] = ["default", "second", "quiet"];

/// The load of a campaign.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Tasks put per second, of all kinds.
    pub rate: u32,
    /// Determines every choice.
    pub seed: u64,
    /// Whether the broker has the clock of the timeline.
    pub same_clock: bool,
    /// Whether tasks are also replaced, cancelled, moved, paused, triggered and skipped, many of them around their due,
    /// and a lane is paused.
    pub races: bool,
}

/// The progress of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Promised occurrences.
    pub promised: u64,
    /// Messages that were read, including copies.
    pub published: u64,
    /// Second requests that met their task in flight.
    pub races: u64,
}

/// Counters of a campaign.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Tally {
    /// Tasks that users put for the first time, or tried to: one by one, in batches, and by messages to the door.
    pub tasks: u64,
    /// Tasks per second.
    pub tasks_per_second: f64,
    /// Keys that had to be published.
    pub promised: u64,
    /// Keys that were published although they need not have been.
    pub allowed: u64,
    /// Keys that no answer named, of tasks with a request without a definite answer.
    pub untold: u64,
    /// Messages that were read.
    pub published: u64,
    /// Messages whose key had been read before.
    pub copies: u64,
    /// Requests that were answered 503, were not answered, or could not be sent; most of them are repeated.
    pub repeated: u64,
    /// Lateness of first messages in ms: median, 99th percentile, maximum.
    pub late_ms: [i64; 3],
    /// The same for the lane that nothing else uses, in calm moments; zeros if there are none.
    pub quiet_ms: [i64; 3],
}

/// A broken law.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// The law: `lost`, `early`, `wrong_key`, `other_payload`, `settled_twice`, `cancelled_but_published`,
    /// `wrong_destination`, `other_trace`, `pause_not_held`, `copied`, `dead`, `not_woken`, `left_over`,
    /// `wrong_answer`; of instances: `started`, `ended`.
    pub law: &'static str,
    /// The idempotency key, or another subject.
    pub key: String,
    /// The promise, and the observation.
    pub evidence: String,
}

/// The judgement of a campaign.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Verdict {
    /// What was counted.
    pub tally: Tally,
    /// How often each answer came to second requests, to requests that steer, and to look-ups; and how many messages
    /// went to the door: `replace: replaced, one in flight`, `by message: put`.
    pub races: BTreeMap<String, u64>,
    /// The first hundred violations of each law.
    pub violations: Vec<Violation>,
    /// How often each law was broken.
    pub broken: BTreeMap<&'static str, u64>,
}

/// The users, and the consumer that reads their messages back.
pub struct Account {
    users: Arc<Users>,
    inlet: Arc<Inlet>,
    rest: Arc<Rest>,
    opened: Instant,
    /// After this long without a change, remaining entries count as left over.
    still: Duration,
    /// Ends the consumer and the clock.
    stop: CancellationToken,
}

/// How long users wait for their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(90);

/// How often everything is resumed, while something is left.
const RESUME_INTERVAL: Duration = Duration::from_secs(5);

/// How long the timeline may stay unchanged before its content counts as left over.
const STILL: Duration = Duration::from_secs(45);

/// The same with a door. Messages that a killed instance read from a Redis stream are read by another instance after
/// 60 s, and it looks for them every 15 s.
const STILL_WITH_DOOR: Duration = Duration::from_secs(120);

/// Maximum time until nothing is left.
const AT_ALL: Duration = Duration::from_secs(900);

/// How long the sink must have had no more messages.
const QUIET: Duration = Duration::from_secs(2);

impl Account {
    /// Creates the destinations, attaches the consumer, and starts to put tasks.
    ///
    /// `apis` are the addresses of instances that are believed to be up; `writer` sends to the door of the campaign.
    ///
    /// # Errors
    /// If the timeline or the sink cannot be reached, or a destination cannot be created.
    pub(super) async fn open(
        place: &Place,
        timeline: &TimelinePlace,
        load: Load,
        apis: watch::Receiver<Vec<SocketAddr>>,
        writer: Option<Box<dyn Writer>>,
    ) -> Result<Account> {
        let rest = Arc::new(Rest::new(timeline)?);
        let (sent, micros) = rest.time().await?;
        let (clock, stop) = (Arc::new(Clock::new(sent, micros)), CancellationToken::new());
        let mut ledger = Ledger::new(place.kind == Kind::Nats);
        if timeline.urls.len() > 1 {
            // In a cluster the connection to the new master of a slot may be there already.
            ledger.min_repeat_time = Duration::ZERO;
        }
        let ledger = Arc::new(Mutex::new(ledger));
        let inlet = Arc::new(Inlet::new(Arc::clone(&ledger), Arc::clone(&clock), place, stop.clone()));
        read::attach(place, Arc::clone(&inlet)).await.context("attaching the consumer")?;
        tokio::spawn(keep_time(Arc::clone(&rest), Arc::clone(&clock), stop.clone()));
        let destinations = place.destinations.clone();
        let users = Users::new(Fleet::new(apis), clock, ledger, destinations, writer, load);
        users.begin();
        let still = if place.door.is_some() { STILL_WITH_DOOR } else { STILL };
        Ok(Account { users, inlet, rest, opened: Instant::now(), still, stop })
    }

    /// The progress.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let published = self.ledger().counted.published;
        let (promised, races) = (&self.users.promised, &self.users.met);
        Progress { promised: promised.load(Ordering::Relaxed), published, races: races.load(Ordering::Relaxed) }
    }

    /// Stops putting, waits (with a limit) until nothing is left in the timeline and the consumer is idle, and judges.
    ///
    /// # Errors
    /// If the remains cannot be read, so that no judgement is possible.
    pub async fn close(self, faults: &[Fault]) -> Result<Verdict> {
        let (tasks, put_for) = (self.users.tasks(), self.opened.elapsed());
        self.users.leave(LAST_ANSWERS).await;
        self.users.resume_all().await;
        self.settle().await?;
        let dead = self.rest.dead().await.context("reading the dead")?;
        let left = self.rest.left().await.context("reading what is left in the timeline")?;
        self.stop.cancel();
        let mut ledger = self.ledger();
        let tally = judge::judge(&mut ledger, &dead, &left, faults);
        let repeated = self.users.fleet.repeated.load(Ordering::Relaxed);
        let violations = std::mem::take(&mut ledger.violations);
        Ok(Verdict {
            tally: Tally { tasks, tasks_per_second: tasks as f64 / put_for.as_secs_f64(), repeated, ..tally },
            races: self.users.races(),
            violations: violations.all,
            broken: violations.broken,
        })
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.inlet.ledger.lock()
    }

    /// Waits until nothing is left in the timeline and the sink has no more messages, or neither changes any more.
    async fn settle(&self) -> Result<()> {
        let (begun, mut moved, mut before) = (Instant::now(), Instant::now(), None);
        let mut resumed = Instant::now();
        let mut empty_since = None;
        loop {
            let left = self.rest.left().await;
            // Only then is every message in the sink, because it is accepted before its task ends.
            match left.as_ref().is_ok_and(Vec::is_empty) {
                true => _ = empty_since.get_or_insert_with(Instant::now),
                false => empty_since = None,
            }
            let is_complete = self.ledger().by_message.is_complete();
            if is_complete && empty_since.is_some_and(|since| self.inlet.is_quiet(QUIET, since)) {
                return Ok(());
            }
            let now = (self.rest.pending().await.ok(), self.ledger().counted.published);
            if before != Some(now) {
                (before, moved) = (Some(now), Instant::now());
            }
            if moved.elapsed() > self.still || begun.elapsed() > AT_ALL {
                left.context("reading what is left in the timeline")?;
                let is_quiet = self.inlet.is_quiet(QUIET, moved);
                anyhow::ensure!(is_quiet, "the sink does not say that it has no more messages");
                return Ok(());
            }
            // A pause that was not answered may take effect late.
            if resumed.elapsed() > RESUME_INTERVAL {
                self.users.resume_all().await;
                resumed = Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Reads the time once a second.
async fn keep_time(rest: Arc<Rest>, clock: Arc<Clock>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
        if let Ok((sent, micros)) = rest.time().await {
            clock.observe(sent, micros);
        }
    }
}
