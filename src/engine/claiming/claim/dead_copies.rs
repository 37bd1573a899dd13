//! Publishes a copy of each dead message to the lane's dead-letter destination, before the occurrence is recorded as
//! dead.
//!
//! The copy is best effort: two attempts, each within the sink's `answer_timeout`. A failed copy does not change the
//! outcome of the occurrence, is not counted as a publish of it, and says nothing of its destination. Poison messages
//! have no copy: they may be what kills instances.
//!
//! The copies of a claim go out as one batch, later copies as the next. If a copy fails for a reason that other copies
//! share, the lane sends none for a while. Otherwise a silent dead-letter destination would delay every claim.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use punctual_sinks::{Message, Outcome, Sink, headers};
use tokio::sync::mpsc::{self, UnboundedSender};

use crate::engine::claiming::judge::Reason;
use crate::engine::leases::Lease;
use crate::timeline::Settlement;

/// Maximum number of publishes of one copy.
const MAX_TRIES: u32 = 2;

/// The pause before the second publish.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How long a lane sends no copies after one has failed for a reason that others share.
pub(super) const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// Maximum length of the broker's error text in a copy, in bytes.
const MAX_DETAIL_BYTES: usize = 1024;

/// An occurrence whose verdict waits for its copy.
pub(super) struct PendingDeadCopy {
    pub(super) index: usize,
    pub(super) verdict: Settlement,
    pub(super) reason: Reason,
    /// The copy, until it is sent.
    pub(super) copy: Option<Message>,
}

/// The result of a copy: the index of its flight, and why it was not accepted, if so.
pub(super) type DeadCopyResult = (usize, Result<(), DeadCopyFailure>);

/// Why a copy was not accepted.
#[derive(Clone, Debug)]
pub(super) struct DeadCopyFailure {
    pub(super) detail: String,
    /// Whether other copies would fail as well.
    pub(super) others_too: bool,
}

/// The copies of one claim.
pub(super) struct DeadCopies {
    under_way: BoxStream<'static, DeadCopyResult>,
    /// The occurrences that wait for their copies, sent or not.
    awaiting: Vec<PendingDeadCopy>,
}

impl Default for DeadCopies {
    fn default() -> DeadCopies {
        DeadCopies { under_way: stream::empty().boxed(), awaiting: Vec::new() }
    }
}

impl DeadCopies {
    pub(super) fn add(&mut self, awaiting: PendingDeadCopy) {
        self.awaiting.push(awaiting);
    }

    /// Sends all copies as one batch, unless another batch is under way.
    pub(super) fn send_if_idle(&mut self, sink: &Arc<dyn Sink>, lease: &Arc<Lease>) {
        if !self.awaiting.is_empty() && self.awaiting.iter().all(|awaiting| awaiting.copy.is_some()) {
            let batch = self.awaiting.iter_mut().filter_map(|awaiting| Some((awaiting.index, awaiting.copy.take()?)));
            self.under_way = send(Arc::clone(sink), Arc::clone(lease), batch.collect());
        }
    }

    /// Removes and returns those that are not sent.
    pub(super) fn take_unsent(&mut self) -> Vec<PendingDeadCopy> {
        self.awaiting.extract_if(.., |awaiting| awaiting.copy.is_some()).collect()
    }

    /// Removes and returns the one of a flight.
    pub(super) fn take(&mut self, index: usize) -> Option<PendingDeadCopy> {
        let at = self.awaiting.iter().position(|awaiting| awaiting.index == index)?;
        Some(self.awaiting.swap_remove(at))
    }

    /// Stops waiting; removes and returns all.
    pub(super) fn take_unanswered(&mut self) -> Vec<PendingDeadCopy> {
        self.under_way = stream::empty().boxed();
        std::mem::take(&mut self.awaiting)
    }

    /// Waits for the result of one copy; for ever if none is under way.
    pub(super) async fn next(&mut self) -> DeadCopyResult {
        match self.under_way.next().await {
            Some(copied) => copied,
            None => std::future::pending().await,
        }
    }
}

