//! The verb `settle`: sorts verdicts into groups, and the script writes each group with one command.

use std::collections::HashMap;

use super::call::Call;
use super::reply::{Fields, Reply};
use super::request::Request;
use super::verbs::lane;
use crate::clock::Timestamp;
use crate::task::{Counts, Lane, Member};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{DeadRecord, RestOfClaim, Settle, Settled, Settlement, TimelineError, Verdict};

/// Settlements, grouped by verdict. The script gets three lists: those that ended, those with a next due, and those that go
/// back. In the first two, the dead come last, in the order of the list of their records.
#[derive(Default)]
struct Groups<'a> {
    finished: Vec<&'a Settlement>,
    dead: Vec<(&'a Settlement, &'a DeadRecord)>,
    next: Vec<(&'a Settlement, Timestamp, Counts)>,
    dead_next: Vec<(&'a Settlement, Timestamp, Counts)>,
    dead_next_records: Vec<(&'a Settlement, &'a DeadRecord)>,
    back_begun: Vec<&'a Settlement>,
    back: Vec<&'a Settlement>,
    unreadable: Vec<&'a Settlement>,
}

impl<'a> Groups<'a> {
    fn by_verdict(verdicts: &'a [Settlement]) -> Result<Groups<'a>, TimelineError> {
        let mut groups = Groups::default();
        for one in verdicts {
            match &one.verdict {
                Verdict::Finished => groups.finished.push(one),
                Verdict::Dead(dead_record) => groups.dead.push((one, dead_record)),
                Verdict::Next { due, counts } => groups.next.push((one, later(one, *due)?, *counts)),
                Verdict::DeadNext { dead_record, due, counts } => {
                    groups.dead_next.push((one, later(one, *due)?, *counts));
                    groups.dead_next_records.push((one, dead_record));
                }
                Verdict::Back { begun: true } => groups.back_begun.push(one),
                Verdict::Back { begun: false } => groups.back.push(one),
                Verdict::Unreadable => groups.unreadable.push(one),
            }
        }
        Ok(groups)
    }
}

/// The call that writes verdicts.
pub(super) struct SettleCall<'a> {
    settle: &'a Settle,
    groups: Groups<'a>,
}

impl<'a> SettleCall<'a> {
    /// # Errors
    /// If a next due is not allowed.
    pub(super) fn new(settle: &'a Settle) -> Result<SettleCall<'a>, TimelineError> {
        Ok(SettleCall { settle, groups: Groups::by_verdict(&settle.verdicts)? })
    }
}

impl Request for SettleCall<'_> {
    type Answer = Settled;

    const SCRIPT: &'static Script = &scripts::SETTLE;

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        let (settle, groups) = (self.settle, &self.groups);
        let ended = groups.finished.iter().copied().chain(groups.dead.iter().map(|(one, _)| *one));
        let nexts = groups.next.iter().chain(&groups.dead_next);
        let backs = groups.back_begun.iter().chain(&groups.back).chain(&groups.unreadable);
        let dead = groups.dead.iter().chain(&groups.dead_next_records);
        // In the format of the claim's own list, so that the script can compare the two.
        let pair = |one: &Settlement| format!("{} {}", one.member.as_str(), one.due.as_millis());
        let named: Vec<String> = settle.verdicts.iter().map(pair).collect();

        call.arg("token", &settle.token.0)
            .arg("rest", if settle.rest == RestOfClaim::Keep { "keep" } else { "back" })
            .millis("lease", settle.lease)
            .arg("dead_cap", settle.dead_cap.entries)
            .arg("wake", keys.wake())
            .arg("lane", lane(lanes))
            .flag("quiet", settle.quiet)
            .arg("ended", groups.finished.len() + groups.dead.len())
            .arg("ended_dead", groups.dead.len())
            .arg("nexts", groups.next.len() + groups.dead_next.len())
            .arg("nexts_dead", groups.dead_next.len())
            .arg("backs", groups.back_begun.len() + groups.back.len() + groups.unreadable.len())
            .arg("begun", groups.back_begun.len())
            .arg("unreadable", groups.unreadable.len())
            .arg("named", named.join(" "))
            .arg("dead_cap_bytes", settle.dead_cap.bytes);
        call.list("ended..");
        ended.for_each(|one| _ = call.push(one.member.as_str()));
        call.list("next..");
        nexts.clone().for_each(|(one, due, _)| _ = call.push(due.as_millis()).push(one.member.as_str()));
        call.list("counted..");
        nexts.for_each(|(one, _, counts)| _ = call.push(one.member.as_str()).push(counts.pack()));
        call.list("back..");
        backs.for_each(|one| _ = call.push(one.due.as_millis()).push(one.member.as_str()));
        call.list("died..");
        dead.for_each(|(one, record)| _ = call.push(one.member.key(one.due).to_string()).push(encode_dead(record)));
    }

    fn decode(&self, mut reply: Reply) -> Result<Settled, TimelineError> {
        match reply.code {
            Code::Lost => Ok(Settled { lost: true, ..Settled::default() }),
            Code::Settled => {
                let fields = reply.fields();
                let dropped = fields.count()?;
                let skipped = members(&mut fields.list()?, self.settle)?;
                let changed = members(&mut fields.list()?, self.settle)?;
                Ok(Settled { lost: false, skipped, changed, dropped })
            }
            _ => Err(reply.unexpected()),
        }
    }
}

/// Checks the next due. A due out of range would look like a claim without a lease, and one that is not later would
/// reuse an idempotency key.
fn later(one: &Settlement, due: Timestamp) -> Result<Timestamp, TimelineError> {
    if due.is_valid_due() && due > one.due {
        return Ok(due);
    }
    Err(TimelineError::Refused(format!("bad_due {}", due.as_millis())))
}

/// The value in `dead:records`: four bytes of length, the record, then reason and error text.
fn encode_dead(dead_record: &DeadRecord) -> Vec<u8> {
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
