//! How long the machine has been up, asleep or awake: the monotonic clock stands still while it sleeps.

use std::time::Duration;

/// So long; always the same where there is no such clock.
#[cfg(target_os = "linux")]
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// So long; always the same where there is no such clock.
#[cfg(not(target_os = "linux"))]
pub(crate) fn since_boot() -> Duration {
    Duration::ZERO
}
