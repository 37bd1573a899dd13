//! `punctual-lab bench`: runs every bench once, small. Checks that all figures are present and possible, never how good
//! they are, because other tests load the machine.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use punctual_lab::testing::{have, have_kafka};
use serde_json::{Value, json};

use super::{interrupt, keys, lab, left_in, start_redis, url};

fn bench(arguments: &[&str]) -> Output {
    lab(&[&["bench"], arguments].concat()).output().unwrap()
}

/// Runs a bench. Its figures must be positive numbers, except for those that end in one of `may_lack`.
fn figures(arguments: &[&str], may_lack: &[&str]) -> Value {
    let json = [arguments, &["--json"]].concat();
    let mut output = bench(&json);
    // When the machine pauses for seconds, a broker answers late and the bench ends without figures.
    for _ in 0..4 {
        if output.status.code() == Some(1) {
            output = bench(&json);
        }
    }
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(report["bench"], arguments[0]);
    for (name, value) in report["figures"].as_object().unwrap() {
        let lacks = may_lack.iter().any(|end| name.ends_with(end));
        // With so few tasks the CPU time of a process may be below the resolution of the kernel's counter.
        let coarse = ["_cpu_us", "instance_us", "_cpu_ms_per_second"].iter().any(|end| name.ends_with(end));
        assert!(lacks || coarse || value.as_f64().is_some_and(|value| value > 0.0), "{name}: {report:#}");
    }
    report
}

fn number(report: &Value, part: &str, name: &str) -> f64 {
    report[part][name].as_f64().unwrap_or_else(|| panic!("no {part} `{name}`: {report:#}"))
}

/// `recurring` is empty or `--recurring`.
fn throughput(sink: &str, recurring: &[&str]) {
    let report = figures(&[&["throughput", "--sink", sink, "--tasks", "2000"], recurring].concat(), &[]);
    assert_eq!(report["options"]["sink"], sink);
    assert_eq!(report["options"]["recurring"], !recurring.is_empty());
    let [raw, alone, limit] =
        ["raw", "alone", "limit"].map(|part| number(&report, "figures", &format!("{part}_per_second")));
    assert!(limit < raw.min(alone), "{report:#}");
    for ratio in ["throughput_to_limit", "scripts_to_floor"] {
        assert!(number(&report, "ratios", ratio) > 0.0, "{report:#}");
    }
}

fn lateness(sink: &str) {
    let arguments = ["lateness", "--sink", sink, "--rate", "100", "--seconds", "2"];
    let report = figures(&arguments, &["early_count"]);
    for prefix in ["", "floor_"] {
        let figure = |name: &str| number(&report, "figures", &format!("{prefix}{name}"));
        assert_eq!((figure("count"), figure("early_count")), (200.0, 0.0), "{report:#}");
        let rising = ["min_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms"].map(figure);
        // A histogram has a precision of three digits.
        assert!(rising.windows(2).all(|two| two[0] <= two[1] * 1.01), "{report:#}");
    }
    assert!(number(&report, "ratios", "p50_to_floor") > 0.0, "{report:#}");
}

fn herd(sink: &str) {
    // So few tasks are published at once that none may become due meanwhile.
    let report = figures(
        &["herd", "--sink", sink, "--tasks", "2000"],
        &["meanwhile_count", "meanwhile_p50_ms", "meanwhile_p99_ms"],
    );
    assert!(number(&report, "figures", "calm_count") > 50.0, "{report:#}");
}

