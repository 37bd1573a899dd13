//! Settles until the timeline has answered.

use std::sync::Arc;
use std::time::Duration;

use tracing::{debug, error};

use super::context::{Context, LaneContext, ShardContext};
use super::fault::{self, Point};
use super::leases::{Lease, Moment};
use crate::clock::Backoff;
use crate::timeline::{Settle, Settled, TimelineError};

/// How often a settle is sent that the timeline says makes no sense.
const MAX_SENSELESS_TRIES: u32 = 5;

/// The waits between tries to settle while the timeline does not answer.
const SETTLE_BACKOFF: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

/// Settles, again and again until the timeline has answered: a repeat changes nothing. `None` once the engine is closed,
/// or when the timeline keeps refusing what it is sent: then the claim is left to its lease.
///
/// `lease`: the claim's, and whether all that is left in it is named; then a repeat may find that the first try took
/// effect and the claim is gone.
pub(super) async fn settle_until_answered(
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
                    // Nothing was written.
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

/// Whether an error says that what was sent makes no sense, so that sending it again is in vain.
fn is_senseless(error: &TimelineError) -> bool {
    match error {
        TimelineError::Broken(_) => true,
        TimelineError::Refused(detail) => detail.starts_with("BADCALL") || detail.starts_with("bad_due"),
        _ => false,
    }
}
