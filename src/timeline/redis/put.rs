//! The verb `put`. It repeats the call for tasks in a lane that the call did not name, and for tasks that the script
//! skipped because it had read too many bytes.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::RedisTimeline;
use super::reply::{Fields, broken, parse};
use super::verbs::MAX_ROUNDS;
use crate::clock::Timestamp;
use crate::task::{Lane, Shard};
use crate::timeline::scripts::{self, Code};
use crate::timeline::{Put, PutAnswer, PutMode, PutResult, TimelineError};

/// How often tasks are put again because the connection that confirms writes ended.
const MAX_CONFIRM_TRIES: usize = 3;

/// A put is tried again only if at least this much time is left.
const LEAST_TIME: Duration = Duration::from_millis(100);

impl RedisTimeline {
    /// Puts tasks, and waits until the write is confirmed. A connection that ends takes its confirmation along, so the
    /// tasks are then put again on the next one: they are `unchanged` there, and confirmed.
    pub(super) async fn put_durably(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: &[Put],
        not_after: Timestamp,
    ) -> Result<Vec<PutAnswer>, TimelineError> {
        let mut tries = 0;
        loop {
            let answer = self.durably(not_after, self.put_all(shard, mode, puts, not_after)).await;
            let unkept = match &answer {
                Ok(answers) => answers.iter().any(|answer| answer.result == PutResult::Unkept),
                Err(error) => matches!(error, TimelineError::Unkept(_)),
            };
            tries += 1;
            if !unkept || tries >= MAX_CONFIRM_TRIES || self.clock.now().plus(LEAST_TIME) >= not_after {
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
            let said = self.put_round(shard, mode, &asked, &lanes, not_after).await;
            let said = said.map_err(|error| if written { in_part(&error) } else { error })?;
            let took = begun.elapsed();
            let (mut elsewhere, mut again) = (Vec::new(), false);
            for (&index, said) in open.iter().zip(said) {
                match said {
                    PutReply::Answer(answer) => {
                        written |= matches!(answer.result, PutResult::Created | PutResult::Replaced);
                        answers[index] = Some(answer);
                    }
                    PutReply::Elsewhere(lane) => {
                        self.remember(&lane);
                        lanes.insert(lane);
                        elsewhere.push(index);
                    }
                    PutReply::Again => {
                        again = true;
                        elsewhere.push(index);
                    }
                }
            }
            open = elsewhere;
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
            .ok_or_else(|| if written { in_part(&TimelineError::Moving) } else { TimelineError::Moving })
    }

    async fn put_round(
        &self,
        shard: Shard,
        mode: PutMode,
        puts: &[&Put],
        lanes: &BTreeSet<Lane>,
        not_after: Timestamp,
    ) -> Result<Vec<PutReply>, TimelineError> {
        let keys = self.keys(shard)?;
        let mut named = vec![keys.tasks(), keys.changes(), keys.crashes(), keys.counts(), keys.lanes(), keys.largest()];
        named.extend(lanes.iter().map(|lane| keys.due(lane)));
        let mode = match mode {
            PutMode::Put => "put",
            PutMode::Post => "post",
        };
        let mut call = self.script(&scripts::PUT, keys, &named).again().arg(not_after.as_millis()).arg(mode);
        call = call.arg(keys.wake()).arg(lanes.len());
        for lane in lanes {
            call.push(lane.as_str());
        }
        for put in puts {
            call.push(put.id.as_str());
            call.push(put.due.as_millis());
            call.push(&put.record[..]);
        }
        let mut reply = self.call(call, Some(not_after)).await?;
        if reply.code != Code::Put {
            return Err(reply.unexpected());
        }
        let mut detail = reply.fields().list()?;
        if detail.left() != puts.len() {
            return Err(broken(&format!("{} answers for {} tasks", detail.left(), puts.len())));
        }
        puts.iter().map(|put| PutReply::read(&mut detail, put.due)).collect()
    }
}

/// The answer of the script for one task.
enum PutReply {
    Answer(PutAnswer),
    Elsewhere(Lane),
    Again,
}

impl PutReply {
    /// Parses `<code>[ <valid due>[ <due in flight>]]`. Without a due, the requested one is valid.
    fn read(detail: &mut Fields, asked: Timestamp) -> Result<PutReply, TimelineError> {
        let text = detail.text()?;
        let mut parts = text.split(' ');
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
            Some(Code::InFlight) => PutResult::InFlight,
            Some(Code::BadDue) => PutResult::BadDue,
            _ => return Err(broken(&format!("`{text}` for a task"))),
        };
        let (holds, in_flight) = (time()?, time()?);
        // For a refused task, callers expect the requested due.
        let due = if result == PutResult::KeyReused { asked } else { holds.unwrap_or(asked) };
        Ok(PutReply::Answer(PutAnswer { result, due, in_flight }))
    }
}

/// Turns an error of a later call into [`TimelineError::Unknown`] if an earlier call has written some tasks.
fn in_part(error: &TimelineError) -> TimelineError {
    TimelineError::Unknown(format!("some tasks were put, then {error}"))
}
