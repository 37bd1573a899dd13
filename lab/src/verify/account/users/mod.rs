//! Users: what they put, replace, cancel, get and steer, and when. The seed determines every choice, but not the answers of
//! the instances and the requests that follow from those.

mod acts;
mod batches;
mod by_message;
mod steering;
mod stories;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Load;
use super::clock::Clock;
use super::fleet::Fleet;
use super::ledger::Ledger;
use super::write::Writer;

/// How often users start something.
const TICK: Duration = Duration::from_millis(50);

/// How often a one-shot is put that shows whether claimers are woken.
const PROBE: Duration = Duration::from_millis(500);

/// Maximum number of open sequences of requests, each about one task or one batch. Beyond that users put no new
/// tasks except probes.
const OPEN: usize = 20_000;

/// All users together.
pub(super) struct Users {
    pub(super) fleet: Fleet,
    pub(super) clock: Arc<Clock>,
    ledger: Arc<Mutex<Ledger>>,
    destinations: Vec<String>,
    /// The source of the door, if there is one.
    writer: Option<Box<dyn Writer>>,
    load: Load,
    /// The answers to second requests, to requests that steer and to look-ups, and the messages to the door.
    races: Mutex<BTreeMap<String, u64>>,
    /// How many second requests met their task in flight.
    pub(super) met: AtomicU64,
    /// Promised occurrences.
    pub(super) promised: AtomicU64,
    numbers: AtomicU64,
    open: TaskTracker,
    /// Cancelled when no new tasks are put.
    stop: CancellationToken,
    /// Cancelled when no more answers are awaited.
    give_up: CancellationToken,
}

impl Users {
    pub(super) fn new(
        fleet: Fleet,
        clock: Arc<Clock>,
        ledger: Arc<Mutex<Ledger>>,
        destinations: Vec<String>,
        writer: Option<Box<dyn Writer>>,
        load: Load,
    ) -> Arc<Users> {
        Arc::new(Users {
            fleet,
            clock,
            ledger,
            destinations,
            writer,
            load,
            races: Mutex::default(),
            met: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            numbers: AtomicU64::new(0),
            open: TaskTracker::new(),
            stop: CancellationToken::new(),
            give_up: CancellationToken::new(),
        })
    }

    /// Starts the users.
    pub(super) fn begin(self: &Arc<Users>) {
        self.open.spawn(Arc::clone(self).come());
        self.open.spawn(Arc::clone(self).probe());
        if self.load.races {
            self.open.spawn(Arc::clone(self).pause_a_lane());
        }
    }

    /// Stops putting; returns when everything is answered, or `limit` has passed.
    pub(super) async fn leave(&self, limit: Duration) {
        self.stop.cancel();
        self.open.close();
        if tokio::time::timeout(limit, self.open.wait()).await.is_err() {
            self.give_up.cancel();
            self.open.wait().await;
        }
    }

    /// Number of tasks that they have put, or tried to.
    pub(super) fn tasks(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }

    /// How often each answer came, and how many messages went to the door; see [`super::Verdict::races`].
    pub(super) fn races(&self) -> BTreeMap<String, u64> {
        self.races.lock().clone()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }

    /// `rate` tasks a second: a third of them, up to 150, one by one, the others in batches.
    async fn come(self: Arc<Users>) {
        let mut random = StdRng::seed_from_u64(self.load.seed);
        let singles = f64::from(self.load.rate).min(450.0) / 3.0;
        let (mut one_by_one, mut by_batch, mut came) = (0.0, 0.0, Instant::now());
        let mut next_batch = 0;
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(TICK) => {}
            }
            let passed = came.elapsed().min(Duration::from_secs(1)).as_secs_f64();
            came = Instant::now();
            if self.open.len() > OPEN {
                continue;
            }
            one_by_one += singles * passed;
            by_batch += (f64::from(self.load.rate) - singles) * passed;
            while one_by_one >= 1.0 {
                one_by_one -= 1.0;
                self.single(&mut random);
            }
            while by_batch >= 1.0 && by_batch >= f64::from(next_batch) {
                by_batch -= f64::from(next_batch);
                self.batch(next_batch, &mut random);
                let herd = random.random_bool(0.1) && self.load.rate >= 100;
                next_batch = if herd { random.random_range(200..500) } else { random.random_range(10..100) };
            }
        }
    }

    fn single(self: &Arc<Users>, random: &mut StdRng) {
        let own = StdRng::seed_from_u64(random.random());
        let users = Arc::clone(self);
        if self.writer.is_some() && random.random_bool(0.3) {
            self.open.spawn(users.by_message(own));
            return;
        }
        match random.random_range(0..100) {
            0..6 => self.open.spawn(users.series(own)),
            6..14 => self.open.spawn(users.post(own)),
            14..24 => self.open.spawn(users.reset(own)),
            24..32 if self.load.races => self.open.spawn(users.paused(own)),
            32..38 if self.load.races => self.open.spawn(users.triggered(own)),
            38..42 if self.load.races => self.open.spawn(users.skipped(own)),
            _ => self.open.spawn(users.one_shot(own)),
        };
    }

    fn batch(self: &Arc<Users>, size: u32, random: &mut StdRng) {
        if size > 0 {
            let own = StdRng::seed_from_u64(random.random());
            self.open.spawn(Arc::clone(self).put_batch(size, size >= 200, own));
        }
    }

    async fn probe(self: Arc<Users>) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(PROBE) => {}
            }
            self.open.spawn(Arc::clone(&self).quiet());
        }
    }

    /// A name that no other task of the campaign has.
    fn name(&self, kind: &str) -> String {
        format!("{kind}-{}", self.number())
    }

    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    fn count(&self, race: &str, answer: &str) {
        *self.races.lock().entry(format!("{race}: {answer}")).or_default() += 1;
    }
}
