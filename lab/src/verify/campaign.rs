//! A campaign: rounds of faults while tasks are put, each with a judgement.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{Instant, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::account::{self, Account, LANES, Load, Writer};
use super::attack::{Done, attack};
use super::ground::Ground;
use super::instances::Instances;
use super::plan::plan;
use super::proxy::Proxy;
use super::report::{self, Report, Round};
use super::samples::Samples;
use super::{Door, Kind, Place, TimelinePlace};
use crate::servers::{self, Program};

/// The time without faults at the end of a round. Longer than 10 s, because the judgement counts a moment as calm only 10 s
/// after the last fault.
const CALM: Duration = Duration::from_secs(14);

/// Number of shards on one Redis, the default of an instance.
const SHARDS: u16 = 4;

/// Number of shards on a cluster: few, because their keys are read all the time.
const SHARDS_IN_A_CLUSTER: u16 = 12;

/// The options of a campaign.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program to start instances from.
    pub program: Program,
    /// The prefix of the namespace and the destinations of every round.
    pub name: String,
    /// The kind of sink.
    pub kind: Kind,
    /// The URL of the user's sink; `None` starts one.
    pub sink: Option<SecretString>,
    /// The URL of the user's Redis for the timeline; `None` starts one.
    pub redis: Option<SecretString>,
    /// Whether to start a cluster of three masters with a replica each for the timeline; each write then waits for a replica.
    pub cluster: bool,
    /// Whether users also schedule by sending messages to a door, which every instance has.
    pub door: bool,
    /// Number of instances, at least 1.
    pub instances: usize,
    /// Tasks put per second.
    pub rate: u32,
    /// How long each round causes faults.
    pub length: Duration,
    /// Number of rounds.
    pub rounds: u64,
    /// Determines the faults and the choices of users.
    pub seed: u64,
    /// The mean time between two faults.
    pub pause: Duration,
}

/// The progress of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Step {
    /// The round, from 1.
    pub round: u64,
    /// The part of the campaign (inside a round: of the round) that is done, from 0 to 1.
    pub share: f64,
    /// Faults of this round so far.
    pub faults: usize,
    /// Promised occurrences of this round.
    pub promised: u64,
    /// Published messages that were read back in this round so far.
    pub published: u64,
    /// What the campaign is doing.
    pub activity: &'static str,
    /// A line to keep, once a round is over.
    pub line: Option<String>,
}

/// Runs a campaign; `tell` is called with the progress about once a second. On `stop` it ends early, but still judges the round and cleans up.
///
/// # Errors
/// [`super::Missing`] if a program is not installed, or a named server cannot be attacked; otherwise if a server, an
/// instance or the campaign's record of what was promised and published ([`Account`]) fails, so that no judgement is possible.
pub async fn run(options: &Options, stop: &CancellationToken, tell: &(dyn Fn(Step) + Sync)) -> anyhow::Result<Report> {
    tell(Step { activity: "starting servers", ..Step::default() });
    let exposed = |url: &'_ Option<SecretString>| url.as_ref().map(|url| url.expose_secret().to_owned());
    let (redis, sink) = (exposed(&options.redis), exposed(&options.sink));
    let ground =
        Ground::open(options.kind, redis.as_deref(), sink.as_deref(), options.instances, options.cluster).await?;
    let ground = Arc::new(ground);
    let mut report = Report {
        sink: options.kind.name(),
        seed: options.seed,
        instances: options.instances,
        rate: options.rate,
        seconds: options.length.as_secs(),
        left_out: left_out(&ground),
        faults: 0,
        kills_held: 0,
        kinds: BTreeMap::new(),
        violations: 0,
        rounds: Vec::new(),
    };
    for number in 1..=options.rounds {
        let step = |step: Step| {
            let share = (number as f64 - 1.0 + step.share) / options.rounds as f64;
            tell(Step { round: number, share, ..step });
        };
        if stop.is_cancelled() {
            break;
        }
        let round = round(options, &ground, &format!("{}-{number}", options.name), number, stop, &step).await?;
        let broken = round.broken.values().sum::<u64>();
        let line = format!(
            "round {number} of {}, seed {}: {} faults, promised {}, read {}, violations {broken}",
            options.rounds, round.seed, round.faults, round.tally.promised, round.tally.published
        );
        step(Step { share: 1.0, activity: "", line: Some(line), ..Step::default() });
        report.add(round);
    }
    Ok(report)
}

