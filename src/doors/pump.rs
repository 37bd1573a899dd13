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
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::batch::{BatchPart, Sent, plan};
use super::dialects::{self, Instruction, PutInstruction, Rejection};
use super::door_log::DoorLog;
use super::{Door, DoorState, DoorStatus, rejected};
use crate::clock::{Backoff, Timestamp};
use crate::engine::Intake;
use crate::engine::fault::{self, Point};
use crate::engine::intake::{EffectivePut, NewTask, PutError};
use crate::metrics::DoorMetrics;
use crate::task::TaskId;
use crate::timeline::{CancelAnswer, PutMode};

/// The pauses between two attempts, while the source, the timeline or the destination for rejected messages is unavailable.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));

/// Maximum number of cancels under way.
const MAX_CANCELS: usize = 64;

/// How long a door waits for tasks in flight before it rejects the messages that cannot replace them. After a wait in vain,
/// it rejects such messages at once for twice this time: a destination that is full may hold an occurrence without end.
const IN_FLIGHT_TIMEOUT: Duration = Duration::from_secs(30);

/// The loop of one door.
pub(super) struct Pump {
    door: Arc<Door>,
    intake: Intake,
    metrics: DoorMetrics,
    state: Arc<Mutex<DoorState>>,
    progress: Mutex<Progress>,
    stop: CancellationToken,
}

/// Why the two halves of the loop do not go on, and what was logged of it.
#[derive(Default)]
struct Progress {
    reading: Option<(DoorStatus, String)>,
    processing: Option<(DoorStatus, String)>,
    /// When the door last gave up waiting for tasks in flight.
    gave_up: Option<Instant>,
    log: DoorLog,
}

/// A half of the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Half {
    Reading,
    Processing,
}

/// What became of a message.
enum MessageResult {
    /// Done, with this result.
    Done(&'static str),
    Rejected(Rejection),
}

/// The door stops before a batch is complete. Its messages are read again later.
struct Stopped;

/// The number of each message in its batch, and the result of its call. After an error the call is made again.
type CallResults = Vec<(usize, Result<MessageResult, PutError>)>;

impl Pump {
    pub(super) fn new(
        door: Arc<Door>,
        intake: Intake,
        metrics: DoorMetrics,
        state: Arc<Mutex<DoorState>>,
        stop: CancellationToken,
    ) -> Pump {
        Pump { door, intake, metrics, state, progress: Mutex::default(), stop }
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
            // The reader may wait for room.
            inbox.close();
        };
        tokio::join!(self.read(outbox), process);
    }

