//! Executes the planned faults, and notes their effects.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::Fault;
use super::instances::{Instances, Turn};
use super::plan::{FaultKind, LinkFault, Planned, Side};
use super::proxy::{Mode, Proxy};

/// How long a fault waits until its target holds a claim.
const CATCH: Duration = Duration::from_millis(300);

/// How long data of a dead instance may be under way to Redis.
const ON_ITS_WAY: Duration = Duration::from_millis(20);

/// The progress of an attack.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The executed faults, in the order of their beginning.
    pub(super) faults: Vec<Fault>,
    /// Faults that could not be executed: their target had not recovered from an earlier fault in time, or there
    /// was no connection.
    pub(super) skipped: u64,
}

impl Done {
    fn note(&mut self, fault: Option<Fault>) {
        self.skipped += u64::from(fault.is_none());
        self.faults.extend(fault);
    }
}

/// Executes a plan; faults with the same target run one after the other. Ends early on `stop`.
pub(super) async fn attack(
    instances: &Arc<Instances>,
    plan: &[Planned],
    stop: &CancellationToken,
    tell: impl Fn(usize),
) -> Done {
    let mut begun = Instant::now();
    let (mut running, mut done) = (JoinSet::new(), Done::default());
    for planned in plan {
        tokio::select! {
            () = sleep_until(begun + planned.at) => {}
            () = stop.cancelled() => break,
        }
        let waiting = Instant::now();
        match instances.turn(planned).await {
            Some(turn) => {
                running.spawn(carry_out(Arc::clone(instances), *planned, turn));
            }
            None => done.skipped += 1,
        }
        // If this fault had to wait, all later ones are postponed too. So faults overlap as the plan says.
        begun += waiting.elapsed();
        while let Some(Ok(fault)) = running.try_join_next() {
            done.note(fault);
        }
        tell(done.faults.len());
    }
    while let Some(ended) = running.join_next().await {
        done.note(ended.ok().flatten());
    }
    done.faults.sort_by_key(|fault| fault.from);
    done
}

/// Executes one fault; `None` if it had no target.
async fn carry_out(instances: Arc<Instances>, planned: Planned, turn: Turn) -> Option<Fault> {
    let mut held = catch(&instances, planned.instance).await;
    let from = instances.key_reader.now();
    let met = match (planned.fault_kind, planned.instance) {
        (FaultKind::Kill, Some(number)) => {
            let id = instances.instance(number).id();
            instances.kill(number).await;
            // Data on its way may still settle a claim of the killed instance. After this pause its claims stay until
            // their leases expire.
            sleep(ON_ITS_WAY).await;
            held = instances.key_reader.holders().await.iter().any(|holder| Some(holder) == id.as_ref());
            sleep(planned.lasts).await;
            start_again(&instances, number).await;
            true
        }
        (FaultKind::Stop, Some(number)) => {
            let stopped = stop(&instances, number, planned.lasts).await;
            held = stopped == Some(true);
            stopped.is_some()
        }
        (FaultKind::Term, Some(number)) => {
            instances.end(number).await;
            sleep(planned.lasts).await;
            start_again(&instances, number).await;
            true
        }
        (FaultKind::Link(side, harm), Some(number)) => match instances.ground.links[number].proxy(side) {
            Some(proxy) => {
                let note_fault = || {
                    if side == Side::Redis {
                        instances.note_redis_fault(Some(number))
                    }
                };
                note_fault();
                let met = break_link(proxy, harm, &planned).await;
                note_fault();
                met
            }
            None => false,
        },
        (FaultKind::Restart(side), _) => restart_or_stall(&instances, side, &planned, true).await,
        (FaultKind::Stall(side), _) => restart_or_stall(&instances, side, &planned, false).await,
        (FaultKind::Flush, _) => {
            instances.note_redis_fault(None);
            instances
                .key_reader
                .flush_scripts()
                .await
                .inspect_err(|error| tracing::debug!(%error, "cannot flush the scripts of redis"))
                .is_ok()
        }
        (FaultKind::Cluster(fault), _) => {
            instances.note_redis_fault(None);
            let choice = usize::try_from(planned.delay.as_millis()).unwrap_or_default();
            let key = instances.key_reader.key_of_shard(choice);
            let done = match &instances.ground.cluster {
                Some(cluster) => cluster.fault(fault, choice, planned.lasts, &key).await,
                None => Ok(()),
            };
            instances.note_redis_fault(None);
            done.inspect_err(|error| tracing::error!("a fault of the cluster failed: {error:#}")).is_ok()
        }
        (FaultKind::Kill | FaultKind::Stop | FaultKind::Term | FaultKind::Link(..), None) => false,
    };
    drop(turn);
    let fault = Fault {
        kind: planned.fault_kind.name(),
        instance: planned.instance,
        from,
        until: instances.key_reader.now(),
        held,
    };
    met.then_some(fault)
}

