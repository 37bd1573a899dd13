//! A second Tokio runtime, like that of an instance, so that the work of the bench does not delay the Tokio tasks in it.

use anyhow::Context;
use tokio::runtime::{Builder, Handle, Runtime};

/// A runtime with its tasks; dropping it ends them.
pub(super) struct OwnRuntime {
    handle: Handle,
    /// `None` only during drop.
    runtime: Option<Runtime>,
}

impl OwnRuntime {
    /// Starts a runtime with the settings of an instance.
    ///
    /// # Errors
    /// If there are no threads.
    pub(super) fn new() -> anyhow::Result<OwnRuntime> {
        let runtime = Builder::new_multi_thread().enable_all().build().context("cannot start a runtime")?;
        Ok(OwnRuntime { handle: runtime.handle().clone(), runtime: Some(runtime) })
    }

    /// Creates something whose tasks run there.
    pub(super) fn make<T>(&self, make: impl FnOnce() -> T) -> T {
        let _entered = self.handle.enter();
        make()
    }

    /// Runs a future there.
    ///
    /// # Errors
    /// Its own error, or its panic.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
    ) -> anyhow::Result<T> {
        self.handle.spawn(work).await?
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Waiting for its tasks is not allowed inside another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}
