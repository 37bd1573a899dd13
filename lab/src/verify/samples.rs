//! Resources of instances and Redis, sampled every few seconds, and whether they grow.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::instances::Instances;

/// Samples with their times in seconds since the beginning.
#[derive(Debug, Default)]
pub(super) struct Samples {
    all: BTreeMap<String, Vec<(f64, f64)>>,
    /// The same for each process, by the resource's name and the pid, because a mean over restarted processes shows no growth.
    lives: BTreeMap<(&'static str, u32), Vec<(f64, f64)>>,
}

/// How many seconds a process must have been sampled for its growth to count.
const LIFE: f64 = 240.0;

/// The samples of one resource.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The median of each quarter of the time. Effects of a fault that last only some seconds do not show in it.
    pub medians: [f64; 4],
    /// The mean of each quarter, including faults.
    pub means: [f64; 4],
    /// The median of the last quarter divided by that of the second; `None` if that was 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_to_second: Option<f64>,
    /// The mean of the last quarter divided by that of the second; `None` if that was 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_last_to_second: Option<f64>,
}

impl Samples {
    /// Takes samples until it is dropped.
    pub(super) async fn gather(&mut self, instances: &Instances, every: Duration) -> ! {
        let begun = Instant::now();
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let at = begun.elapsed().as_secs_f64();
            if let Err(error) = instances.key_reader.set_clock().await {
                tracing::debug!(%error, "cannot read Redis' time; the earlier estimate is still used");
            }
            if let Ok(size) = instances.key_reader.size().await {
                size.into_iter().for_each(|(name, value)| self.note(name, at, value));
            }
            for instance in instances.instances() {
                let Some(pid) = instance.pid() else { continue };
                for (name, value) in process(pid, instance.api.port()) {
                    self.note(format!("instance_{name}"), at, value);
                    self.note_life(name, pid, at, value);
                }
            }
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "means are shown with a few digits")]
    fn note(&mut self, name: String, at: f64, value: u64) {
        self.all.entry(name).or_default().push((at, value as f64));
    }

    #[expect(clippy::cast_precision_loss, reason = "means are shown with a few digits")]
    fn note_life(&mut self, name: &'static str, pid: u32, at: f64, value: u64) {
        self.lives.entry((name, pid)).or_default().push((at, value as f64));
    }

    /// Each resource by quarters of the time; and, as `..._by_age`, by quarters of the lives of the processes that
    /// lived long enough.
    pub(super) fn table(&self) -> BTreeMap<String, Row> {
        let end = self.all.values().flatten().map(|(at, _)| *at).fold(0.0, f64::max);
        let mut table: BTreeMap<_, _> = self.all.iter().map(|(name, seen)| (name.clone(), row(seen, end))).collect();
        let mut aged: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for ((name, _), seen) in &self.lives {
            let (Some((begun, _)), Some((ended, _))) = (seen.first(), seen.last()) else { continue };
            let length = ended - begun;
            if length >= LIFE {
                let by_age = seen.iter().map(|(at, value)| ((at - begun) / length, *value));
                aged.entry(name).or_default().extend(by_age);
            }
        }
        table.extend(aged.into_iter().map(|(name, seen)| (format!("instance_{name}_by_age"), row(&seen, 1.0))));
        table
    }
}

fn row(seen: &[(f64, f64)], end: f64) -> Row {
    let mut quarters: [Vec<f64>; 4] = Default::default();
    for (at, value) in seen {
        quarters[[0.25, 0.5, 0.75].iter().filter(|part| *at > **part * end).count()].push(*value);
    }
    let last_to_second = |of: &[f64; 4]| (of[1] > 0.0).then(|| of[3] / of[1]);
    let (means, medians) = (quarters.each_ref().map(|values| mean(values)), quarters.map(median));
    Row { last_to_second: last_to_second(&medians), mean_last_to_second: last_to_second(&means), medians, means }
}