fn door(sink: &str) {
    let report = figures(&["door", "--sink", sink, "--tasks", "20000", "--rate", "100"], &[]);
    for name in ["door_per_second", "consumer_per_second", "batch_per_second", "stored_p99_ms"] {
        assert!(number(&report, "figures", name) > 0.0, "{report:#}");
    }
    assert!(number(&report, "ratios", "door_to_limit") > 0.0, "{report:#}");
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_benches_on_redis_streams_have_their_figures() {
    if have("redis-server") {
        throughput("redis", &[]);
        // Recurring tasks make no difference to a sink, and starting the servers of another takes long.
        throughput("redis", &["--recurring"]);
        lateness("redis");
        herd("redis");
        door("redis");
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_benches_on_kafka_have_their_figures() {
    if have("redis-server") && have_kafka() {
        throughput("kafka", &[]);
        lateness("kafka");
        door("kafka");
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_benches_on_rabbitmq_have_their_figures() {
    if have("redis-server") && have("rabbitmq-server") {
        throughput("rabbitmq", &[]);
        lateness("rabbitmq");
        door("rabbitmq");
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_benches_on_nats_have_their_figures() {
    if have("redis-server") && have("nats-server") {
        throughput("nats", &[]);
        lateness("nats");
        door("nats");
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_bench_of_many_instances_has_its_figures() {
    if have("redis-server") {
        let report = figures(&["instances", "--tasks", "200", "--instances", "2,1"], &[]);
        assert_eq!(report["options"]["instances"], serde_json::json!([1, 2]));
        for instances in [1, 2] {
            assert!(number(&report, "figures", &format!("with_{instances}_last_ms")) > 0.0, "{report:#}");
        }
        assert!(number(&report, "ratios", "redis_cpu_last_to_first") > 0.0, "{report:#}");
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_bench_of_pending_tasks_has_its_figures() {
    if have("redis-server") {
        let fresh =
            ["storm_fresh_count", "storm_fresh_p50_ms", "storm_fresh_p99_ms", "storm_fresh_max_ms", "storm_seconds"];
        let report = figures(&["pending", "--tasks", "500", "--pending", "2000,4000"], &fresh);
        for pending in [2000, 4000] {
            let bytes = number(&report, "figures", &format!("pending_{pending}_bytes"));
            assert!(bytes > number(&report, "figures", "record_bytes"), "{report:#}");
            for figure in ["bytes_growing", "tasks_per_second", "redis_us", "script_us", "floor_us"] {
                assert!(number(&report, "figures", &format!("pending_{pending}_{figure}")) > 0.0, "{report:#}");
            }
        }
        assert!(number(&report, "ratios", "scripts_to_floor_last_to_first") > 0.0, "{report:#}");
        assert!(report["notes"].to_string().contains("have finished growing"), "{report:#}");
    }
}

#[test]
fn the_bench_of_puts_has_its_figures() {
    if have("redis-server") {
        let report = figures(&["put", "--tasks", "3000"], &["grew_mib"]);
        assert!(number(&report, "ratios", "batch_to_floor") > 0.0, "{report:#}");
        assert_eq!(report["options"].get("sink"), None);
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_bench_of_idle_instances_has_its_figures() {
    if have("redis-server") {
        let report = figures(&["idle", "--seconds", "2", "--lanes", "3"], &[]);
        assert!(number(&report, "ratios", "requests_per_instance_and_shard") > 0.0, "{report:#}");
    }
}

/// Takes more than five seconds: it starts servers and instances, and what killed instances held is published after their
/// leases.
#[test]
fn the_benches_of_instances_that_share_and_die_have_their_figures() {
    if have("redis-server") {
        let steady = ["--rate", "200", "--seconds", "4"];
        let report = figures(&[&["fleet", "--instances", "1,3"], &steady[..]].concat(), &[]);
        assert!(number(&report, "ratios", "calls_last_to_first") > 0.0, "{report:#}");
        let held = ["killed_1_held_count", "killed_2_held_count"];
        let report = figures(&[&["death", "--instances", "4"], &steady[..]].concat(), &held);
        assert!(number(&report, "figures", "killed_2_max_ms") > 0.0, "{report:#}");
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn the_bench_of_clusters_has_its_figures() {
    if have("redis-server") {
        let report = figures(&["cluster", "--masters", "3,1", "--tasks", "2000"], &[]);
        assert_eq!(report["options"]["masters"], json!([1, 3]));
        for figure in ["with_1_script_us", "with_3_script_us"] {
            assert!(number(&report, "figures", figure) > 0.0, "{report:#}");
        }
        assert!(number(&report, "ratios", "scripts_last_to_first") > 0.0, "{report:#}");
    }
}

/// Takes more than five seconds: the warm-up, and ten seconds, during five of which a node is silent.
#[test]
fn the_bench_of_a_silent_node_has_its_figures() {
    if have("redis-server") {
        let zero = ["put_refused_count", "p99_later_ms"];
        let report = figures(&["silence", "--seconds", "10", "--rate", "100"], &zero);
        for figure in ["before_count", "beside_p99_ms", "put_count", "shards_silent_count"] {
            assert!(number(&report, "figures", figure) > 0.0, "{report:#}");
        }
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn a_bench_prints_a_table_and_leaves_no_keys_on_external_servers() {
    if !have("redis-server") {
        return;
    }
    let (redis, sink) = (start_redis(), start_redis());
    let output = bench(&["throughput", "--tasks", "500", "--redis", &url(&redis), "--sink", &url(&sink)]);
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success() && out.starts_with("bench throughput: "), "{out}{err}");
    assert!(out.contains("\n  tasks_per_second ") && out.contains("\n  throughput_to_limit "), "{out}");
    assert!(!out.contains("left behind") && err.contains("measuring Redis alone"), "{out}{err}");
    for server in [&redis, &sink] {
        assert_eq!(keys(server), Vec::<String>::new());
    }
}

/// Takes more than five seconds: it starts servers and instances, and each bench measures for a second or two per size.
#[test]
fn an_interrupted_bench_shows_no_figures_and_leaves_nothing_behind() {
    if !have("redis-server") {
        return;
    }
    let (redis, sink, temp) = (start_redis(), start_redis(), tempfile::tempdir().unwrap());
    let mut command = lab(&["bench", "lateness", "--rate", "200", "--seconds", "600"]);
    command.args(["--redis", &url(&redis), "--sink", &url(&sink)]).env("TMPDIR", temp.path());
    let mut child = command.spawn().unwrap();
    let (mut err, mut text) = (BufReader::new(child.stderr.take().unwrap()), String::new());
    while !text.contains("publishing") {
        assert_ne!(err.read_line(&mut text).unwrap(), 0, "{text}");
    }
    std::thread::sleep(Duration::from_secs(1));
    interrupt(child.id());
    let mut out = String::new();
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    err.read_to_string(&mut text).unwrap();
    assert_eq!((child.wait().unwrap().code(), out.as_str()), (Some(1), ""), "{text}");
    assert!(text.contains("error: ended before there were figures\n"), "{text}");
    for server in [&redis, &sink] {
        assert_eq!(keys(server), Vec::<String>::new());
    }
    assert_eq!(left_in(temp.path()), Vec::<PathBuf>::new());
}

#[test]
fn bench_names_a_missing_server_and_refuses_a_sink_that_it_cannot_read_back() {
    let empty = tempfile::tempdir().unwrap();
    for (arguments, detail) in [
        (&["throughput"][..], "no redis-server is installed here"),
        (&["herd", "--redis", "redis://127.0.0.1:1", "--sink", "nats"], "no nats-server is installed here"),
        (&["put"], "no redis-server is installed here"),
        (&["lateness", "--sink", "file://u:secret@h"], "names nothing that can be measured"),
        (&["lateness", "--sink", "amqps://u:secret@h"], "by `amqp://` alone"),
        (&["idle", "--redis", "rediss://u:secret@h"], "by `redis://` alone"),
    ] {
        let output = lab(&[&["bench"], arguments].concat()).env("PATH", empty.path()).output().unwrap();
        let (code, err) = (output.status.code(), String::from_utf8(output.stderr).unwrap());
        assert!(code == Some(2) && err.contains(detail) && err.contains("\nhint: "), "{arguments:?}: {code:?} {err}");
        assert!(!err.contains("secret"), "{err}");
    }
    for arguments in [&["bench"][..], &["bench", "idle", "--sink", "redis"], &["bench", "put", "--payload", "1"]] {
        let output = lab(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
    }
}

/// Report and exit code of a comparison of two runs with these ratios.
fn compared(options: &[&str], first: &Value, second: &Value) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let files = [("a.json", first), ("b.json", second)].map(|(name, ratios)| {
        let report = json!({"figures": {}, "options": {}, "ratios": ratios});
        let results = json!({"runs": [{"row": "throughput-redis", "round": 1, "report": report}]});
        std::fs::write(dir.path().join(name), results.to_string()).unwrap();
        dir.path().join(name)
    });
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/bench/report.mjs");
    let output = Command::new("node").args([script, "compare"]).args(options).args(files).output().unwrap();
    (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
}

#[test]
fn two_bench_runs_are_compared_in_both_directions_or_only_in_the_worse() {
    if !have("node") {
        return;
    }
    let usual = json!({"scripts_to_floor": 1.0, "throughput_to_limit": 1.0, "batch_to_floor": 1.0});
    for (ratio, worse, better) in
        [("scripts_to_floor", 1.3, 0.7), ("throughput_to_limit", 0.7, 1.3), ("batch_to_floor", 0.7, 1.3)]
    {
        for (value, direction, code) in [(worse, "WORSE", 1), (better, "better", 0)] {
            let mut other = usual.clone();
            other[ratio] = value.into();
            let (both, said) = compared(&[], &usual, &other);
            assert!(both == Some(1) && said.contains("DIFFERS"), "{ratio} {value}: {said}");
            let (one, said) = compared(&["--worse"], &usual, &other);
            assert!(one == Some(code) && said.contains(direction), "{ratio} {value}: {said}");
        }
    }
    for options in [&[][..], &["--worse"]] {
        assert_eq!(compared(options, &usual, &usual).0, Some(0));
    }
}
