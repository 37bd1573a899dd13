//! The README's commands, run as they stand there.
//!
//! Every block of shell says in the line before it how it is run: `<!-- run: serve -->` starts in the background and stays
//! until the end, `<!-- run: tour -->` is run in its place and has to succeed, `<!-- run: make -->` in the checkout itself.
//! `<!-- dry: ... -->` is only looked at: make knows the target. Port 7171 becomes a free one, as do those of the servers
//! that are named. Blocks with another word (`<!-- run: tour kafka -->`) are a story of their own, with its own instance.
//! Blocks of configuration have to be valid, each as it stands.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use punctual::config::{Config, Sources};
use punctual_sinks::SinkConfig;

use super::{PUNCTUAL, read, run, wait_for};
use crate::support;
use crate::support::kafka::{KafkaServer, have_kafka};
use crate::support::nats::NatsServer;
use crate::support::redis::RedisServer;
use crate::support::server::Server;

/// A block and what is done with it.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    mark: String,
    text: String,
}

/// The blocks of shell of a document, in their order.
fn blocks(document: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        assert_ne!(line, "```sh", "a block of shell has no mark: {:?}", lines.next());
        let mark = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->"));
        let Some(mark) = mark.filter(|mark| mark.starts_with("run: ") || mark.starts_with("dry: ")) else { continue };
        assert_eq!(lines.next(), Some("```sh"), "a block of shell stands behind `{line}`");
        let text: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
        blocks.push(Block { mark: mark.strip_prefix("run: ").unwrap_or(mark).to_owned(), text: text.join("\n") });
    }
    blocks
}

#[test]
fn marked_blocks_are_found() {
    let text =
        "a\n<!-- note -->\n<!-- run: tour -->\n```sh\none\ntwo\n```\n<!-- dry: make -->\n```sh\nmake x\n```\nb\n";
    let block = |mark: &str, text: &str| Block { mark: mark.into(), text: text.into() };
    assert_eq!(blocks(text), [block("tour", "one\ntwo"), block("dry: make", "make x")]);
}

#[test]
#[should_panic(expected = "a block of shell has no mark")]
fn a_block_that_is_not_run_is_found() {
    blocks("a\n```sh\nnot run\n```\n");
}

fn readme() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap()
}

/// Runs the blocks of the README that belong together, as somebody with two terminals would, in a checkout where
/// `make demo` has built the program. `servers` are addresses of the README's, each with the one to take for it. Says what
/// the instance wrote, and what the commands did.
fn play(story: &str, servers: &[(&str, &str)]) -> (String, String) {
    play_on(story, servers, |_, _| {})
}

/// The same, and `act` at the end, with the port of the instance and its log.
fn play_on(story: &str, servers: &[(&str, &str)], act: impl FnOnce(u16, &Path)) -> (String, String) {
    let checkout = tempfile::tempdir().unwrap();
    std::fs::create_dir(checkout.path().join("target")).unwrap();
    let built = Path::new(PUNCTUAL).parent().unwrap();
    std::os::unix::fs::symlink(built, checkout.path().join("target/debug")).unwrap();
    let (mut serving, mut printed) = (None::<Server>, String::new());
    // What a terminal was told before, for another story too.
    let mut exports: BTreeMap<String, String> = BTreeMap::new();
    for Block { mark, mut text } in blocks(&readme()) {
        if mark == "make" || mark.starts_with("dry: ") {
            continue;
        }
        let (terminal, of) = mark.split_once(' ').unwrap_or((&mark, ""));
        let before = exports.entry(terminal.to_owned()).or_default();
        let script = format!("cd '{}'\n{before}{text}", checkout.path().display());
        before.extend(text.lines().filter(|line| line.starts_with("export ")).flat_map(|line| [line, "\n"]));
        if of != story {
            continue;
        }
        text = servers.iter().fold(script, |script, (written, taken)| script.replace(written, taken));
        match terminal {
            "serve" => {
                // The shell gives its place to the program, which then ends with the test.
                let text = text.replace("\npunctual serve", "\nexec punctual serve");
                assert!(serving.is_none(), "a story has one instance");
                serving = Some(Server::start("bash", |port, _| {
                    vec!["-euc".to_owned(), text.replace("7171", &port.to_string())]
                }));
                // It listens before its Redis has answered; who types is slower than that.
                let port = serving.as_ref().expect("it was started").port;
                let answers = |scheme: &&str| {
                    let url = format!("{scheme}://127.0.0.1:{port}/readyz");
                    let asked = Command::new("curl").args(["-fsk", "-o", "/dev/null", &url]).status();
                    asked.is_ok_and(|status| status.success())
                };
                let ready = support::patient(Duration::from_secs(10), || ["http", "https"].iter().any(answers));
                assert!(ready, "the instance of `{story}` takes nothing in");
            }
            "tour" => {
                let port = serving.as_ref().expect("`serve` comes before `tour`").port.to_string();
                let run = Command::new("bash")
                    .args(["-euo", "pipefail", "-c", &text.replace("7171", &port).replace("sleep 3", "sleep 8")])
                    .env("PUNCTUAL_URL", format!("http://127.0.0.1:{port}"))
                    .stdin(Stdio::null())
                    .output();
                let run = read(run.unwrap());
                assert_eq!(run.code, Some(0), "{text}\n{}{}", run.out, run.err);
                assert!(!run.out.contains("\"detail\""), "a problem: {text}\n{}", run.out);
                printed += &run.out;
            }
            other => panic!("`run: {other}` is not known: `serve`, `tour` or `make`"),
        }
    }
    let serving = serving.expect("the README starts an instance");
    act(serving.port, &serving.log());
    (std::fs::read_to_string(serving.log()).unwrap(), printed)
}

