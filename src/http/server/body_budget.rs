//! One budget of memory for all request bodies under way, so that many slow clients cannot fill the memory.
//!
//! Every body may use 16 KiB outside the budget, so that small requests are read even when it is used up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::http::problem::Problem;

/// What each body may hold without the budget, in bytes; enough for a usual task.
pub(in crate::http) const FREE_BYTES: usize = 16 << 10;

/// How much is taken from the budget at once, in bytes.
const STEP_BYTES: usize = 16 << 10;

/// How often a body looks for room.
const BUDGET_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The budget.
#[derive(Clone)]
pub struct BodyBudget {
    /// In steps.
    left: Arc<Semaphore>,
}

/// What one body holds of the budget until this is dropped.
pub(in crate::http) struct HeldBytes {
    budget: BodyBudget,
    permit: Option<OwnedSemaphorePermit>,
}

impl BodyBudget {
    /// A budget of so many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> BodyBudget {
        BodyBudget { left: Arc::new(Semaphore::new((bytes / STEP_BYTES).min(Semaphore::MAX_PERMITS))) }
    }

    /// For a body of which nothing has arrived.
    pub(in crate::http) fn open(&self) -> HeldBytes {
        HeldBytes { budget: self.clone(), permit: None }
    }
}

impl HeldBytes {
    /// How many steps are missing for so many bytes.
    fn missing(&self, bytes: usize) -> u32 {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let needed = bytes.saturating_sub(FREE_BYTES).div_ceil(STEP_BYTES);
        u32::try_from(needed.saturating_sub(held)).unwrap_or(u32::MAX)
    }

    fn add(&mut self, permit: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(held) => held.merge(permit),
            None => self.permit = Some(permit),
        }
    }

    /// Holds what another one held, too.
    pub(in crate::http) fn take_over(&mut self, other: &mut HeldBytes) {
        if let Some(permit) = other.permit.take() {
            self.add(permit);
        }
    }

    /// Holds so many bytes altogether.
    ///
    /// # Errors
    /// 503 if the budget has not enough left.
    pub(in crate::http) fn hold(&mut self, bytes: usize) -> Result<(), Problem> {
        let missing = self.missing(bytes);
        if missing > 0 {
            let permit = Arc::clone(&self.budget.left).try_acquire_many_owned(missing);
            self.add(permit.map_err(|_| no_room())?);
        }
        Ok(())
    }

    /// Like [`hold`](HeldBytes::hold), but waits until other bodies release memory. There is no queue, because a large
    /// body at its head would delay small ones.
    ///
    /// # Errors
    /// 503 if the budget has not enough left within `limit`.
    pub(in crate::http) async fn wait_for(&mut self, bytes: usize, limit: Duration) -> Result<(), Problem> {
        let waiting = async {
            while self.hold(bytes).is_err() {
                sleep(BUDGET_CHECK_INTERVAL).await;
            }
        };
        timeout(limit, waiting).await.map_err(|_| no_room())
    }
}

fn no_room() -> Problem {
    Problem::busy("the bodies of other requests take all the memory that `http.bodies` allows")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_share_a_budget_and_small_ones_need_none() {
        let budget = BodyBudget::new(1 << 20);
        let mut one = budget.open();
        one.hold(FREE_BYTES).unwrap();
        assert!(one.permit.is_none(), "so much is free");
        for part in 1..=64 {
            one.hold(FREE_BYTES + part * STEP_BYTES).unwrap();
        }
        let mut other = budget.open();
        assert_eq!(other.hold(FREE_BYTES + 1).unwrap_err().code, "busy");
        other.hold(FREE_BYTES).unwrap();
        drop(one);
        other.hold(1 << 20).unwrap();
        drop(other);
        assert_eq!(budget.left.available_permits(), 64, "nothing is left behind");
    }

    #[tokio::test]
    async fn a_waiting_body_continues_when_another_body_ends() {
        let budget = BodyBudget::new(1 << 20);
        let (mut one, mut other) = (budget.open(), budget.open());
        one.hold(1 << 20).unwrap();
        let waiting = tokio::spawn(async move { other.wait_for(1 << 20, Duration::from_secs(60)).await });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(one);
        assert_eq!(waiting.await.unwrap(), Ok(()));
    }
}