/// The faults that this campaign cannot execute, each with its reason.
fn left_out(ground: &Ground) -> Vec<String> {
    let mut left_out = Vec::new();
    if ground.cluster.is_some() {
        left_out.push("connections to the nodes of the cluster are not attacked: they name each other".to_owned());
    } else if ground.redis.server.is_none() {
        left_out.push("the Redis that you named is not restarted, stopped, or made to forget its scripts".to_owned());
    }
    if ground.sink.server.is_none() {
        left_out.push("the sink that you named is not restarted or stopped".to_owned());
    }
    if ground.links.iter().any(|links| links.sink.is_none()) {
        left_out
            .push("connections to Kafka are not attacked: its clients use the addresses that it advertises".to_owned());
    }
    left_out
}

/// One round, in a namespace and destinations of its own. Afterwards the user's servers contain nothing of it.
async fn round(
    options: &Options,
    ground: &Arc<Ground>,
    name: &str,
    number: u64,
    stop: &CancellationToken,
    tell: &(dyn Fn(Step) + Sync),
) -> anyhow::Result<Round> {
    tell(Step { activity: "starting instances", ..Step::default() });
    let timeline = TimelinePlace {
        urls: ground.timeline_urls(),
        namespace: name.to_owned(),
        shards: if ground.cluster.is_some() { SHARDS_IN_A_CLUSTER } else { SHARDS },
        lanes: LANES.map(str::to_owned).to_vec(),
    };
    let place = Place {
        kind: ground.kind,
        url: ground.sink.url.clone(),
        destinations: ["a", "b", "c"].map(|end| format!("{name}-{end}")).to_vec(),
        door: options.door.then(|| Door { source: format!("{name}-in"), rejected: format!("{name}-rejected") }),
        same_clock: ground.sink.server.is_some() && ground.owns_timeline(),
    };
    let writer = match &place.door {
        Some(door) => Some(account::open_source(&place, door).await.context("creating the source of the door")?),
        None => None,
    };
    let instances = Instances::start(&options.program, Arc::clone(ground), &timeline, place.door_options()).await?;
    let seed = options.seed.wrapping_add(number - 1);
    let judged = attack_and_judge(options, seed, &instances, (&place, &timeline), writer, stop, tell).await;
    for number in 0..options.instances {
        instances.end(number).await;
    }
    let round = judged.and_then(|round| with_instance_violations(round, &instances, name));
    let mut left_behind = Vec::new();
    if !ground.owns_timeline()
        && let Err(error) = instances.key_reader.clear().await
    {
        left_behind.push(format!("keys `punctual:{{{name}...` in Redis: {error}"));
    }
    if ground.sink.server.is_none()
        && let Err(error) = servers::remove(place.kind, &place.url, &names_in(&place)).await
    {
        left_behind.push(format!("{} in the sink: {error:#}", place.destinations.join(", ")));
    }
    match round {
        Ok(round) => Ok(Round { left_behind, ..round }),
        Err(error) if left_behind.is_empty() => Err(error),
        Err(error) => Err(error.context(format!("left behind: {}", left_behind.join("; ")))),
    }
}

/// The names of what was created in the sink.
fn names_in(place: &Place) -> Vec<String> {
    let mut names = match place.kind {
        Kind::Nats => vec![account::stream_name(place)],
        _ => place.read(),
    };
    names.extend(place.door.as_ref().map(|door| door.source.clone()));
    names
}

