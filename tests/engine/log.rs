//! What an engine logs.

use std::sync::{Arc, Mutex};

/// What a test's engine logs from INFO on, while the guard stands.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(super) fn begin() -> (Log, tracing::subscriber::DefaultGuard) {
        // While there is one subscriber alone, whichever thread passes a place of the log first decides for all whether it is
        // heard: another test's would decide that it is not.
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).ok();
        let log = Log::default();
        let told = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || told.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// What was said of a sink, in order.
    pub(super) fn told(&self) -> Vec<&'static str> {
        let log = self.text();
        let known = ["the sink is absent", "the sink answers a probe;", "the sink answers again"];
        log.lines().filter_map(|line| known.into_iter().find(|detail| line.contains(detail))).collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
