//! Derives from the answers what must, may and must not be published of one task. Pure; the tests feed it by hand.
//!
//! A user makes one request after the other about a task. Each put makes a version, unless it repeats the
//! current one. The occurrences of a version must be published, may be, or must not be. After a request without a
//! definite answer it is unknown which version exists. A request without any answer (the instance died or was stopped)
//! may take effect at any later time, so its user at most repeats it, and makes no other request about that task.

use std::fmt::Write as _;
use std::time::Duration;

use tokio::time::Instant;

use super::version::{Dues, EndedBefore, Plan, Version};

/// A definite answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DefiniteAnswer {
    /// A put created the task; an occurrence of a cancelled one may still be delivered with this due.
    Created { due: i64, in_flight: Option<i64> },
    /// A put replaced the task; an occurrence of the former version may still be delivered.
    Replaced { due: i64, in_flight: Option<i64> },
    /// An equal task exists.
    Unchanged { due: i64 },
    /// 409, or 422 because the schedule has already ended: nothing was changed.
    Refused,
    /// A cancel removed the task; an occurrence that was handed out before may still be delivered.
    Cancelled { handed_out: Option<i64> },
    /// A cancel of a task in flight; that occurrence may still be delivered.
    CancelledInFlight { due: i64 },
    /// There is no such task.
    Unknown,
}

/// The state that a request found.
enum Found {
    Nothing,
    Waiting,
    InFlight(i64),
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    /// The version that a put makes; `None` for a cancel.
    version: Option<usize>,
    /// Whether it was sent before and may have taken effect.
    pub(super) unsure: bool,
    /// Whether it was sent before and may still take effect.
    pub(super) may_take_effect_later: bool,
    /// When it was sent first.
    sent: Instant,
}

/// An instance sends a put again on a new connection to Redis, which it opens this long after the old one ended at the
/// earliest (half of `BACKOFF` of `timeline::redis::link`).
pub(super) const MIN_RECONNECT_TIME: Duration = Duration::from_millis(50);

impl Op {
    /// A request that is about to be sent.
    fn new(version: Option<usize>) -> Op {
        Op { version, unsure: false, may_take_effect_later: false, sent: Instant::now() }
    }
}

/// A message that was read.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) due: i64,
    /// The version with its payload; `None` if there is none.
    pub(super) version: Option<usize>,
}

/// Everything that is known of one task.
#[derive(Clone, Debug, Default)]
pub(super) struct Entry {
    pub(super) versions: Vec<Version>,
    /// The versions of which one may exist, the oldest first.
    standing: Vec<usize>,
    /// Whether possibly none exists.
    gone: bool,
    op: Option<Op>,
    /// Whether a request may still take effect.
    pub(super) request_may_take_effect: bool,
    /// It was put without a trace, in a batch or under a generated id.
    pub(super) is_untraced: bool,
    /// Whether no more requests are made.
    pub(super) over: bool,
    pub(super) seen: Vec<Seen>,
    /// Requests and answers as text.
    pub(super) history: String,
}

impl Entry {
    /// A put is about to be sent; returns its version.
    pub(super) fn put(&mut self, plan: Plan, lane: &'static str) -> usize {
        let dues = if let Plan::At(due) = plan { Dues::One(due) } else { Dues::Untold };
        // Until it is answered, any due with its payload is accepted, unless the plan names the due.
        let (any, some, must_below, may_below) = (dues == Dues::Untold, false, i64::MIN, i64::MAX);
        let (answered_at, behind, ran) = (i64::MAX, None, EndedBefore::No);
        let (added, removed) = (Vec::new(), Vec::new());
        self.versions.push(Version {
            plan,
            lane,
            dues,
            any,
            some,
            must_below,
            may_below,
            answered_at,
            behind,
            ran,
            added,
            removed,
        });
        self.op = Some(Op::new(Some(self.versions.len() - 1)));
        self.versions.len() - 1
    }

    /// The current version is about to be put again; `None` if it is unknown.
    pub(super) fn put_again(&mut self) -> Option<usize> {
        let (&[version], false) = (&self.standing[..], self.gone) else { return None };
        self.op = Some(Op::new(Some(version)));
        Some(version)
    }

    /// A cancel is about to be sent.
    pub(super) fn cancel(&mut self) {
        self.op = Some(Op::new(None));
    }

