//! The instances of one round, and the state of each while it is attacked.

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
use super::ground::Ground;
use super::key_reader::KeyReader;
use super::plan::{Planned, Side};
use crate::servers::{Instance, Program};

/// How long a fault waits until its target is well.
const WELL: Duration = Duration::from_secs(30);

/// How long an instance may take to end on request; its deadline is 5 s.
const END: Duration = Duration::from_secs(15);

/// How long Redis must have been well for a stop to be judged.
const CALM: Duration = Duration::from_secs(5);

/// Maximum number of violations of instances, because one that cannot start is tried again and again.
const MAX_VIOLATIONS: usize = 100;

/// The instances under attack, and their servers.
#[derive(Debug)]
pub(super) struct Instances {
    pub(super) ground: Arc<Ground>,
    pub(super) key_reader: KeyReader,
    members: Vec<Member>,
    apis: watch::Sender<Vec<SocketAddr>>,
    /// When Redis was last at fault.
    last_redis_fault: Mutex<Option<Instant>>,
    /// How many ends were checked for claims that were left.
    ends_judged: AtomicU64,
    violations: Mutex<Vec<Violation>>,
}

#[derive(Debug)]
struct Member {
    instance: Instance,
    up: AtomicBool,
    /// When its connections to Redis were last at fault.
    last_redis_fault: Mutex<Option<Instant>>,
    /// Allows one fault at a time.
    turn: Arc<tokio::sync::Mutex<()>>,
}

/// The permission to do something to an instance or a server, until it is dropped.
pub(super) type Turn = OwnedMutexGuard<()>;

impl Instances {
    /// Starts the instances; returns when all serve. `door` has the options `from` and `rejected` of their door.
    ///
    /// # Errors
    /// If one does not serve, or Redis is unreachable.
    pub(super) async fn start(
        program: &Program,
        ground: Arc<Ground>,
        place: &TimelinePlace,
        door: Option<(String, &str)>,
    ) -> anyhow::Result<Arc<Instances>> {
        let key_reader = KeyReader::open(place.clone()).await?;
        let mut members = Vec::with_capacity(ground.links.len());
        for (number, links) in ground.links.iter().enumerate() {
            let lanes: Vec<(&str, &str)> = place.lanes.iter().map(|lane| (lane.as_str(), "default")).collect();
            let sinks = [("default", &links.sink_url)];
            let configure = |api| configuration(api, place, &links.redis_url, &sinks, &lanes, door.as_ref());
            let instance = Instance::new(program, number, configure)?;
            members.push(Member {
                instance,
                up: AtomicBool::new(false),
                last_redis_fault: Mutex::default(),
                turn: Arc::default(),
            });
        }
        let instances = Arc::new(Instances {
            ground,
            key_reader,
            members,
            apis: watch::Sender::default(),
            last_redis_fault: Mutex::default(),
            ends_judged: AtomicU64::new(0),
            violations: Mutex::default(),
        });
        for number in 0..instances.members.len() {
            instances.start_one(number).await?;
        }
        Ok(instances)
    }

    /// The addresses of the instances that are up.
    pub(super) fn apis(&self) -> watch::Receiver<Vec<SocketAddr>> {
        self.apis.subscribe()
    }

    pub(super) fn instance(&self, number: usize) -> &Instance {
        &self.members[number].instance
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = &Instance> {
        self.members.iter().map(|member| &member.instance)
    }

    /// The violations of the instances themselves.
    pub(super) fn violations(&self) -> Vec<Violation> {
        self.violations.lock().clone()
    }

    /// How many instances that ended in order were checked for claims.
    pub(super) fn ends_judged(&self) -> u64 {
        self.ends_judged.load(Ordering::Relaxed)
    }

    /// Notes a violation of an instance, at most a hundred times.
    pub(super) fn add_violation(&self, law: &'static str, number: usize, evidence: String) {
        let violation = Violation { law, key: format!("instance {number}"), evidence };
        let mut violations = self.violations.lock();
        if violations.len() < MAX_VIOLATIONS {
            violations.push(violation);
        }
    }

    /// Waits until the target of a fault is well. If the target is an instance, another one must be well, too. `None`
    /// if that takes too long.
    pub(super) async fn turn(&self, planned: &Planned) -> Option<Turn> {
        let Some(number) = planned.instance else {
            let side = planned.fault_kind.side().unwrap_or(Side::Redis);
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

    /// Marks an instance as down.
    pub(super) fn down(&self, number: usize) {
        self.set_up(number, false);
    }

    /// Starts an instance (again). One that does not serve is a violation.
    ///
    /// # Errors
    /// If it does not serve.
    pub(super) async fn start_one(&self, number: usize) -> anyhow::Result<()> {
        let started = self.instance(number).start().await;
        match &started {
            Ok(()) => self.set_up(number, true),
            Err(error) => self.add_violation("started", number, format!("{error:#}")),
        }
        started
    }

    /// Notes that Redis is at fault now, or the connections of one instance to it.
    pub(super) fn note_redis_fault(&self, instance: Option<usize>) {
        let ill = instance.map_or(&self.last_redis_fault, |number| &self.members[number].last_redis_fault);
        *ill.lock() = Some(Instant::now());
    }

    fn redis_was_ill_since(&self, number: usize, then: Instant) -> bool {
        let since = |ill: &Mutex<Option<Instant>>| ill.lock().is_some_and(|last| last >= then);
        since(&self.last_redis_fault) || since(&self.members[number].last_redis_fault)
    }

    /// Asks an instance to end, and checks that it ends well and in time, with no claims left.
    pub(super) async fn end(&self, number: usize) {
        let asked = Instant::now();
        self.down(number);
        let instance = self.instance(number);
        // Its end has already been judged.
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
                self.add_violation("ended", number, format!("exit code {code} after SIGTERM: {}", instance.log_tail()));
            }
            Ok(None) => {
                self.add_violation(
                    "ended",
                    number,
                    format!("it runs on {END:?} after SIGTERM: {}", instance.log_tail()),
                );
                self.kill(number).await;
            }
            Err(error) => self.add_violation("ended", number, error.to_string()),
        }
        let Ok(left) = self.key_reader.claims_of(&id).await else { return };
        if asked.checked_sub(CALM).is_none_or(|since| self.redis_was_ill_since(number, since)) {
            return;
        }
        self.ends_judged.fetch_add(1, Ordering::Relaxed);
        if !left.is_empty() {
            self.add_violation("ended", number, format!("it left claims behind: {}", left.join(", ")));
        }
    }

    /// Kills an instance; returns when it has ended.
    pub(super) async fn kill(&self, number: usize) {
        self.down(number);
        let instance = self.instance(number);
        let ended = match instance.signal("KILL") {
            Ok(()) => instance.end(END).await,
            Err(error) => Err(error),
        };
        if !matches!(ended, Ok(Some(_))) {
            self.add_violation("ended", number, format!("it cannot be killed: {ended:?}"));
        }
    }

    /// Notes violations of instances that end by themselves, and starts them again; for ever.
    pub(super) async fn watch(&self) -> ! {
        loop {
            for member in &self.members {
                let Ok(_turn) = member.turn.try_lock() else { continue };
                let number = member.instance.number;
                if let Ok(Some(code)) = member.instance.ended() {
                    self.down(number);
                    self.add_violation(
                        "ended",
                        number,
                        format!("with code {code}, by itself: {}", member.instance.log_tail()),
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
