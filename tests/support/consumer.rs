//! Runs the programs of `examples/consume_*.rs` as processes: consumers that use no code of punctual.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use punctual_lab::servers::Keeper;
use serde_json::Value;

use super::patient;
use super::published::Published;

/// A running consumer. It is killed when this value is dropped or the test process dies.
pub(crate) struct Consumer {
    keeper: Keeper,
}

/// A line that the consumer printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// The idempotency key.
    pub(crate) key: String,
    /// Whether the consumer had received this key before.
    pub(crate) repeat: bool,
    /// When the message arrived, in ms, by this machine's clock.
    pub(crate) received_ms: i64,
    /// The payload.
    pub(crate) payload: String,
}

/// The time of arrival stands in for the time of publishing.
impl From<Delivery> for Published {
    fn from(delivery: Delivery) -> Published {
        Published { key: delivery.key, payload: delivery.payload, stamp: delivery.received_ms }
    }
}

impl Consumer {
    /// Starts an example (`consume_rabbitmq`) with its arguments: a URL and its subscription.
    pub(crate) fn start(example: &str, arguments: &[&str]) -> Consumer {
        let program = built(example).display().to_string();
        let command = [program.as_str()].into_iter().chain(arguments.iter().copied());
        let keeper = Keeper::new(|_| Ok(command.collect::<Vec<&str>>())).expect("a folder for the consumer");
        keeper.start().expect("it starts");
        Consumer { keeper }
    }

    /// Deliveries printed so far, in order.
    pub(crate) fn deliveries(&self) -> Vec<Delivery> {
        let output = self.output();
        // The last line may be incomplete.
        let whole = output.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let delivery = |line: &str| {
            let json: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"));
            let text = |name: &str| json[name].as_str().unwrap_or_else(|| panic!("no `{name}` in {line}")).to_owned();
            let flag = |name: &str| json[name].as_bool().unwrap_or_else(|| panic!("no `{name}` in {line}"));
            let received_ms = json["received_ms"].as_i64().unwrap_or_else(|| panic!("no time in {line}"));
            Delivery { key: text("key"), repeat: flag("repeat"), received_ms, payload: text("payload") }
        };
        whole.lines().filter(|line| line.starts_with('{')).map(delivery).collect()
    }

    /// Waits for this many deliveries, then one second more, and returns all. Panics if they have not come after 30 s.
    pub(crate) fn wait(&self, count: usize) -> Vec<Delivery> {
        let lines = || self.output().lines().filter(|line| line.starts_with('{')).count();
        let enough = patient(Duration::from_secs(30), || lines() >= count);
        assert!(enough, "of {count} deliveries came {}:\n{}", lines(), self.output());
        std::thread::sleep(Duration::from_secs(1));
        self.deliveries()
    }

    /// Everything it has written, errors too.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.keeper.log()).unwrap_or_default()
    }
}

/// Path of an example's program. `cargo test` builds all examples, beside the tests.
pub(crate) fn built(example: &str) -> PathBuf {
    let tests = std::env::current_exe().expect("this program has a path");
    let target = tests.parent().and_then(Path::parent).expect("it stands in `deps`");
    let program = target.join("examples").join(example);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(example).with_extension("rs");
    let changed = |path: &Path| path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    // `cargo test --test tests` does not build the examples.
    assert!(
        changed(&program) >= changed(&source),
        "`{example}` is not built as its source now stands: run `cargo build --locked --examples` first"
    );
    program
}
