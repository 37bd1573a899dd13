//! The instances of one round, and what is known of each while it is attacked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, watch};
use tokio::time::{Instant, sleep};

use super::TimelinePlace;
use super::account::Violation;
use super::configuration::configuration;
use super::eye::KeyReader;
use super::ground::Ground;
use super::plan::{Planned, Side};
use crate::servers::{Instance, Program};

/// How long a fault waits for what it meets to be well.
const WELL: Duration = Duration::from_secs(30);

/// How long an instance may take to end that was asked to: its deadline is 5 s.
const END: Duration = Duration::from_secs(15);

/// How long Redis must have been well for a stop to be held to leaving nothing.
const CALM: Duration = Duration::from_secs(5);

/// What is noted of what instances do wrong, at most: one that cannot start is tried again and again.
const ACCUSATIONS: usize = 100;

/// Instances under attack, and the servers that they share.
#[derive(Debug)]
pub(super) struct Instances {
    pub(super) ground: Arc<Ground>,
    pub(super) eye: KeyReader,
    members: Vec<Member>,
    apis: watch::Sender<Vec<SocketAddr>>,
    /// When Redis was last at fault.
    redis_ill: Mutex<Option<Instant>>,
    /// How often an end was looked at for claims that were left.
    ends_judged: AtomicU64,
    violations: Mutex<Vec<Violation>>,
}

#[derive(Debug)]
struct Member {
    instance: Instance,
    up: AtomicBool,
    /// When its connections to Redis were last at fault.
    redis_ill: Mutex<Option<Instant>>,
    /// One fault of it at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The right to do something to an instance or a server, until it is dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Instances {
    /// Starts the instances; returns when all serve.
    ///
    /// # Errors
    /// When one does not serve, or Redis is away.
    pub(super) async fn start(
        program: &Program,
        ground: Arc<Ground>,
        place: &TimelinePlace,
    ) -> anyhow::Result<Arc<Instances>> {
        let eye = KeyReader::open(place.clone()).await?;
        let mut members = Vec::with_capacity(ground.links.len());
        for (number, links) in ground.links.iter().enumerate() {
            let lanes: Vec<(&str, &str)> = place.lanes.iter().map(|lane| (lane.as_str(), "default")).collect();
            let sinks = [("default", &links.sink_url)];
            let configure = |api| configuration(api, place, &links.redis_url, &sinks, &lanes);
            let instance = Instance::new(program, number, configure)?;
            members.push(Member {
                instance,
                up: AtomicBool::new(false),
                redis_ill: Mutex::default(),
                turn: Arc::default(),
            });
        }
        let crew = Arc::new(Instances {
            ground,
            eye,
            members,
            apis: watch::Sender::default(),
            redis_ill: Mutex::default(),
            ends_judged: AtomicU64::new(0),
            violations: Mutex::default(),
        });
        for number in 0..crew.members.len() {
            crew.start_one(number).await?;
        }
        Ok(crew)
    }

    /// Where the instances that are up listen.
    pub(super) fn apis(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.apis.subscribe()
    }

    pub(super) fn instance(&self, number: usize) -> &Instance {
        &self.members[number].instance
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.members.iter().map(|member| &member.instance)
    }

    /// What was found broken by whoever looked at the instances themselves.
    pub(super) fn violations(&self) -> Vec<Violation> {
        self.violations.lock().clone()
    }

    /// How often an instance that ended in order was looked at for claims that it left.
    pub(super) fn ends_judged(&self) -> u64 {
        self.ends_judged.load(Ordering::Relaxed)
    }

    /// Notes what an instance did wrong; no more than a hundred times.
    pub(super) fn accuse(&self, law: &'static str, number: usize, evidence: String) {
        let violation = Violation { law, key: format!("instance {number}"), evidence };
        let mut violations = self.violations.lock();
        if violations.len() < ACCUSATIONS {
            violations.push(violation);
        }
    }

