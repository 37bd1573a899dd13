//! The log of code that runs inside a test.

use std::sync::{Arc, Mutex};

/// Collects the log lines of the test's thread, from INFO on, until the guard is dropped.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub(crate) fn begin() -> (Log, tracing::subscriber::DefaultGuard) {
        // With a single subscriber in the process, the first thread that reaches a log statement decides for all
        // threads whether it is enabled. Another test's thread would disable it.
        tracing::subscriber::set_global_default(tracing_subscriber::registry()).ok();
        let log = Log::default();
        let reported = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(move || reported.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// Log lines about the sink's state, in order.
    pub(crate) fn reported(&self) -> Vec<&'static str> {
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
