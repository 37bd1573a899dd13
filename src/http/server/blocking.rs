//! Work that may take longer than a millisecond, such as the search for the dues of a rare schedule. It runs on at most
//! two blocking threads, so that no caller delays a publish. At most 64 calls wait for a thread, and further ones are
//! refused. Lines of batches wait without this limit.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::StatusCode;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::http::Api;
use crate::http::caller::Caller;
use crate::http::problem::Problem;
use crate::task::spec::{self, Read, ReadOptions};
use crate::task::{Fault, Lane, Message};

/// Maximum number of threads.
const MAX_THREADS: usize = 2;

/// Maximum number of calls that wait for a thread; further ones are refused.
const MAX_WAITING: usize = 64;

/// Runs work on at most two threads.
pub struct BlockingPool {
    threads: Arc<Semaphore>,
    /// Places of calls that are refused if there is none.
    places: Semaphore,
    /// Batches wait in turn, so that at most one of their lines is in the way of other calls.
    batches: Semaphore,
}

impl Default for BlockingPool {
    fn default() -> BlockingPool {
        BlockingPool {
            threads: Arc::new(Semaphore::new(MAX_THREADS)),
            places: Semaphore::new(MAX_THREADS + MAX_WAITING),
            batches: Semaphore::new(1),
        }
    }
}

impl BlockingPool {
    /// Runs this on a thread.
    ///
    /// # Errors
    /// 503 if too many calls wait already.
    pub(in crate::http) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let Ok(_place) = self.places.try_acquire() else {
            return Err(Problem::busy(format!("{MAX_WAITING} other requests wait until their schedules are computed")));
        };
        self.run_in_turn(work).await
    }

    /// Runs this for a line of a batch, however many others wait.
    pub(in crate::http) async fn run_for_batch<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let _turn = self.batches.acquire().await;
        self.run_in_turn(work).await
    }

    async fn run_in_turn<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let thread = Arc::clone(&self.threads).acquire_owned().await;
        let work = move || {
            // Held until the work ends, also if its caller has gone.
            let _thread = thread;
            work()
        };
        // It fails only if the work panics.
        spawn_blocking(work).await.map_err(|error| {
            tracing::error!(%error, "work on a blocking thread ended early");
            Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the request was not computed")
        })
    }
}

/// Whether the JSON may contain a `cron` expression, the only member that takes long to read. An escape may hide it.
pub(in crate::http) fn may_take_long(json: &[u8]) -> bool {
    std::str::from_utf8(json).is_ok_and(|text| text.contains("cron") || text.contains("\\u"))
}

impl Api {
    /// Parses the task of a put, on a blocking thread if that may take long.
    ///
    /// # Errors
    /// Every fault of the task; 503 if too many calls wait for a thread.
    pub(in crate::http) async fn read_task(
        self: &Arc<Api>,
        caller: &Arc<Caller>,
        json: Bytes,
    ) -> Result<Result<Read, Vec<Fault>>, Problem> {
        if !may_take_long(&json) {
            return Ok(self.read_now(caller, &json, false));
        }
        let (api, caller) = (Arc::clone(self), Arc::clone(caller));
        self.blocking.run(move || api.read_now(&caller, &json, false)).await
    }

    /// Parses a line of a batch, on a blocking thread if that may take long.
    pub(in crate::http) async fn read_line(
        self: &Arc<Api>,
        caller: &Arc<Caller>,
        line: &[u8],
    ) -> Result<Result<Read, Vec<Fault>>, Problem> {
        if !may_take_long(line) {
            return Ok(self.read_now(caller, line, true));
        }
        let (api, caller, line) = (Arc::clone(self), Arc::clone(caller), Bytes::copy_from_slice(line));
        self.blocking.run_for_batch(move || api.read_now(&caller, &line, true)).await
    }

    fn read_now(&self, caller: &Caller, json: &[u8], expect_id: bool) -> Result<Read, Vec<Fault>> {
        let lanes = |lane: &Lane, message: Option<&Message>| {
            // A caller that may not put here must not learn from the fault which lanes and destinations exist.
            let refused = self.intake.check(lane, message).err();
            let refused = refused.filter(|_| caller.may_put(&self.intake, lane, message))?;
            Problem::from(refused).errors.pop()
        };
        let (limits, lane, zone) = (&self.limits.task, caller.default_lane(), self.zone.as_deref());
        let options = ReadOptions { limits, expect_id, lane, zone };
        spec::read_checked(json, &options, self.intake.clock().now(), &lanes)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn two_threads_work_sixty_four_calls_wait_and_the_next_is_refused() {
        let pool = Arc::new(BlockingPool::default());
        let (begun, begins) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let ends = Arc::new(parking_lot::Mutex::new(ends));
        let call = |n: usize| {
            let (pool, begun, ends) = (Arc::clone(&pool), begun.clone(), Arc::clone(&ends));
            tokio::spawn(async move {
                let work = move || {
                    begun.send(()).ok();
                    ends.lock().recv().ok();
                    n
                };
                pool.run(work).await
            })
        };
        let calls: Vec<_> = (0..MAX_THREADS + MAX_WAITING).map(call).collect();
        tokio::task::spawn_blocking(move || (begins.recv().unwrap(), begins.recv().unwrap(), begins)).await.unwrap();
        let refused = pool.run(|| ()).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (503, "busy"));
        // A batch waits for its turn instead.
        let line = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move { pool.run_for_batch(|| "line").await }
        });
        drop(end);
        for (n, call) in calls.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), Ok(n));
        }
        assert_eq!(line.await.unwrap(), Ok("line"));
        assert_eq!(pool.run(|| 1).await, Ok(1), "there is a place again");
    }

    #[tokio::test]
    async fn a_job_of_a_caller_that_left_still_holds_its_thread() {
        let pool = Arc::new(BlockingPool::default());
        let (end, ends) = mpsc::channel::<()>();
        let (begun, begins) = mpsc::channel();
        let call = tokio::spawn({
            let pool = Arc::clone(&pool);
            async move {
                pool.run(move || {
                    begun.send(()).unwrap();
                    ends.recv().ok();
                })
                .await
            }
        });
        tokio::task::spawn_blocking(move || begins.recv().unwrap()).await.unwrap();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        assert_eq!(pool.threads.available_permits(), MAX_THREADS - 1);
        drop(end);
        let all = pool.threads.acquire_many(u32::try_from(MAX_THREADS).unwrap()).await;
        assert!(all.is_ok(), "the thread is free once the work has ended");
    }

    #[test]
    fn only_a_body_that_may_contain_cron_is_parsed_on_a_blocking_thread() {
        for (json, expected) in [
            (&br#"{"schedule":{"in":"15m"},"message":{}}"#[..], false),
            (br#"{"schedule":{"cron":"* * * * *"}}"#, true),
            (br#"{"schedule":{"cr\u006fn":"* * * * *"}}"#, true),
            (b"\xff cron", false),
        ] {
            assert_eq!(may_take_long(json), expected, "{}", String::from_utf8_lossy(json));
        }
    }
}
