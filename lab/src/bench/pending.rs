//! The cost of an occurrence while many tasks wait, and the memory that those take.

use std::time::Duration;

use anyhow::Context;
use tokio::time::Instant;

use super::fleet::LaneAndDestination;
use super::growth::finish_growth;
use super::late::Late;
use super::limits::Limits;
use super::moment::{BurstResult, Load};
use super::report::Report;
use super::script_times::{self, ScriptTimes};
use super::setup::BenchSetup;
use super::tasks::{Batch, SHARDS, ScheduleKind, TaskNamespace};
use super::{Missing, Options, Tell, millis, process, storm};
use punctual::clock::Timestamp;
use punctual::task::{Lane, Shard};
use punctual::timeline::{
    ClaimRequest, DeadCap, MAX_BATCH, MAX_CLAIM_BYTES, Occurrence, RestOfClaim, Settle, Settlement, Timeline, Token,
    Verdict,
};

/// How far ahead the waiting tasks are due, and their interval.
const TIME_AHEAD: Duration = Duration::from_secs(30 * 86_400);
const DUE_INTERVAL: Duration = Duration::from_millis(1);

/// Tasks that are claimed to measure the time of a claim.
const MAX_TASKS_TO_CLAIM: u64 = 20_000;

/// How long such a claim may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The default lease of an instance.
const LEASE: Duration = Duration::from_secs(15);

/// Approximate memory of Redis per waiting task in addition to its record, for the check beforehand.
const INDEX_BYTES_PER_TASK: u64 = 300;

/// Runs the bench.
///
/// # Errors
/// [`Missing`] if there is not enough memory; otherwise if an occurrence is not published.
pub(super) async fn run(setup: &BenchSetup, options: &Options, tell: Tell<'_>) -> anyhow::Result<Report> {
    look_for_room(options)?;
    let schedule_kind = ScheduleKind::of(options.recurring);
    let limits = Limits::before(setup, schedule_kind, options.tasks, options.payload, tell).await?;
    let (destination, task_namespace) = (setup.make("due").await?, setup.task_namespace().await?);
    let mut report = Report::new(options);
    report.option("tasks", options.tasks);
    report.option("payload", options.payload);
    report.option("recurring", options.recurring);
    report.option("pending", options.pending.clone());
    let empty = setup.probe.memory().await?;
    let (mut before, mut costs, mut record, mut finished) = (0, Vec::new(), 0, true);
    for &pending in &options.pending {
        let first = setup.probe.now().plus(TIME_AHEAD);
        let due = |number: u64| first.plus(Duration::from_millis(number * millis(DUE_INTERVAL)));
        let lane = Lane::default();
        let (numbers, payload, schedule_kind) = (before..pending, options.payload, ScheduleKind::Once);
        let batch = Batch { prefix: "p", numbers, lane, schedule_kind, payload, destination: None, due: &due };
        record = batch.record(first, first).len();
        task_namespace.put(&batch, &|put| tell(put as f64 / pending as f64, "putting what is not due")).await?;
        before = pending;
        let name = |figure: &str| format!("pending_{pending}_{figure}");
        // Recurring tasks of earlier rounds still wait: those measured alone, and those measured beside the baseline loop.
        let left_by_round = options.tasks + options.tasks.min(script_times::MAX_TASKS);
        let waiting = pending + if options.recurring { left_by_round * costs.len() as u64 } else { 0 };
        let bytes = async || anyhow::Ok((setup.probe.memory().await? - empty) / waiting as f64);
        let growing = bytes().await?;
        tell(0.0, "letting Redis finish growing its tables");
        finished &= finish_growth(setup, &task_namespace).await?;
        let bytes = bytes().await?;
        report.figure(
            name("bytes_growing"),
            growing,
            "of Redis' memory for each waiting task, right after all were put",
        );
        report.figure(
            name("bytes"),
            bytes,
            "of Redis' memory for each waiting task, once its tables have finished growing",
        );
        report.figure(
            name("bytes_beside_record"),
            bytes - record as f64,
            "of Redis' memory for each waiting task, without its record; budget: at most 220",
        );
        let late = claims(setup, &task_namespace, options, pending, tell).await?;
        report.figure(name("claim_p50_ms"), late.ms(0.5), "a claim of up to 1000 among many due ones");
        report.figure(name("claim_max_ms"), late.most_ms(), "");
        let (past, pair) = costs_beside(setup, &task_namespace, options, (pending, &destination), tell).await?;
        report.figure(name("tasks_per_second"), past.per_second(), "");
        report.figure(name("redis_us"), past.redis_us(), "CPU of Redis for an occurrence");
        pair.figures(&mut report, &name(""));
        costs.push(pair.to_floor());
    }
    report.notes.push(growth(finished).to_owned());
    report.figure("record_bytes", record as f64, "bytes of one record in Redis");
    storm::run(setup, &task_namespace, options, &destination, &mut report, tell).await?;
    limits.after(setup, tell).await?.show(&mut report);
    let (first, last) = (costs.first().copied().flatten(), costs.last().copied().flatten());
    report.ratio(
        "scripts_to_floor_last_to_first",
        last,
        first,
        "with the most and the fewest pending; budget: at most 1.5",
    );
    Ok(report)
}

