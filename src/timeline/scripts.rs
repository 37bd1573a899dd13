//! The scripts: name, source, and what each takes. A test compares this page with the headers in `lua/`.

use super::Verb;

/// A script, and the names of its keys and arguments in order. A last name that ends in `..` stands for any number.
#[derive(Debug)]
pub struct Script {
    /// What it does; its word is the name of its file in `lua/`.
    pub verb: Verb,
    /// What Redis runs: the parts that it names, then its own text.
    pub source: &'static str,
    /// Its own text, which begins with a header.
    pub text: &'static str,
    /// Files of `lua/parts/`, in their order.
    pub parts: &'static [&'static str],
    /// What its KEYS are.
    pub keys: &'static [&'static str],
    /// What its ARGV are.
    pub arguments: &'static [&'static str],
}

impl Script {
    /// Whether a call with that many keys can be right.
    #[must_use]
    pub fn takes_keys(&self, number: usize) -> bool {
        match self.keys.last() {
            Some(last) if last.ends_with("..") => number >= self.keys.len() - 1,
            _ => number == self.keys.len(),
        }
    }
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
            text: include_str!(concat!("../../lua/", $name, ".lua")),
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
    ["lanes", "records", "revisions"],
    ["tasks", "changes", "crashes", "counts", "lanes", "largest", "due.."],
    ["now", "not_after", "mode", "wake", "lanes", "lane..", "task.."]
);
/// Looks at one task.
pub static GET: Script =
    script!(Get, "get", ["lanes"], ["tasks", "changes", "counts", "crashes", "due.."], ["now", "id", "lane.."]);
/// Takes a task out.
pub static CANCEL: Script = script!(
    Cancel,
    "cancel",
    ["lanes"],
    ["tasks", "changes", "crashes", "counts", "due.."],
    ["now", "not_after", "id", "lane.."]
);
/// Locks due occurrences.
pub static CLAIM: Script = script!(
    Claim,
    "claim",
    ["places", "records", "lock"],
    ["due", "leases", "claims", "tasks", "crashes", "counts", "largest"],
    ["now", "not_after", "token", "lease", "max", "max_bytes", "newest_first", "after", "after_member", "wake", "lane"]
);
/// Locks due occurrences that ordinary claims leave out.
pub static CLAIM_SUSPECTS: Script = script!(
    ClaimSuspects,
    "claim_suspects",
    ["places", "lock"],
    ["due", "leases", "claims", "tasks", "crashes", "counts"],
    ["now", "not_after", "token", "lease", "max", "max_bytes", "unreadable", "after", "after_member"]
);
/// Writes verdicts back.
pub static SETTLE: Script = script!(
    Settle,
    "settle",
    [],
    ["due", "leases", "claims", "tasks", "changes", "crashes", "counts", "dead", "dead:records"],
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
        "ended..",
        "next..",
        "counted..",
        "back..",
        "burial.."
    ]
);
/// Renews leases.
pub static EXTEND: Script = script!(Extend, "extend", [], ["leases.."], ["now", "lease", "claim.."]);
/// Ends claims whose lease has passed.
pub static REAP: Script = script!(
    Reap,
    "reap",
    [],
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
        "largest"
    ],
    ["now", "not_after", "lease", "served", "dead_keep", "wake", "lane"]
);
/// Looks at a shard.
pub static GLANCE: Script =
    script!(Glance, "glance", [], ["lanes", "dead", "due.."], ["now", "lease", "dead_keep", "depth", "lane.."]);
/// Puts a dead occurrence back.
pub static REQUEUE: Script = script!(
    Requeue,
    "requeue",
    ["lanes", "records"],
    ["dead", "dead:records", "tasks", "changes", "crashes", "lanes", "largest", "due.."],
    ["now", "not_after", "parent", "due", "buried", "wake", "lane.."]
);
/// Forgets a dead occurrence.
pub static DISCARD: Script =
    script!(Discard, "discard", [], ["dead", "dead:records"], ["now", "not_after", "key", "buried"]);
/// Looks through the dead.
pub static BROWSE: Script = script!(
    Browse,
    "browse",
    ["places"],
    ["dead", "dead:records"],
    ["now", "after", "after_key", "from", "to", "lane", "reason", "max", "max_bytes", "whole"]
);
/// Looks at one dead occurrence.
pub static SHOW: Script = script!(Show, "show", [], ["dead", "dead:records"], ["now", "key"]);

/// All of them.
pub static ALL: [&Script; 13] = [
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
];

words! {
    /// The words that replies begin with, and those that put answers of each task.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Code {
        /// The call came after its `not_after`; nothing was written.
        Late = "late",
        /// More stands there than one call reads; nothing was written for this task.
        Again = "again",
        /// A lane that holds the task was not declared; nothing was written.
        Elsewhere = "elsewhere",
        /// No such task, or no such dead occurrence.
        Unknown = "unknown",
        /// A dead occurrence of which too little is left to requeue it; nothing was written.
        Unreadable = "unreadable",
        /// Held by a claim, or the key would go to another message.
        InFlight = "in_flight",
        /// A put that was carried out, with an answer for each task.
        Put = "put",
        /// There was no task.
        Created = "created",
        /// Another stood there.
        Replaced = "replaced",
        /// The same stood there.
        Unchanged = "unchanged",
        /// Another stood there, in mode `post`.
        KeyReused = "key_reused",
        /// The due is out of range.
        BadDue = "bad_due",
        /// A task that was found.
        Held = "held",
        /// A task that was taken out.
        Cancelled = "cancelled",
        /// A claim, possibly of nothing.
        Claimed = "claimed",
        /// Verdicts that were written.
        Settled = "settled",
        /// No such claim (any more).
        Lost = "lost",
        /// Leases that were renewed, or not.
        Extended = "extended",
        /// A lane that was reaped.
        Reaped = "reaped",
        /// A shard that was looked at.
        Glanced = "glanced",
        /// A dead occurrence that waits again.
        Requeued = "requeued",
        /// A dead occurrence that was forgotten.
        Discarded = "discarded",
        /// The dead that were looked through.
        Browsed = "browsed",
        /// A dead occurrence that was found.
        Shown = "shown",
    }
}
