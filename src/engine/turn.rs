//! Whose turn it is to hold suspects: one claim's at a time in the whole instance. What ends the instance raises the count of
//! everything that is held, and whoever is suspect is not to be counted up by another.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use super::context::lock;

/// How long others wait for a claim of suspects to end. One whose sink does not answer, or that waits for a retry, must not
/// keep those of other lanes.
const LONGEST: Duration = Duration::from_secs(10);

/// When the turn was last taken, and has not ended since.
#[derive(Default)]
pub(super) struct Turns(Mutex<Option<Instant>>);

/// A turn; it ends when this is dropped, or after ten seconds.
pub(super) struct Turn {
    turns: Arc<Turns>,
    taken: Instant,
}

impl Turns {
    /// Takes the turn, if nobody has it.
    pub(super) fn take(self: &Arc<Turns>) -> Option<Turn> {
        let (mut turn, now) = (lock(&self.0), Instant::now());
        if is_taken(*turn, now) {
            return None;
        }
        *turn = Some(now);
        Some(Turn { turns: Arc::clone(self), taken: now })
    }

    /// Whether nobody has the turn.
    pub(super) fn is_free(&self) -> bool {
        !is_taken(*lock(&self.0), Instant::now())
    }
}

fn is_taken(turn: Option<Instant>, now: Instant) -> bool {
    turn.is_some_and(|taken| now.duration_since(taken) < LONGEST)
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut turn = lock(&self.turns.0);
        // It may be another's by now.
        if *turn == Some(self.taken) {
            *turn = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn there_is_one_turn_and_a_long_one_passes_to_others() {
        let turns = Arc::<Turns>::default();
        let first = turns.take().expect("nobody has it");
        assert!(turns.take().is_none() && !turns.is_free());
        drop(first);
        assert!(turns.is_free());
        let long = turns.take().expect("nobody has it");
        tokio::time::advance(LONGEST - Duration::from_millis(1)).await;
        assert!(!turns.is_free());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(turns.is_free());
        let next = turns.take().expect("it was long enough");
        drop(long);
        assert!(!turns.is_free(), "the end of a turn that had passed on ends no other");
        drop(next);
        assert!(turns.is_free());
    }
}