    /// The request was answered 503: it took effect before, or never will.
    pub(super) fn unsure(&mut self) {
        self.history.push_str("; 503");
        if let Some(op) = &mut self.op {
            op.unsure = true;
        }
    }

    /// The request was sent this long ago.
    #[cfg(test)]
    pub(super) fn sent_before(&mut self, time: Duration) {
        if let Some(op) = &mut self.op {
            op.sent -= time;
        }
    }

    /// The request has no answer: it took effect, may later, or never will.
    pub(super) fn unanswered(&mut self) {
        self.history.push_str("; no answer");
        if let Some(op) = &mut self.op {
            (op.unsure, op.may_take_effect_later) = (true, true);
        }
        self.request_may_take_effect = true;
    }

    /// The request is not repeated; whether it took effect stays unknown.
    pub(super) fn leave(&mut self) {
        let Some(Op { version, unsure, may_take_effect_later, .. }) = self.op.take() else { return };
        self.history.push_str("; left at that");
        match version {
            // It was never sent, so its version does not exist.
            Some(version) if !unsure && !self.standing.contains(&version) => self.versions.truncate(version),
            _ if !unsure => {}
            Some(version) => {
                self.versions[version].any |=
                    may_take_effect_later || !matches!(self.versions[version].plan, Plan::At(_));
                if !self.standing.contains(&version) {
                    self.standing.push(version);
                }
            }
            None => self.gone = true,
        }
    }

    /// Notes the answer to the current request; `at` is the latest time, on the timeline's clock, at which it arrived. After
    /// `min_repeat_time` an instance may have sent the request twice.
    ///
    /// # Errors
    /// Why no correct instance can give this answer.
    pub(super) fn note_answer(
        &mut self,
        answer: DefiniteAnswer,
        at: i64,
        min_repeat_time: Duration,
    ) -> Result<(), String> {
        let Some(mut op) = self.op.take() else { return Err("an answer to nothing".to_owned()) };
        // The instance may have sent the put twice. The first copy may have put this version, and its occurrence may
        // have been published, before the second copy was answered.
        op.unsure |= op.version.is_some() && op.sent.elapsed() >= min_repeat_time;
        _ = write!(self.history, "; {answer:?} by {at}");
        let fault = self.contradiction(op, answer);
        let found = match answer {
            DefiniteAnswer::Created { in_flight: Some(due), .. }
            | DefiniteAnswer::Replaced { in_flight: Some(due), .. } => Found::InFlight(due),
            DefiniteAnswer::Cancelled { handed_out: Some(due) } | DefiniteAnswer::CancelledInFlight { due } => {
                Found::InFlight(due)
            }
            DefiniteAnswer::Created { .. } | DefiniteAnswer::Unknown => Found::Nothing,
            DefiniteAnswer::Replaced { .. } | DefiniteAnswer::Cancelled { .. } => Found::Waiting,
            DefiniteAnswer::Unchanged { .. } if !op.unsure => return fault.map_or(Ok(()), Err),
            // The first, unanswered request did it; what that one found is unknown.
            DefiniteAnswer::Unchanged { .. } => Found::Nothing,
            DefiniteAnswer::Refused if op.unsure => {
                // It may have been refused because of the occurrence of its own first request; leave that open.
                self.op = Some(op);
                self.leave();
                return fault.map_or(Ok(()), Err);
            }
            DefiniteAnswer::Refused => {
                // The former version still exists; the new one does not.
                if let Some(version) = op.version.filter(|version| !self.standing.contains(version)) {
                    self.versions[version].any = false;
                    self.versions[version].cut(i64::MIN, i64::MIN);
                }
                return fault.map_or(Ok(()), Err);
            }
        };
        // The put repeated the current version, which exists or has ended by itself.
        let again = self.standing().is_some() && op.version.is_some_and(|version| self.standing.contains(&version));
        self.end_former(op, &found, at);
        self.gone = op.version.is_none();
        self.standing = op.version.into_iter().collect();
        if let (
            Some(version),
            DefiniteAnswer::Created { due, .. }
            | DefiniteAnswer::Replaced { due, .. }
            | DefiniteAnswer::Unchanged { due },
        ) = (op.version, answer)
        {
            if again {
                let ran = &mut self.versions[version].ran;
                *ran = match answer {
                    DefiniteAnswer::Created { .. } => EndedBefore::Yes,
                    _ if *ran == EndedBefore::No => EndedBefore::Maybe,
                    _ => *ran,
                };
            } else {
                let unchanged = matches!(answer, DefiniteAnswer::Unchanged { .. });
                self.versions[version].promise(due, op, unchanged);
                self.versions[version].answered_at = at;
                self.versions[version].behind = match found {
                    Found::InFlight(due) => Some(due),
                    _ => None,
                };
            }
        }
        fault.map_or(Ok(()), Err)
    }

