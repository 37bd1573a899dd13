//! Sends a call again that a node of a cluster refused because of its slot, and learns where the slot is.

use std::sync::Arc;
use std::time::Duration;

use redis::ServerError;
use tokio::time::Instant;

use super::cluster::{IS_MOVING, moved_to};
use super::nodes::Nodes;
use super::routes::Slot;
use super::session::{Session, detail};

/// A call is sent again at once after so many `MOVED`; after each further one there is a pause.
const MAX_QUICK_MOVES: u32 = 3;

/// The pause before a call is sent again that a node refused because its slot is elsewhere or being moved.
const REDIRECT_PAUSE: Duration = Duration::from_millis(20);

/// A slot whose calls are refused for so long, because it is being moved, is away until that ends.
const MAX_MOVE_TIME: Duration = Duration::from_millis(500);

/// How often one call was redirected.
#[derive(Default)]
pub(super) struct Redirects {
    moves: u32,
    /// When it first met a slot that is being moved.
    moving_since: Option<Instant>,
}

impl Nodes {
    /// Learns from the error of a call, which did not run, where the slot is now. Returns whether to send the call again,
    /// which `last_send` limits.
    pub(super) async fn follows(
        self: &Arc<Self>,
        slot: Slot,
        session: &Session,
        error: &ServerError,
        last_send: Instant,
        redirects: &mut Redirects,
    ) -> bool {
        if !self.is_cluster() {
            return false;
        }
        let mut pause = Duration::ZERO;
        match error.code() {
            "MOVED" => {
                self.calls.redirected("moved");
                match moved_to(error, session) {
                    Some(server) => self.moved(slot, server),
                    // Another node may know it.
                    None => self.routes.away(slot, session, &detail(error)),
                }
                redirects.moves += 1;
                if redirects.moves > MAX_QUICK_MOVES {
                    pause = REDIRECT_PAUSE;
                }
            }
            "ASK" | "TRYAGAIN" => {
                self.calls.redirected("moving");
                pause = REDIRECT_PAUSE;
                if redirects.moving_since.get_or_insert_with(Instant::now).elapsed() >= MAX_MOVE_TIME {
                    self.routes.away(slot, session, IS_MOVING);
                }
            }
            "CLUSTERDOWN" | "LOADING" | "MASTERDOWN" | "READONLY" => self.routes.away(slot, session, &detail(error)),
            // Redis before 7.0 wraps an error that a script met into a message of its own.
            "ERR" if error.details().is_some_and(|details| details.contains("-READONLY")) => {
                self.routes.away(slot, session, &detail(error));
            }
            _ => return false,
        }
        if Instant::now() + pause >= last_send {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }
}
