//! Tests of what an engine logs.

use std::sync::{Arc, Mutex};

/// Collects the log lines of a test's engine, from INFO on, until the guard is dropped.
#[derive(Clone, Default)]
pub(super) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(super) fn begin() -> (Log, tracing::subscriber::DefaultGuard) {
        // With a single subscriber in the process, the first thread that reaches a log statement decides for all
        // threads whether it is enabled. Another test's thread would disable it.
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).ok();
        let log = Log::default();
        let reported = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || reported.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Log lines about the sink's state, in order.
    pub(super) fn reported(&self) -> Vec<&'static str> {
        let log = self.text();
        let known = ["the sink is unavailable", "the sink answers a probe;", "the sink answers again"];
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
