//! The loop of a door: reads a batch, does what its messages say, and acknowledges them.
//!
//! A batch is complete before the next one begins, so that messages for one id take effect in their order. The next one is
//! read meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join3;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use punctual_sinks::Outcome;
use punctual_sinks::source::{Incoming, Receipt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::batch::{BatchPart, Sent, plan};
use super::dialects::{self, Instruction, Rejection};
use super::door_log::DoorLog;
use super::{Door, DoorState, DoorStatus, rejected};
use crate::clock::{Backoff, Timestamp};
use crate::engine::Intake;
use crate::engine::fault::{self, Point};
use crate::engine::intake::{EffectivePut, NewTask, PutError};
use crate::metrics::DoorMetrics;
use crate::task::TaskId;
use crate::timeline::{CancelAnswer, PutMode, TimelineError};

/// The pauses between two attempts, while the source, the timeline or the destination for rejected messages is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Maximum number of cancels under way.
const MAX_CANCELS: usize = 64;

/// The loop of one door.
pub(super) struct Pump {
    door: Arc<Door>,
    intake: Intake,
    metrics: DoorMetrics,
    state: Arc<Mutex<DoorState>>,
    log: Mutex<DoorLog>,
    stop: CancellationToken,
}

/// What became of a message.
enum Fate {
    /// Done, with this result.
    Done(&'static str),
    Rejected(Rejection),
}

/// The door stops before a batch is complete. Its messages are read again later.
struct Stopped;

/// The messages of a batch that have a fate, by their numbers, and those that have none because of this error.
type Fates = Vec<(usize, Result<Fate, TimelineError>)>;

impl Pump {
    pub(super) fn new(
        door: Arc<Door>,
        intake: Intake,
        metrics: DoorMetrics,
        state: Arc<Mutex<DoorState>>,
        stop: CancellationToken,
    ) -> Pump {
        Pump { door, intake, metrics, state, log: Mutex::default(), stop }
    }

    /// Runs until the door stops.
    pub(super) async fn run(self) {
        let (outbox, mut inbox) = mpsc::channel(1);
        let process = async {
            while let Some(batch) = inbox.recv().await {
                if self.process(batch).await.is_err() {
                    break;
                }
            }
        };
        tokio::join!(self.read(outbox), process);
    }

    /// Reads batches. At most one waits while another is processed.
    async fn read(&self, outbox: mpsc::Sender<Vec<Incoming>>) {
        let mut backoff = BACKOFF;
        loop {
            // An error means that no more batches are processed.
            let Ok(place) = outbox.reserve().await else { return };
            // A read that has begun is not given up: it may have taken messages.
            if self.stop.is_cancelled() {
                return;
            }
            match self.door.source.next(self.door.batch).await {
                Ok(batch) => {
                    backoff = BACKOFF;
                    if self.state.lock().status == DoorStatus::Unavailable {
                        self.goes_on();
                    }
                    if !batch.is_empty() {
                        place.send(batch);
                    }
                }
                Err(error) => {
                    self.stopped(DoorStatus::Unavailable, &error.to_string());
                    if self.pause(&mut backoff).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn process(&self, batch: Vec<Incoming>) -> Result<(), Stopped> {
        let now = self.intake.clock().now();
        if let Some(sent) = batch.last().and_then(|message| message.time_ms) {
            self.metrics.lag.set(now.since(Timestamp::from_millis(sent)).as_secs_f64());
        }
        let mut fates: BTreeMap<usize, Fate> = BTreeMap::new();
        let mut sent = Vec::with_capacity(batch.len());
        for (number, message) in batch.iter().enumerate() {
            // The first due of a cron schedule may take long to find, so let other tasks of the runtime run.
            if number % 16 == 15 {
                tokio::task::yield_now().await;
            }
            match dialects::read(&self.door, &self.intake, message, now) {
                Ok(Instruction::Skip(result)) => _ = fates.insert(number, Fate::Done(result)),
                Ok(instruction) => {
                    let time = message.time_ms.map(Timestamp::from_millis);
                    sent.push(Sent { number, time, instruction });
                }
                Err(rejection) => _ = fates.insert(number, Fate::Rejected(rejection)),
            }
        }
        let plan = plan(sent);
        fates.extend(plan.superseded.into_iter().map(|number| (number, Fate::Done("superseded"))));
        for part in plan.parts {
            self.take_effect(part, &mut fates).await?;
        }
        self.reject(&batch, &fates).await?;
        fault::reached(Point::BeforeAcknowledge);
        let receipts: Vec<Receipt> = batch.iter().map(|message| message.receipt.clone()).collect();
        self.acknowledge(receipts).await?;
        self.count(&batch, fates);
        Ok(())
    }

    /// Makes the calls of a part, and repeats those that the timeline did not answer, until it has answered all.
    async fn take_effect(&self, mut part: BatchPart, fates: &mut BTreeMap<usize, Fate>) -> Result<(), Stopped> {
        let mut backoff = BACKOFF;
        loop {
            let (posts, puts, cancels) = join3(
                self.put(PutMode::Post, &part.posts),
                self.put(PutMode::Put, &part.puts),
                self.cancel(&part.cancels),
            )
            .await;
            let mut failed = None;
            for (number, result) in posts.into_iter().chain(puts).chain(cancels) {
                match result {
                    Ok(fate) => _ = fates.insert(number, fate),
                    Err(error) => failed = Some(error),
                }
            }
            let Some(error) = failed else {
                if self.state.lock().status == DoorStatus::Waiting {
                    self.goes_on();
                }
                return Ok(());
            };
            part.posts.retain(|(number, _)| !fates.contains_key(number));
            part.puts.retain(|(number, _)| !fates.contains_key(number));
            part.cancels.retain(|(number, _)| !fates.contains_key(number));
            self.stopped(DoorStatus::Waiting, &error.to_string());
            self.pause(&mut backoff).await?;
        }
    }

    async fn put(&self, mode: PutMode, tasks: &[(usize, NewTask)]) -> Fates {
        if tasks.is_empty() {
            return Vec::new();
        }
        let new = tasks.iter().map(|(_, new)| new.clone()).collect();
        let answers = self.intake.put_traced(mode, new, self.door.timeline_timeout).await;
        tasks.iter().zip(answers).map(|((number, _), answer)| (*number, fate_of_put(answer))).collect()
    }

    async fn cancel(&self, ids: &[(usize, TaskId)]) -> Fates {
        let cancel = |(number, id): &(usize, TaskId)| {
            let (number, id) = (*number, id.clone());
            async move {
                let answer = self.intake.cancel(&id, self.door.timeline_timeout).await;
                let result = answer.map(|answer| match answer {
                    CancelAnswer::Cancelled { .. } => "cancelled",
                    CancelAnswer::InFlight { .. } => "cancel_in_flight",
                    CancelAnswer::Unknown | CancelAnswer::Mismatch => "cancel_unknown",
                });
                (number, result.map(Fate::Done))
            }
        };
        stream::iter(ids.iter().map(cancel)).buffer_unordered(MAX_CANCELS).collect().await
    }

    /// Publishes copies of the rejected messages, until the destination has accepted all.
    async fn reject(&self, batch: &[Incoming], fates: &BTreeMap<usize, Fate>) -> Result<(), Stopped> {
        let rejected = fates.iter().filter_map(|(number, fate)| match fate {
            Fate::Rejected(why) => Some((&batch[*number], why)),
            Fate::Done(_) => None,
        });
        let mut open: Vec<(&Incoming, &Rejection, bool)> =
            rejected.map(|(message, why)| (message, why, true)).collect();
        open.iter().for_each(|(message, why, _)| self.log.lock().rejected(&self.door, &message.place, why));
        let Some(destination) = self.door.rejected.as_deref() else { return Ok(()) };
        let mut backoff = BACKOFF;
        while !open.is_empty() {
            let copies =
                open.iter().map(|(message, why, whole)| rejected::copy(&self.door, destination, message, why, *whole));
            let mut outcomes = self.door.sink.publish(copies.collect());
            let (mut accepted, mut detail) = (vec![false; open.len()], "no answer from the sink".to_owned());
            while let Some((index, outcome)) = outcomes.next().await {
                match outcome {
                    Outcome::Accepted | Outcome::Duplicate => accepted[index] = true,
                    Outcome::Retry(trouble) => detail = trouble.detail,
                    Outcome::Reject(refused) => {
                        let (message, _, whole) = &mut open[index];
                        if !*whole {
                            error!(
                                door = self.door.name,
                                place = message.place,
                                detail = refused,
                                "the destination `rejected` refuses even a copy without body and headers"
                            );
                        }
                        (*whole, detail) = (false, refused);
                    }
                }
            }
            let mut accepted = accepted.into_iter();
            open.retain(|_| !accepted.next().unwrap_or_default());
            if !open.is_empty() {
                self.stopped(DoorStatus::Waiting, &format!("`{destination}`: {detail}"));
                self.pause(&mut backoff).await?;
            }
        }
        if self.state.lock().status == DoorStatus::Waiting {
            self.goes_on();
        }
        Ok(())
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), Stopped> {
        let mut backoff = BACKOFF;
        while let Err(error) = self.door.source.acknowledge(receipts.clone()).await {
            self.stopped(DoorStatus::Unavailable, &error.to_string());
            self.pause(&mut backoff).await?;
        }
        Ok(())
    }

    fn count(&self, batch: &[Incoming], fates: BTreeMap<usize, Fate>) {
        for (number, fate) in fates {
            match fate {
                Fate::Done(result) => {
                    debug!(door = self.door.name, place = batch[number].place, result, "a message was read");
                    self.metrics.message(result);
                }
                Fate::Rejected(why) => {
                    self.metrics.message("rejected");
                    self.metrics.rejected(why.code);
                }
            }
        }
    }

    fn stopped(&self, status: DoorStatus, detail: &str) {
        self.log.lock().stopped(&self.door, status, detail);
        self.set_state(status, Some(detail.to_owned()));
    }

    fn goes_on(&self) {
        self.log.lock().goes_on(&self.door);
        self.set_state(DoorStatus::Up, None);
    }

    fn set_state(&self, status: DoorStatus, detail: Option<String>) {
        let mut state = self.state.lock();
        (state.status, state.detail) = (status, detail);
        self.metrics.status.set(match status {
            DoorStatus::Up => 0,
            DoorStatus::Waiting => 1,
            DoorStatus::Unavailable => 2,
        });
    }

    async fn pause(&self, backoff: &mut Backoff) -> Result<(), Stopped> {
        tokio::select! {
            () = self.stop.cancelled() => Err(Stopped),
            () = tokio::time::sleep(backoff.next()) => Ok(()),
        }
    }
}

fn fate_of_put(answer: Result<EffectivePut, PutError>) -> Result<Fate, TimelineError> {
    match answer {
        Ok(put) => Ok(Fate::Done(put.result.as_str())),
        Err(PutError::Timeline(error)) => Err(error),
        // The configuration of the door has changed since the message was first read.
        Err(PutError::KeyReused) => Ok(Fate::Done("unchanged")),
        Err(error) => Ok(Fate::Rejected(Rejection::new(error.code().unwrap_or("internal"), error.to_string()))),
    }
}
