//! The verb `settle`: sorts verdicts into groups, and the script writes each group with one command.

use std::collections::HashMap;

use super::RedisTimeline;
use super::reply::Fields;
use crate::clock::Timestamp;
use crate::task::{Counts, Lane, Member, Shard};
use crate::timeline::scripts::{self, Code};
use crate::timeline::{DeadRecord, RestOfClaim, Settle, Settled, Settlement, TimelineError, Verdict};

/// Verdicts, grouped by what the script writes. In each group, verdicts with a burial come last, in the order of their
/// burials.
#[derive(Default)]
struct Groups<'a> {
    ended: Vec<&'a Settlement>,
    ended_dead: Vec<(&'a Settlement, &'a DeadRecord)>,
    nexts: Vec<(&'a Settlement, Timestamp, Counts)>,
    nexts_dead: Vec<(&'a Settlement, Timestamp, Counts)>,
    nexts_burials: Vec<(&'a Settlement, &'a DeadRecord)>,
    begun: Vec<&'a Settlement>,
    backs: Vec<&'a Settlement>,
    unreadable: Vec<&'a Settlement>,
}

impl<'a> Groups<'a> {
    fn sort(verdicts: &'a [Settlement]) -> Result<Groups<'a>, TimelineError> {
        let mut groups = Groups::default();
        for one in verdicts {
            match &one.verdict {
                Verdict::Finished => groups.ended.push(one),
                Verdict::Dead(dead_record) => groups.ended_dead.push((one, dead_record)),
                Verdict::Next { due, counts } => groups.nexts.push((one, later(one, *due)?, *counts)),
                Verdict::DeadNext { dead_record, due, counts } => {
                    groups.nexts_dead.push((one, later(one, *due)?, *counts));
                    groups.nexts_burials.push((one, dead_record));
                }
                Verdict::Back { begun: true } => groups.begun.push(one),
                Verdict::Back { begun: false } => groups.backs.push(one),
                Verdict::Unreadable => groups.unreadable.push(one),
            }
        }
        Ok(groups)
    }
}

impl RedisTimeline {
    pub(super) async fn settle_claim(
        &self,
        shard: Shard,
        lane: &Lane,
        settle: &Settle,
    ) -> Result<Settled, TimelineError> {
        let keys = self.keys(shard)?;
        let groups = Groups::sort(&settle.verdicts)?;
        let named = [
            keys.due(lane),
            keys.leases(lane),
            keys.claims(lane),
            keys.tasks(),
            keys.changes(),
            keys.crashes(),
            keys.counts(),
            keys.dead(),
            keys.dead_records(),
            keys.dead_order(),
            keys.dead_bytes(),
        ];
        let rest = match settle.rest {
            RestOfClaim::Keep => "keep",
            RestOfClaim::Back => "back",
        };
        let ended: Vec<&Settlement> =
            groups.ended.iter().copied().chain(groups.ended_dead.iter().map(|(one, _)| *one)).collect();
        let nexts: Vec<_> = groups.nexts.iter().chain(&groups.nexts_dead).collect();
        let backs: Vec<&Settlement> =
            groups.begun.iter().chain(&groups.backs).chain(&groups.unreadable).copied().collect();
        // In the format of the claim's own list, so that the script can compare the two.
        let pair = |one: &Settlement| format!("{} {}", one.member.as_str(), one.due.as_millis());
        let pairs: Vec<String> = settle.verdicts.iter().map(pair).collect();

        let mut call = self
            .script(&scripts::SETTLE, keys, &named)
            .arg(&settle.token.0)
            .arg(rest)
            .arg(settle.lease.as_millis().to_string())
            .arg(settle.dead_cap.entries)
            .arg(keys.wake())
            .arg(lane.as_str())
            .arg(if settle.quiet { "1" } else { "" })
            .arg(&[ended.len(), groups.ended_dead.len(), nexts.len(), groups.nexts_dead.len()][..])
            .arg(&[backs.len(), groups.begun.len(), groups.unreadable.len()][..])
            .arg(pairs.join(" "))
            .arg(settle.dead_cap.bytes);
        for one in &ended {
            call.push(one.member.as_str());
        }
        for (one, due, _) in &nexts {
            call.push(due.as_millis());
            call.push(one.member.as_str());
        }
        for (one, _, counts) in &nexts {
            call.push(one.member.as_str());
            call.push(counts.pack());
        }
        for one in &backs {
            call.push(one.due.as_millis());
            call.push(one.member.as_str());
        }
        for (one, dead_record) in groups.ended_dead.iter().chain(&groups.nexts_burials) {
            call.push(one.member.key(one.due).to_string());
            call.push(bury(dead_record));
        }
        let mut reply = self.call(call, None).await?;
        match reply.code {
            Code::Lost => Ok(Settled { lost: true, ..Settled::default() }),
            Code::Settled => {
                let fields = reply.fields();
                let dropped = fields.count()?;
                let skipped = members(&mut fields.list()?, settle)?;
                let changed = members(&mut fields.list()?, settle)?;
                Ok(Settled { lost: false, skipped, changed, dropped })
            }
            _ => Err(reply.unexpected()),
        }
    }
}

/// Checks the next due. A due out of range would look like a claim without a lease, and one that is not later would
/// reuse an idempotency key.
fn later(one: &Settlement, due: Timestamp) -> Result<Timestamp, TimelineError> {
    if due.is_due() && due > one.due {
        return Ok(due);
    }
    Err(TimelineError::Refused(format!("bad_due {}", due.as_millis())))
}

/// The value in `dead:records`: four bytes of length, the record, then reason and error text.
fn bury(dead_record: &DeadRecord) -> Vec<u8> {
    let length = u32::try_from(dead_record.record.len()).unwrap_or(u32::MAX);
    let mut value =
        Vec::with_capacity(5 + dead_record.record.len() + dead_record.reason.len() + dead_record.detail.len());
    value.extend_from_slice(&length.to_be_bytes());
    value.extend_from_slice(&dead_record.record);
    value.extend_from_slice(dead_record.reason.as_bytes());
    value.push(b'\n');
    value.extend_from_slice(dead_record.detail.as_bytes());
    value
}

/// Parses members and sorts them in the order of the verdicts. Members without a verdict come last.
fn members(fields: &mut Fields, settle: &Settle) -> Result<Vec<Member>, TimelineError> {
    let mut members: Vec<Member> = (0..fields.left()).map(|_| fields.name()).collect::<Result<_, _>>()?;
    if members.len() > 1 {
        let places: HashMap<&Member, usize> =
            settle.verdicts.iter().enumerate().map(|(place, one)| (&one.member, place)).collect();
        members.sort_by_key(|member| places.get(member).copied().unwrap_or(usize::MAX));
    }
    Ok(members)
}