/// The note about growing tables.
fn growth(finished: bool) -> &'static str {
    if finished {
        "bytes (except `bytes_growing`) and costs are measured after Redis' tables have finished growing, because the bench read \
         them. Without that, a table grows slowly with traffic, and takes more memory and CPU until it has finished"
    } else {
        "a table of Redis may not have finished growing in the time that it was given: bytes and costs may be too high"
    }
}

/// Refuses a number of tasks that would not fit into memory, if Redis is started here.
fn look_for_room(options: &Options) -> Result<(), Missing> {
    let most = options.pending.iter().copied().max().unwrap_or_default();
    let needed = most * (options.payload as u64 + INDEX_BYTES_PER_TASK);
    match process::available() {
        Some(free) if options.redis.is_none() && needed > free / 10 * 9 => {
            let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
            let text = format!("{most} pending tasks take {:.1} GiB, and {:.1} are free", gib(needed), gib(free));
            Err(Missing::new(&text, "fewer: `--pending 100000,1000000`"))
        }
        _ => Ok(()),
    }
}

/// The cost of due tasks while others wait: alone, and beside the baseline loop, which has no waiting tasks.
async fn costs_beside(
    setup: &BenchSetup,
    task_namespace: &TaskNamespace,
    options: &Options,
    (pending, destination): (u64, &str),
    tell: Tell<'_>,
) -> anyhow::Result<(BurstResult, ScriptTimes)> {
    let (alone, beside) = (format!("c{pending}x"), format!("b{pending}x"));
    let lanes: [LaneAndDestination<'_>; 1] = [("default", destination)];
    let load = Load {
        prefix: &alone,
        tasks: options.tasks,
        schedule_kind: ScheduleKind::of(options.recurring),
        payload: options.payload,
        instances: 1,
        destination,
        lanes: &lanes,
        lead: Duration::ZERO,
        alone: false,
    };
    let moment = load.ready(setup, task_namespace, tell, async |_| Ok(())).await?;
    let past = moment.pass(setup, task_namespace, &load, tell).await?;
    moment.fleet.end().await?;
    let pair = ScriptTimes::measure(setup, task_namespace, &Load { prefix: &beside, ..load }, tell).await?;
    Ok((past, pair))
}

/// How long claims take, in ms, with many due tasks and no instance.
async fn claims(
    setup: &BenchSetup,
    task_namespace: &TaskNamespace,
    options: &Options,
    pending: u64,
    tell: Tell<'_>,
) -> anyhow::Result<Late> {
    tell(0.0, "claiming");
    let (now, prefix) = (setup.probe.now(), format!("d{pending}x"));
    let (numbers, lane) = (0..options.tasks.min(MAX_TASKS_TO_CLAIM), Lane::default());
    let (schedule_kind, payload) = (ScheduleKind::Once, options.payload);
    let batch = Batch { prefix: &prefix, numbers, lane, schedule_kind, payload, destination: None, due: &|_| now };
    task_namespace.put(&batch, &|_| {}).await?;
    let mut late = Late::new()?;
    for shard in Shard::all(SHARDS) {
        for number in 0.. {
            let token = Token(format!("bench{pending}.{shard}{number:06}"));
            match claim(task_namespace, shard, token, setup.probe.now()).await? {
                Some(took) => late.add(i64::try_from(took.as_micros()).unwrap_or(i64::MAX)),
                None => break,
            }
        }
    }
    Ok(late)
}

/// Claims once, and ends the claimed tasks. Returns the duration of the claim, if it found any.
async fn claim(
    task_namespace: &TaskNamespace,
    shard: Shard,
    token: Token,
    now: Timestamp,
) -> anyhow::Result<Option<Duration>> {
    let (timeline, lane) = (task_namespace.timeline(), Lane::default());
    let request = ClaimRequest {
        token: token.clone(),
        max: MAX_BATCH,
        max_bytes: MAX_CLAIM_BYTES,
        lease: LEASE,
        not_after: now.plus(CALL_TIMEOUT),
        newest_first: false,
        after: None,
    };
    let begun = Instant::now();
    let claimed = timeline.claim(shard, &lane, request).await.context("cannot claim")?;
    let took = begun.elapsed();
    let ended = |Occurrence { member, due, .. }: Occurrence| Settlement { member, due, verdict: Verdict::Finished };
    let verdicts: Vec<Settlement> = claimed.occurrences.into_iter().map(ended).collect();
    if verdicts.is_empty() {
        return Ok(None);
    }
    let settle =
        Settle { token, verdicts, rest: RestOfClaim::Back, lease: LEASE, dead_cap: DeadCap::of(1), quiet: false };
    timeline.settle(shard, &lane, settle).await.context("cannot settle")?;
    Ok(Some(took))
}