/// Attacks while tasks are put, and judges the result.
async fn attack_and_judge(
    options: &Options,
    seed: u64,
    instances: &Arc<Instances>,
    (place, timeline): (&Place, &TimelinePlace),
    writer: Option<Box<dyn Writer>>,
    stop: &CancellationToken,
    tell: &(dyn Fn(Step) + Sync),
) -> anyhow::Result<Round> {
    let late_before = late_bytes(&instances.ground);
    let load = Load { rate: options.rate, seed, same_clock: place.same_clock, races: true };
    let account = Account::open(place, timeline, load, instances.apis(), writer).await;
    let account = account.context("cannot begin to put tasks")?;
    let (done, samples) = under_attack(options, seed, instances, &account, stop, tell).await;
    tell(Step { share: 1.0, activity: "waiting until all is published", faults: done.faults.len(), ..Step::default() });
    let verdict = tokio::select! {
        verdict = account.close(&done.faults) => verdict.context("cannot judge what was published")?,
        never = instances.watch() => never,
    };
    Ok(Round {
        seed,
        faults: done.faults.len(),
        skipped: done.skipped,
        kinds: report::count(&done.faults),
        late_bytes: late_bytes(&instances.ground) - late_before,
        races: verdict.races,
        tally: verdict.tally,
        broken: verdict.broken,
        violations: verdict.violations,
        resources: samples.table(),
        ended_early: stop.is_cancelled(),
        ..Round::default()
    })
}

/// Adds the violations of the instances themselves, once all have ended.
fn with_instance_violations(mut round: Round, instances: &Instances, name: &str) -> anyhow::Result<Round> {
    let own = instances.violations();
    own.iter().for_each(|violation| *round.broken.entry(violation.law).or_default() += 1);
    round.violations.extend(own);
    round.ends_judged = instances.ends_judged();
    let logs: Vec<_> = instances.instances().map(|instance| instance.log()).collect();
    round.errors = logs.iter().map(|log| log.error_count).sum();
    round.error_lines = logs.iter().flat_map(|log| log.errors.iter().take(5).cloned()).collect();
    if !round.broken.is_empty() {
        round.logs = Some(keep_logs(instances, name)?);
    }
    Ok(round)
}

/// The faults, and a calm time after them.
async fn under_attack(
    options: &Options,
    seed: u64,
    instances: &Arc<Instances>,
    account: &Account,
    stop: &CancellationToken,
    tell: &(dyn Fn(Step) + Sync),
) -> (Done, Samples) {
    let fault_kinds = instances.ground.fault_kinds();
    let planned = plan(seed, options.instances, options.length, options.pause, &fault_kinds);
    let faults = std::sync::atomic::AtomicUsize::new(0);
    let attacked = async {
        let done =
            attack(instances, &planned, stop, |count| faults.store(count, std::sync::atomic::Ordering::Relaxed)).await;
        tokio::select! {
            () = sleep(CALM) => {}
            () = stop.cancelled() => {}
        }
        done
    };
    let begun = Instant::now();
    let telling = async {
        let mut ticks = interval(Duration::from_secs(1));
        loop {
            ticks.tick().await;
            let progress = account.progress();
            let share = (begun.elapsed().as_secs_f64() / (options.length + CALM).as_secs_f64()).min(1.0);
            let faults = faults.load(std::sync::atomic::Ordering::Relaxed);
            let (promised, published) = (progress.promised, progress.published);
            tell(Step { share, faults, promised, published, activity: "attacking", ..Step::default() });
        }
    };
    let every = (options.length / 240).max(Duration::from_secs(2));
    let mut samples = Samples::default();
    let done = tokio::select! {
        done = attacked => done,
        never = telling => never,
        never = samples.gather(instances, every) => never,
        never = instances.watch() => never,
    };
    (done, samples)
}

/// Bytes that have reached a server so far after the instance had closed the connection.
fn late_bytes(ground: &Ground) -> u64 {
    let late = |proxy: &Option<Proxy>| proxy.as_ref().map_or(0, Proxy::late);
    ground.links.iter().map(|links| late(&links.redis) + late(&links.sink)).sum()
}

/// Keeps the logs of the instances as evidence; otherwise they are removed with the instances.
fn keep_logs(instances: &Instances, name: &str) -> anyhow::Result<String> {
    let dir: PathBuf = std::env::temp_dir().join(format!("punctual-{name}"));
    let kept = || -> std::io::Result<()> {
        std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
        for instance in instances.instances() {
            std::fs::copy(instance.log_file(), dir.join(format!("instance-{}.log", instance.number)))?;
        }
        Ok(())
    };
    kept().with_context(|| format!("cannot keep the logs in `{}`", dir.display()))?;
    Ok(dir.display().to_string())
}
