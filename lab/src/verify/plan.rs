//! Decides which fault happens when and where: a pure function of the seed.

use std::time::Duration;

use rand::prelude::*;
use rand::rngs::StdRng;

use super::proxy::Way;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum FaultKind {
    /// kill -9 of an instance.
    Kill,
    /// SIGSTOP of an instance, past its leases.
    Stop,
    /// SIGTERM of an instance.
    Term,
    /// A fault of an instance's connections to a server.
    Link(Side, LinkFault),
    /// kill -9 of a server, which is started again.
    Restart(Side),
    /// SIGSTOP of a server.
    Stall(Side),
    /// Redis forgets the scripts.
    Flush,
    /// A fault of the cluster that keeps the timeline.
    Cluster(ClusterFault),
}

/// A fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum ClusterFault {
    /// kill -9 of a master, which is started again: before its replica takes its place, or after that.
    MasterKill,
    /// SIGSTOP of a master, likewise.
    MasterStall,
    /// kill -9 of a replica, without which its master confirms no writes.
    ReplicaKill,
    /// A replica takes the place of its master in order.
    Failover,
    /// A slot moves to another master.
    SlotMove,
    /// The same, and its keys are on both for a while.
    SlotAbort,
}

/// A server that an instance is connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Side {
    /// Where tasks wait.
    Redis,
    /// Where messages go.
    Sink,
}

/// A fault of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum LinkFault {
    /// Every connection is reset, and new ones are refused.
    Cut,
    /// No data arrives, and neither side gets an error.
    BlackHole,
    /// All data arrives later.
    Delay,
    /// One direction of every connection is closed.
    Half,
    /// Data is held back, and arrives although its sender has closed the connection.
    Late,
}

impl Side {
    const BOTH: [Side; 2] = [Side::Redis, Side::Sink];
}

impl LinkFault {
    const ALL: [LinkFault; 5] =
        [LinkFault::Cut, LinkFault::BlackHole, LinkFault::Delay, LinkFault::Half, LinkFault::Late];
}

impl ClusterFault {
    const ALL: [ClusterFault; 6] = [
        ClusterFault::MasterKill,
        ClusterFault::MasterStall,
        ClusterFault::ReplicaKill,
        ClusterFault::Failover,
        ClusterFault::SlotMove,
        ClusterFault::SlotAbort,
    ];
}

impl FaultKind {
    /// Every kind, and how often each shuffled pack contains it. A plan takes its faults from such packs, so that every kind occurs.
    pub(super) fn all() -> Vec<(FaultKind, usize)> {
        let mut all = vec![(FaultKind::Kill, 10), (FaultKind::Stop, 3), (FaultKind::Term, 3), (FaultKind::Flush, 1)];
        for side in Side::BOTH {
            all.extend(LinkFault::ALL.map(|harm| (FaultKind::Link(side, harm), 2)));
            all.extend([(FaultKind::Restart(side), 1), (FaultKind::Stall(side), 1)]);
        }
        all.extend(ClusterFault::ALL.map(|fault| (FaultKind::Cluster(fault), 2)));
        all
    }

