//! Claims as their holders know them.

use punctual::task::{Counts, Member};
use punctual::timeline::{DeadRecord, Occurrence, Settlement, Verdict};

use super::choices::Named;
use super::copies::Copy;
use super::ledger::LAST;
use super::rules::{Kind, Rules, due, read_record, record, small};
use super::world::{key_of, member_of};

/// A claim as its holder knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Claim {
    pub(super) token: u8,
    pub(super) lane: u8,
    /// Age at which the last confirmed lease ends; for a claim without a reply, its `not_after`.
    pub(super) until: u8,
    /// Its occurrences; `None` while the reply is missing.
    pub(super) items: Option<Vec<Item>>,
    /// A settle without an answer: the holder repeats it before it settles anything else.
    pub(super) sent: Option<Sent>,
}

/// An occurrence as its holder knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Item {
    pub(super) copy: Copy,
    kind: Kind,
    lane: u8,
    /// Due of a requeued occurrence, whose key is in `copy`.
    pub(super) requeued: Option<u8>,
    pub(super) status: Status,
}

/// What the holder knows of an occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Status {
    Idle,
    /// The record cannot be read.
    Unreadable,
    /// A publish has begun; there is no definite answer.
    Begun,
    Accepted,
    Rejected,
}

/// The occurrences that a settle names, and whether it returns the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Sent {
    pub(super) named: Vec<Item>,
    pub(super) back: bool,
}

impl Item {
    /// An occurrence of a claim's reply.
    pub(super) fn new(occurrence: &Occurrence, id: u8, lane: u8) -> Item {
        let (kind, payload) = read_record(&occurrence.record);
        let requeued = occurrence.member.requeued_key().map(|_| small(occurrence.due));
        let due = small(occurrence.member.key(occurrence.due).due);
        Item { copy: Copy { id, due, payload }, kind, lane, requeued, status: Status::Idle }
    }

    pub(super) fn member(&self) -> Member {
        match self.requeued {
            Some(_) => Member::requeued(&key_of(self.copy.id, self.copy.due)),
            None => member_of(self.copy.id),
        }
    }

    pub(super) fn score(&self) -> u8 {
        self.requeued.unwrap_or(self.copy.due)
    }

    pub(super) fn settlement(&self, rules: Rules) -> Settlement {
        let goes_on = self.kind == Kind::Every && self.requeued.is_none() && self.copy.due < LAST;
        let next = due(self.copy.due + 1);
        let counts = Counts::default();
        let dead_record = || DeadRecord {
            record: record(self.kind, self.copy.due, self.copy.payload, self.lane),
            reason: "rejected".into(),
            detail: String::new(),
        };
        let verdict = match self.status {
            Status::Idle => Verdict::Back { begun: false },
            Status::Unreadable => Verdict::Unreadable,
            Status::Begun => Verdict::Back { begun: rules.tells_begun() },
            Status::Accepted if goes_on => Verdict::Next { due: next, counts },
            Status::Accepted => Verdict::Finished,
            Status::Rejected if goes_on => Verdict::DeadNext { dead_record: dead_record(), due: next, counts },
            Status::Rejected => Verdict::Dead(dead_record()),
        };
        Settlement { member: self.member(), due: due(self.score()), verdict }
    }
}

impl Claim {
    /// Whether a settle was sent that removes this item from the claim.
    pub(super) fn lets_go_of(&self, item: &Item) -> bool {
        let named = |sent: &Sent| sent.named.iter().any(|named| named.member() == item.member());
        self.sent.as_ref().is_some_and(|sent| sent.back || named(sent))
    }

    /// The settle for this choice.
    pub(super) fn names(&self, named: Named) -> Sent {
        let items = self.items.iter().flatten().copied();
        let (least, back) = match named {
            Named::All => (Status::Idle, false),
            Named::Decided => (Status::Accepted, false),
            Named::Touched => (Status::Unreadable, true),
            Named::Nothing => return Sent { named: Vec::new(), back: true },
        };
        Sent { named: items.filter(|item| item.status >= least).collect(), back }
    }
}
