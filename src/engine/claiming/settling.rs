//! Repeats a settle until the timeline has answered.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error};

use crate::clock::Backoff;
use crate::engine::context::{Context, LaneContext, ShardContext};
use crate::engine::fault::{self, Point};
use crate::engine::leases::{Lease, Moment};
use crate::timeline::{Settle, Settled, TimelineError};

/// Maximum number of attempts for a settle that the timeline rejects as malformed.
const MAX_SENSELESS_TRIES: u32 = 5;

/// The pauses between attempts while the timeline does not answer.
const SETTLE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// Repeats a settle until the timeline has answered; a repetition changes nothing. Returns `None` once the engine is
/// closed, or if the timeline keeps rejecting it. The claim then expires with its lease.
///
/// `lease`: the lease of the claim, and whether the settle names everything left in it. In that case a repetition may
/// find that the claim is gone because the first attempt took effect.
pub(in crate::engine) async fn settle_until_answered(
    context: Arc<Context>,
    shard: Arc<ShardContext>,
    lane: Arc<LaneContext>,
    settle: Settle,
    lease: Option<(Arc<Lease>, bool)>,
) -> Option<Settled> {
    let (mut backoff, mut repeated, mut senseless) = (SETTLE_BACKOFF, false, 0);
    loop {
        let sent = Moment::now();
        fault::reached(Point::BeforeSettle);
        let error = match context.timeline.settle(shard.shard, &lane.lane, settle.clone()).await {
            Ok(settled) => {
                let whole = lease.as_ref().is_some_and(|(_, whole)| *whole);
                match &lease {
                    // The claim did not exist, so nothing was written.
                    Some(_) if settled.lost && !(repeated && whole) => {}
                    Some(_) if whole => fault::reached(Point::AfterSettle),
                    Some(_) => fault::part_settled(settle.verdicts.len()),
                    None => {}
                }
                if settled.lost && repeated && whole {
                    return Some(Settled::default());
                }
                if let Some((lease, _)) = lease.filter(|_| !settled.lost) {
                    lease.confirm(sent);
                }
                return Some(settled);
            }
            Err(error) => error,
        };
        debug!(token = settle.token.0, %error, "cannot settle; retrying");
        repeated |= matches!(error, TimelineError::Unknown(_));
        senseless += u32::from(is_senseless(&error));
        if senseless >= MAX_SENSELESS_TRIES {
            error!(token = settle.token.0, %error, "cannot write verdicts; leaving the claim to its lease");
            return None;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.next()) => {}
            () = context.closed.cancelled() => return None,
        }
    }
}

/// Whether an error means that the call is malformed, so that a repetition cannot succeed.
fn is_senseless(error: &TimelineError) -> bool {
    match error {
        TimelineError::Broken(_) => true,
        TimelineError::Refused(detail) => detail.starts_with("BADCALL") || detail.starts_with("bad_due"),
        _ => false,
    }
}
