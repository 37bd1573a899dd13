//! The requests for tasks, claims, leases and lanes.

use std::time::Duration;

use super::call::Call;
use super::reply::{Reply, broken, name, parse};
use super::request::Request;
use crate::clock::Timestamp;
use crate::task::{Counts, Lane, TaskId, layout};
use crate::timeline::keys::Keys;
use crate::timeline::pauses::due_of_score;
use crate::timeline::scripts::{self, Code, Script};
use crate::timeline::{
    CancelAnswer, ClaimRequest, Claimed, DuePosition, Glance, GlanceRequest, LaneGlance, LanePause, MAX_BATCH,
    MAX_CLAIM_BYTES, Occurrence, ReapRequest, Reaped, StoredTask, SuspectsRequest, TaskPause, TaskRevision,
    TimelineError, Token,
};

/// Reads one task.
pub(super) struct Get<'a> {
    pub(super) id: &'a TaskId,
}

impl Request for Get<'_> {
    type Answer = Option<StoredTask>;

    const SCRIPT: &'static Script = &scripts::GET;
    const IS_FOR_USER: bool = true;

    fn encode(&self, call: &mut Call, _: &Keys, lanes: &[Lane]) {
        call.arg("id", self.id.as_str()).lanes(lanes);
    }

    fn decode(&self, mut reply: Reply) -> Result<Option<StoredTask>, TimelineError> {
        match reply.code {
            Code::Unknown => Ok(None),
            Code::Found => {
                let fields = reply.fields();
                let record = fields.bytes()?;
                let score = fields.number()?;
                let changed = fields.optional_time()?;
                let counts = fields.optional_text()?.as_deref().map_or_else(Counts::default, Counts::unpack);
                let unreadable = fields.flag()?;
                Ok(Some(StoredTask {
                    record,
                    due: due_of_score(score),
                    in_flight: score < 0,
                    due_after_claim: changed,
                    counts,
                    unreadable,
                    pause: fields.optional_text()?.as_deref().and_then(TaskPause::unpack),
                }))
            }
            _ => Err(reply.unexpected()),
        }
    }
}

/// Removes a task.
pub(super) struct Cancel<'a> {
    pub(super) id: &'a TaskId,
    pub(super) revision: Option<TaskRevision>,
    pub(super) not_after: Timestamp,
}

impl Request for Cancel<'_> {
    type Answer = CancelAnswer;

    const SCRIPT: &'static Script = &scripts::CANCEL;
    const IS_FOR_USER: bool = true;
    /// The first copy may have removed the task, and another may have been put since.
    const UNSURE: &'static [Code] = &[Code::Unknown, Code::Mismatch];

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, _: &Keys, lanes: &[Lane]) {
        call.time("not_after", self.not_after)
            .arg("id", self.id.as_str())
            .arg("revision", revision_bytes(self.revision))
            .lanes(lanes);
    }

    fn decode(&self, mut reply: Reply) -> Result<CancelAnswer, TimelineError> {
        match reply.code {
            Code::Unknown => Ok(CancelAnswer::Unknown),
            Code::Mismatch => Ok(CancelAnswer::Mismatch),
            Code::Cancelled => Ok(CancelAnswer::Cancelled { handed_out: reply.fields().optional_time()? }),
            Code::InFlight => Ok(CancelAnswer::InFlight { due: reply.fields().time()? }),
            _ => Err(reply.unexpected()),
        }
    }
}

impl Request for ClaimRequest {
    type Answer = Claimed;

    const SCRIPT: &'static Script = &scripts::CLAIM;

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        call.time("not_after", self.not_after)
            .arg("token", &self.token.0)
            .millis("lease", self.lease)
            .arg("max", self.max.clamp(1, MAX_BATCH))
            .arg("max_bytes", self.max_bytes.min(MAX_CLAIM_BYTES))
            .flag("newest_first", self.newest_first);
        position(call, self.after.as_ref());
        call.arg("wake", keys.wake()).arg("lane", lane(lanes));
    }

    fn decode(&self, reply: Reply) -> Result<Claimed, TimelineError> {
        claimed(reply)
    }
}

impl Request for SuspectsRequest {
    type Answer = Claimed;

    const SCRIPT: &'static Script = &scripts::CLAIM_SUSPECTS;

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, _: &Keys, lanes: &[Lane]) {
        call.time("not_after", self.not_after)
            .arg("token", &self.token.0)
            .millis("lease", self.lease)
            .arg("max", self.max.clamp(1, MAX_BATCH))
            .arg("max_bytes", self.max_bytes.min(MAX_CLAIM_BYTES))
            .flag("unreadable", self.unreadable);
        position(call, self.after.as_ref());
        call.arg("lane", lane(lanes));
    }

    fn decode(&self, reply: Reply) -> Result<Claimed, TimelineError> {
        claimed(reply)
    }
}

/// Renews leases, at most [`MAX_BATCH`] at once.
pub(super) struct Extend<'a> {
    pub(super) tokens: &'a [(Lane, Token)],
    pub(super) lease: Duration,
}

impl Extend<'_> {
    /// The lanes of the tokens.
    pub(super) fn lanes(&self) -> Vec<Lane> {
        let mut lanes: Vec<Lane> = Vec::new();
        for (lane, _) in self.tokens {
            if !lanes.contains(lane) {
                lanes.push(lane.clone());
            }
        }
        lanes
    }
}

