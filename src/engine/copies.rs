//! The last of an occurrence: it is buried, and a copy of its message goes to its lane's dead-letter destination before.
//!
//! The copy is best effort: one publish and one more, each bounded by the sink's `answer_timeout`. What becomes of it
//! decides nothing about the occurrence, counts nowhere as a publish of it, and says nothing of its destination. Poison
//! has none: it may be what ends its holders.
//!
//! The copies of a claim go as one batch, those that come up meanwhile as the next. Once one has failed, none of its lane is
//! tried for a while: a dead-letter destination that does not answer must not hold up claim after claim.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use punctual_sinks::{Message, Outcome, Sink, headers};
use tokio::sync::mpsc::{self, UnboundedSender};
use tracing::debug;

use super::dispatcher::ClaimTask;
use super::flight::Flight;
use super::judge::Reason;
use super::leases::Lease;
use crate::task::Record;
use crate::timeline::Settlement;

/// Publishes of one copy at most.
const TRIES: u32 = 2;

/// The wait before the second.
const RETRY_PAUSE: Duration = Duration::from_millis(200);

/// How long no copies of a lane are tried once one has failed.
const FAILURE_PAUSE: Duration = Duration::from_secs(10);

/// Bytes of the broker's words that a copy carries at most.
const LONGEST_WORDS: usize = 1024;

/// An occurrence whose verdict waits for its copy.
pub(super) struct AwaitingCopy {
    index: usize,
    verdict: Settlement,
    reason: Reason,
    /// Until it is sent.
    copy: Option<Message>,
}

/// What became of a copy: the flight it is of; whether it was taken, or why not.
pub(super) type Copied = (usize, Result<(), NotTaken>);

/// Why a copy was not taken.
#[derive(Clone, Debug)]
pub(super) struct NotTaken {
    words: String,
    /// Whether another one would fare no better.
    others_too: bool,
}

/// A copy on its way, and the flight it is of.
type Sent = (usize, Message);

impl ClaimTask {
    /// An occurrence will not be tried again by itself.
    pub(super) fn bury(&mut self, index: usize, record: Option<&Record>, reason: Reason, words: String) {
        let flight = &mut self.flights[index];
        let lane = &self.dispatch.lane;
        let destination = record.map_or("", |record| Flight::destination(record, lane.destination.as_deref()));
        lane.tell_of_dead(reason.as_str(), destination, &words);
        let member = &flight.occurrence.member;
        debug!(lane = lane.lane.as_str(), %member, reason = reason.as_str(), words, "an occurrence is dead");
        let copied = lane.dead_destination.as_deref().zip(record).filter(|_| reason != Reason::Poison);
        let copy = copied.map(|(to, record)| flight.copy(record, to, headers_of(reason, &words)));
        let verdict = flight.dead(record, reason, words);
        match copy {
            Some(message) => {
                self.mourned.push(AwaitingCopy { index, verdict, reason, copy: Some(message) });
            }
            None => self.verdict(index, verdict, Some(reason)),
        }
    }

    /// Sends the copies that have come up, unless others are under way. While the lane tries none it buries without.
    pub(super) fn send_copies(&mut self) {
        if self.mourned.iter().all(|mourned| mourned.copy.is_none()) {
            return;
        }
        let lane = Arc::clone(&self.dispatch.lane);
        if lane.copies.rests_until().is_some() {
            let (unsent, sent): (Vec<_>, _) =
                std::mem::take(&mut self.mourned).into_iter().partition(|mourned| mourned.copy.is_some());
            self.mourned = sent;
            for AwaitingCopy { index, verdict, reason, .. } in unsent {
                lane.tell_of_copy(Err("another one failed a moment ago"));
                self.verdict(index, verdict, Some(reason));
            }
        } else if self.mourned.iter().all(|mourned| mourned.copy.is_some()) {
            let batch = self.mourned.iter_mut().filter_map(|mourned| Some((mourned.index, mourned.copy.take()?)));
            self.copies = send(Arc::clone(&lane.sink.sink), Arc::clone(&self.dispatch.lease), batch.collect());
        }
    }

    /// A copy was taken, or was not: now the occurrence is buried.
    pub(super) fn copied(&mut self, (index, copied): Copied) {
        let Some(at) = self.mourned.iter().position(|mourned| mourned.index == index) else { return };
        let lane = &self.dispatch.lane;
        if copied.as_ref().is_err_and(|error| error.others_too) {
            lane.copies.rest(FAILURE_PAUSE);
        }
        lane.tell_of_copy(copied.as_ref().copied().map_err(|error| error.words.as_str()));
        let AwaitingCopy { verdict, reason, .. } = self.mourned.swap_remove(at);
        self.verdict(index, verdict, Some(reason));
    }

