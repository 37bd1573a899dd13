//! The README's commands, run as they stand there.
//!
//! A block of shell is run when the line before it says so: `<!-- run: serve -->` starts in the background and stays
//! until the end, `<!-- run: tour -->` is run in its place and has to succeed. Port 7171 becomes a free one. What is run
//! against a broker says which (`<!-- run: tour kafka -->`). Blocks of configuration have to be valid, each as it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};

use punctual::config::{Config, Sources};
use punctual_sinks::SinkConfig;

use super::{PUNCTUAL, read};
use crate::support;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::server::Server;

/// A block and what is done with it.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    mark: String,
    text: String,
}

/// The marked blocks of a document, in their order.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let Some(mark) = line.strip_prefix("<!-- run: ").and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        assert_eq!(lines.next(), Some("```sh"), "a block of shell stands behind `{line}`");
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(Block { mark: mark.to_owned(), text: text.join("\n") });
    }
    blocks
}

#[test]
fn marked_blocks_are_found() {
    let text = "a\n```sh\nnot run\n```\n<!-- run: tour -->\n```sh\none\ntwo\n```\nb\n";
    assert_eq!(blocks(text), [Block { mark: "tour".into(), text: "one\ntwo".into() }]);
}

/// Runs the blocks of the README that belong together, as somebody with two terminals would, in a checkout where
/// `make demo` has built the program. `broker` is an address of the README's, and the one to take for it. Says what the
/// instance wrote, and what the commands did.
fn play(story: &str, broker: Option<(&str, &str)>) -> (String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let checkout = tempfile::tempdir().unwrap();
    std::fs::create_dir(checkout.path().join("target")).unwrap();
    let built = Path::new(PUNCTUAL).parent().unwrap();
    std::os::unix::fs::symlink(built, checkout.path().join("target/debug")).unwrap();
    let (mut serving, mut printed) = (None::<Server>, String::new());
    // What a terminal was told before, for another story too.
    let mut exports: BTreeMap<String, String> = BTreeMap::new();
    for Block { mark, mut text } in blocks(&std::fs::read_to_string(root.join("README.md")).unwrap()) {
        let (terminal, of) = mark.split_once(' ').unwrap_or((&mark, ""));
        let before = exports.entry(terminal.to_owned()).or_default();
        let script = format!("cd '{}'\n{before}{text}", checkout.path().display());
        before.extend(text.lines().filter(|line| line.starts_with("export ")).flat_map(|line| [line, "\n"]));
        if of != story {
            continue;
        }
        text = broker.map_or(script.clone(), |(written, taken)| script.replace(written, taken));
        match terminal {
            "serve" => {
                // The shell gives its place to the program, which then ends with the test.
                let text = text.replace("\npunctual serve", "\nexec punctual serve");
                serving = Some(Server::start("bash", |port, _| {
                    vec!["-euc".to_owned(), text.replace("7171", &port.to_string())]
                }));
            }
            "tour" => {
                let port = serving.as_ref().expect("`serve` comes before `tour`").port.to_string();
                let run = Command::new("bash")
                    .args(["-euo", "pipefail", "-c", &text.replace("7171", &port)])
                    .env("PUNCTUAL_URL", format!("http://127.0.0.1:{port}"))
                    .stdin(Stdio::null())
                    .output();
                let run = read(run.unwrap());
                assert_eq!(run.code, Some(0), "{text}\n{}{}", run.out, run.err);
                assert!(!run.out.contains("\"detail\""), "a problem: {text}\n{}", run.out);
                printed += &run.out;
            }
            other => panic!("`run: {other}` is not known: `serve` or `tour`"),
        }
    }
    (std::fs::read_to_string(serving.expect("the README starts an instance").log()).unwrap(), printed)
}

#[test]
fn the_commands_of_the_readme_work() {
    if !support::have("curl") {
        return;
    }
    let (log, _) = play("", None);
    let published: Vec<_> = log.lines().filter(|line| line.starts_with("{\"key\":")).collect();
    assert_eq!(published.len(), 1, "the order that is not paid, once: {log}");
    assert!(published[0].contains("\"key\":\"order-123.unpaid:"), "{log}");
}

#[test]
fn the_commands_of_the_readme_for_kafka_work() {
    if !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start();
    kafka.create_topic("orders.cancel", 1, &[]);
    let (log, printed) = play("kafka", Some(("127.0.0.1:9092", &kafka.address())));
    let records: Vec<_> = printed.lines().filter(|line| line.contains("idempotency-key=order-125.unpaid:")).collect();
    assert!(records.len() == 1 && records[0].ends_with(" {\"order\": 125}"), "{printed}\n{log}");
}

/// The blocks of configuration of a document.
fn configurations(document: &str) -> Vec<String> {
    let parts = document.split("```toml\n").skip(1);
    parts.map(|part| part.split_once("```").expect("a block ends").0.to_owned()).collect()
}

#[tokio::test]
async fn the_configurations_of_the_readme_are_valid() {
    punctual_sinks::tls::install_provider();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let blocks = configurations(&std::fs::read_to_string(root.join("README.md")).unwrap());
    let mut kinds = BTreeSet::new();
    for block in &blocks {
        let lacks_sink = !block.contains("[sinks.");
        let flags = lacks_sink.then(|| ("--sink", "sinks.default.url", "stdout:".to_owned()));
        let file = Some(("README.md".to_owned(), block.clone()));
        let sources = Sources { file, flags: flags.into_iter().collect(), ..Sources::default() };
        let config = Config::load(sources).unwrap_or_else(|error| panic!("{error}\n{block}"));
        assert!(config.warnings.is_empty(), "{:?}\n{block}", config.warnings);
        for sink in config.sinks.values() {
            let parsed =
                SinkConfig::parse(sink.url.expose()).map(|parsed| parsed.with_properties(sink.properties.clone()));
            let parsed = parsed.unwrap_or_else(|error| panic!("{error}\n{block}"));
            parsed.build().unwrap_or_else(|error| panic!("{error}\n{block}"));
            kinds.insert(parsed.kind());
        }
    }
    assert!(kinds.is_superset(&BTreeSet::from(["kafka", "nats", "rabbitmq", "redis"])), "{kinds:?} of {blocks:?}");
}
