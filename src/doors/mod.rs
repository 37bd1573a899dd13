//! Doors: tasks from messages. A door reads messages from a topic, queue or stream, and puts or cancels a task for each of
//! them.
//!
//! - A message is acknowledged after the timeline has answered. If this instance dies before, the message is read again.
//! - The id of its task follows from the message, so a message that is read again finds its task, and changes nothing.
//!   Messages without an identity or a time may become another task; the door counts and logs them.
//! - A message that cannot be put goes to the destination `rejected`, and is then acknowledged. Without that destination it
//!   is dropped, counted and logged.
//! - While the timeline or that destination is unavailable, the door acknowledges nothing, and reads at most one more batch.

mod batch;
mod dialects;
mod door_log;
mod pump;
mod rejected;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use punctual_sinks::source::Source;
pub use punctual_sinks::source::SourceOptions;
use punctual_sinks::{Sink, headers};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use self::pump::Pump;
use crate::engine::{AllowedTasks, Intake};
use crate::metrics::Metrics;
use crate::task::{CatchUp, Lane, Limits};

string_enum! {
    /// How the messages of a door say what to do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Dialect {
        /// Headers that begin with `punctual-`.
        Own = "own",
        /// As the Kafka message scheduler of etf1 has it: headers that begin with `scheduler-`. Only for Kafka.
        Etf1 = "etf1",
        /// As the Kafka message scheduler of sky-uk has it: the schedule is the value, in JSON or Avro. Only for Kafka.
        Sky = "sky",
        /// As RabbitMQ's plugin of delayed messages has it: the header `x-delay`. Only for RabbitMQ.
        XDelay = "x-delay",
        /// As for a queue in which messages wait until they expire. Only for RabbitMQ.
        Expiration = "expiration",
        /// As Celery has it: the header `eta`. Only for RabbitMQ.
        Celery = "celery",
        /// As MassTransit's message scheduler has it. Only for RabbitMQ.
        MassTransit = "masstransit",
    }
}

impl Dialect {
    /// The only kind of broker that it is for; `None` is any.
    #[must_use]
    pub fn broker(self) -> Option<&'static str> {
        match self {
            Dialect::Own => None,
            Dialect::Etf1 | Dialect::Sky => Some("kafka"),
            Dialect::XDelay | Dialect::Expiration | Dialect::Celery | Dialect::MassTransit => Some("rabbitmq"),
        }
    }

    /// Whether its messages may leave it to the door where their task is published.
    #[must_use]
    pub fn takes_destination(self) -> bool {
        matches!(self, Dialect::Own | Dialect::Etf1)
    }

    /// Whether it needs the option `exchanges`.
    #[must_use]
    pub fn needs_exchanges(self) -> bool {
        matches!(self, Dialect::XDelay | Dialect::Celery)
    }
}

string_enum! {
    /// Whether a door goes on.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum DoorStatus {
        /// It does.
        Up = "up",
        /// The timeline, or the destination for rejected messages, is unavailable, or a task that a message replaces is
        /// in flight. The door tries again.
        Waiting = "waiting",
        /// Its source cannot be read, or takes no acknowledgements.
        Unavailable = "unavailable",
    }
}

impl DoorStatus {
    /// The value of the metric.
    fn number(self) -> i64 {
        match self {
            DoorStatus::Up => 0,
            DoorStatus::Waiting => 1,
            DoorStatus::Unavailable => 2,
        }
    }
}

/// A door: where it reads, and what becomes of its messages.
#[derive(Clone)]
pub struct Door {
    /// Its name, a part of the ids that it makes.
    pub name: String,
    /// Where it reads.
    pub source: Arc<dyn Source>,
    /// The name of that place.
    pub from: String,
    /// How its messages say what to do.
    pub dialect: Dialect,
    /// The sink on the same broker, for messages that are rejected.
    pub sink: Arc<dyn Sink>,
    /// Where those go; `None` drops them, counted and logged.
    pub rejected: Option<String>,
    /// Maximum number of messages of one read, 1 to 1000. A source may return fewer.
    pub batch: usize,
    /// The lane of tasks that name none; `None` is the first allowed one.
    pub lane: Option<Lane>,
    /// The destination of messages that name none; `None` is that of the lane.
    pub destination: Option<String>,
    /// For each exchange that a message came by, the exchange that its task is published to; empty is the default one.
    pub exchanges: BTreeMap<String, String>,
    /// Where the messages of the dialect `expiration` go.
    pub to: Option<String>,
    /// The maximum delay of these messages: the `x-message-ttl` of the queue.
    pub delay: Option<Duration>,
    /// The catch-up of tasks that name none.
    pub catch_up: Option<CatchUp>,
    /// How long ago the first due of a task may have been; older tasks are not put, and a task with the id that the
    /// message names is cancelled. `None` puts all.
    pub max_overdue: Option<Duration>,
    /// The tasks that its messages may use. All ids begin with the prefix.
    pub allowed: AllowedTasks,
    /// The maximum sizes of a task.
    pub limits: Limits,
    /// The zone of cron schedules that name none; `None` is UTC.
    pub zone: Option<String>,
    /// How long the timeline may take to answer.
    pub timeline_timeout: Duration,
}

