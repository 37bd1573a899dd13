//! `punctual-lab verify`: a short campaign per sink and one on a cluster, each with a fixed seed; campaigns that end
//! early; and arguments that are refused.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command};
use std::time::Duration;

use punctual_lab::testing::{have, have_kafka, patient};
use serde_json::Value;

use super::{interrupt, keys, lab, left_in, start_redis, url};

fn verify(arguments: &[&str]) -> Command {
    lab(&[&["verify"], arguments].concat())
}

/// Runs a short campaign: it must break no law, and its faults must have had an effect.
fn campaign(sink: &str, seed: &str) {
    campaign_with(sink, seed, &[]);
}

/// A campaign with more arguments.
fn campaign_with(sink: &str, seed: &str, more: &[&str]) {
    // At least one instance should be killed while it holds a claim. A campaign this short may miss it, so try three
    // times.
    let held = (0..3).any(|_| kills_held(sink, seed, more) >= 1);
    assert!(held, "none was killed while it held a claim");
}

/// Runs a campaign and returns how many instances were killed while they held a claim.
///
/// The test does not judge whether instances were notified in time, because other tests load the machine.
fn kills_held(sink: &str, seed: &str, more: &[&str]) -> u64 {
    let short = ["--seconds", "12", "--pause", "300ms", "--rate", "200", "--json"];
    let output = verify(&[&["--sink", sink, "--seed", seed], &short[..], more].concat()).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    let round = &report["rounds"][0];
    let broken = round["broken"].as_object().unwrap();
    // Without the rest of the report, because only a part of a long output may be shown.
    let evidence = &round["violations"];
    assert!(broken.keys().all(|law| law == "not_woken"), "{broken:?}: {evidence:#}\n{err}");
    assert_eq!(output.status.code(), Some(i32::from(!broken.is_empty())), "{err}");
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} of {report:#}"));
    assert!(number(&report["faults"]) >= 8 && report["kinds"].as_object().unwrap().len() >= 5, "{report:#}");
    let tally = &round["tally"];
    assert!(
        number(&tally["promised"]) > 2000 && tally["published"].as_u64() >= tally["promised"].as_u64(),
        "{report:#}"
    );
    let races = round["races"].as_object().unwrap();
    assert!(!races.is_empty(), "{report:#}");
    assert_eq!(races.contains_key("by message: put"), more.contains(&"--door"), "{report:#}");
    assert_eq!(
        report["left_out"].as_array().map(Vec::len),
        Some(usize::from(more.contains(&"--cluster"))),
        "{report:#}"
    );
    if more.contains(&"--cluster") {
        let of_cluster = ["master_kill", "master_stall", "replica_kill", "failover", "slot_move", "slot_abort"];
        let count = report["kinds"].as_object().unwrap().keys().filter(|kind| of_cluster.contains(&&***kind)).count();
        assert!(count >= 2, "{report:#}");
    }
    number(&report["kills_held"])
}

/// Takes more than five seconds: as the others, and the cluster is whole again only some seconds after each of its faults.
#[test]
fn a_campaign_on_a_cluster_breaks_no_law() {
    if have("redis-server") {
        campaign_with("redis", "5", &["--cluster"]);
    }
}

/// Takes more than five seconds: faults for twelve seconds, then a wait for all promised messages.
#[test]
fn a_campaign_on_redis_streams_breaks_no_law() {
    if have("redis-server") {
        campaign("redis", "1");
    }
}

/// Takes more than five seconds: faults for twelve seconds, then a wait for all promised messages.
#[test]
fn a_campaign_on_nats_breaks_no_law() {
    if have("redis-server") && have("nats-server") {
        campaign_with("nats", "2", &["--door"]);
    }
}

/// Takes more than five seconds: faults for twelve seconds, then a wait for all promised messages.
#[test]
fn a_campaign_on_rabbitmq_breaks_no_law() {
    if have("redis-server") && have("rabbitmq-server") {
        campaign_with("rabbitmq", "3", &["--door"]);
    }
}

/// Takes more than five seconds: faults for twelve seconds, then a wait for all promised messages.
#[test]
fn a_campaign_on_kafka_breaks_no_law() {
    if have("redis-server") && have_kafka() {
        campaign_with("kafka", "4", &["--door"]);
    }
}

/// Starts a long campaign and waits until it attacks.
fn begin(arguments: &[&str], temp: &Path) -> (Child, BufReader<ChildStderr>) {
    let mut child =
        verify(&[&["--seconds", "3600", "--json"], arguments].concat()).env("TMPDIR", temp).spawn().unwrap();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    while !text.contains("attacking") {
        assert_ne!(err.read_line(&mut text).unwrap(), 0, "{text}");
    }
    (child, err)
}

/// Takes more than five seconds: interrupts a campaign after its first faults, and the campaign stops its instances.
#[test]
fn a_campaign_on_external_servers_can_be_interrupted_and_leaves_nothing() {
    if !have("redis-server") {
        return;
    }
    let (redis, sink) = (start_redis(), start_redis());
    let temp = tempfile::tempdir().unwrap();
    let (mut child, mut err) = begin(&["--redis", &url(&redis), "--sink", &url(&sink)], temp.path());
    std::thread::sleep(Duration::from_secs(2));
    interrupt(child.id());
    let (mut out, mut errors) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    err.read_to_string(&mut errors).unwrap();
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{errors}"));
    assert!(child.wait().unwrap().code().is_some_and(|code| code < 2));
    assert_eq!(report["rounds"][0]["ended_early"], true);
    assert_eq!(report["left_out"].as_array().unwrap().len(), 2, "{report}");
    for server in [&redis, &sink] {
        assert_eq!(keys(server), Vec::<String>::new());
    }
    assert_eq!(left_in(temp.path()), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_campaign_leaves_no_server_and_no_instance_behind() {
    if !have("redis-server") {
        return;
    }
    let temp = tempfile::tempdir().unwrap();
    let (mut child, _err) = begin(&[], temp.path());
    // Two servers and three instances.
    assert_eq!(left_in(temp.path()).len(), 5);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(patient(Duration::from_secs(60), || left_in(temp.path()).is_empty()), "{:?}", left_in(temp.path()));
}

#[test]
fn verify_names_a_missing_server_and_refuses_a_sink_that_it_cannot_attack() {
    let empty = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = verify(arguments).env("PATH", empty.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for (arguments, detail) in [
        (&[][..], "no redis-server is installed here"),
        (&["--redis", "redis://127.0.0.1:1", "--sink", "nats"], "no nats-server is installed here"),
        (&["--redis", "redis://127.0.0.1:1", "--sink", "kafka"], "no Kafka is installed here"),
        (&["--redis", "redis://127.0.0.1:1", "--sink", "rabbitmq"], "no rabbitmq-server is installed here"),
        (&["--sink", "file://u:secret@h"], "names nothing that can be attacked"),
        (&["--sink", "amqps://u:secret@h"], "by `amqp://`"),
        (&["--redis", "redis://u:secret@h,i"], "to one server"),
    ] {
        let (code, err) = run(arguments);
        assert!(code == Some(2) && err.contains(detail) && err.contains("\nhint: "), "{arguments:?}: {code:?} {err}");
        assert!(!err.contains("secret"), "{err}");
    }
}
