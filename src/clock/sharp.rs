//! A timer with microsecond precision. The runtime's timer counts milliseconds from the start of the process and rounds
//! up. With that timer, a process would notice every due late by the same amount: up to a millisecond, by chance of its start.

use std::time::Duration;

use tokio::time::Instant;

/// The last part of a wait that uses the precise timer, which costs a few system calls.
const PRECISE_TIME: Duration = Duration::from_millis(2);

/// How much later than requested the runtime may wake up.
const ROUNDING: Duration = Duration::from_millis(1);

/// Sleeps at most `left`, and exactly `left` if it is short. A caller that waits for a moment calls it again with the
/// remaining time. On Linux the runtime needs I/O enabled.
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub(super) async fn sleep_towards(left: Duration) {
    if left > PRECISE_TIME {
        tokio::time::sleep(left - ROUNDING).await;
    } else {
        let begun = Instant::now();
        tokio::select! {
            () = exactly(left) => {}
            // For systems without the precise timer, and for a paused clock.
            () = tokio::time::sleep(left) => {}
        }
        // A paused clock only moves when every task waits for the runtime's timer. Until then the kernel's timer would
        // wake this task again and again.
        if begun.elapsed() < left {
            tokio::time::sleep(left).await;
        }
    }
}

#[cfg(target_os = "linux")]
async fn exactly(span: Duration) {
    if timer(span).await.is_err() {
        // No file descriptor is left; the runtime's timer is used instead.
        std::future::pending::<()>().await;
    }
}

#[cfg(not(target_os = "linux"))]
async fn exactly(_: Duration) {
    std::future::pending::<()>().await;
}

#[cfg(target_os = "linux")]
#[expect(
    deprecated,
    reason = "`AsyncFd::with_interest` is unsound for types that close or change their descriptor; a timerfd does neither"
)]
async fn timer(span: Duration) -> std::io::Result<()> {
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    let once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let span = Timespec { tv_sec: 0, tv_nsec: span.as_nanos().clamp(1, PRECISE_TIME.as_nanos()) as _ };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval: once, it_value: span })?;
    AsyncFd::with_interest(timer, Interest::READABLE)?.readable().await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn a_short_sleep_lasts_its_full_time() {
        for micros in [1, 300, 1000, 2000] {
            let (begun, span) = (Instant::now(), Duration::from_micros(micros));
            exactly(span).await;
            assert!(begun.elapsed() >= span, "{:?} of {span:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sleep_towards_follows_a_paused_clock_and_never_oversleeps() {
        let begun = Instant::now();
        sleep_towards(Duration::from_secs(3600)).await;
        sleep_towards(Duration::from_millis(1)).await;
        assert!(begun.elapsed() >= Duration::from_secs(3599), "{:?}", begun.elapsed());
        assert!(begun.elapsed() <= Duration::from_millis(3_600_001), "{:?}", begun.elapsed());
        for _ in 0..100 {
            let (begun, left) = (Instant::now(), Duration::from_micros(1));
            sleep_towards(left).await;
            assert!(begun.elapsed() >= left, "it woke before the clock moved");
        }
    }
}
