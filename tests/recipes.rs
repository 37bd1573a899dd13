//! The recipes in Python and Node, Celery, and a client generated from the OpenAPI document.
//! `make test-examples` installs their dependencies and runs these tests.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use lapin::ExchangeKind;
use serde_json::json;

use crate::consumers::{OCCURRENCES, occurrences, publish};
use crate::support::nats::NatsServer;
use crate::support::patient;
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;

/// Tasks that a recipe puts.
const TASKS: usize = 500;

fn cache(path: &str) -> PathBuf {
    let cache = std::env::var("PUNCTUAL_EXAMPLES_CACHE").expect("run `make test-examples`");
    PathBuf::from(cache).join(path)
}

/// Runs a program for at most a minute; it must succeed. Returns what it printed.
fn run(command: &mut Command) -> String {
    let mut limited = Command::new("timeout");
    limited.arg("60").arg(command.get_program()).args(command.get_args());
    let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
    let output = limited.envs(set).output().expect("the program");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && err.is_empty(), "{command:?}: {out}{err}");
    out.into_owned()
}

fn python(file: &str) -> Command {
    let mut command = Command::new(cache("python/bin/python"));
    command.arg(format!("examples/python/{file}"));
    command
}

fn node(file: &str) -> Command {
    // Modules are found beside the file.
    let copy = cache("node").join(file);
    std::fs::copy(format!("examples/node/{file}"), &copy).expect("a copy");
    let mut command = Command::new("node");
    command.arg(copy);
    command
}

fn instance(sink: &str) -> Punctual {
    Punctual::start(&format!("[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"{sink}\"\n"))
}

/// The lines that a producer and a consumer printed: all orders once, although some messages are there twice.
fn check(produced: &str, consumed: &str) {
    assert_eq!(produced, format!("order-0: cancelled\nput: {TASKS}\n"));
    let mut orders: Vec<&str> = consumed.lines().collect();
    assert_eq!(orders.len(), TASKS + OCCURRENCES);
    orders.sort_unstable();
    orders.dedup();
    assert!(orders.len() >= TASKS && orders.iter().all(|line| line.starts_with("cancelling order ")), "{consumed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs clients from PyPI: make test-examples"]
async fn the_python_recipe_handles_every_order_once() {
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["orders.cancel"]);
    let url = rabbit.url("");
    for _ in 0..2 {
        publish(&url, occurrences("orders.cancel")).await;
    }
    let instance = instance(&url);
    let produced = run(python("producer.py").args([&instance.api().url(), &TASKS.to_string()]));
    let count = (TASKS + OCCURRENCES).to_string();
    check(&produced, &run(python("consumer.py").args([&url, "orders.cancel", &count])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs clients from npm: make test-examples"]
async fn the_node_recipe_handles_every_order_once() {
    let nats = NatsServer::start("");
    // A short window, so that the stream keeps both messages of a key.
    nats.connect().create_stream("ORDERS", &["orders.>"], &json!({"duplicate_window": 100_000_000}));
    for _ in 0..2 {
        publish(&nats.url(), occurrences("orders.cancel")).await;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }
    let instance = instance(&nats.url());
    let produced = run(node("producer.mjs").args([&instance.api().url(), &TASKS.to_string()]));
    let count = (TASKS + OCCURRENCES).to_string();
    check(&produced, &run(node("consumer.mjs").args([&nats.url(), "ORDERS", &count])));
}

#[test]
#[ignore = "needs a generator from PyPI: make test-examples"]
fn a_generated_client_puts_lists_cancels_and_reads_typed_problems() {
    let instance = instance("stdout:");
    let folder = tempfile::tempdir().expect("a folder");
    let document = folder.path().join("openapi.json");
    let answer = instance.api().send("GET", "/openapi.json", None).expect("the document");
    std::fs::write(&document, answer.text).expect("a file");
    let mut generate = Command::new(cache("python/bin/openapi-python-client"));
    let bin = format!("{}:{}", cache("python/bin").display(), std::env::var("PATH").unwrap_or_default());
    generate.env("PATH", bin).arg("generate").arg("--path").arg(&document);
    let generated = folder.path().join("client");
    let made = generate.arg("--output-path").arg(&generated).output().expect("the generator");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let used = run(python("generated.py").env("PYTHONPATH", &generated).arg(instance.api().url()));
    let lines: Vec<&str> = used.lines().collect();
    assert!(lines[0].starts_with("put: created 20"), "{used}");
    let problem = "problem: 404 unknown there is no task `order-1.unpaid`";
    assert_eq!(lines[1..], ["dead: 0", "cancel: cancelled", problem, "fault: /schedule/in bad_duration"], "{used}");
}

/// Celery's worker runs what punctual publishes: at its time, once, and again after a retry with a countdown.
#[test]
#[ignore = "needs Celery from PyPI: make test-examples"]
fn celery_runs_tasks_that_waited_in_punctual() {
    let rabbit = RabbitServer::start("", &[], &[]);
    rabbit.declare_queues("", &["celery", "punctual.celery", "punctual.rejected"]);
    rabbit.bind("", "punctual", ExchangeKind::Topic, "punctual.celery");
    let url = rabbit.url("");
    let _instance = Punctual::start(&format!(
        "[redis]\nurl = \"memory:\"\n[sinks.default]\nurl = \"{url}\"\n[doors.celery]\nsink = \"default\"\n\
         from = \"punctual.celery\"\nrejected = \"punctual.rejected\"\ndialect = \"celery\"\nexchanges = [\"punctual=\"]\n"
    ));
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut worker = Command::new(cache("python/bin/celery"))
        .args(["--app", "celery_shop", "--workdir", "examples/python", "worker", "--pool", "solo"])
        .env("CELERY_BROKER", &url)
        .stdout(log.reopen().expect("the file"))
        .stderr(log.reopen().expect("the file"))
        .spawn()
        .expect("a worker");
    run(python("celery_shop.py").env("CELERY_BROKER", &url));
    let lines = || {
        let text = std::fs::read_to_string(log.path()).expect("the log");
        let lines = text.lines().filter_map(|line| line.split_once("cancel order ").map(|(_, rest)| rest.to_owned()));
        lines.collect::<Vec<_>>()
    };
    let done = patient(Duration::from_secs(30), || lines().len() >= 5);
    // Nothing is run twice.
    std::thread::sleep(Duration::from_secs(1));
    worker.kill().and_then(|()| worker.wait()).expect("it ends");
    let text = std::fs::read_to_string(log.path()).expect("the log");
    assert!(done && lines().len() == 5, "{text}");
    let orders: Vec<String> = lines().iter().map(|line| line[..1].to_owned()).collect();
    assert_eq!(orders, ["4", "2", "3", "1", "2"], "{text}");
    for line in lines() {
        let late: i64 = line.split(' ').nth(1).and_then(|number| number.parse().ok()).expect("a number");
        assert!(late >= 0, "early: {line}");
    }
}
