//! `punctual demo`: an instance of its own, tasks of every kind, their messages on stdout, and a count at the end.
//!
//! The expected count is computed from the tasks, not from what was seen. The numbers agree only if every occurrence
//! was published exactly once, and not before it was due.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use futures_util::future::join_all;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::own_redis::OwnRedis;
use super::parts::Parts;
use super::program::{Failure, Signals, runtime};
use super::say;
use super::serve::{self, Instance};
use super::watch::{Book, Tally, Watch};
use crate::clock::{Clock, Timestamp};
use crate::config::{Config, DEFAULT_NAME, Sources};
use crate::engine::{EngineSink, Intake};
use crate::task::{Lane, Message, Payload, Schedule, Task, TaskId, When};
use crate::timeline::{PutMode, PutResult, Timeline};

/// The prefix of the demo's task ids. Other tasks that are put meanwhile are published but not counted.
const PREFIX: &str = "demo-";

/// How long the last due messages may take to be published.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

/// How long the demo may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of tasks in one put.
const MAX_PUTS_AT_ONCE: u32 = 1000;

#[derive(Args)]
pub(super) struct DemoArguments {
    /// How many one-shot tasks to put; an interval and a cron task come on top
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tasks: u32,
    /// How long to publish
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    /// Where tasks wait; without it a redis-server of the demo's own, or memory where none is installed
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// Show the count as JSON
    #[arg(long)]
    json: bool,
}

/// The tasks of the demo. All expected dues follow from it.
struct Plan {
    run: String,
    one_shots: u32,
    /// How many of the one-shots are put.
    put: u32,
    series: Vec<Series>,
    begin: Timestamp,
    end: Timestamp,
}

/// The occurrences of a recurring task: the first due, then at an interval, none after the end of the plan.
struct Series {
    id: TaskId,
    task: Task,
    gap: Duration,
    /// From the answer to its put.
    first: Option<Timestamp>,
}

/// Where the tasks of the demo wait.
struct Place {
    redis: Option<OwnRedis>,
    config: Config,
    detail: String,
    /// Whether it outlives the demo; remaining tasks are then cancelled.
    stays: bool,
}

pub(super) fn run(arguments: &DemoArguments) -> Result<(), Failure> {
    crate::telemetry::start("warn", false).map_err(|detail| Failure::usage(anyhow!(detail)))?;
    runtime()?.block_on(async {
        let mut signals = Signals::listen()?;
        let (place, mut parts) = Place::find(arguments).await?;
        let timeline = serve::open_timeline(&place.config, &parts.tls)?.there(&place.config).await?;
        let clock = timeline.any_clock();
        let book = Book::new();
        parts.sinks = watched(parts.sinks, &timeline, &book);
        let instance = Instance::start(&place.config, timeline, parts).await?;
        if !arguments.json {
            say(&opening(arguments, &place, &instance))?;
        }
        let mut plan = Plan::new(arguments, clock.now()).map_err(Failure::failed)?;
        plan.carry_out(&instance.intake, &*clock, &mut signals).await?;
        let cut = book.cut(&*clock, plan.end);
        let expected = plan.expected(cut);
        tokio::select! {
            () = book.reached(expected) => {}
            () = tokio::time::sleep(PUBLISH_TIMEOUT) => {}
            _ = signals.next() => {}
        }
        let intake = instance.intake.clone();
        instance.stop(STOP_TIMEOUT).await;
        if place.stays {
            plan.cancel_what_is_left(cut, &intake).await;
        }
        // Otherwise open connections would log the end of the server.
        drop(intake);
        drop(place.redis);
        finish(arguments, expected, book.tally())
    })
}

impl Place {
    async fn find(arguments: &DemoArguments) -> Result<(Place, Parts), Failure> {
        let redis = match arguments.redis {
            None if OwnRedis::is_installed() => {
                let started = OwnRedis::start().await.context("cannot start a redis-server for the demo");
                Some(started.map_err(|error| Failure::failed(error).hint("`--redis memory:` does without"))?)
            }
            _ => None,
        };
        let (url, detail) = match (&arguments.redis, &redis) {
            (_, Some(redis)) => {
                let url = format!("redis://127.0.0.1:{}", redis.port);
                let detail = format!("a private redis-server on port {}, which ends with the demo", redis.port);
                (url, detail)
            }
            (Some(url), None) if url != "memory:" => (url.clone(), "the Redis that you named".to_owned()),
            (Some(_), None) => ("memory:".to_owned(), "the memory of this process".to_owned()),
            (None, None) => {
                let detail = "the memory of this process, since no redis-server is installed here";
                ("memory:".to_owned(), detail.to_owned())
            }
        };
        let stays = redis.is_none() && url != "memory:";
        // On a shared Redis, other instances must not claim the tasks of this demo.
        let namespace = if stays { format!("demo-{:08x}", rand::random::<u32>()) } else { "demo".to_owned() };
        let flags = vec![
            ("--redis", "redis.url", url),
            ("--sink", "sinks.default.url", "stdout:".to_owned()),
            ("--listen", "http.listen", "127.0.0.1:0".to_owned()),
            ("--namespace", "timeline.namespace", namespace),
        ];
        // Neither environment nor file: the demo shows the defaults.
        let (config, parts) = Config::load_and(Sources { flags, ..Sources::default() }, Parts::build)?;
        Ok((Place { redis, config, detail, stays }, parts))
    }
}