    /// Its name in reports.
    pub(super) fn name(self) -> &'static str {
        match self {
            FaultKind::Kill => "kill",
            FaultKind::Stop => "stop",
            FaultKind::Term => "term",
            FaultKind::Link(Side::Redis, LinkFault::Cut) => "redis_cut",
            FaultKind::Link(Side::Redis, LinkFault::BlackHole) => "redis_hole",
            FaultKind::Link(Side::Redis, LinkFault::Delay) => "redis_delay",
            FaultKind::Link(Side::Redis, LinkFault::Half) => "redis_half",
            FaultKind::Link(Side::Redis, LinkFault::Late) => "redis_late",
            FaultKind::Link(Side::Sink, LinkFault::Cut) => "sink_cut",
            FaultKind::Link(Side::Sink, LinkFault::BlackHole) => "sink_hole",
            FaultKind::Link(Side::Sink, LinkFault::Delay) => "sink_delay",
            FaultKind::Link(Side::Sink, LinkFault::Half) => "sink_half",
            FaultKind::Link(Side::Sink, LinkFault::Late) => "sink_late",
            FaultKind::Restart(Side::Redis) => "redis_restart",
            FaultKind::Restart(Side::Sink) => "sink_restart",
            FaultKind::Stall(Side::Redis) => "redis_stall",
            FaultKind::Stall(Side::Sink) => "sink_stall",
            FaultKind::Flush => "script_flush",
            FaultKind::Cluster(ClusterFault::MasterKill) => "master_kill",
            FaultKind::Cluster(ClusterFault::MasterStall) => "master_stall",
            FaultKind::Cluster(ClusterFault::ReplicaKill) => "replica_kill",
            FaultKind::Cluster(ClusterFault::Failover) => "failover",
            FaultKind::Cluster(ClusterFault::SlotMove) => "slot_move",
            FaultKind::Cluster(ClusterFault::SlotAbort) => "slot_abort",
        }
    }

    /// Whether its target is an instance.
    fn targets_an_instance(self) -> bool {
        matches!(self, FaultKind::Kill | FaultKind::Stop | FaultKind::Term | FaultKind::Link(..))
    }

    /// The server that is its target, directly or by its connections.
    pub(super) fn side(self) -> Option<Side> {
        match self {
            FaultKind::Kill | FaultKind::Stop | FaultKind::Term => None,
            FaultKind::Link(side, _) | FaultKind::Restart(side) | FaultKind::Stall(side) => Some(side),
            FaultKind::Flush | FaultKind::Cluster(_) => Some(Side::Redis),
        }
    }

    /// How long it lasts, given a number from 0 to 1.
    fn lasts(self, share: f64) -> Duration {
        let (least, most) = match self {
            FaultKind::Kill | FaultKind::Term => (50, 1000),
            // A lease lasts 3 s.
            FaultKind::Stop => (3200, 4500),
            FaultKind::Link(_, LinkFault::Cut) => (0, 1200),
            FaultKind::Link(_, LinkFault::BlackHole | LinkFault::Late) => (1200, 4000),
            FaultKind::Link(_, LinkFault::Delay) => (800, 2500),
            FaultKind::Link(_, LinkFault::Half) | FaultKind::Flush => (0, 1),
            FaultKind::Restart(_) => (10, 800),
            FaultKind::Stall(_) => (300, 4000),
            // The replica takes over after a second and a half.
            FaultKind::Cluster(ClusterFault::MasterKill | ClusterFault::MasterStall) => (100, 5000),
            FaultKind::Cluster(ClusterFault::ReplicaKill | ClusterFault::SlotAbort) => (100, 2500),
            FaultKind::Cluster(ClusterFault::Failover | ClusterFault::SlotMove) => (0, 1),
        };
        Duration::from_millis(least) + Duration::from_millis(most - least).mul_f64(share)
    }

    /// Approximate time until everything works again.
    fn recovery_time(self) -> Duration {
        Duration::from_millis(match self {
            FaultKind::Kill | FaultKind::Restart(_) => 700,
            FaultKind::Term => 1000,
            FaultKind::Cluster(_) => 2000,
            _ => 200,
        })
    }
}

/// A planned fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Planned {
    /// Time since the beginning.
    pub(super) at: Duration,
    pub(super) fault_kind: FaultKind,
    /// The instance, if its target is not a server.
    pub(super) instance: Option<usize>,
    pub(super) lasts: Duration,
    /// The delay, for that kind of fault; its ms choose the target of a fault of the cluster.
    pub(super) delay: Duration,
    /// The direction, for faults that have one.
    pub(super) way: Way,
}

/// The faults of a round in order: of the kinds in `fault_kinds`, on `instances` instances, of which at least one stays well.
pub(super) fn plan(
    seed: u64,
    instances: usize,
    length: Duration,
    pause: Duration,
    fault_kinds: &[FaultKind],
) -> Vec<Planned> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut plan = Vec::new();
    let (mut at, mut pack) = (Duration::ZERO, Vec::new());
    // Until when each is affected: the instances, then Redis, then the sink.
    let mut ill = vec![Duration::ZERO; instances + 2];
    loop {
        // Independent intervals between faults, with an upper limit.
        let wait = -(1.0 - random.random::<f64>()).ln();
        at += pause.mul_f64(wait.min(4.0));
        if pack.is_empty() {
            pack = fresh_pack(fault_kinds, &mut random);
        }
        let Some(fault_kind) = pack.pop() else { return plan };
        let met = if fault_kind.targets_an_instance() {
            at = at.max(when_two_are_well(&ill[..instances]));
            let well: Vec<usize> = (0..instances).filter(|&instance| ill[instance] <= at).collect();
            *well.choose(&mut random).unwrap_or(&0)
        } else {
            let server = instances + usize::from(fault_kind.side() == Some(Side::Sink));
            at = at.max(ill[server]);
            server
        };
        let lasts = fault_kind.lasts(random.random());
        let delay = Duration::from_millis(random.random_range(5..=400));
        let way = if random.random() { Way::Up } else { Way::Down };
        if at >= length {
            return plan;
        }
        ill[met] = at + lasts + fault_kind.recovery_time();
        let instance = fault_kind.targets_an_instance().then_some(met);
        plan.push(Planned { at, fault_kind, instance, lasts, delay, way });
    }
}

