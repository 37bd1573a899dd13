//! The Lua scripts: name, source, keys and arguments. A test compares this file with the headers in `lua/`.

use super::Verb;

/// A script with the names of its keys and arguments, in order. A name that ends in `..` stands for any number of
/// them.
#[derive(Debug)]
pub struct Script {
    /// The verb; its name is also the name of the file in `lua/`.
    pub verb: Verb,
    /// What Redis runs: the parts, then the script itself.
    pub source: &'static str,
    /// The script itself, which begins with a header.
    pub own_source: &'static str,
    /// Files of `lua/parts/` that precede the script, in order.
    pub parts: &'static [&'static str],
    /// The names of its KEYS.
    pub keys: &'static [&'static str],
    /// The names of its ARGV.
    pub arguments: &'static [&'static str],
}

macro_rules! script {
    ($verb:ident, $name:literal, [$($part:literal),*], [$($key:literal),*], [$($argument:literal),*]) => {
        Script {
            verb: Verb::$verb,
            source: concat!(
                include_str!("../../lua/parts/prelude.lua"),
                $(include_str!(concat!("../../lua/parts/", $part, ".lua")),)*
                include_str!(concat!("../../lua/", $name, ".lua"))
            ),
            own_source: include_str!(concat!("../../lua/", $name, ".lua")),
            parts: &["prelude", $($part),*],
            keys: &[$($key),*],
            arguments: &[$($argument),*],
        }
    };
}

/// Creates or replaces tasks.
pub static PUT: Script = script!(
    Put,
    "put",
    ["lanes", "records", "revisions", "marks", "pauses"],
    ["tasks", "changes", "crashes", "counts", "lanes", "largest", "pauses", "due.."],
    ["now", "not_after", "mode", "wake", "lanes", "lane..", "task.."]
);
/// Reads one task.
pub static GET: Script = script!(
    Get,
    "get",
    ["lanes", "suspects", "pauses"],
    ["tasks", "changes", "counts", "crashes", "pauses", "due.."],
    ["now", "id", "lane.."]
);
/// Removes a task.
pub static CANCEL: Script = script!(
    Cancel,
    "cancel",
    ["lanes", "marks", "pauses"],
    ["tasks", "changes", "crashes", "counts", "pauses", "due.."],
    ["now", "not_after", "id", "revision", "lane.."]
);
/// Claims due occurrences.
pub static CLAIM: Script = script!(
    Claim,
    "claim",
    ["places", "records", "suspects", "claim_writes", "paused_lanes"],
    ["due", "leases", "claims", "tasks", "crashes", "counts", "largest", "pauses:lanes"],
    ["now", "not_after", "token", "lease", "max", "max_bytes", "newest_first", "after", "after_member", "wake", "lane"]
);
/// Claims due occurrences that ordinary claims leave out.
pub static CLAIM_SUSPECTS: Script = script!(
    ClaimSuspects,
    "claim_suspects",
    ["places", "suspects", "claim_writes", "paused_lanes"],
    ["due", "leases", "claims", "tasks", "crashes", "counts", "pauses:lanes"],
    ["now", "not_after", "token", "lease", "max", "max_bytes", "unreadable", "after", "after_member", "lane"]
);
/// Writes verdicts.
pub static SETTLE: Script = script!(
    Settle,
    "settle",
    ["marks", "dead", "pauses"],
    [
        "due",
        "leases",
        "claims",
        "tasks",
        "changes",
        "crashes",
        "counts",
        "dead",
        "dead:records",
        "dead:order",
        "dead:bytes",
        "pauses"
    ],
    [
        "now",
        "token",
        "rest",
        "lease",
        "dead_cap",
        "wake",
        "lane",
        "quiet",
        "ended",
        "ended_dead",
        "nexts",
        "nexts_dead",
        "backs",
        "begun",
        "unreadable",
        "named",
        "dead_cap_bytes",
        "ended..",
        "next..",
        "counted..",
        "back..",
        "died.."
    ]
);
/// Renews leases.
pub static EXTEND: Script = script!(Extend, "extend", [], ["leases.."], ["now", "lease", "claim.."]);
/// Ends expired claims.
pub static REAP: Script = script!(
    Reap,
    "reap",
    ["marks", "dead", "pauses", "paused_lanes"],
    [
        "due",
        "leases",
        "claims",
        "tasks",
        "changes",
        "crashes",
        "counts",
        "dead",
        "dead:records",
        "lanes",
        "reap-at",
        "largest",
        "dead:order",
        "dead:bytes",
        "pauses:lanes",
        "pauses"
    ],
    ["now", "not_after", "lease", "served", "dead_keep", "wake", "lane"]
);
/// Reads the state of a shard.
pub static GLANCE: Script = script!(
    Glance,
    "glance",
    ["lists", "paused_lanes"],
    ["lanes", "dead", "pauses:lanes", "due+leases+reap-at.."],
    ["now", "lease", "dead_keep", "depth", "lane.."]
);
/// Returns a dead occurrence to its lane.
pub static REQUEUE: Script = script!(
    Requeue,
    "requeue",
    ["lanes", "records", "dead", "pauses"],
    ["dead", "dead:records", "tasks", "changes", "crashes", "lanes", "largest", "dead:order", "dead:bytes", "due.."],
    ["now", "not_after", "parent", "due", "died", "wake", "lane.."]
);
/// Deletes a dead occurrence.
pub static DISCARD: Script = script!(
    Discard,
    "discard",
    ["dead"],
    ["dead", "dead:records", "dead:order", "dead:bytes"],
    ["now", "not_after", "key", "died"]
);
/// Lists dead occurrences.
pub static BROWSE: Script = script!(
    Browse,
    "browse",
    ["places"],
    ["dead", "dead:records"],
    ["now", "after", "after_key", "from", "to", "lane", "reason", "max", "max_bytes", "whole", "prefix"]
);
/// Reads one dead occurrence.
pub static SHOW: Script = script!(Show, "show", [], ["dead", "dead:records"], ["now", "key"]);
/// Lists tasks of a lane.
pub static SCAN: Script = script!(
    Scan,
    "scan",
    ["lists", "pauses"],
    ["due"],
    ["now", "cursor", "count", "status", "prefix", "text", "from", "to"]
);
/// Lists tasks of a lane by due.
pub static UPCOMING: Script =
    script!(Upcoming, "upcoming", ["places", "lists"], ["due"], ["now", "after", "after_member", "max", "prefix"]);
