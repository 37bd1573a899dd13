//! The verbs that need one call, or a second one if the task waits in a lane that the first call did not name.

use std::time::Duration;

use super::RedisTimeline;
use super::call::Call;
use super::dead::or_nothing;
use super::reply::{Reply, broken, name, parse};
use crate::clock::Timestamp;
use crate::task::{Counts, Key, Lane, Shard, TaskId, layout};
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{self, Code};
use crate::timeline::{
    CancelAnswer, ClaimRequest, Claimed, DuePosition, Glance, GlanceRequest, LaneGlance, MAX_BATCH, MAX_CLAIM_BYTES,
    Occurrence, ReapRequest, Reaped, RequeueAnswer, StoredTask, SuspectsRequest, TimelineError, Token,
};

/// Maximum number of calls while the task is found in a different lane each time.
pub(super) const MAX_ROUNDS: usize = 4;

impl RedisTimeline {
    pub(super) async fn get_one(&self, shard: Shard, id: &TaskId) -> Result<Option<StoredTask>, TimelineError> {
        let fixed = |keys: &Keys| vec![keys.tasks(), keys.changes(), keys.counts(), keys.crashes()];
        let build = |keys: &Keys, named: &[String]| self.script(&scripts::GET, keys, named).again().arg(id.as_str());
        let mut reply = self.in_its_lane(shard, None, fixed, build).await?;
        match reply.code {
            Code::Unknown => Ok(None),
            Code::Held => {
                let fields = reply.fields();
                let record = fields.bytes()?;
                let score = fields.number()?;
                let changed = fields.optional_time()?;
                let counts = fields.optional_text()?.as_deref().map_or_else(Counts::default, Counts::unpack);
                let unreadable = fields.flag()?;
                let due = Timestamp::from_millis(score.saturating_abs());
                Ok(Some(StoredTask { record, due, in_flight: score < 0, changed, counts, unreadable }))
            }
            _ => Err(reply.unexpected()),
        }
    }

    pub(super) async fn cancel_one(
        &self,
        shard: Shard,
        id: &TaskId,
        not_after: Timestamp,
    ) -> Result<CancelAnswer, TimelineError> {
        let fixed = |keys: &Keys| vec![keys.tasks(), keys.changes(), keys.crashes(), keys.counts()];
        let build = |keys: &Keys, named: &[String]| {
            self.script(&scripts::CANCEL, keys, named).again().arg(not_after.as_millis()).arg(id.as_str())
        };
        let mut reply = self.in_its_lane(shard, Some(not_after), fixed, build).await?;
        match reply.code {
            // The first copy may have removed the task.
            Code::Unknown if reply.is_repeated => Err(self.unknown(not_after).await),
            Code::Unknown => Ok(CancelAnswer::Unknown),
            Code::Cancelled => Ok(CancelAnswer::Cancelled { handed_out: reply.fields().optional_time()? }),
            Code::InFlight => Ok(CancelAnswer::InFlight { due: reply.fields().time()? }),
            _ => Err(reply.unexpected()),
        }
    }

