//! The verb `put`. It repeats the call for tasks in a lane that the call did not name, and for tasks that the script
//! skipped because it had read too many bytes.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::RedisTimeline;
use super::call::Call;
use super::reply::{Fields, Reply, broken, parse};
use super::request::{MAX_ROUNDS, Request};
use crate::clock::Timestamp;
use crate::task::{Lane, Shard};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{Put, PutAnswer, PutMode, PutResult, Timeline, TimelineError};

/// Maximum number of times tasks are put while the write is not confirmed, the first time included.
const MAX_CONFIRM_TRIES: usize = 3;

/// A put is tried again only if at least this much time is left.
const LEAST_TIME: Duration = Duration::from_millis(100);

impl RedisTimeline {
    /// Puts tasks, and waits until the write is confirmed. A connection that ends can no longer confirm its writes. The
    /// tasks are then put again on the next connection, which answers `unchanged` and confirms them.
    pub(super) async fn put_durably(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: &[Put],
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError> {
        let mut tries = 0;
        loop {
            let answer = self.durably(shard, not_after, self.put_all(shard, mode, puts, not_after)).await;
            // An earlier try may have written, so a refusal of this one does not mean that nothing took effect.
            let answer = answer.map_err(|error| match error {
                TimelineError::Unconfirmed(_) | TimelineError::Broken(_) => error,
                error if tries > 0 => TimelineError::Unknown(format!("a write was not confirmed, then {error}")),
                error => error,
            });
            let unconfirmed = match &answer {
                Ok(answers) => answers.iter().any(|answer| answer.result == PutResult::Unconfirmed),
                Err(error) => matches!(error, TimelineError::Unconfirmed(_)),
            };
            tries += 1;
            // A second put would find the revision of the first.
            let is_conditional = matches!(mode, PutMode::Match(_) | PutMode::Absent);
            if !unconfirmed
                || is_conditional
                || tries >= MAX_CONFIRM_TRIES
                || self.clock(shard).now().plus(LEAST_TIME) >= not_after
            {
                return answer;
            }
        }
    }

    pub(super) async fn put_all(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: &[Put],
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError> {
        let mut answers = vec![None; puts.len()];
        let mut open: Vec<usize> = (0..puts.len()).collect();
        let mut lanes: BTreeSet<Lane> = puts.iter().map(|put| put.lane.clone()).collect();
        let (mut written, mut rounds) = (false, 0);
        while !open.is_empty() && rounds < MAX_ROUNDS {
            let asked: Vec<&Put> = open.iter().filter_map(|&index| puts.get(index)).collect();
            let begun = Instant::now();
            let named: Vec<Lane> = lanes.iter().cloned().collect();
            let replies = self.run(shard, &named, &PutRound { mode, puts: &asked, not_after }).await;
            let (is_repeated, replies) = replies.map_err(|error| if written { in_part(&error) } else { error })?;
            let took = begun.elapsed();
            let (mut left, mut again) = (Vec::new(), false);
            for (&index, reply) in open.iter().zip(replies) {
                match reply {
                    // The first copy of this call may have written it.
                    PutReply::Answer(answer) if is_repeated && answer.result == PutResult::Mismatch => {
                        return Err(self.unknown(shard, not_after).await);
                    }
                    PutReply::Answer(answer) => {
                        written |= match answer.result {
                            PutResult::Created | PutResult::Replaced => true,
                            // The first copy of this call may have written it.
                            PutResult::Unchanged => is_repeated,
                            _ => false,
                        };
                        answers[index] = Some(answer);
                    }
                    PutReply::Elsewhere(lane) => {
                        self.remember(&lane);
                        lanes.insert(lane);
                        left.push(index);
                    }
                    PutReply::Again => {
                        again = true;
                        left.push(index);
                    }
                }
            }
            open = left;
            if again {
                // Each of these calls makes progress, and `not_after` ends the loop. The pause leaves Redis to other
                // callers for as long as the call took.
                tokio::time::sleep(took).await;
            } else {
                rounds += 1;
            }
        }
        for lane in &lanes {
            self.remember(lane);
        }
        answers
            .into_iter()
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| if written { in_part(&TimelineError::LaneChanged) } else { TimelineError::LaneChanged })
    }
}

/// One call for several tasks of a shard.
struct PutRound<'a> {
    mode: PutMode,
    puts: &'a [&'a Put],
    not_after: Timestamp,
}