    /// Waits until what a fault meets is well, and another instance too if it meets one. None when it is not in time.
    pub(super) async fn turn(&self, planned: &Planned) -> Option<Turn> {
        let Some(number) = planned.instance else {
            let side = planned.blow.side().unwrap_or(Side::Redis);
            let turn = Arc::clone(&self.ground.backend(side).turn);
            return tokio::time::timeout(WELL, turn.lock_owned()).await.ok();
        };
        let begun = Instant::now();
        while begun.elapsed() < WELL {
            if let Ok(turn) = Arc::clone(&self.members[number].turn).try_lock_owned() {
                let well = |member: &Member| member.is_up() && member.turn.try_lock().is_ok();
                let mut others = self.members.iter().filter(|member| member.instance.number != number).peekable();
                if self.members[number].is_up() && (others.peek().is_none() || others.any(well)) {
                    return Some(turn);
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
        None
    }

    /// An instance answers no more.
    pub(super) fn down(&self, number: usize) {
        self.set_up(number, false);
    }

    /// Starts an instance (again); one that does not serve is accused.
    ///
    /// # Errors
    /// When it does not serve.
    pub(super) async fn start_one(&self, number: usize) -> anyhow::Result<()> {
        let started = self.instance(number).start().await;
        match &started {
            Ok(()) => self.set_up(number, true),
            Err(error) => self.accuse("started", number, format!("{error:#}")),
        }
        started
    }

    /// Redis is at fault, or was until now; of an instance: its connections.
    pub(super) fn redis_is_ill(&self, instance: Option<usize>) {
        let ill = instance.map_or(&self.redis_ill, |number| &self.members[number].redis_ill);
        *ill.lock() = Some(Instant::now());
    }

    fn redis_was_ill_since(&self, number: usize, then: Instant) -> bool {
        let since = |ill: &Mutex<Option<Instant>>| ill.lock().is_some_and(|last| last >= then);
        since(&self.redis_ill) || since(&self.members[number].redis_ill)
    }

    /// Asks an instance to end, and holds it to ending well and in time, with nothing left in its claims.
    pub(super) async fn end(&self, number: usize) {
        let asked = Instant::now();
        self.down(number);
        let instance = self.instance(number);
        // Whoever ended it has been told of it.
        if instance.pid().is_none() {
            return;
        }
        let id = instance.id().unwrap_or_default();
        let ended = match instance.signal("TERM") {
            Ok(()) => instance.end(END).await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(Some(0)) => {}
            Ok(Some(code)) => {
                self.accuse("ended", number, format!("exit code {code} after SIGTERM: {}", instance.last_words()));
            }
            Ok(None) => {
                self.accuse("ended", number, format!("it runs on {END:?} after SIGTERM: {}", instance.last_words()));
                self.kill(number).await;
            }
            Err(error) => self.accuse("ended", number, error.to_string()),
        }
        let Ok(left) = self.eye.claims_of(&id).await else { return };
        if asked.checked_sub(CALM).is_none_or(|since| self.redis_was_ill_since(number, since)) {
            return;
        }
        self.ends_judged.fetch_add(1, Ordering::Relaxed);
        if !left.is_empty() {
            self.accuse("ended", number, format!("it left claims behind: {}", left.join(", ")));
        }
    }

    /// Ends an instance as kill -9 does; returns when it is gone.
    pub(super) async fn kill(&self, number: usize) {
        self.down(number);
        let instance = self.instance(number);
        let ended = match instance.signal("KILL") {
            Ok(()) => instance.end(END).await,
            Err(error) => Err(error),
        };
        if !matches!(ended, Ok(Some(_))) {
            self.accuse("ended", number, format!("it cannot be killed: {ended:?}"));
        }
    }

    /// Accuses instances that end although nobody ended them, and starts them again; for ever.
    pub(super) async fn watch(&self) -> ! {
        loop {
            for member in &self.members {
                let Ok(_turn) = member.turn.try_lock() else { continue };
                let number = member.instance.number;
                if let Ok(Some(code)) = member.instance.ended() {
                    self.down(number);
                    self.accuse(
                        "ended",
                        number,
                        format!("with code {code}, by itself: {}", member.instance.last_words()),
                    );
                }
                if !member.is_up()
                    && let Err(error) = self.start_one(number).await
                {
                    tracing::warn!(number, "an instance does not start: {error:#}");
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    fn set_up(&self, number: usize, up: bool) {
        self.members[number].up.store(up, Ordering::Relaxed);
        let apis = self.members.iter().filter(|member| member.is_up()).map(|member| member.instance.api).collect();
        self.apis.send_replace(apis);
    }
}

impl Member {
    fn is_up(&self) -> bool {
        self.up.load(Ordering::Relaxed)
    }
}