/// Counts the tasks of a lane.
pub static COUNT: Script = script!(Count, "count", ["lists"], ["due"], ["now", "border.."]);
/// Pauses or resumes a task.
pub static PAUSE: Script = script!(
    Pause,
    "pause",
    ["lanes", "marks", "pauses"],
    ["tasks", "changes", "crashes", "pauses", "due.."],
    ["now", "not_after", "id", "action", "about", "wake", "lane.."]
);
/// Pauses or resumes a lane.
pub static PAUSE_LANE: Script = script!(
    PauseLane,
    "pause_lane",
    ["lists", "paused_lanes"],
    ["due", "pauses:lanes"],
    ["now", "not_after", "lane", "action", "until", "about"]
);

/// Gives a task another due.
pub static MOVE_DUE: Script = script!(
    MoveDue,
    "move_due",
    ["lanes", "marks", "pauses"],
    ["tasks", "changes", "crashes", "counts", "pauses", "due.."],
    ["now", "not_after", "id", "due", "expected", "revision", "counts", "wake", "lane.."]
);

/// All scripts.
pub static ALL: [&Script; 19] = [
    &PUT,
    &GET,
    &CANCEL,
    &CLAIM,
    &CLAIM_SUSPECTS,
    &SETTLE,
    &EXTEND,
    &REAP,
    &GLANCE,
    &REQUEUE,
    &DISCARD,
    &BROWSE,
    &SHOW,
    &SCAN,
    &UPCOMING,
    &COUNT,
    &PAUSE,
    &PAUSE_LANE,
    &MOVE_DUE,
];

string_enum! {
    /// The first word of a reply, and the words for the single tasks of a put.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Code {
        /// The call came after its `not_after`; nothing was written.
        Late = "late",
        /// The script did not look at this task, because it had already read too many bytes. Ask again.
        Again = "again",
        /// The task waits in a lane that the call did not name. Nothing was written.
        Elsewhere = "elsewhere",
        /// No such task, or no such dead occurrence.
        Unknown = "unknown",
        /// The record of the dead occurrence is damaged. Nothing was written.
        Unreadable = "unreadable",
        /// A claim holds the task, or another message has the key.
        InFlight = "in_flight",
        /// The answers of a put, one for each task.
        Put = "put",
        /// There was no such task.
        Created = "created",
        /// The task replaced another one.
        Replaced = "replaced",
        /// An equal task exists.
        Unchanged = "unchanged",
        /// A task with another body exists, in mode `post`.
        KeyReused = "key_reused",
        /// The due is out of range.
        BadDue = "bad_due",
        /// The task was found.
        Found = "found",
        /// The task was removed.
        Cancelled = "cancelled",
        /// The answer of a claim, possibly without occurrences.
        Claimed = "claimed",
        /// The verdicts were written.
        Settled = "settled",
        /// The claim does not exist any more.
        Lost = "lost",
        /// For each lease whether it was renewed.
        Extended = "extended",
        /// The lane was reaped.
        Reaped = "reaped",
        /// The state of the shard.
        Glanced = "glanced",
        /// The dead occurrence waits again.
        Requeued = "requeued",
        /// The dead occurrence was deleted.
        Discarded = "discarded",
        /// A page of dead occurrences.
        Browsed = "browsed",
        /// The dead occurrence was found.
        Shown = "shown",
        /// A part of the tasks of a lane.
        Scanned = "scanned",
        /// Tasks of a lane that wait.
        Upcoming = "upcoming",
        /// How many tasks of a lane wait, are in flight or are paused.
        Counted = "counted",
        /// The lane or the task is paused.
        Paused = "paused",
        /// The lane or the task is not paused any more.
        Resumed = "resumed",
        /// The task has another due.
        Moved = "moved",
        /// The task has another due or another record than the caller expects. Nothing was written.
        Mismatch = "mismatch",
    }
}