/// The sinks, with the messages of the demo counted.
fn watched(
    sinks: BTreeMap<String, EngineSink>,
    timeline: &Arc<dyn Timeline>,
    book: &Arc<Book>,
) -> BTreeMap<String, EngineSink> {
    let watch = |sink: EngineSink| {
        let watch = Watch::new(sink.sink, timeline.any_clock(), PREFIX, Arc::clone(book));
        EngineSink { sink: Arc::new(watch), patience: sink.patience }
    };
    sinks.into_iter().map(|(name, sink)| (name, watch(sink))).collect()
}

fn opening(arguments: &DemoArguments, place: &Place, instance: &Instance) -> String {
    let api = format!("http://{}", instance.address);
    let task = r#"{"schedule":{"in":"2s"},"message":{"payload":{"hello":"world"}}}"#;
    format!(
        "punctual demo: {} one-shot tasks, one every 500 ms and one by cron, over {} s\n\
         tasks wait in {}; messages go to stdout\n\
         try it, in another terminal:\n  \
         curl -X PUT {api}/v1/tasks/hello -H 'content-type: application/json' -d '{task}'\n  \
         curl {api}/v1/tasks/hello\n  \
         curl {api}/v1/stats\n\n",
        arguments.tasks, arguments.seconds, place.detail
    )
}

impl Plan {
    fn new(arguments: &DemoArguments, now: Timestamp) -> anyhow::Result<Plan> {
        // Long enough to put the first tasks before they are due, so that their lateness is that of publishing. Later
        // tasks are put meanwhile.
        let begin = now.plus(Duration::from_millis(400));
        let end = begin.plus(Duration::from_secs(u64::from(arguments.seconds)));
        let run = format!("{:06x}", rand::random::<u32>() >> 8);
        let series = series(&run, begin, end)?;
        Ok(Plan { run, one_shots: arguments.tasks, put: 0, series, begin, end })
    }

    fn one_shot(&self, number: u32) -> anyhow::Result<(TaskId, Lane, Task)> {
        let id = format!("{PREFIX}once-{}-{number}", self.run).parse()?;
        let payload = json!({ "kind": "once", "number": number });
        Ok((id, Lane::default(), task(When::At(self.due(number)), None, &payload)))
    }

    /// The due of a one-shot; they are spread evenly from begin to end.
    fn due(&self, number: u32) -> Timestamp {
        let span = u64::try_from(self.end.since(self.begin).as_millis()).unwrap_or(u64::MAX);
        self.begin.plus(Duration::from_millis(span * u64::from(number) / u64::from(self.one_shots)))
    }

    /// Puts all tasks and waits for the end, or for a signal.
    async fn carry_out(&mut self, intake: &Intake, clock: &dyn Clock, signals: &mut Signals) -> Result<(), Failure> {
        let stop = CancellationToken::new();
        let end = self.end;
        let mut run = pin!(async {
            self.put_all(intake, &stop).await?;
            tokio::select! {
                () = clock.sleep_until(end) => {}
                () = stop.cancelled() => {}
            }
            Ok(())
        });
        tokio::select! {
            done = run.as_mut() => return done,
            _ = signals.next() => stop.cancel(),
        }
        // Wait for the answer to the current put, because the expected count depends on it.
        run.await
    }

    /// Puts the recurring tasks, then the one-shots in the order of their dues, until all are put or `stop`.
    async fn put_all(&mut self, intake: &Intake, stop: &CancellationToken) -> Result<(), Failure> {
        let recurring = self.series.iter().map(|series| (series.id.clone(), Lane::default(), series.task.clone()));
        let firsts = put(intake, recurring.collect()).await?;
        for (series, first) in self.series.iter_mut().zip(firsts) {
            // Not `begin` itself: cron counts whole seconds, and a slow machine may have put the task after it.
            series.first = Some(first);
        }
        while self.put < self.one_shots && !stop.is_cancelled() {
            let until = self.one_shots.min(self.put.saturating_add(MAX_PUTS_AT_ONCE));
            let tasks: anyhow::Result<Vec<_>> = (self.put..until).map(|number| self.one_shot(number)).collect();
            put(intake, tasks.map_err(Failure::failed)?).await?;
            self.put = until;
        }
        Ok(())
    }