    /// Updates the versions that may have existed.
    fn end_former(&mut self, op: Op, found: &Found, at: i64) {
        let alone = self.standing.len() == 1 && !self.gone;
        let newest = self.standing.last().copied();
        for index in self.standing.iter().copied().filter(|index| Some(*index) != op.version) {
            let former = &mut self.versions[index];
            match found {
                // Another request may have ended it, so nothing of it is due afterwards.
                _ if op.unsure || Some(index) != newest => former.cut(i64::MIN, at + 1),
                Found::Waiting => former.withdraw(at),
                Found::InFlight(due) => former.withdraw_in_flight(*due, alone, at),
                // It had ended by itself: everything is published.
                Found::Nothing if alone => {}
                Found::Nothing => former.cut(i64::MIN, at + 1),
            }
        }
    }

    /// Why an answer contradicts the earlier ones, if it does.
    fn contradiction(&self, op: Op, answer: DefiniteAnswer) -> Option<String> {
        let new = op.version.is_some_and(|version| !self.standing.contains(&version));
        let nothing = self.standing.is_empty() && !op.unsure;
        let (due, in_flight) = match answer {
            DefiniteAnswer::Created { due, in_flight } | DefiniteAnswer::Replaced { due, in_flight } => {
                (Some(due), in_flight)
            }
            DefiniteAnswer::Unchanged { due } => (Some(due), None),
            DefiniteAnswer::Cancelled { handed_out } => (None, handed_out),
            DefiniteAnswer::CancelledInFlight { due } => (None, Some(due)),
            DefiniteAnswer::Refused | DefiniteAnswer::Unknown => (None, None),
        };
        let asked = op.version.map(|version| self.versions[version].plan);
        if let (Some(Plan::At(asked)), Some(due)) = (asked, due)
            && asked != due
        {
            return Some(format!("put at {asked}, answered with {due}"));
        }
        if let Some(due) = in_flight
            && !self.versions.iter().any(|version| version.names(due))
        {
            return Some(format!("{due} is in flight, which was never promised"));
        }
        match answer {
            DefiniteAnswer::Replaced { .. } | DefiniteAnswer::Cancelled { .. } if nothing => {
                Some("it stood when nothing could".to_owned())
            }
            DefiniteAnswer::Unchanged { .. } if new && !op.unsure => Some("another body was `unchanged`".to_owned()),
            DefiniteAnswer::Replaced { .. } if !new => Some("an equal body was `replaced`".to_owned()),
            DefiniteAnswer::Created { in_flight: Some(_), .. } if self.standing().is_some() && !op.unsure => {
                Some("it was cancelled by nobody".to_owned())
            }
            _ => None,
        }
    }

    /// Nothing more is asked of it.
    pub(super) fn end(&mut self) {
        self.leave();
        self.over = true;
        if self.standing.len() > 1 || self.gone {
            for &index in &self.standing {
                self.versions[index].must_below = i64::MIN;
                self.versions[index].some = false;
            }
        }
    }

    /// Changes the version that exists, or has ended by itself.
    pub(super) fn steer(&mut self, act: impl FnOnce(&mut Version)) {
        if let (&[version], false) = (&self.standing[..], self.gone) {
            act(&mut self.versions[version]);
        }
    }

    /// The version that exists, or has ended by itself, if that is certain.
    pub(super) fn standing(&self) -> Option<&Version> {
        match self.standing[..] {
            [version] if !self.gone => self.versions.get(version),
            _ => None,
        }
    }

    /// Whether the occurrence was read, with this version's payload.
    pub(super) fn has(&self, version: usize, due: i64) -> bool {
        self.seen.iter().any(|seen| seen.due == due && seen.version == Some(version))
    }

    /// Whether every required occurrence was read.
    pub(super) fn is_complete(&self) -> bool {
        self.versions.iter().enumerate().all(|(index, version)| {
            (!version.some || self.seen.iter().any(|seen| seen.version == Some(index)))
                && version.must().all(|due| self.has(index, due))
        })
    }
}
