//! CPU time and memory of processes; of other processes only on Linux.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The CPU time of this process so far, to the nanosecond.
pub(super) fn own_cpu() -> Option<Duration> {
    clock_gettime(ClockId::ProcessCPUTime).try_into().ok()
}

/// The CPU time of a process so far, to 10 ms.
pub(super) fn cpu(pid: u32) -> Option<Duration> {
    ticks(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// The CPU time in a line of `stat`, in hundredths of a second whatever the tick of the kernel.
fn ticks(stat: &str) -> Option<Duration> {
    // The name is in parentheses and may contain anything; behind it come the state and fields 4, 5, ...
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 10))
}

/// The resident memory of a process, in bytes.
pub(super) fn resident(pid: u32) -> Option<u64> {
    kib(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "VmRSS")
}

/// The available memory of this machine, in bytes.
pub(super) fn available() -> Option<u64> {
    kib(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_parsed_after_any_process_name() {
        let stat = "7 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 99 1 2";
        assert_eq!(ticks(stat), Some(Duration::from_secs(2)));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert_eq!(kib("A:\t 1 kB\nVmRSS:\t   12 kB\n", "VmRSS"), Some(12 * 1024));
    }
}
