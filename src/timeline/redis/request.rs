//! A verb of the timeline as a call of its script: what is sent, and how the reply is read.
//!
//! The table of `scripts` names the keys and arguments of each script. Keys are built from those names, and each argument
//! is checked against its name in tests.

use super::RedisTimeline;
use super::call::Call;
use super::reply::Reply;
use super::routes::Slot;
use crate::clock::Timestamp;
use crate::task::{Lane, Shard};
use crate::timeline::TimelineError;
use crate::timeline::keys::Keys;
use crate::timeline::scripts::{Code, Script};

/// Maximum number of calls while the task is found in a different lane each time.
pub(super) const MAX_ROUNDS: usize = 4;

/// The request of one verb.
pub(super) trait Request {
    /// What the reply says.
    type Answer;

    const SCRIPT: &'static Script;

    /// Whether a user waits for the answer. The call then waits for a connection, and is sent again if that ends.
    const IS_FOR_USER: bool = false;

    /// Whether such a call may be sent twice: a second copy then changes nothing that the first one has not changed.
    fn may_be_repeated(&self) -> bool {
        true
    }

    /// Replies to a repeated call that do not tell what the first copy did.
    const UNSURE: &'static [Code] = &[];

    /// When the call may take effect for the last time.
    fn not_after(&self) -> Option<Timestamp> {
        None
    }

    /// Adds the arguments behind the time. `lanes` are those of the keys.
    fn encode(&self, call: &mut Call, keys: &Keys, lanes: &[Lane]);

    /// Reads the reply.
    fn decode(&self, reply: Reply) -> Result<Self::Answer, TimelineError>;
}

impl RedisTimeline {
    /// Makes the call of a request with the keys of these lanes.
    pub(super) async fn run<R: Request>(
        &self,
        shard: Shard,
        lanes: &[Lane],
        request: &R,
    ) -> Result<R::Answer, TimelineError> {
        request.decode(self.reply(shard, lanes, request).await?)
    }

    /// Makes the call of a request that knows the task but not its lane: first with the known lanes, then with the lane
    /// that the reply names.
    pub(super) async fn run_in_its_lane<R: Request>(
        &self,
        shard: Shard,
        request: &R,
    ) -> Result<R::Answer, TimelineError> {
        let mut lanes = self.known_lanes();
        for _ in 0..MAX_ROUNDS {
            let mut reply = self.reply(shard, &lanes, request).await?;
            if reply.code != Code::Elsewhere {
                return request.decode(reply);
            }
            let lane: Lane = reply.fields().name()?;
            self.remember(&lane);
            lanes.push(lane);
        }
        Err(TimelineError::LaneChanged)
    }

    async fn reply<R: Request>(&self, shard: Shard, lanes: &[Lane], request: &R) -> Result<Reply, TimelineError> {
        let keys = self.keys(shard)?;
        let mut call = Call::new(R::SCRIPT, &self.time, Slot::of(shard), keys, lanes);
        if R::IS_FOR_USER {
            call = call.for_user(request.may_be_repeated());
        }
        request.encode(&mut call, keys, lanes);
        let reply = self.call(call, request.not_after()).await?;
        match request.not_after() {
            Some(not_after) if reply.is_repeated && R::UNSURE.contains(&reply.code) => {
                Err(self.unknown(shard, not_after).await)
            }
            _ => Ok(reply),
        }
    }
}
