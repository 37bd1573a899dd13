//! The time since the machine booted, including sleep. The monotonic clock stops while the machine sleeps.

use std::time::Duration;

/// Time since boot; constant on systems without such a clock.
#[cfg(target_os = "linux")]
pub(crate) fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Time since boot; constant on systems without such a clock.
#[cfg(not(target_os = "linux"))]
pub(crate) fn since_boot() -> Duration {
    Duration::ZERO
}
