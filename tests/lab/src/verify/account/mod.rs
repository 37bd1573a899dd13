//! The campaign's own account: what users put and were promised, what a consumer of its own read, and the judgement.

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

use self::clock::Clock;
use self::fleet::Fleet;
use self::ledger::Ledger;
use self::read::Inlet;
pub(super) use self::read::stream_name;
use self::rest::Rest;
use self::users::Users;
use super::{Fault, Kind, Place, TimelinePlace};

/// The lanes that instances must serve, all to the one sink: tasks move between the first two, the last is for those that
/// tell in calm moments whether sleepers are woken.
pub const LANES: [&str; 3] = ["default", "second", "quiet"];

/// What users do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Tasks put each second, all kinds together.
    pub rate: u32,
    /// What every choice follows from.
    pub seed: u64,
    /// Whether tasks are also replaced, cancelled and moved, much of it about when they are due.
    pub races: bool,
}

/// How far the campaign has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Occurrences that were promised.
    pub promised: u64,
    /// Messages that were read, copies included.
    pub published: u64,
    /// Second requests that met their task in flight.
    pub races: u64,
}

/// What was counted where the laws were kept.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Tally {
    /// Tasks that users put, one after the other and by batches, for the first time.
    pub tasks: u64,
    /// How many of them came each second.
    pub tasks_per_second: f64,
    /// Keys that had to be published.
    pub promised: u64,
    /// Keys that were published although they need not have been.
    pub allowed: u64,
    /// Keys of tasks for which a request was never answered, that no answer told.
    pub untold: u64,
    /// Messages that were read.
    pub published: u64,
    /// Messages whose key had been read before.
    pub copies: u64,
    /// Requests that were answered 503 or by nobody, and repeated.
    pub repeated: u64,
    /// How much later than its due a first message came, in ms: half of them, 99 of 100, all.
    pub late_ms: [i64; 3],
    /// The same of the lane that nothing else uses, in calm moments; none were taken where it is all zero.
    pub quiet_ms: [i64; 3],
}

/// A law that was broken.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// Which: `lost`, `early`, `wrong_key`, `other_payload`, `settled_twice`, `cancelled_but_published`,
    /// `wrong_destination`, `copied`, `dead`, `not_woken`, `left_over`, `wrong_answer`; of instances: `started`, `ended`.
    pub law: &'static str,
    /// The idempotency key, or what else was met.
    pub key: String,
    /// What was promised, and what was seen.
    pub evidence: String,
}

/// The judgement of a campaign.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Verdict {
    /// What was counted.
    pub tally: Tally,
    /// What second requests were answered, each with how often: `replace in flight`.
    pub races: BTreeMap<String, u64>,
    /// What was broken; the first hundred of each law.
    pub violations: Vec<Violation>,
    /// How often each law was broken.
    pub broken: BTreeMap<&'static str, u64>,
}

/// Users, and the consumer that reads back what became of their tasks.
pub struct Account {
    users: Arc<Users>,
    inlet: Arc<Inlet>,
    rest: Arc<Rest>,
    opened: Instant,
    /// Ends the consumer and the clock.
    stop: CancellationToken,
}

/// How long users wait for their last answers.
const LAST_ANSWERS: Duration = Duration::from_secs(90);

/// How long the timeline may stand still, with something in it, until what is there is left over.
const STILL: Duration = Duration::from_secs(45);

/// How long it may take at all until nothing is left.
const AT_ALL: Duration = Duration::from_secs(900);

/// For how long the sink must have had nothing more.
const QUIET: Duration = Duration::from_secs(2);

impl Account {
    /// Makes the destinations, attaches the consumer, and begins to put tasks.
    ///
    /// `apis` holds the addresses of instances that are believed to be up.
    ///
    /// # Errors
    /// When the timeline or the sink cannot be reached, or a destination cannot be made.
    pub async fn open(
        place: &Place,
        timeline: &TimelinePlace,
        load: Load,
        apis: watch::Receiver<Vec<SocketAddr>>,
    ) -> Result<Account> {
        let rest = Arc::new(Rest::new(timeline)?);
        let (sent, micros) = rest.time().await?;
        let (clock, stop) = (Arc::new(Clock::new(sent, micros)), CancellationToken::new());
        let ledger = Arc::new(Mutex::new(Ledger::new(place.kind == Kind::Nats)));
        let inlet = Arc::new(Inlet::new(Arc::clone(&ledger), Arc::clone(&clock), place, stop.clone()));
        read::attach(place, Arc::clone(&inlet)).await.context("attaching the consumer")?;
        tokio::spawn(keep_time(Arc::clone(&rest), Arc::clone(&clock), stop.clone()));
        let destinations = place.destinations.clone();
        let users = Users::new(Fleet::new(apis), clock, ledger, destinations, load);
        users.begin();
        Ok(Account { users, inlet, rest, opened: Instant::now(), stop })
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let published = self.ledger().counted.published;
        let (promised, races) = (&self.users.promised, &self.users.met);
        Progress { promised: promised.load(Ordering::Relaxed), published, races: races.load(Ordering::Relaxed) }
    }

    /// Puts nothing more; waits (bounded) until nothing is left in the timeline and the consumer is quiet; judges.
    ///
    /// # Errors
    /// When what is left cannot be read: no judgement is possible.
    pub async fn close(self, faults: &[Fault]) -> Result<Verdict> {
        let (tasks, put_for) = (self.users.tasks(), self.opened.elapsed());
        self.users.leave(LAST_ANSWERS).await;
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

    /// Waits until nothing is left in the timeline and the sink has nothing more, or neither moves any longer.
    async fn settle(&self) -> Result<()> {
        let (begun, mut moved, mut before) = (Instant::now(), Instant::now(), None);
        loop {
            let left = self.rest.left().await;
            let quiet = self.inlet.quiet_for();
            if left.as_ref().is_ok_and(Vec::is_empty) && quiet >= QUIET {
                return Ok(());
            }
            let now = (self.rest.pending().await.ok(), self.ledger().counted.published);
            if before != Some(now) {
                (before, moved) = (Some(now), Instant::now());
            }
            if moved.elapsed() > STILL || begun.elapsed() > AT_ALL {
                left.context("reading what is left in the timeline")?;
                anyhow::ensure!(quiet >= QUIET, "the sink does not say that it has no more messages");
                return Ok(());
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

/// Asks for the time, once a second.
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