impl Request for PutRound<'_> {
    /// Whether the call was sent before, and the answers.
    type Answer = (bool, Vec<PutReply>);

    const SCRIPT: &'static Script = &scripts::PUT;
    const IS_FOR_USER: bool = true;

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        let mode = match self.mode {
            PutMode::Put => b"put".to_vec(),
            PutMode::Post => b"post".to_vec(),
            PutMode::Match(revision) => [b"match".as_slice(), &revision.bytes()].concat(),
            PutMode::Absent => b"match".to_vec(),
        };
        call.time("not_after", self.not_after).arg("mode", mode).arg("wake", keys.wake());
        call.arg("lanes", lanes.len()).lanes(lanes);
        call.list("task..");
        for put in self.puts {
            call.push(put.id.as_str()).push(put.due.as_millis()).push(&put.record[..]);
        }
    }

    fn decode(&self, mut reply: Reply) -> Result<(bool, Vec<PutReply>), TimelineError> {
        if reply.code != Code::Put {
            return Err(reply.unexpected());
        }
        let mut answers = reply.fields().list()?;
        if answers.left() != self.puts.len() {
            return Err(broken(&format!("{} answers for {} tasks", answers.left(), self.puts.len())));
        }
        let replies: Result<_, _> = self.puts.iter().map(|put| PutReply::read(&mut answers, put.due)).collect();
        Ok((reply.is_repeated, replies?))
    }
}

/// The answer of the script for one task.
enum PutReply {
    Answer(PutAnswer),
    Elsewhere(Lane),
    Again,
}

impl PutReply {
    /// Parses `<code>[ <due in effect>[ <due in flight>]][ paused]`. Without a due, the requested one is in effect.
    fn read(fields: &mut Fields, asked: Timestamp) -> Result<PutReply, TimelineError> {
        let text = fields.text()?;
        // A lane may be named `paused`.
        let paused = text.strip_suffix(" paused").filter(|_| !text.starts_with("elsewhere "));
        let mut parts = paused.unwrap_or(&text).split(' ');
        let code = Code::of(parts.next().unwrap_or_default());
        let mut time = || parts.next().map(|part| parse(part).map(Timestamp::from_millis)).transpose();
        let result = match code {
            Some(Code::Elsewhere) => {
                let lane = text.split(' ').nth(1).and_then(|lane| lane.parse().ok());
                return lane.map(PutReply::Elsewhere).ok_or_else(|| broken("`elsewhere` without a lane"));
            }
            Some(Code::Again) => return Ok(PutReply::Again),
            Some(Code::Created) => PutResult::Created,
            Some(Code::Replaced) => PutResult::Replaced,
            Some(Code::Unchanged) => PutResult::Unchanged,
            Some(Code::KeyReused) => PutResult::KeyReused,
            Some(Code::Mismatch) => PutResult::Mismatch,
            Some(Code::InFlight) => PutResult::InFlight,
            Some(Code::BadDue) => PutResult::BadDue,
            _ => return Err(broken(&format!("`{text}` for a task"))),
        };
        let (holds, in_flight) = (time()?, time()?);
        // For a refused task, callers expect the requested due.
        let due =
            if matches!(result, PutResult::KeyReused | PutResult::Mismatch) { asked } else { holds.unwrap_or(asked) };
        Ok(PutReply::Answer(PutAnswer { result, due, in_flight, paused: paused.is_some() }))
    }
}

/// Turns an error of a later call into [`TimelineError::Unknown`] if an earlier call has written some tasks.
fn in_part(error: &TimelineError) -> TimelineError {
    TimelineError::Unknown(format!("some tasks were put, then {error}"))
}