    /// How many occurrences of the tasks are due by `cut`.
    fn expected(&self, cut: Timestamp) -> usize {
        let once = (0..self.put).filter(|&number| self.due(number) <= cut).count();
        once + self.series.iter().map(|series| series.count(cut)).sum::<usize>()
    }

    /// Cancels the remaining tasks in a Redis that is not the demo's own.
    async fn cancel_what_is_left(&self, cut: Timestamp, intake: &Intake) {
        let once = (0..self.put).filter(|&number| self.due(number) > cut).filter_map(|number| {
            let (id, ..) = self.one_shot(number).ok()?;
            Some(id)
        });
        let left: Vec<TaskId> = once.chain(self.series.iter().map(|series| series.id.clone())).collect();
        for chunk in left.chunks(1000) {
            join_all(chunk.iter().map(|id| intake.cancel(id, STOP_TIMEOUT))).await;
        }
    }
}

/// One task at an interval and one by cron.
fn series(run: &str, begin: Timestamp, end: Timestamp) -> anyhow::Result<Vec<Series>> {
    let (half, second) = (Duration::from_millis(500), Duration::from_secs(1));
    let every = When::Every { gap: half, start: Some(begin) };
    let cron = When::Cron { expression: "* * * * * *".into(), zone: None, start: Some(begin) };
    let one = |kind: &str, when: When, gap| {
        let id = format!("{PREFIX}{kind}-{run}").parse()?;
        anyhow::Ok(Series { id, task: task(when, Some(end), &json!({ "kind": kind })), gap, first: None })
    };
    Ok(vec![one("every", every, half)?, one("cron", cron, second)?])
}

impl Series {
    fn count(&self, cut: Timestamp) -> usize {
        let Some(first) = self.first.filter(|first| *first <= cut) else { return 0 };
        let spans = cut.since(first).as_millis() / self.gap.as_millis();
        usize::try_from(spans).unwrap_or(usize::MAX).saturating_add(1)
    }
}

fn task(when: When, end: Option<Timestamp>, payload: &serde_json::Value) -> Task {
    let message = Message { payload: Payload::Json(payload.to_string().into()), ..Message::default() };
    Task { schedule: Schedule { when, end, limit: None, spread: None }, message, retry: None, catch_up: None }
}

/// Puts new tasks; returns their first dues.
async fn put(intake: &Intake, tasks: Vec<(TaskId, Lane, Task)>) -> Result<Vec<Timestamp>, Failure> {
    let mut dues = Vec::with_capacity(tasks.len());
    for answer in intake.put(PutMode::Put, tasks, STOP_TIMEOUT).await {
        match answer {
            Ok(put) if put.result == PutResult::Created => dues.push(put.due),
            Ok(put) => return Err(Failure::failed(anyhow!("a new task was not created but {:?}", put.result))),
            Err(error) => return Err(Failure::failed(anyhow::Error::from(error).context("cannot put a task"))),
        }
    }
    Ok(dues)
}

/// Prints the numbers; fails unless they agree.
fn finish(arguments: &DemoArguments, expected: usize, tally: Tally) -> Result<(), Failure> {
    let Tally { published, distinct, early, p50, p99, max } = tally;
    if arguments.json {
        let lateness = json!({ "p50": p50, "p99": p99, "max": max });
        let count = json!({ "expected": expected, "published": published, "distinct_keys": distinct, "early": early, "lateness_ms": lateness });
        say(&format!("{count}\n"))?;
    } else {
        say(&format!(
            "\nexpected       {expected:>8}\npublished      {published:>8}\ndistinct keys  {distinct:>8}\n\
             early          {early:>8}\nlateness p50   {p50:>8} ms\nlateness p99   {p99:>8} ms\n\
             lateness max   {max:>8} ms\n"
        ))?;
    }
    if published == expected && distinct == expected && early == 0 {
        return Ok(());
    }
    Err(Failure::failed(anyhow!("the numbers of the {DEFAULT_NAME} sink do not agree with what was due")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_demo_expects_the_occurrences_due_by_the_cut() {
        let at = Timestamp::from_millis;
        let (begin, end) = (at(1000), at(11_000));
        let series = series("r", begin, end).unwrap();
        let mut plan = Plan { run: "r".into(), one_shots: 10, put: 10, series, begin, end };
        assert_eq!((plan.due(0), plan.due(9)), (at(1000), at(10_000)));
        assert_eq!(plan.expected(end), 10, "a task that is not put is not expected");
        plan.series[0].first = Some(begin);
        plan.series[1].first = Some(begin);
        assert_eq!(plan.expected(end), 10 + 21 + 11);
        assert_eq!(plan.expected(at(999)), 0);
        assert_eq!(plan.expected(at(1999)), 1 + 2 + 1);
        plan.series[1].first = Some(at(2000));
        assert_eq!(plan.expected(at(2000)), 2 + 3 + 1);
        plan.put = 1;
        assert_eq!(plan.expected(at(2000)), 1 + 3 + 1);
    }
}