/// Takes more than five seconds: the tasks of the README are due after some seconds.
#[test]
fn the_commands_of_the_readme_work() {
    if !support::have("curl") {
        return;
    }
    let (log, _) = play("", &[]);
    let published: Vec<_> = log.lines().filter(|line| line.starts_with("{\"key\":")).collect();
    assert_eq!(published.len(), 1, "the order that is not paid, once: {log}");
    assert!(published[0].contains("\"key\":\"order-123.unpaid:"), "{log}");
}

#[test]
fn the_commands_of_the_readme_for_access_work() {
    if !["curl", "openssl", "sha256sum"].into_iter().all(support::have) {
        return;
    }
    let (log, printed) = play("access", &[]);
    assert!(printed.contains("\"lanes\":"), "{printed}\n{log}");
    let created = "created order-126.unpaid, due ";
    // `curl` ends with no line.
    assert!(["\n", "}"].iter().any(|end| printed.contains(&format!("{end}{created}"))), "{printed}\n{log}");
    assert!(log.contains("address=0.0.0.0:"), "{log}");
}

/// Takes more than five seconds because Kafka needs as long to start.
#[test]
fn the_commands_of_the_readme_for_kafka_work() {
    if !have_kafka() {
        return;
    }
    let kafka = KafkaServer::start();
    kafka.create_topic("orders.cancel", 1, &[]);
    let (log, printed) = play("kafka", &[("127.0.0.1:9092", &kafka.address())]);
    let records: Vec<_> = printed.lines().filter(|line| line.contains("idempotency-key=order-125.unpaid:")).collect();
    assert!(records.len() == 1 && records[0].ends_with(" {\"order\": 125}"), "{printed}\n{log}");
}

#[test]
fn the_instance_of_the_readme_with_redis_and_nats_starts() {
    if !support::have("redis-server") || !support::have("nats-server") {
        return;
    }
    let (redis, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    let at = |port: u16| format!("127.0.0.1:{port}");
    let addresses = [at(redis.server.port), at(nats.server.port)];
    let (log, _) = play("nats", &[("127.0.0.1:6379", &addresses[0]), ("127.0.0.1:4222", &addresses[1])]);
    assert!(!log.contains(" ERROR "), "{log}");
}

/// Not only the start: what it may not do would be told when it puts, claims and settles.
#[test]
fn the_redis_user_of_the_readme_may_do_what_is_needed() {
    if !support::have("redis-server") || !support::have("redis-cli") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let address = format!("127.0.0.1:{}", redis.server.port);
    let (log, _) = play_on("acl", &[("127.0.0.1:6379", &address)], |port, log| {
        let url = format!("http://127.0.0.1:{port}");
        for task in [&["put", "once", "--in", "100ms"][..], &["put", "often", "--every", "300ms"]] {
            let put = run(&[&["task"], task, &["--url", &url]].concat());
            assert_eq!(put.code, Some(0), "{}", put.err);
        }
        for key in ["once", "often"] {
            wait_for(log, &format!("\"key\":\"{key}:"));
        }
        let cancelled = run(&["task", "cancel", "often", "--url", &url]);
        assert_eq!(cancelled.code, Some(0), "{}", cancelled.err);
    });
    assert!(!log.contains("NOPERM") && !log.contains(" ERROR "), "{log}");
}

#[test]
fn the_targets_of_the_readme_are_made() {
    // Building the program for the demo would take minutes: the one that these tests were built with takes its place.
    let programs = tempfile::tempdir().unwrap();
    let cargo = programs.path().join("cargo");
    let script = format!(
        "#!/bin/sh\n[ \"$1 $2 $3 $4\" = 'run --quiet --locked --' ] || exit 9\nshift 4\nexec '{PUNCTUAL}' \"$@\"\n"
    );
    std::fs::write(&cargo, script).unwrap();
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.path().display(), std::env::var("PATH").unwrap());
    let make = |text: &str, dry: bool| {
        let mut command = Command::new("bash");
        command.args(["-euo", "pipefail", "-c", text]).current_dir(env!("CARGO_MANIFEST_DIR"));
        command.env("ARGS", "--seconds 1").env("PATH", &path);
        command.env("MAKEFLAGS", if dry { "-n" } else { "" }).stdin(Stdio::null());
        let run = read(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{text}\n{}{}", run.out, run.err);
        run.out
    };
    let mut made = 0;
    for Block { mark, text } in blocks(&readme()) {
        match mark.as_str() {
            "make" => made += usize::from(make(&text, false).contains("\nlateness max")),
            dry if dry.starts_with("dry: ") => assert!(make(&text, true).contains(".ci/"), "{text}"),
            _ => {}
        }
    }
    assert_eq!(made, 1, "the demo");
}

/// The blocks of configuration of a document.
fn configurations(document: &str) -> Vec<String> {
    let parts = document.split("```toml\n").skip(1);
    parts.map(|part| part.split_once("```").expect("a block ends").0.to_owned()).collect()
}

#[tokio::test]
async fn the_configurations_of_the_readme_are_valid() {
    punctual_sinks::tls::install_provider();
    let blocks = configurations(&readme());
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
