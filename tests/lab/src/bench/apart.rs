//! A runtime beside the bench's own: as an instance has one, which nothing of the bench holds up.

use anyhow::Context;
use tokio::runtime::{Builder, Handle, Runtime};

/// Ends with all that it does when it is dropped.
pub(super) struct OwnRuntime {
    handle: Handle,
    /// None only once it is dropped.
    runtime: Option<Runtime>,
}

impl OwnRuntime {
    /// Starts one with the settings of an instance.
    ///
    /// # Errors
    /// When there are no threads to be had.
    pub(super) fn new() -> anyhow::Result<OwnRuntime> {
        let runtime = Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?;
        Ok(OwnRuntime { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Makes something whose tasks run there.
    pub(super) fn make<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }

    /// Runs something there.
    ///
    /// # Errors
    /// Its own, and when it panics.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.handle.spawn(work).await?
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // To wait for its tasks, as it does by itself, is not allowed where it is dropped.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
