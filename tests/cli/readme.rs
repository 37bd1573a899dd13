//! The README's commands, run as they stand there.
//!
//! A block of shell is run when the line before it says so: `<!-- run: serve -->` starts in the background and stays
//! until the end, `<!-- run: tour -->` is run in its place and has to succeed. Port 7171 becomes a free one. Blocks of
//! configuration have to be valid, each as it stands.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use punctual::config::{Config, Sources};
use punctual_sinks::SinkConfig;

use super::{PUNCTUAL, read};
use crate::support;
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

#[test]
fn the_commands_of_the_readme_work() {
    if !support::have("curl") {
        return;
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let blocks = blocks(&std::fs::read_to_string(root.join("README.md")).unwrap());
    assert!(blocks.iter().any(|block| block.mark == "tour"), "the README has a tour");
    // The blocks stand in a checkout where `make demo` has built the program.
    let checkout = tempfile::tempdir().unwrap();
    std::fs::create_dir(checkout.path().join("target")).unwrap();
    let built = Path::new(PUNCTUAL).parent().unwrap();
    std::os::unix::fs::symlink(built, checkout.path().join("target/debug")).unwrap();
    let path = format!("{}:{}", built.display(), std::env::var("PATH").unwrap());
    let mut serving: Option<Server> = None;
    for Block { mark, text } in blocks {
        match mark.as_str() {
            "serve" => {
                // The shell gives its place to the program, which then ends with the test.
                let text = text.replace("\npunctual serve", "\nexec punctual serve");
                let script = format!("cd '{}'\n{text}", checkout.path().display());
                serving = Some(Server::start("bash", |port, _| {
                    vec!["-euc".to_owned(), script.replace("7171", &port.to_string())]
                }));
            }
            "tour" => {
                let port = serving.as_ref().expect("`serve` comes before `tour`").port.to_string();
                let run = Command::new("bash")
                    .args(["-euo", "pipefail", "-c", &text.replace("7171", &port)])
                    .env("PATH", &path)
                    .env("PUNCTUAL_URL", format!("http://127.0.0.1:{port}"))
                    .current_dir(checkout.path())
                    .stdin(Stdio::null())
                    .output();
                let run = read(run.unwrap());
                assert_eq!(run.code, Some(0), "{text}\n{}{}", run.out, run.err);
                assert!(!run.out.contains("\"detail\""), "a problem: {text}\n{}", run.out);
            }
            other => panic!("`run: {other}` is not known: `serve` or `tour`"),
        }
    }
    let log = std::fs::read_to_string(serving.expect("the README starts an instance").log()).unwrap();
    let published: Vec<_> = log.lines().filter(|line| line.starts_with("{\"key\":")).collect();
    assert_eq!(published.len(), 1, "the order that is not paid, once: {log}");
    assert!(published[0].contains("\"key\":\"order-123.unpaid:"), "{log}");
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