/// All kinds in their numbers, shuffled.
fn fresh_pack(fault_kinds: &[FaultKind], random: &mut StdRng) -> Vec<FaultKind> {
    let all = FaultKind::all();
    let counted = all.into_iter().filter(|(fault_kind, _)| fault_kinds.contains(fault_kind));
    let mut pack: Vec<FaultKind> =
        counted.flat_map(|(fault_kind, count)| std::iter::repeat_n(fault_kind, count)).collect();
    pack.shuffle(random);
    pack
}

/// The earliest time at which two instances are well, so that one stays well if the other is the target. If there is only one
/// instance: when that one is well.
fn when_two_are_well(ill: &[Duration]) -> Duration {
    let mut until = ill.to_vec();
    until.sort_unstable();
    until.get(1).or(until.first()).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn fault_kinds() -> Vec<FaultKind> {
        FaultKind::all().into_iter().map(|(fault_kind, _)| fault_kind).collect()
    }

    fn long(seed: u64, instances: usize) -> Vec<Planned> {
        plan(seed, instances, Duration::from_secs(1200), Duration::from_millis(700), &fault_kinds())
    }

    #[test]
    fn the_same_seed_plans_the_same_faults_and_another_one_others() {
        assert_eq!(long(7, 4), long(7, 4));
        let faults =
            |seed| long(seed, 4).iter().map(|planned| (planned.fault_kind, planned.instance)).collect::<Vec<_>>();
        assert_ne!(faults(7), faults(8));
        let short = plan(7, 4, Duration::from_secs(60), Duration::from_millis(700), &fault_kinds());
        assert_eq!(short[..], long(7, 4)[..short.len()], "a longer one begins as a shorter one");
    }

    #[test]
    fn every_fault_kind_is_in_the_first_sixty_and_has_its_own_name() {
        for seed in 0..50 {
            let kinds: BTreeSet<FaultKind> = long(seed, 3).iter().take(60).map(|planned| planned.fault_kind).collect();
            assert_eq!(kinds, fault_kinds().into_iter().collect());
        }
        let names: BTreeSet<&str> = fault_kinds().into_iter().map(FaultKind::name).collect();
        assert_eq!(names.len(), 24);
    }

    #[test]
    fn faults_leave_one_instance_healthy_and_never_overlap_on_an_instance() {
        for (seed, instances) in [(1, 2), (2, 3), (3, 4), (4, 8)] {
            let mut ill = vec![Duration::ZERO; instances];
            for planned in long(seed, instances) {
                let Some(instance) = planned.instance else { continue };
                assert!(ill[instance] <= planned.at, "{planned:?}");
                ill[instance] = planned.at + planned.lasts;
                assert!(ill.iter().any(|until| *until <= planned.at), "{planned:?}");
            }
        }
    }

    #[test]
    fn four_instances_take_about_a_fault_a_second() {
        for seed in 0..20 {
            let faults = long(seed, 4).len();
            assert!((1000..=2000).contains(&faults), "{faults} in 1200 s");
        }
    }

    #[test]
    fn kinds_that_cannot_be_carried_out_are_left_out() {
        let fault_kinds = [FaultKind::Kill, FaultKind::Link(Side::Redis, LinkFault::Cut)];
        let plan = plan(1, 3, Duration::from_secs(100), Duration::from_secs(1), &fault_kinds);
        assert!(plan.len() > 50 && plan.iter().all(|planned| fault_kinds.contains(&planned.fault_kind)));
        assert!(plan.windows(2).all(|two| two[0].at <= two[1].at));
    }
}
