//! The limits of a caller. The rules for lanes, ids and destinations are in [`AllowedTasks`], those for the number of puts
//! here.
//!
//! [`access`](super::access) finds the caller of a request by its token. A token without limits reaches everything that
//! its scopes allow, and so does every caller while no token is configured.

use std::time::Duration;

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::Api;
use super::problem::Problem;
use crate::engine::{AllowedTasks, Intake, LaneState, NotAllowed};
use crate::task::{Lane, Message, TaskId};

/// How long the depth of the lanes is used before it is read again.
const DEPTH_INTERVAL: Duration = Duration::from_secs(1);

/// The limits of a token. The default has none.
#[derive(Clone, Debug, Default)]
pub struct TokenLimits {
    /// The tasks that the token may use.
    pub allowed: AllowedTasks,
    /// Puts are refused while this many tasks wait, are in flight or are paused in the lanes of the token.
    pub pending_max: Option<u64>,
    /// The rate of its puts.
    pub puts: Option<PutRate>,
}

/// A rate of puts, which may all come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutRate {
    /// Number of puts, 1 or more.
    pub puts: u32,
    /// In this time.
    pub per: Duration,
}

/// A caller with its limits, and what it has used of them at this instance.
pub(super) struct Caller {
    /// The name of the token; `None` without tokens.
    name: Option<String>,
    limits: TokenLimits,
    rate: Mutex<RateUse>,
    depth: Mutex<LaneDepth>,
}

/// The puts that a caller may make now.
struct RateUse {
    left: f64,
    at: Instant,
}

/// How many tasks wait, are in flight or are paused in the lanes of a caller.
#[derive(Default)]
struct LaneDepth {
    read: Option<Instant>,
    tasks: u64,
    /// Number of puts since then.
    puts: u64,
}

impl Caller {
    pub(super) fn new(name: Option<String>, limits: TokenLimits) -> Caller {
        let left = limits.puts.map_or(0.0, |rate| f64::from(rate.puts));
        let rate = Mutex::new(RateUse { left, at: Instant::now() });
        Caller { name, limits, rate, depth: Mutex::default() }
    }

    /// The name of the token; `None` without tokens.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Whether the caller has any limit. It then may not use routes that concern the tasks of all callers.
    pub(super) fn is_limited(&self) -> bool {
        let TokenLimits { allowed, pending_max, puts } = &self.limits;
        !allowed.are_all() || pending_max.is_some() || puts.is_some()
    }

    /// The lane of tasks that name none.
    pub(super) fn default_lane(&self) -> Lane {
        self.limits.allowed.default_lane()
    }

    /// The prefix of all task ids that the caller may use, including the ids that the server generates for it.
    pub(super) fn prefix(&self) -> &str {
        self.limits.allowed.prefix.as_str()
    }

    /// Whether it may use a lane.
    pub(super) fn may_use(&self, lane: &Lane) -> bool {
        self.limits.allowed.has_lane(lane)
    }

    /// Whether the caller may use this id, in any lane. Dead occurrences with other ids are answered as unknown.
    pub(super) fn owns(&self, id: &TaskId) -> bool {
        self.limits.allowed.has_id(id)
    }

    /// Checks that it may use an id.
    ///
    /// # Errors
    /// 403, whether there is such a task or not.
    pub(super) fn check_id(&self, id: &TaskId) -> Result<(), Problem> {
        Ok(self.limits.allowed.check_id(id)?)
    }

    /// Whether the limits of the caller allow it to put this message into this lane. Faults of the lane or its sink are
    /// reported only if they do; otherwise the caller would learn about lanes that it may not use.
    pub(super) fn may_put(&self, intake: &Intake, lane: &Lane, message: Option<&Message>) -> bool {
        self.limits.allowed.may_put(intake, lane, message)
    }

    /// Checks that it may put a task, and counts the put.
    ///
    /// # Errors
    /// 403 if id, lane or destination is not its own; 429 if it puts too much.
    pub(super) fn admit_put(&self, api: &Api, id: &TaskId, lane: &Lane, message: &Message) -> Result<(), Problem> {
        self.check_id(id)?;
        self.limits.allowed.check_message(&api.intake, lane, message)?;
        self.count_put(api)
    }

    /// Counts a put, or a requeue of one dead occurrence.
    ///
    /// # Errors
    /// 429 if it puts too much.
    pub(super) fn count_put(&self, api: &Api) -> Result<(), Problem> {
        self.admit_numbers(|| (api.engine)().lanes, Instant::now())
    }

    /// Checks that it may requeue any number at once.
    ///
    /// # Errors
    /// 403 if its puts are limited in number.
    pub(super) fn check_bulk_requeue(&self) -> Result<(), Problem> {
        if self.limits.pending_max.is_none() && self.limits.puts.is_none() {
            return Ok(());
        }
        let detail = "the token is limited by `pending_max` or `puts`: requeue one at a time".to_owned();
        Err(forbidden("limited_token", detail))
    }

    /// Checks that it may pause or resume a lane, which concerns all tasks in it.
    ///
    /// # Errors
    /// 403 if its limits name other lanes, or none.
    pub(super) fn check_lane_to_steer(&self, lane: &Lane) -> Result<(), Problem> {
        if self.is_limited() && self.limits.allowed.lanes.is_empty() {
            let detail =
                "the token has limits and no lanes of its own, and this concerns all tasks of a lane".to_owned();
            return Err(forbidden("limited_token", detail));
        }
        Ok(self.limits.allowed.check_lane(lane)?)
    }