    /// Waits for no copy any more.
    pub(super) fn give_up_copies(&mut self) {
        self.copies = stream::empty().boxed();
        for AwaitingCopy { index, verdict, reason, .. } in std::mem::take(&mut self.mourned) {
            self.dispatch.lane.tell_of_copy(Err("it was not answered before its holder had to let go"));
            self.verdict(index, verdict, Some(reason));
        }
    }
}

/// Publishes copies as one batch, and once more those of them that may yet be taken; tells of each as soon as it is known.
fn send(sink: Arc<dyn Sink>, lease: Arc<Lease>, mut copies: Vec<Sent>) -> BoxStream<'static, Copied> {
    let (tell, mut told) = mpsc::unbounded_channel();
    let sending = async move {
        for tried in 1..=TRIES {
            let failed = publish(&*sink, &lease, copies, &tell).await;
            if tried == TRIES || failed.is_empty() {
                // An error means that nobody waits any more.
                failed.into_iter().for_each(|((index, _), error)| drop(tell.send((index, Err(error)))));
                return;
            }
            copies = failed.into_iter().map(|(copy, _)| copy).collect();
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    };
    let sending = stream::once(sending).filter_map(|()| ready(None));
    stream::select(sending, stream::poll_fn(move |context| told.poll_recv(context))).boxed()
}

/// One publish of copies. Tells of those that were taken or never will be; the others, and why.
async fn publish(
    sink: &dyn Sink,
    lease: &Lease,
    copies: Vec<Sent>,
    tell: &UnboundedSender<Copied>,
) -> Vec<(Sent, NotTaken)> {
    let limit = sink.answer_timeout();
    // As of every message: no publish is under way when the lease has passed.
    if !lease.fits(limit) {
        let error = NotTaken { words: "the lease leaves no time for it".to_owned(), others_too: false };
        return copies.into_iter().map(|copy| (copy, error.clone())).collect();
    }
    let mut answers = sink.publish(copies.iter().map(|(_, message)| message.clone()).collect());
    let (mut open, mut failed): (Vec<_>, _) = (copies.into_iter().map(Some).collect(), Vec::new());
    let answered = async {
        while let Some((at, outcome)) = answers.next().await {
            let Some(copy) = open.get_mut(at).and_then(Option::take) else { continue };
            let done = match outcome {
                Outcome::Accepted => Ok(()),
                // Its own fault: others may be taken.
                Outcome::Reject(words) => Err(NotTaken { words, others_too: false }),
                Outcome::Retry(trouble) => {
                    failed.push((copy, NotTaken { words: trouble.words, others_too: true }));
                    continue;
                }
            };
            drop(tell.send((copy.0, done)));
        }
    };
    // An error is the end of the wait for those that are left.
    drop(tokio::time::timeout(limit, answered).await);
    let error = NotTaken { words: format!("no answer within {limit:?}"), others_too: true };
    failed.extend(open.into_iter().flatten().map(|copy| (copy, error.clone())));
    failed
}

/// Why it is dead, as headers can carry it.
fn headers_of(reason: Reason, words: &str) -> [(String, String); 2] {
    let cut = &words[..words.floor_char_boundary(LONGEST_WORDS)];
    let words = cut.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    [(headers::DEAD_REASON.to_owned(), reason.as_str().to_owned()), (headers::DEAD_WORDS.to_owned(), words)]
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

    /// A sink that notes how large each batch is.
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
            headers: Vec::new(),
            content_type: None,
            payload: Bytes::new(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn copies_go_as_one_batch_and_those_that_may_yet_be_taken_as_another() {
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
        // What is certain is told at once.
        let begun = Instant::now();
        let mut told = vec![sending.next().await.unwrap(), sending.next().await.unwrap()];
        assert_eq!(begun.elapsed(), Duration::ZERO);
        while let Some(copied) = sending.next().await {
            told.push(copied);
        }
        told.sort_by_key(|(index, _)| *index);
        let told: Vec<_> = told.into_iter().map(|(_, told)| told.map_err(|error| error.others_too)).collect();
        assert_eq!(told, [Err(true), Ok(()), Err(false), Ok(())]);
        assert_eq!(*sink.1.lock(), [4, 2]);
    }

    #[test]
    fn the_words_of_a_copy_are_cut_and_hold_no_line_break() {
        let [(_, reason), (_, words)] = headers_of(Reason::TooLate, "a\r\nb\u{0}ü");
        assert_eq!((reason.as_str(), words.as_str()), ("too late", "a  b ü"));
        let long = format!("{}üü", "x".repeat(LONGEST_WORDS - 1));
        let [_, (_, words)] = headers_of(Reason::Rejected, &long);
        assert_eq!(words, "x".repeat(LONGEST_WORDS - 1), "no letter is cut in two");
    }
}