/// Waits a moment until an instance, or any, holds a claim; returns whether it does.
async fn catch(instances: &Instances, instance: Option<usize>) -> bool {
    let id = instance.and_then(|number| instances.instance(number).id());
    let begun = Instant::now();
    loop {
        let holders = instances.key_reader.holders().await;
        let held = id.as_ref().map_or(!holders.is_empty(), |id| holders.contains(id));
        if held || begun.elapsed() >= CATCH {
            return held;
        }
        sleep(Duration::from_millis(1)).await;
    }
}

async fn start_again(instances: &Instances, number: usize) {
    if let Err(error) = instances.start_one(number).await {
        tracing::warn!(number, "an instance does not start: {error:#}");
    }
}

/// Stops an instance for a while; returns whether it held a claim. `None` if it could not be stopped.
async fn stop(instances: &Instances, number: usize, lasts: Duration) -> Option<bool> {
    let instance = instances.instance(number);
    if let Err(error) = instance.signal("STOP") {
        tracing::debug!(%error, "cannot stop an instance");
        return None;
    }
    let id = instance.id();
    let held = instances.key_reader.holders().await.iter().any(|holder| Some(holder) == id.as_ref());
    sleep(lasts).await;
    if let Err(error) = instance.signal("CONT") {
        tracing::debug!(%error, "cannot continue an instance");
    }
    Some(held)
}

/// Breaks the connections of an instance to a server; returns whether there were any.
async fn break_link(proxy: &Proxy, harm: LinkFault, planned: &Planned) -> bool {
    let mut met = proxy.open() > 0;
    match harm {
        LinkFault::Cut => {
            proxy.set(Mode::Refuse);
            proxy.cut();
            sleep(planned.lasts).await;
        }
        LinkFault::BlackHole => {
            proxy.set(Mode::BlackHole);
            sleep(planned.lasts).await;
            met |= proxy.cut() > 0;
        }
        LinkFault::Delay => {
            proxy.set(Mode::Delay(planned.delay));
            sleep(planned.lasts).await;
        }
        LinkFault::Half => {
            proxy.close_direction(planned.way);
        }
        LinkFault::Late => {
            proxy.set(Mode::Late);
            sleep(planned.lasts).await;
        }
    }
    // New connections in the meantime were affected, too.
    met |= matches!(harm, LinkFault::Delay | LinkFault::Late) && proxy.open() > 0;
    proxy.set(Mode::Pass);
    met
}

/// Kills a server and starts it again, or stops it for a while; returns whether that was done.
async fn restart_or_stall(instances: &Instances, side: Side, planned: &Planned, restart: bool) -> bool {
    let Some(server) = &instances.ground.backend(side).server else { return false };
    if side == Side::Redis {
        instances.note_redis_fault(None);
    }
    let done = if restart {
        let killed = server.kill().await;
        sleep(planned.lasts).await;
        match killed {
            Ok(()) => server.revive().await,
            error => error,
        }
    } else {
        let stopped = server.signal("STOP");
        sleep(planned.lasts).await;
        stopped.and(server.signal("CONT"))
    };
    if side == Side::Redis {
        instances.note_redis_fault(None);
    }
    done.inspect_err(|error| tracing::error!("cannot restart, or stop and continue, a server: {error:#}")).is_ok()
}
