//! The names and texts under which the metrics are shown.

use prometheus_client::registry::Unit;

use super::Metrics;

impl Metrics {
    pub(super) fn register_tasks(&mut self) {
        let r = &mut self.registry;
        r.register("puts", "Tasks put, by result", self.puts.clone());
        r.register("cancels", "Tasks cancelled, by result", self.cancels.clone());
        r.register("passed_over", "Occurrences passed over, by catch-up", self.passed_over.clone());
        r.register("dead", "Occurrences that became dead, by reason", self.dead.clone());
        let copies = "Copies of dead messages for the dead-letter destination, by result";
        r.register("dead_copies", copies, self.dead_copies.clone());
        r.register("requeues", "Dead occurrences requeued, by result", self.requeues.clone());
        r.register("discards", "Dead occurrences discarded, by result", self.discards.clone());
        let actions = "Pauses, resumes, triggers, skips and bulk cancels, by action and result; bulk counts each task";
        r.register("actions", actions, self.actions.clone());
        r.register("dead_kept", "Dead occurrences now", self.dead_kept.clone());
        r.register("dead_dropped", "Dead occurrences dropped for age or by the cap", self.dead_dropped.clone());
    }

    pub(super) fn register_lanes(&mut self) {
        let r = &mut self.registry;
        let late = "Time from due to the sink's confirmation, on the timeline's clock";
        r.register_with_unit("lateness", late, Unit::Seconds, self.lateness.clone());
        r.register("claims", "Claims that took occurrences", self.claims.clone());
        r.register("claims_empty", "Claims that found nothing", self.claims_empty.clone());
        r.register(
            "shards_owned",
            "Shards whose due tasks of the lane this instance claims first",
            self.shards_owned.clone(),
        );
        r.register("instances", "Instances on this timeline, with this one", self.instances.clone());
        r.register("claimed", "Occurrences claimed", self.claimed.clone());
        r.register(
            "claims_lost",
            "Claims of this instance whose lease expired before it settled them",
            self.claims_lost.clone(),
        );
        r.register(
            "leases_reaped",
            "Expired claims, of any instance, whose occurrences this instance returned",
            self.leases_reaped.clone(),
        );
        let reaped = "Occurrences that wait again because the lease of their claim expired";
        r.register("occurrences_reaped", reaped, self.occurrences_reaped.clone());
        r.register("stranded", "Occurrences found claimed without a lease; stays 0", self.stranded.clone());
        let unreadable = "Waiting occurrences whose record no instance has been able to parse";
        r.register("unreadable", unreadable, self.unreadable.clone());
        r.register(
            "removed",
            "Entries of a lane without a record, which a claim deleted; stays 0",
            self.removed.clone(),
        );
        r.register("pending", "Occurrences that wait", self.pending.clone());
        r.register("overdue", "Occurrences that wait and were due 1 s ago or earlier", self.overdue.clone());
        r.register("paused", "Tasks that are paused", self.paused.clone());
        let paused = "Whether the lane is paused, so that nothing of it is claimed: 0 or 1";
        r.register("lane_paused", paused, self.lane_paused.clone());
        r.register("in_flight", "Occurrences in flight, of all instances", self.in_flight.clone());
        let oldest = "Age of the oldest due occurrence without a verdict; 0 if there is none";
        r.register_with_unit("oldest_due", oldest, Unit::Seconds, self.oldest_due.clone());
        r.register(
            "lane_served",
            "1 if this instance serves the lane, 0 if the lane only has tasks",
            self.served.clone(),
        );
        r.register("lanes_unserved", "Lanes with tasks that this instance does not serve", self.lanes_unserved.clone());
    }

    pub(super) fn register_outside(&mut self) {
        let r = &mut self.registry;
        r.register("published", "Published messages, by outcome", self.published.clone());
        r.register("retries", "Publishes after the first of an occurrence in its claim", self.retries.clone());
        let publish = "Time from handing a message over to its outcome or timeout";
        r.register_with_unit("publish", publish, Unit::Seconds, self.publish_seconds.clone());
        let help = "Destinations at which messages fail";
        r.register("failing_destinations", help, self.failing_destinations.clone());
        r.register("breaker", "0 closed, 1 half-open, 2 open (the sink is unavailable)", self.breaker.clone());
        r.register("timeline_up", "1 while the timeline is reachable", self.timeline_up.clone());
        r.register("shards_away", "Shards of the timeline that are not reachable", self.shards_away.clone());
        let redirects = "Calls that a node of a cluster refused because of their slot";
        r.register("timeline_redirects", redirects, self.redirects.clone());
        let emptied = "Times that a shard in a cluster had lost its tasks";
        r.register("shards_emptied", emptied, self.shards_emptied.clone());
        r.register(
            "clock_steps",
            "Times that the clock of Redis was set by a second or more",
            self.clock_steps.clone(),
        );
        r.register(
            "timeline_lost",
            "Times that the timeline was found to be gone from Redis",
            self.timeline_lost.clone(),
        );
        let difference = "The clock of this machine minus the clock of Redis";
        r.register_with_unit("clock_difference", difference, Unit::Seconds, self.clock_difference.clone());
        r.register("timeline_calls", "Calls of the timeline, by verb and result", self.calls.clone());
        let call = "How long calls of the timeline took";
        r.register_with_unit("timeline_call", call, Unit::Seconds, self.call_seconds.clone());
        r.register("http_requests", "HTTP requests, by route and status", self.requests.clone());
    }
}