/// The mean; 0 if empty.
#[expect(clippy::cast_precision_loss, reason = "there are few samples")]
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The lower median; 0 if empty.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Memory, threads, accepted connections and other descriptors of the process that listens on this port, as far as they
/// are visible. Connections depend on its users; the other descriptors are the process' own.
fn process(pid: u32, port: u16) -> Vec<(&'static str, u64)> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let status = std::fs::read_to_string(dir.join("status")).unwrap_or_default();
    let line = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let sockets = std::fs::read_to_string(dir.join("net/tcp")).unwrap_or_default();
    let accepted: BTreeSet<&str> = sockets.lines().filter_map(|socket| accepted(socket, port)).collect();
    let mut open = (0, 0);
    for entry in std::fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
        let link = std::fs::read_link(entry.path()).unwrap_or_default();
        let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
        match inode.is_some_and(|inode| accepted.contains(inode)) {
            true => open.0 += 1,
            false => open.1 += 1,
        }
    }
    let rss = line("VmRSS:").map(|kib| ("memory", kib * 1024));
    let threads = line("Threads:").map(|threads| ("threads", threads));
    // A process without any is gone.
    let open = (open.1 > 0).then_some([("connections", open.0), ("descriptors", open.1)]);
    rss.into_iter().chain(threads).chain(open.into_iter().flatten()).collect()
}

/// The inode of a socket that was accepted on this port, from a line of `/proc/net/tcp`: number, local and remote
/// address as `<hex>:<hex port>`, state (0A is one that listens), and, tenth, the inode.
fn accepted(line: &str, port: u16) -> Option<&str> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let local = fields.get(1)?.split_once(':')?.1;
    let is = u16::from_str_radix(local, 16) == Ok(port) && *fields.get(3)? != "0A";
    is.then(|| fields.get(9).copied()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_show_medians_and_means_by_quarter_and_the_last_to_second_ratio() {
        let mut samples = Samples::default();
        for (at, value) in
            [(0.0, 1), (9.0, 3), (10.0, 8), (15.0, 4), (16.0, 4), (17.0, 7), (25.0, 6), (30.0, 5), (40.0, 10)]
        {
            samples.note("a".to_owned(), at, value);
        }
        samples.note("b".to_owned(), 1.0, 7);
        let table = samples.table();
        let expected = Row {
            medians: [3.0, 4.0, 5.0, 10.0],
            means: [4.0, 5.0, 5.5, 10.0],
            last_to_second: Some(2.5),
            mean_last_to_second: Some(2.0),
        };
        assert_eq!(table["a"], expected);
        let only_first = [7.0, 0.0, 0.0, 0.0];
        let expected = Row { medians: only_first, means: only_first, last_to_second: None, mean_last_to_second: None };
        assert_eq!(table["b"], expected);
    }

    #[test]
    fn growth_within_each_process_is_visible_across_restarts() {
        let mut samples = Samples::default();
        for at in 0..1000_u32 {
            // Two that live 500 s each and grow by 1 each second; one that lives too short to count.
            samples.note_life("memory", at / 500, f64::from(at), u64::from(at % 500));
            samples.note_life("memory", 2, f64::from(at % 100), 1 << 40);
        }
        let Row { medians, last_to_second, .. } = &samples.table()["instance_memory_by_age"];
        let near = |value: f64, expected: f64| (value - expected).abs() < 2.0;
        assert!(medians.iter().zip([62.0, 187.0, 312.0, 437.0]).all(|(value, expected)| near(*value, expected)));
        assert!(last_to_second.is_some_and(|ratio| (2.2..2.5).contains(&ratio)), "{medians:?}");
    }

    #[test]
    fn a_process_sample_shows_memory_descriptors_threads_and_connections() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let look = || process(std::process::id(), address.port()).into_iter().collect::<BTreeMap<_, _>>();
        let seen = look();
        assert!(seen["memory"] > 1 << 20 && seen["descriptors"] >= 4 && seen["threads"] >= 1);
        assert_eq!(seen["connections"], 0, "who listens is not connected");
        let client = std::net::TcpStream::connect(address).expect("a connection");
        let accepted = listener.accept().expect("it is accepted");
        assert_eq!(look()["connections"], 1, "its other end is no connection to here");
        drop((client, accepted));
        assert!(process(u32::MAX, address.port()).is_empty());
    }
}