    pub(super) async fn requeue_dead(
        &self,
        shard: Shard,
        key: &Key,
        buried: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<RequeueAnswer, TimelineError> {
        let fixed = |keys: &Keys| {
            vec![
                keys.dead(),
                keys.dead_records(),
                keys.tasks(),
                keys.changes(),
                keys.crashes(),
                keys.lanes(),
                keys.largest(),
                keys.dead_order(),
                keys.dead_bytes(),
            ]
        };
        let build = |keys: &Keys, named: &[String]| {
            let call = self.script(&scripts::REQUEUE, keys, named).again().arg(not_after.as_millis());
            call.arg(key.task.as_str()).arg(key.due.as_millis()).arg(or_nothing(buried)).arg(keys.wake())
        };
        let reply = self.in_its_lane(shard, Some(not_after), fixed, build).await?;
        match reply.code {
            // The first copy may have requeued it.
            Code::InFlight | Code::Unknown if reply.is_repeated => Err(self.unknown(not_after).await),
            Code::Requeued => Ok(RequeueAnswer::Requeued),
            Code::InFlight => Ok(RequeueAnswer::InFlight),
            Code::Unknown => Ok(RequeueAnswer::Unknown),
            Code::Unreadable => Ok(RequeueAnswer::Unreadable),
            _ => Err(reply.unexpected()),
        }
    }

    pub(super) async fn discard_dead(
        &self,
        shard: Shard,
        key: &Key,
        buried: Option<Timestamp>,
        not_after: Timestamp,
    ) -> Result<bool, TimelineError> {
        let keys = self.keys(shard)?;
        let named = [keys.dead(), keys.dead_records(), keys.dead_order(), keys.dead_bytes()];
        let call = self.script(&scripts::DISCARD, keys, &named).again();
        let call = call.arg(not_after.as_millis()).arg(key.to_string()).arg(or_nothing(buried));
        let reply = self.call(call, Some(not_after)).await?;
        match reply.code {
            Code::Discarded => Ok(true),
            // The first copy may have deleted it.
            Code::Unknown if reply.is_repeated => Err(self.unknown(not_after).await),
            Code::Unknown => Ok(false),
            _ => Err(reply.unexpected()),
        }
    }

    pub(super) async fn claim_due(
        &self,
        shard: Shard,
        lane: &Lane,
        request: &ClaimRequest,
    ) -> Result<Claimed, TimelineError> {
        let keys = self.keys(shard)?;
        let [due, leases, claims, tasks, crashes, counts] = claiming(keys, lane);
        let call = self
            .script(&scripts::CLAIM, keys, &[due, leases, claims, tasks, crashes, counts, keys.largest()])
            .arg(request.not_after.as_millis())
            .arg(&request.token.0)
            .arg(request.lease.as_millis().to_string())
            .arg(request.max.clamp(1, MAX_BATCH))
            .arg(request.max_bytes.min(MAX_CLAIM_BYTES))
            .arg(if request.newest_first { "1" } else { "" })
            .arg(&place(request.after.as_ref())[..])
            .arg(keys.wake())
            .arg(lane.as_str());
        self.claimed(lane, self.call(call, Some(request.not_after)).await?)
    }

    pub(super) async fn claim_left_out(
        &self,
        shard: Shard,
        lane: &Lane,
        request: &SuspectsRequest,
    ) -> Result<Claimed, TimelineError> {
        let keys = self.keys(shard)?;
        let call = self
            .script(&scripts::CLAIM_SUSPECTS, keys, &claiming(keys, lane))
            .arg(request.not_after.as_millis())
            .arg(&request.token.0)
            .arg(request.lease.as_millis().to_string())
            .arg(request.max.clamp(1, MAX_BATCH))
            .arg(request.max_bytes.min(MAX_CLAIM_BYTES))
            .arg(if request.unreadable { "1" } else { "" })
            .arg(&place(request.after.as_ref())[..]);
        self.claimed(lane, self.call(call, Some(request.not_after)).await?)
    }

    fn claimed(&self, lane: &Lane, mut reply: Reply) -> Result<Claimed, TimelineError> {
        self.remember(lane);
        match reply.code {
            Code::Claimed => claimed(&mut reply),
            _ => Err(reply.unexpected()),
        }
    }

    pub(super) async fn extend_leases(
        &self,
        shard: Shard,
        tokens: &[(Lane, Token)],
        lease: Duration,
    ) -> Result<Vec<bool>, TimelineError> {
        let mut live = Vec::with_capacity(tokens.len());
        for tokens in tokens.chunks(MAX_BATCH) {
            live.extend(self.extend_some(shard, tokens, lease).await?);
        }
        Ok(live)
    }

    async fn extend_some(
        &self,
        shard: Shard,
        tokens: &[(Lane, Token)],
        lease: Duration,
    ) -> Result<Vec<bool>, TimelineError> {
        let keys = self.keys(shard)?;
        let mut lanes: Vec<&Lane> = Vec::new();
        let mut claims = Vec::with_capacity(tokens.len());
        for (lane, token) in tokens {
            let place = lanes.iter().position(|known| *known == lane).unwrap_or_else(|| {
                lanes.push(lane);
                lanes.len() - 1
            });
            claims.push((place + 1, token));
        }
        let named: Vec<String> = lanes.into_iter().map(|lane| keys.leases(lane)).collect();
        let mut call = self.script(&scripts::EXTEND, keys, &named).arg(lease.as_millis().to_string());
        for (place, token) in &claims {
            call.push(place);
            call.push(&token.0);
        }
        let mut reply = self.call(call, None).await?;
        if reply.code != Code::Extended || reply.fields().left() != claims.len() {
            return Err(reply.unexpected());
        }
        claims.iter().map(|_| reply.fields().flag()).collect()
    }

    pub(super) async fn reap_lane(
        &self,
        shard: Shard,
        lane: &Lane,
        request: ReapRequest,
    ) -> Result<Reaped, TimelineError> {
        let keys = self.keys(shard)?;
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
            keys.lanes(),
            keys.reap_at(lane),
            keys.largest(),
            keys.dead_order(),
            keys.dead_bytes(),
        ];
        let call = self
            .script(&scripts::REAP, keys, &named)
            .arg(request.not_after.as_millis())
            .arg(request.lease.as_millis().to_string())
            .arg(if request.served { "1" } else { "" })
            .arg(request.dead_keep.as_millis().to_string())
            .arg(keys.wake())
            .arg(lane.as_str());
        let mut reply = self.call(call, Some(request.not_after)).await?;
        if reply.code != Code::Reaped {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        Ok(Reaped {
            claims: fields.count()?,
            occurrences: fields.count()?,
            stranded: fields.count()?,
            dropped: fields.count()?,
            more: fields.flag()?,
        })
    }

    pub(super) async fn glance_shard(&self, shard: Shard, request: &GlanceRequest) -> Result<Glance, TimelineError> {
        let keys = self.keys(shard)?;
        let mut named = vec![keys.lanes(), keys.dead()];
        for (lane, _) in &request.lanes {
            named.extend([keys.due(lane), keys.leases(lane), keys.reap_at(lane)]);
        }
        let mut call = self
            .script(&scripts::GLANCE, keys, &named)
            .arg(request.lease.as_millis().to_string())
            .arg(request.dead_keep.as_millis().to_string())
            .arg(if request.depth { "1" } else { "" });
        for (lane, served) in &request.lanes {
            call.push(lane.as_str());
            call.push(if *served { "1" } else { "" });
        }
        let mut reply = self.call(call, None).await?;
        if reply.code != Code::Glanced {
            return Err(reply.unexpected());
        }
        let fields = reply.fields();
        let dead = fields.count()?;
        let mut known = fields.list()?;
        let mut known: Vec<Lane> = (0..known.left()).map(|_| known.name()).collect::<Result<_, _>>()?;
        known.sort();
        let lanes = request.lanes.iter().map(|_| lane_glance(&mut reply, request.depth)).collect::<Result<_, _>>()?;
        for lane in &known {
            self.remember(lane);
        }
        Ok(Glance { lanes, known, dead })
    }

    /// Makes a call that knows the task but not its lane: first with the known lanes, then with the lane that the reply
    /// names.
    async fn in_its_lane(
        &self,
        shard: Shard,
        not_after: Option<Timestamp>,
        fixed: impl Fn(&Keys) -> Vec<String>,
        build: impl Fn(&Keys, &[String]) -> Call,
    ) -> Result<Reply, TimelineError> {
        let keys = self.keys(shard)?;
        let mut lanes = self.known_lanes();
        for _ in 0..MAX_ROUNDS {
            let mut named = fixed(keys);
            named.extend(lanes.iter().map(|lane| keys.due(lane)));
            let mut call = build(keys, &named);
            for lane in &lanes {
                call.push(lane.as_str());
            }
            let mut reply = self.call(call, not_after).await?;
            if reply.code != Code::Elsewhere {
                return Ok(reply);
            }
            let lane: Lane = reply.fields().name()?;
            self.remember(&lane);
            lanes.push(lane);
        }
        Err(TimelineError::Moving)
    }
}

/// The keys of both claim scripts.
fn claiming(keys: &Keys, lane: &Lane) -> [String; 6] {
    [keys.due(lane), keys.leases(lane), keys.claims(lane), keys.tasks(), keys.crashes(), keys.counts()]
}

/// A position as scripts take it: due and member, both empty for none.
fn place(place: Option<&DuePosition>) -> [String; 2] {
    let member = place.and_then(|place| place.member.as_ref()).map(|member| member.as_str().to_owned());
    [or_nothing(place.map(|place| place.due)), member.unwrap_or_default()]
}

/// Parses the reply of a claim, which has one list per field.
fn claimed(reply: &mut Reply) -> Result<Claimed, TimelineError> {
    let now = Timestamp::from_millis(reply.micros.div_euclid(1000));
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
    Ok(Claimed { now, occurrences, head, last, suspects, unreadable, removed })
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
    })
}