    /// Reads batches. At most one waits while another is processed.
    async fn read(&self, outbox: mpsc::Sender<Vec<Incoming>>) {
        let mut backoff = BACKOFF;
        loop {
            // An error means that no more batches are processed.
            let Ok(room) = outbox.reserve().await else { return };
            // A read that has begun is not cancelled: the broker may already have delivered messages to it.
            if self.stop.is_cancelled() {
                return;
            }
            match self.door.source.next(self.door.batch).await {
                Ok(batch) => {
                    backoff = BACKOFF;
                    self.resumed(Half::Reading);
                    if !batch.is_empty() {
                        room.send(batch);
                    }
                }
                Err(error) => {
                    self.stopped(Half::Reading, DoorStatus::Unavailable, error.to_string());
                    if self.pause(&mut backoff).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn process(&self, mut batch: Vec<Incoming>) -> Result<(), Stopped> {
        let now = self.intake.clock().now();
        if let Some(sent) = batch.last().and_then(|message| message.time_ms) {
            self.metrics.lag.set(now.since(Timestamp::from_millis(sent)).as_secs_f64());
        }
        batch.iter_mut().for_each(dialects::count_from_last_due);
        let (mut results, mut sent, mut too_late) = (BTreeMap::new(), Vec::with_capacity(batch.len()), Vec::new());
        for (number, message) in batch.iter().enumerate() {
            // The first due of a cron schedule may take long to find, so let other tasks of the runtime run.
            if number % 16 == 15 {
                tokio::task::yield_now().await;
            }
            let instruction = match dialects::read(&self.door, &self.intake, message, now) {
                Ok(Instruction::Skip(result)) => {
                    results.insert(number, MessageResult::Done(result));
                    continue;
                }
                Ok(instruction) => instruction,
                Err(rejection) => {
                    results.insert(number, MessageResult::Rejected(rejection));
                    continue;
                }
            };
            match &instruction {
                Instruction::CancelTooLate(_) => too_late.push(number),
                Instruction::Put(put) => self.note(message, put, now),
                _ => {}
            }
            sent.push(Sent { number, time: message.time_ms.map(Timestamp::from_millis), instruction });
        }
        let plan = plan(sent);
        results.extend(plan.superseded.into_iter().map(|number| (number, MessageResult::Done("superseded"))));
        for part in plan.parts {
            self.take_effect(part, &batch, &mut results).await?;
        }
        results.extend(too_late.into_iter().map(|number| (number, MessageResult::Done("too_late"))));
        self.reject(&batch, &results).await?;
        fault::reached(Point::BeforeAcknowledge);
        self.acknowledge(batch.iter().map(|message| message.receipt.clone()).collect()).await?;
        self.resumed(Half::Processing);
        self.count(&batch, results);
        Ok(())
    }

    /// Counts and logs a message that would become another task if it were read again, and headers that its task does
    /// not have. Logs a time that is far off.
    fn note(&self, message: &Incoming, put: &PutInstruction, now: Timestamp) {
        let (is_unidentified, dropped) = (put.is_unidentified(message), put.dropped_headers(message));
        self.metrics.unidentified.inc_by(u64::from(is_unidentified));
        self.metrics.headers_dropped.inc_by(dropped as u64);
        if is_unidentified {
            self.progress.lock().log.unidentified(&self.door, &message.place);
        }
        let sent = message.time_ms.map(Timestamp::from_millis).filter(|sent| sent.is_valid_due());
        if let Some(sent) = sent {
            self.progress.lock().log.sent(&self.door, &message.place, sent, now);
        }
        if dropped > 0 {
            self.progress.lock().log.headers_dropped(&self.door, &message.place, dropped);
        }
    }

    /// Makes the calls of a part. Repeats those that the timeline did not answer, until it has answered all, and for a
    /// limited time the puts of tasks in flight. Leaves out messages that another reader has by then.
    async fn take_effect(
        &self,
        mut part: BatchPart,
        batch: &[Incoming],
        results: &mut BTreeMap<usize, MessageResult>,
    ) -> Result<(), Stopped> {
        let mut backoff = BACKOFF;
        let mut in_flight_since = None;
        loop {
            // While this batch waited, its reader may have put a later message for the same id.
            let is_elsewhere = |number: usize| self.door.source.has_another_reader(&batch[number].receipt);
            let mut is_open = |number: usize| {
                if !results.contains_key(&number) && is_elsewhere(number) {
                    results.insert(number, MessageResult::Done("handed_over"));
                }
                !results.contains_key(&number)
            };
            part.posts.retain(|(number, _)| is_open(*number));
            part.puts.retain(|(number, _)| is_open(*number));
            part.cancels.retain(|(number, _)| is_open(*number));
            let waits = self.waits_for_in_flight(in_flight_since);
            let posts = self.put(PutMode::Post, &part.posts, waits);
            let puts = self.put(PutMode::Put, &part.puts, waits);
            let (posts, puts, cancels) = join3(posts, puts, self.cancel(&part.cancels)).await;
            let mut failed = None;
            for (number, result) in posts.into_iter().chain(puts).chain(cancels) {
                match result {
                    Ok(result) => _ = results.insert(number, result),
                    Err(error) => {
                        if matches!(error, PutError::InFlight(_)) {
                            in_flight_since.get_or_insert_with(Instant::now);
                        }
                        failed = Some(error);
                    }
                }
            }
            let Some(error) = failed else { return Ok(()) };
            self.stopped(Half::Processing, DoorStatus::Waiting, error.to_string());
            self.pause(&mut backoff).await?;
        }
    }

    /// Whether puts of tasks in flight are repeated. `since` is when one was first found in flight.
    fn waits_for_in_flight(&self, since: Option<Instant>) -> bool {
        let gave_up = &mut self.progress.lock().gave_up;
        if gave_up.is_some_and(|at| at.elapsed() < IN_FLIGHT_TIMEOUT * 2) {
            return false;
        }
        if since.is_none_or(|since| since.elapsed() < IN_FLIGHT_TIMEOUT) {
            return true;
        }
        *gave_up = Some(Instant::now());
        false
    }

    async fn put(&self, mode: PutMode, tasks: &[(usize, NewTask)], waits: bool) -> CallResults {
        if tasks.is_empty() {
            return Vec::new();
        }
        let new = tasks.iter().map(|(_, new)| new.clone()).collect();
        let answers = self.intake.put_traced(mode, new, self.door.timeline_timeout).await;
        tasks.iter().zip(answers).map(|((number, _), answer)| (*number, result_of_put(answer, waits))).collect()
    }

    async fn cancel(&self, ids: &[(usize, TaskId)]) -> CallResults {
        let cancel = |(number, id): &(usize, TaskId)| {
            let (number, id) = (*number, id.clone());
            async move {
                let answer = self.intake.cancel(&id, self.door.timeline_timeout).await;
                let result = answer.map(|answer| match answer {
                    CancelAnswer::Cancelled { .. } => "cancelled",
                    CancelAnswer::InFlight { .. } => "cancel_in_flight",
                    CancelAnswer::Unknown | CancelAnswer::Mismatch => "cancel_unknown",
                });
                (number, result.map(MessageResult::Done).map_err(PutError::from))
            }
        };
        stream::iter(ids.iter().map(cancel)).buffer_unordered(MAX_CANCELS).collect().await
    }

    /// Publishes copies of the rejected messages, until the destination has accepted all.
    async fn reject(&self, batch: &[Incoming], results: &BTreeMap<usize, MessageResult>) -> Result<(), Stopped> {
        let rejected = results.iter().filter_map(|(number, result)| match result {
            MessageResult::Rejected(why) => Some(RejectedMessage { message: &batch[*number], why, is_whole: true }),
            MessageResult::Done(_) => None,
        });
        let mut open: Vec<RejectedMessage<'_>> = rejected.collect();
        for RejectedMessage { message, why, .. } in &open {
            self.progress.lock().log.rejected(&self.door, &message.place, why);
        }
        let Some(destination) = self.door.rejected.as_deref() else { return Ok(()) };
        let mut backoff = BACKOFF;
        while !open.is_empty() {
            if let Some(detail) = self.publish_copies(destination, &mut open).await {
                self.stopped(
                    Half::Processing,
                    DoorStatus::Waiting,
                    format!("rejected messages cannot go to `{destination}`: {detail}"),
                );
                self.pause(&mut backoff).await?;
            }
        }
        Ok(())
    }

    /// Publishes a copy of each, and removes those that were accepted. Returns why others were not.
    async fn publish_copies(&self, destination: &str, open: &mut Vec<RejectedMessage<'_>>) -> Option<String> {
        let copies = open.iter().map(|one| rejected::copy(&self.door, destination, one.message, one.why, one.is_whole));
        let mut outcomes = self.door.sink.publish(copies.collect());
        let (mut accepted, mut detail) = (vec![false; open.len()], "no answer from the sink".to_owned());
        while let Some((index, outcome)) = outcomes.next().await {
            match outcome {
                Outcome::Accepted | Outcome::Duplicate => accepted[index] = true,
                Outcome::Retry(trouble) => detail = trouble.detail,
                // The broker never accepts this copy, perhaps for its size or a header.
                Outcome::Reject(refused) => (open[index].is_whole, detail) = (false, refused),
            }
        }
        let mut accepted = accepted.into_iter();
        open.retain(|_| !accepted.next().unwrap_or_default());
        (!open.is_empty()).then_some(detail)
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<(), Stopped> {
        let mut backoff = BACKOFF;
        while let Err(error) = self.door.source.acknowledge(receipts.clone()).await {
            self.stopped(Half::Processing, DoorStatus::Unavailable, error.to_string());
            self.pause(&mut backoff).await?;
        }
        Ok(())
    }

    fn count(&self, batch: &[Incoming], results: BTreeMap<usize, MessageResult>) {
        for (number, result) in results {
            match result {
                MessageResult::Done(result) => {
                    debug!(door = self.door.name, place = batch[number].place, result, "a message was read");
                    self.metrics.message(result);
                }
                MessageResult::Rejected(why) => {
                    self.metrics.message("rejected");
                    self.metrics.rejected(why.code);
                }
            }
        }
    }

    /// A half of the loop does not go on.
    fn stopped(&self, half: Half, status: DoorStatus, detail: String) {
        let mut progress = self.progress.lock();
        progress.log.stopped(&self.door, status, &detail);
        *progress.of(half) = Some((status, detail));
        self.show(&progress);
    }

    /// A half of the loop goes on.
    fn resumed(&self, half: Half) {
        let mut progress = self.progress.lock();
        if progress.of(half).take().is_none() {
            return;
        }
        if progress.worst().is_none() {
            progress.log.resumed(&self.door);
        }
        self.show(&progress);
    }

    fn show(&self, progress: &Progress) {
        let (status, detail) = match progress.worst() {
            Some((status, detail)) => (*status, Some(detail.clone())),
            None => (DoorStatus::Up, None),
        };
        let mut state = self.state.lock();
        (state.status, state.detail) = (status, detail);
        self.metrics.status.set(status.number());
    }

    async fn pause(&self, backoff: &mut Backoff) -> Result<(), Stopped> {
        tokio::select! {
            () = self.stop.cancelled() => Err(Stopped),
            () = tokio::time::sleep(backoff.next()) => Ok(()),
        }
    }
}

/// A rejected message whose copy is not accepted yet.
struct RejectedMessage<'a> {
    message: &'a Incoming,
    why: &'a Rejection,
    /// Whether the copy has body and headers.
    is_whole: bool,
}

impl Progress {
    fn of(&mut self, half: Half) -> &mut Option<(DoorStatus, String)> {
        match half {
            Half::Reading => &mut self.reading,
            Half::Processing => &mut self.processing,
        }
    }

    /// What to show: a door that cannot process reads nothing more either.
    fn worst(&self) -> Option<&(DoorStatus, String)> {
        self.processing.as_ref().or(self.reading.as_ref())
    }
}

/// The result of a put, or the error after which it is made again; `waits`: also while its task is in flight.
fn result_of_put(answer: Result<EffectivePut, PutError>, waits: bool) -> Result<MessageResult, PutError> {
    match answer {
        Ok(put) => Ok(MessageResult::Done(put.result.as_str())),
        Err(error @ PutError::Timeline(_)) => Err(error),
        Err(error @ PutError::InFlight(_)) if waits => Err(error),
        // The configuration of the door has changed since the message was first read.
        Err(PutError::KeyReused) => Ok(MessageResult::Done("unchanged")),
        Err(error) => {
            let code = error.code().unwrap_or("internal");
            Ok(MessageResult::Rejected(Rejection::new(code, error.to_string())))
        }
    }
}
