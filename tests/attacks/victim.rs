//! Somebody else's tasks during an attack: a task every 50 ms in one lane, and how late they come.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use serde_json::json;
use tokio::time::Instant;

use crate::support::http::Api;
use crate::support::patient;
use crate::support::published::Published;

/// The pause between two tasks.
const PAUSE: Duration = Duration::from_millis(50);

/// How long before its due a task is put.
const AHEAD: Duration = Duration::from_millis(100);

/// A task that is later than this counts as late, in ms.
const LATE: i64 = 50;

/// Puts tasks until it is stopped.
pub(super) struct Victim {
    ending: Arc<AtomicBool>,
    putting: JoinHandle<Vec<Put>>,
}

/// A put that was promised, and how long its answer took.
struct Put {
    key: String,
    took: Duration,
    /// The time since the victim's start.
    at: Duration,
}

/// What the victim noticed. Median, 99th percentile and maximum, in ms.
#[derive(Clone, Debug)]
pub(super) struct VictimFigures {
    pub(super) tasks: usize,
    pub(super) late: [i64; 3],
    pub(super) puts: [i64; 3],
    /// The seconds since its start in which tasks were put that came late by more than [`LATE`], with their number.
    late_in: BTreeMap<u64, usize>,
}

impl Victim {
    /// Starts to put tasks into a lane, for a destination that accepts them.
    pub(super) fn start(api: &Api, lane: &'static str, destination: &str) -> Victim {
        let ending = Arc::new(AtomicBool::new(false));
        let (api, destination, is_ending) = (api.clone(), destination.to_owned(), Arc::clone(&ending));
        let putting = std::thread::spawn(move || {
            let (mut puts, start) = (Vec::new(), Instant::now());
            while !is_ending.load(Ordering::Relaxed) {
                let begun = Instant::now();
                puts.extend(put(&api, lane, &destination, puts.len(), start));
                std::thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
            }
            puts
        });
        Victim { ending, putting }
    }

    /// Stops, and waits until all its tasks are published. `read` reads what was published to its destination.
    pub(super) fn stop(self, read: &dyn Fn(usize) -> Vec<Published>) -> VictimFigures {
        self.ending.store(true, Ordering::Relaxed);
        let puts = self.putting.join().expect("the victim puts");
        let mut late = BTreeMap::new();
        let all = patient(Duration::from_secs(60), || {
            for message in read(puts.len()) {
                let due = message.parts().1;
                late.entry(message.key).or_insert(message.stamp - due);
            }
            puts.iter().all(|put| late.contains_key(&put.key))
        });
        let missing = puts.iter().filter(|put| !late.contains_key(&put.key)).count();
        assert!(all, "{missing} of {} tasks are not published", puts.len());
        let mut late_in = BTreeMap::new();
        for put in puts.iter().filter(|put| late[&put.key] > LATE) {
            *late_in.entry(put.at.as_secs()).or_default() += 1;
        }
        let late = puts.iter().map(|put| late[&put.key]).collect();
        let took = puts.iter().map(|put| i64::try_from(put.took.as_millis()).expect("a short time")).collect();
        VictimFigures { tasks: puts.len(), late: percentiles(late), puts: percentiles(took), late_in }
    }
}

#[expect(clippy::disallowed_methods, reason = "Redis and the brokers run on the same machine")]
fn put(api: &Api, lane: &str, destination: &str, number: usize, start: Instant) -> Option<Put> {
    let due = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970") + AHEAD;
    let at = jiff::Timestamp::from_millisecond(i64::try_from(due.as_millis()).expect("a time")).expect("a time");
    let task = json!({"schedule": {"at": at.to_string()}, "lane": lane, "message": {"destination": destination, "payload": number}});
    let (id, begun) = (format!("victim-{lane}-{destination}-{number}"), Instant::now());
    let answer = api.put(&id, &task.to_string()).ok()?;
    let took = begun.elapsed();
    (answer.status == 201).then(|| Put { key: format!("{id}:{}", due.as_millis()), took, at: begun - start })
}

fn percentiles(mut values: Vec<i64>) -> [i64; 3] {
    values.sort_unstable();
    let at = |part: usize| values[(values.len() * part / 100).min(values.len() - 1)];
    [at(50), at(99), values[values.len() - 1]]
}

impl fmt::Display for VictimFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VictimFigures { tasks, late: [half, most, latest], puts: [put_half, put_most, longest], late_in } = self;
        write!(f, "{tasks} tasks {half} / {most} / {latest} ms late, puts {put_half} / {put_most} / {longest} ms")?;
        if late_in.is_empty() {
            return Ok(());
        }
        let seconds: Vec<_> = late_in.iter().map(|(second, count)| format!("{count} in second {second}")).collect();
        write!(f, "; over {LATE} ms: {}", seconds.join(", "))
    }
}