/// The state of a door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorState {
    /// Its name.
    pub name: String,
    /// The kind of broker.
    pub kind: &'static str,
    /// What it reads.
    pub from: String,
    /// Whether it reads.
    pub status: DoorStatus,
    /// Why it does not.
    pub detail: Option<String>,
}

/// The doors of an instance. Dropping them ends them at once.
pub struct Doors {
    doors: Vec<(Arc<Door>, Arc<Mutex<DoorState>>)>,
    tasks: JoinSet<()>,
    stop: CancellationToken,
}

impl Doors {
    /// Starts to read.
    #[must_use]
    pub fn start(doors: Vec<Door>, intake: &Intake, metrics: &Metrics) -> Doors {
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        let with_state = |door: Door| {
            let state = Arc::new(Mutex::new(door.state()));
            (Arc::new(door), state)
        };
        let doors: Vec<_> = doors.into_iter().map(with_state).collect();
        for (door, state) in &doors {
            info!(door = door.name, from = door.from, kind = door.source.kind(), "reading tasks from messages");
            let metrics = metrics.door(&door.name);
            let pump = Pump::new(Arc::clone(door), intake.clone(), metrics, Arc::clone(state), stop.clone());
            let (name, state) = (door.name.clone(), Arc::clone(state));
            tasks.spawn(AssertUnwindSafe(pump.run()).catch_unwind().map(move |ended| {
                if ended.is_err() {
                    let detail = "a fault of punctual ended this door; restart the instance";
                    error!(door = name, detail, "a door has ended");
                    let mut state = state.lock();
                    (state.status, state.detail) = (DoorStatus::Unavailable, Some(detail.to_owned()));
                }
            }));
        }
        Doors { doors, tasks, stop }
    }

    /// A function that returns the state of each.
    pub fn states(&self) -> impl Fn() -> Vec<DoorState> + Send + Sync + use<> {
        let states: Vec<_> = self.doors.iter().map(|(_, state)| Arc::clone(state)).collect();
        move || states.iter().map(|state| state.lock().clone()).collect()
    }

    /// Reads no more, and completes and acknowledges the batches that were read, within `deadline`. Then closes the
    /// sources, which takes at most one more second.
    pub async fn stop(mut self, deadline: Duration) {
        self.stop.cancel();
        let ended = timeout(deadline, async { while self.tasks.join_next().await.is_some() {} });
        if ended.await.is_err() {
            warn!("a door did not end in time; messages that are not acknowledged will be read again");
        }
        self.tasks.abort_all();
        join_all(self.doors.iter().map(|(door, _)| door.source.close(CLOSE_TIMEOUT))).await;
    }
}

/// The default of [`Door::timeline_timeout`].
const TIMELINE_TIMEOUT: Duration = Duration::from_secs(5);

/// Headers that punctual writes about a task, in lower case. Consumers forward what they received, so doors leave them out.
const ABOUT_TASK: [&str; 5] = [headers::KEY, headers::TASK, headers::DUE, headers::ATTEMPT, headers::MESSAGE_ID];

/// How long it may take to close a source.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

impl Door {
    /// The default of [`batch`](Door::batch).
    pub const BATCH: usize = 500;

    /// A door with the defaults of all options. It drops what it rejects.
    #[must_use]
    pub fn new(name: &str, source: Arc<dyn Source>, from: &str, sink: Arc<dyn Sink>) -> Door {
        Door {
            name: name.to_owned(),
            source,
            from: from.to_owned(),
            dialect: Dialect::Own,
            sink,
            rejected: None,
            batch: Door::BATCH,
            lane: None,
            destination: None,
            exchanges: BTreeMap::new(),
            to: None,
            delay: None,
            catch_up: None,
            max_overdue: None,
            allowed: AllowedTasks::default(),
            limits: Limits::default(),
            zone: None,
            timeline_timeout: TIMELINE_TIMEOUT,
        }
    }

    /// The lane of tasks that name none.
    fn default_lane(&self) -> Lane {
        self.lane.clone().unwrap_or_else(|| self.allowed.default_lane())
    }

    /// Its state before it has read anything.
    fn state(&self) -> DoorState {
        DoorState {
            name: self.name.clone(),
            kind: self.source.kind(),
            from: self.from.clone(),
            status: DoorStatus::Up,
            detail: None,
        }
    }
}