impl Request for Extend<'_> {
    type Answer = Vec<bool>;

    const SCRIPT: &'static Script = &scripts::EXTEND;

    fn encode(&self, call: &mut Call, _: &Keys, lanes: &[Lane]) {
        call.millis("lease", self.lease).list("claim..");
        for (lane, token) in self.tokens {
            let place = lanes.iter().position(|known| known == lane).unwrap_or_default();
            call.push(place + 1).push(&token.0);
        }
    }

    fn decode(&self, mut reply: Reply) -> Result<Vec<bool>, TimelineError> {
        if reply.code != Code::Extended || reply.fields().left() != self.tokens.len() {
            return Err(reply.unexpected());
        }
        self.tokens.iter().map(|_| reply.fields().flag()).collect()
    }
}

impl Request for ReapRequest {
    type Answer = Reaped;

    const SCRIPT: &'static Script = &scripts::REAP;

    fn not_after(&self) -> Option<Timestamp> {
        Some(self.not_after)
    }

    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]) {
        call.time("not_after", self.not_after)
            .millis("lease", self.lease)
            .flag("served", self.served)
            .millis("dead_keep", self.dead_keep)
            .arg("wake", keys.wake())
            .arg("lane", lane(lanes));
    }

    fn decode(&self, mut reply: Reply) -> Result<Reaped, TimelineError> {
        if reply.code != Code::Reaped {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let (claims, occurrences, stranded) = (fields.count()?, fields.count()?, fields.count()?);
        let (dropped, more, mut holders) = (fields.count()?, fields.flag()?, fields.list()?);
        let holders = (0..holders.left()).map(|_| holders.text()).collect::<Result<_, _>>()?;
        Ok(Reaped { claims, occurrences, holders, stranded, dropped, more })
    }
}

impl Request for GlanceRequest {
    type Answer = Glance;

    const SCRIPT: &'static Script = &scripts::GLANCE;

    fn encode(&self, call: &mut Call, _: &Keys, _: &[Lane]) {
        call.millis("lease", self.lease).millis("dead_keep", self.dead_keep).flag("depth", self.depth).list("lane..");
        for (lane, served) in &self.lanes {
            call.push(lane.as_str()).push(if *served { "1" } else { "" });
        }
    }

    fn decode(&self, mut reply: Reply) -> Result<Glance, TimelineError> {
        if reply.code != Code::Glanced {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let dead = fields.count()?;
        let mut known = fields.list()?;
        let mut known: Vec<Lane> = (0..known.left()).map(|_| known.name()).collect::<Result<_, _>>()?;
        known.sort();
        let lanes = self.lanes.iter().map(|_| lane_glance(&mut reply, self.depth)).collect::<Result<_, _>>()?;
        Ok(Glance { lanes, known, dead })
    }
}

/// The bytes of a revision, empty for none.
pub(super) fn revision_bytes(revision: Option<TaskRevision>) -> Vec<u8> {
    revision.map(|revision| revision.bytes().to_vec()).unwrap_or_default()
}

/// The name of the only lane of a call.
pub(super) fn lane(lanes: &[Lane]) -> &str {
    lanes.first().map(Lane::as_str).unwrap_or_default()
}

/// Adds a position: due and member, both empty for none.
pub(super) fn position(call: &mut Call, position: Option<&DuePosition>) {
    let member = position.and_then(|position| position.member.as_ref());
    call.time("after", position.map(|position| position.due));
    call.arg("after_member", member.map(|member| member.as_str()).unwrap_or_default());
}

/// Parses the reply of a claim, which has one list per field.
fn claimed(mut reply: Reply) -> Result<Claimed, TimelineError> {
    let now = Timestamp::from_millis(reply.micros.div_euclid(1000));
    if reply.code == Code::Paused {
        return Ok(Claimed::paused(now));
    }
    let fields = reply.fields();
    let head = fields.optional_time()?;
    let (due, member) = (fields.optional_time()?, fields.optional_text()?);
    let last = due.map(|due| Ok(DuePosition { due, member: member.map(name).transpose()? })).transpose()?;
    let (suspects, unreadable, removed) = (fields.count()?, fields.count()?, fields.count()?);
    let crashes = u32::try_from(fields.count()?).unwrap_or(u32::MAX);
    // The entry of the claim in Redis: the number of occurrences, then member and due of each.
    let entry = fields.text()?;
    let mut members = entry.split_ascii_whitespace();
    let number = usize::try_from(parse(members.next().unwrap_or_default())?).map_err(|_| broken("a negative count"))?;
    let mut counts = fields.list()?;
    let mut occurrences = Vec::with_capacity(number.min(MAX_BATCH));
    let mut records = fields.list()?;
    while records.left() > 0 {
        let mut word = || members.next().ok_or_else(|| broken("`claim` answered too few members"));
        let (member, due) = (name(word()?)?, Timestamp::from_millis(parse(word()?)?));
        let record = records.bytes()?;
        let recurring = layout::has(&record, layout::RECURRING);
        let packed = if recurring && counts.left() > 0 { counts.optional_text()? } else { None };
        let counts = packed.as_deref().map_or_else(Counts::default, Counts::unpack);
        occurrences.push(Occurrence { member, due, record, counts, crashes });
    }
    if members.next().is_some() || occurrences.len() != number || counts.left() > 0 {
        return Err(broken("`claim` answered columns of different lengths"));
    }
    Ok(Claimed { now, paused: false, occurrences, head, last, suspects, unreadable, removed })
}

fn lane_glance(reply: &mut Reply, depth: bool) -> Result<LaneGlance, TimelineError> {
    let mut fields = reply.fields().list()?;
    Ok(LaneGlance {
        head: fields.optional_time()?,
        first_lease: fields.optional_time()?,
        last_lease: fields.optional_time()?,
        stranded: fields.flag()?,
        reap: fields.flag()?,
        depth: Some((fields.count()?, fields.count()?)).filter(|_| depth),
        held: fields.optional_time()?,
        overdue: fields.count()?,
        paused: fields.count()?,
        pause: fields.optional_text()?.as_deref().and_then(LanePause::unpack),
    })
}