    /// Selects the lanes of a list: the one that was asked for, or all that the caller may use.
    ///
    /// # Errors
    /// 403 for another one, whether there is such a lane or not.
    pub(super) fn lanes<'a>(&'a self, asked: Option<&'a Lane>) -> Result<impl Fn(&Lane) -> bool + 'a, Problem> {
        asked.map_or(Ok(()), |lane| self.limits.allowed.check_lane(lane))?;
        Ok(move |lane: &Lane| self.may_use(lane) && asked.is_none_or(|asked| asked == lane))
    }

    /// Checks a put against `pending_max` and the rate, and counts it if both allow it. The number of tasks is
    /// normally at most 2 s old, and misses the puts of other instances since then.
    fn admit_numbers(&self, lanes: impl FnOnce() -> Vec<LaneState>, now: Instant) -> Result<(), Problem> {
        let Some(pending_max) = self.limits.pending_max else { return self.admit_rate(now) };
        let mut depth = self.depth.lock();
        if depth.read.is_none_or(|read| now.duration_since(read) >= DEPTH_INTERVAL) {
            let own = lanes().into_iter().filter(|state| self.may_use(&state.lane));
            *depth = LaneDepth {
                read: Some(now),
                tasks: own.map(|lane| lane.waiting + lane.in_flight + lane.paused).sum(),
                puts: 0,
            };
        }
        if depth.tasks + depth.puts >= pending_max {
            let detail = format!(
                "{} tasks wait, are in flight or are paused in the lanes of the token; its `pending_max` is {pending_max}",
                depth.tasks
            );
            return Err(too_many("full", detail, 1));
        }
        self.admit_rate(now)?;
        depth.puts += 1;
        Ok(())
    }

    fn admit_rate(&self, now: Instant) -> Result<(), Problem> {
        let Some(PutRate { puts, per }) = self.limits.puts else { return Ok(()) };
        let a_put = per.as_secs_f64() / f64::from(puts);
        let mut rate = self.rate.lock();
        let came = now.saturating_duration_since(rate.at).as_secs_f64() / a_put;
        rate.left = (rate.left + came).min(f64::from(puts));
        // Another thread may have come first with a later time.
        rate.at = rate.at.max(now);
        if rate.left < 1.0 {
            let wait = Duration::from_secs_f64((1.0 - rate.left) * a_put);
            let detail = format!("the token may put {puts} tasks in {}", crate::task::duration::format(per));
            return Err(too_many("too_many_puts", detail, wait.as_secs() + 1));
        }
        rate.left -= 1.0;
        Ok(())
    }
}

fn forbidden(code: &'static str, detail: String) -> Problem {
    Problem::new(StatusCode::FORBIDDEN, code, detail)
}

impl From<NotAllowed> for Problem {
    fn from(error: NotAllowed) -> Problem {
        forbidden(error.code(), format!("the token is {error}"))
    }
}

fn too_many(code: &'static str, detail: String, retry_after: u64) -> Problem {
    Problem { retry_after: Some(retry_after), ..Problem::new(StatusCode::TOO_MANY_REQUESTS, code, detail) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(answers: impl IntoIterator<Item = Result<(), Problem>>) -> Vec<&'static str> {
        answers.into_iter().map(|answer| answer.err().map_or("", |problem| problem.code)).collect()
    }

    #[test]
    fn a_put_rate_admits_its_full_number_at_once_and_then_one_by_one() {
        let rate = PutRate { puts: 3, per: Duration::from_secs(60) };
        let caller = Caller::new(None, TokenLimits { puts: Some(rate), ..TokenLimits::default() });
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(codes((0..4).map(|_| caller.admit_rate(start))), ["", "", "", "too_many_puts"]);
        let problem = caller.admit_rate(at(5)).unwrap_err();
        assert!(problem.retry_after.is_some_and(|seconds| (15..=17).contains(&seconds)), "{problem:?}");
        assert_eq!(codes([21, 21, 41].map(|seconds| caller.admit_rate(at(seconds)))), ["", "too_many_puts", ""]);
        assert_eq!(codes((0..4).map(|_| caller.admit_rate(at(10_000)))), ["", "", "", "too_many_puts"]);
    }

    #[test]
    fn tasks_in_other_lanes_do_not_count_towards_pending_max() {
        let lane =
            |name: &str, waiting, in_flight| LaneState { waiting, in_flight, ..LaneState::new(name.parse().unwrap()) };
        let allowed = AllowedTasks { lanes: vec!["a".parse().unwrap()], ..AllowedTasks::default() };
        let limits = TokenLimits { allowed, pending_max: Some(10), ..TokenLimits::default() };
        let caller = Caller::new(None, limits);
        let start = Instant::now();
        let lanes = |waiting| move || vec![lane("a", waiting, 2), lane("b", 1000, 0)];
        assert_eq!(codes((0..3).map(|_| caller.admit_numbers(lanes(6), start))), ["", "", "full"]);
        let later = start + DEPTH_INTERVAL;
        assert_eq!(codes([caller.admit_numbers(lanes(0), later), caller.admit_numbers(lanes(8), later)]), ["", ""]);
        assert_eq!(codes([caller.admit_numbers(lanes(8), later + DEPTH_INTERVAL)]), ["full"]);
    }
}