/// Publishes copies as one batch, then retries the copies that may still succeed. Reports each result as soon as it is
/// definite.
fn send(
    sink: Arc<dyn Sink>,
    lease: Arc<Lease>,
    mut copies: Vec<(usize, Message)>,
) -> BoxStream<'static, DeadCopyResult> {
    let (results, mut received) = mpsc::unbounded_channel();
    let sending = async move {
        for tried in 1..=MAX_TRIES {
            let failed = publish(&*sink, &lease, copies, &results).await;
            if tried == MAX_TRIES || failed.is_empty() {
                // An error means that the claim has stopped waiting.
                failed.into_iter().for_each(|((index, _), error)| drop(results.send((index, Err(error)))));
                return;
            }
            copies = failed.into_iter().map(|(copy, _)| copy).collect();
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    let sending = stream::once(sending).filter_map(|()| ready(None));
    stream::select(sending, stream::poll_fn(move |context| received.poll_recv(context))).boxed()
}

/// Publishes copies once. Reports the definite results, and returns the other copies with their errors.
async fn publish(
    sink: &dyn Sink,
    lease: &Lease,
    copies: Vec<(usize, Message)>,
    results: &UnboundedSender<DeadCopyResult>,
) -> Vec<((usize, Message), DeadCopyFailure)> {
    let limit = sink.answer_timeout();
    // As for every message, no publish may outlast the lease.
    if !lease.fits(limit) {
        let error = DeadCopyFailure { detail: "the lease leaves no time for it".to_owned(), others_too: false };
        return copies.into_iter().map(|copy| (copy, error.clone())).collect();
    }
    let mut answers = sink.publish(copies.iter().map(|(_, message)| message.clone()).collect());
    let (mut open, mut failed): (Vec<_>, _) = (copies.into_iter().map(Some).collect(), Vec::new());
    let answered = async {
        while let Some((at, outcome)) = answers.next().await {
            let Some(copy) = open.get_mut(at).and_then(Option::take) else { continue };
            let done = match outcome {
                Outcome::Accepted | Outcome::Duplicate => Ok(()),
                // Only this copy is refused; others may be accepted.
                Outcome::Reject(detail) => Err(DeadCopyFailure { detail, others_too: false }),
                Outcome::Retry(trouble) => {
                    failed.push((copy, DeadCopyFailure { detail: trouble.detail, others_too: true }));
                    continue;
                }
            };
            drop(results.send((copy.0, done)));
        }
    };
    // A timeout ends the wait for the remaining copies.
    drop(tokio::time::timeout(limit, answered).await);
    let error = DeadCopyFailure { detail: format!("no answer within {limit:?}"), others_too: true };
    failed.extend(open.into_iter().flatten().map(|copy| (copy, error.clone())));
    failed
}

/// Reason and detail as header values.
pub(super) fn headers_of(reason: Reason, detail: &str) -> [(String, String); 2] {
    let cut = &detail[..detail.floor_char_boundary(MAX_DETAIL_BYTES)];
    let detail = cut.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    [(headers::DEAD_REASON.to_owned(), reason.as_str().to_owned()), (headers::DEAD_DETAIL.to_owned(), detail)]
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use parking_lot::Mutex;
    use punctual_sinks::memory::{Answer, MemorySink};
    use punctual_sinks::{Fault, SinkError, Trouble};
    use tokio::time::Instant;

    use super::*;
    use crate::engine::leases::{Leases, Moment};
    use crate::task::Lane;
    use crate::timeline::Token;

    /// A sink that notes the size of each batch.
    struct Counting(MemorySink, Mutex<Vec<usize>>);

    #[async_trait::async_trait]
    impl Sink for Counting {
        fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
            self.1.lock().push(batch.len());
            self.0.publish(batch)
        }

        async fn check(&self) -> Result<(), SinkError> {
            self.0.check().await
        }

        async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
            self.0.close(deadline).await
        }

        fn answer_timeout(&self) -> Duration {
            self.0.answer_timeout()
        }

        fn kind(&self) -> &'static str {
            self.0.kind()
        }
    }

    fn message(task: &str) -> Message {
        Message {
            key: format!("{task}:1"),
            task: task.to_owned(),
            due_ms: 1,
            attempt: 1,
            destination: "dead".to_owned(),
            record_key: None,
            native: None,
            headers: Vec::new(),
            is_tombstone: false,
            content_type: None,
            payload: Bytes::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn copies_are_sent_in_one_batch_and_the_retryable_ones_in_a_second() {
        let second = Duration::from_secs(1);
        let sink = Arc::new(Counting(MemorySink::new(10, second), Mutex::default()));
        let mut late = 0;
        sink.0.answer_by(move |message| match message.task.as_str() {
            "refused" => Answer::Reject("no".to_owned()),
            "later" if std::mem::replace(&mut late, 1) == 0 => Answer::Retry(Trouble::open(Fault::Unclear, "busy")),
            "silent" => Answer::Hang,
            _ => Answer::Accept,
        });
        let lease = Leases::default().open(Token("i.1".into()), Lane::default(), 10 * second, Moment::now());
        let copies = ["silent", "taken", "refused", "later"].map(message).into_iter().enumerate().collect();
        let mut sending = send(sink.clone(), lease, copies);
        // Definite results are reported at once.
        let begun = Instant::now();
        let mut results = vec![sending.next().await.unwrap(), sending.next().await.unwrap()];
        assert_eq!(begun.elapsed(), Duration::ZERO);
        while let Some(copied) = sending.next().await {
            results.push(copied);
        }
        results.sort_by_key(|(index, _)| *index);
        let results: Vec<_> =
            results.into_iter().map(|(_, results)| results.map_err(|error| error.others_too)).collect();
        assert_eq!(results, [Err(true), Ok(()), Err(false), Ok(())]);
        assert_eq!(*sink.1.lock(), [4, 2]);
    }

    #[test]
    fn the_detail_of_a_copy_is_cut_and_has_no_line_break() {
        let [(_, reason), (_, detail)] = headers_of(Reason::TooLate, "a\r\nb\u{0}ü");
        assert_eq!((reason.as_str(), detail.as_str()), ("too late", "a  b ü"));
        let long = format!("{}üü", "x".repeat(MAX_DETAIL_BYTES - 1));
        let [_, (_, detail)] = headers_of(Reason::Rejected, &long);
        assert_eq!(detail, "x".repeat(MAX_DETAIL_BYTES - 1), "no letter is cut in two");
    }
}
