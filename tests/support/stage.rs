//! Runs actions at planned times on a few threads: what users do while instances run.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use tokio::time::Instant;

type Act = Box<dyn FnOnce() + Send>;

/// A plan of actions; actions may add others.
#[derive(Clone)]
pub(crate) struct Stage {
    inner: Arc<Inner>,
}

struct Inner {
    zero: Instant,
    zero_ms: i64,
    plan: Mutex<Plan>,
    changed: Condvar,
}

#[derive(Default)]
struct Plan {
    acts: BTreeMap<(i64, usize), Act>,
    added: usize,
    playing: usize,
}

impl Stage {
    /// A stage whose clock shows `now` ms: Redis' time, for planning only.
    pub(crate) fn new(now: i64) -> Stage {
        let (plan, changed) = (Mutex::new(Plan::default()), Condvar::new());
        Stage { inner: Arc::new(Inner { zero: Instant::now(), zero_ms: now, plan, changed }) }
    }

    /// Redis' time, approximately, in ms.
    pub(crate) fn now(&self) -> i64 {
        self.inner.zero_ms + i64::try_from(self.inner.zero.elapsed().as_millis()).expect("a short test")
    }

    /// Plans an action for `at` ms; it runs at once if that has passed.
    pub(crate) fn at(&self, at: i64, act: impl FnOnce() + Send + 'static) {
        let mut plan = self.inner.plan.lock().expect("no act runs under the lock");
        plan.added += 1;
        let place = (at, plan.added);
        plan.acts.insert(place, Box::new(act));
        self.inner.changed.notify_all();
    }

    /// Runs all actions; returns when none is left.
    pub(crate) fn play(&self, threads: usize) {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| self.play_alone());
            }
        });
    }

    fn play_alone(&self) {
        while let Some(act) = self.next() {
            let playing = Playing(self);
            act();
            drop(playing);
        }
    }

    /// The next action, once its time has come; `None` when none is left and no running one could add one.
    fn next(&self) -> Option<Act> {
        let mut plan = self.inner.plan.lock().expect("no act runs under the lock");
        loop {
            let wait = match plan.acts.first_key_value() {
                Some((&(at, _), _)) if at <= self.now() => {
                    plan.playing += 1;
                    return plan.acts.pop_first().map(|(_, act)| act);
                }
                Some((&(at, _), _)) => {
                    Duration::from_millis(u64::try_from(at - self.now()).unwrap_or(0).clamp(1, 1000))
                }
                None if plan.playing == 0 => return None,
                None => Duration::from_secs(1),
            };
            plan = self.inner.changed.wait_timeout(plan, wait).expect("no act runs under the lock").0;
        }
    }
}

/// An action that runs, until it ends in any way.
struct Playing<'a>(&'a Stage);

impl Drop for Playing<'_> {
    fn drop(&mut self) {
        self.0.inner.plan.lock().expect("no act runs under the lock").playing -= 1;
        self.0.inner.changed.notify_all();
    }
}
