//! From a wake-up to a settle: claimers, the claims that they start, and what limits them.

pub(in crate::engine) mod capacity;
pub(in crate::engine) mod claim;
pub(in crate::engine) mod claimer;
pub(in crate::engine) mod claims_per_node;
pub(in crate::engine) mod judge;
pub(in crate::engine) mod next_claim;
pub(in crate::engine) mod settling;
pub(in crate::engine) mod suspect_lock;
pub(in crate::engine) mod wake_signal;
