//! Whole instances and JetStream: namespaces on one stream, a cluster whose stream changes its leader under load, and
//! messages that the server refuses while other destinations continue.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::clock::ServerClock;
use crate::support::http::Api;
use crate::support::load::{Load, put_recurring, undelayed_by};
use crate::support::nats::NatsServer;
use crate::support::published::read_subject;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::server::free_port;
use crate::support::stored_keys::StoredKeys;
use crate::support::{have, patient, say};

/// Time limit for steps that complete by themselves. It is generous: no test checks that a step is fast.
const SOON: Duration = Duration::from_secs(30);

/// Time limit for publishing all messages.
const ALL: Duration = Duration::from_secs(60);

fn servers_are_there() -> bool {
    have("redis-server") && have("nats-server")
}

fn config(redis: &RedisServer, nats: &str, more: &str) -> String {
    format!(
        "[redis]\nurl = \"{}\"\n[claim]\nlease = \"5s\"\n[sinks.default]\nurl = \"{nats}\"\nanswer_timeout = \"2s\"\n{more}",
        redis.url()
    )
}

/// A task that is due at `due` ms.
fn task_at(due: i64, destination: &str, payload: &str) -> Value {
    let at = jiff::Timestamp::from_millisecond(due).expect("a time").to_string();
    json!({"schedule": {"at": at}, "message": {"destination": destination, "payload": payload}})
}

/// Puts this task.
fn put_at(api: &Api, id: &str, due: i64, destination: &str, payload: &str) {
    let task = task_at(due, destination, payload);
    let answer = api.put(id, &task.to_string()).expect("an answer");
    assert_eq!(answer.status, 201, "{answer:?}");
}

#[test]
fn two_namespaces_publish_the_same_task_into_one_stream_as_two_messages() {
    if !servers_are_there() {
        return;
    }
    let (redis, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    nats.connect().create_stream("OUT", &["out"], &json!({}));
    let due = StoredKeys::new(&redis, 1, &[]).now() + 1000;
    let instances = ["one", "other"].map(|namespace| {
        let namespace = format!("[timeline]\nnamespace = \"{namespace}\"\n");
        let instance = Punctual::start(&config(&redis, &nats.url(), &namespace));
        put_at(&instance.api(), "same", due, "out", "text");
        instance
    });
    let mut client = nats.connect();
    let both = patient(SOON, || client.stream_length("OUT") == 2);
    assert!(both, "{} messages\n{}", client.stream_length("OUT"), instances[0].log());
    let stored = client.stream_messages("OUT");
    let mut ids: Vec<_> = stored.iter().map(|message| message.header("Nats-Msg-Id").expect("an id")).collect();
    ids.sort_unstable();
    assert_eq!(ids, [format!("one/same:{due}"), format!("other/same:{due}")]);
    let key = format!("same:{due}");
    assert!(stored.iter().all(|message| message.header("idempotency-key") == Some(&key)), "{stored:?}");
    say("jetstream, two namespaces: one task id and due, one stream, 2 messages");
}

/// Three servers that replicate one stream.
struct Cluster {
    nodes: Vec<NatsServer>,
}

impl Cluster {
    fn start() -> Cluster {
        let ports = [free_port(), free_port(), free_port()];
        let routes = ports.map(|port| format!("\"nats://127.0.0.1:{port}\"")).join(", ");
        let monitors = [free_port(), free_port(), free_port()];
        let start = |index: usize| {
            NatsServer::start(&format!(
                "server_name: node-{index}\nhttp: \"127.0.0.1:{}\"\n\
                 cluster {{ name: test, listen: \"127.0.0.1:{}\", routes: [{routes}] }}",
                monitors[index], ports[index]
            ))
        };
        let nodes = (0..3).map(start).collect();
        let led = |monitor: &u16| {
            let answer = ureq::get(format!("http://127.0.0.1:{monitor}/jsz")).call();
            let text = answer.ok().and_then(|mut answer| answer.body_mut().read_to_string().ok()).unwrap_or_default();
            let said: Value = serde_json::from_str(&text).unwrap_or_default();
            let meta = &said["meta_cluster"];
            meta["leader"].as_str().is_some_and(|leader| !leader.is_empty()) && meta["cluster_size"] == 3
        };
        assert!(patient(SOON, || monitors.iter().all(led)), "the cluster has no leader");
        Cluster { nodes }
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.server.port)).collect();
        format!("nats://{}", hosts.join(","))
    }

    /// Leader of the stream, if the cluster has one and answers.
    fn leader(&self) -> Option<String> {
        let info = self.nodes[0].connect().try_jetstream("STREAM.INFO.OUT", &json!({})).ok()?;
        info["cluster"]["leader"].as_str().filter(|leader| !leader.is_empty()).map(str::to_owned)
    }

    /// Makes the leader step down until another server leads; returns the new leader.
    fn step_down(&self, last: &str) -> String {
        let mut next = None;
        // A stream without a leader does not answer; the request takes 10 s to time out.
        let moved = patient(4 * SOON, || {
            let asked = self.nodes[0].connect().try_jetstream("STREAM.LEADER.STEPDOWN.OUT", &json!({}));
            // The cluster may elect the old leader again.
            let elected = || {
                next = self.leader();
                next.as_deref().is_some_and(|next| next != last)
            };
            asked.is_ok() && patient(Duration::from_secs(5), elected)
        });
        assert!(moved, "the leader is {next:?} after {last}");
        next.expect("another one leads")
    }
}

/// After each step-down the stream has no leader for a while: requests get no answer until the next leader is elected.
#[test]
fn a_streams_leader_may_step_down_under_load() {
    if !servers_are_there() {
        return;
    }
    let (redis, cluster) = (RedisServer::start(&[]), Cluster::start());
    cluster.nodes[0].connect().create_stream("OUT", &["out"], &json!({"num_replicas": 3}));
    let instance = Punctual::start(&config(&redis, &cluster.url(), ""));
    let mut left = StoredKeys::new(&redis, 4, &["default"]);
    let clock = ServerClock::new(left.now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    put_recurring(&instance.api(), &load, 50, 15);
    let mut leaders = Vec::new();
    assert!(
        patient(SOON, || cluster.leader().map(|leader| leaders.push(leader)).is_some()),
        "the stream has no leader"
    );
    std::thread::scope(|scope| {
        let _ends = load.guard();
        (0..3).for_each(|_| _ = scope.spawn(|| load.run()));
        for _ in 0..6 {
            std::thread::sleep(Duration::from_millis(1500));
            leaders.push(cluster.step_down(&leaders[leaders.len() - 1]));
        }
    });
    left.until_nothing_is_left(ALL);
    let tally = load.ledger().check(&read_subject(&cluster.nodes[0], "OUT"));
    let tally = tally.unwrap_or_else(|faults| panic!("{faults}{}\n{}", load.answers(), instance.log()));
    let retries = instance.api().metric("punctual_retries_total{sink=\"default\"}");
    let way = leaders.join(", ");
    say(&format!("jetstream, the leader stepped down 6 times, {way}: {tally}; {retries} retries, none dead"));
}

/// Messages to a subject without a stream are retried for `patience` and then recorded as dead. Another subject is not
/// delayed.
#[test]
fn a_message_to_a_subject_without_a_stream_is_dead_and_delays_no_other() {
    if !servers_are_there() {
        return;
    }
    let (redis, nats) = (RedisServer::start(&[]), NatsServer::start(""));
    nats.connect().create_stream("OUT", &["out"], &json!({}));
    let more = format!(
        "patience = \"6s\"\n[sinks.apart]\nurl = \"{}\"\nanswer_timeout = \"2s\"\n\
         [lanes.default]\nsink = \"default\"\n[lanes.apart]\nsink = \"apart\"\n",
        nats.url()
    );
    let instance = Punctual::start(&config(&redis, &nats.url(), &more));
    let (api, mut left) = (instance.api(), StoredKeys::new(&redis, 4, &["default", "apart"]));
    let clock = ServerClock::new(left.now());
    let load = Load::new(vec![instance.api()], &clock, "default", "out");
    // The same load to the same stream, through another sink.
    let apart = Load::new(vec![instance.api()], &clock, "apart", "out");
    let due = clock.now() + 500;
    (0..5).for_each(|number| put_at(&api, &format!("lost-{number}"), due, "nowhere", "text"));
    let died = std::thread::scope(|scope| {
        let (_ends, _apart_ends) = (load.guard(), apart.guard());
        scope.spawn(|| load.run());
        scope.spawn(|| apart.run());
        patient(SOON, || left.dead().len() == 5).then(|| clock.now() - due)
    });
    let after = died.unwrap_or_else(|| panic!("not dead: {:?}\n{}", left.dead(), instance.log()));
    for (key, reason, detail) in left.dead() {
        assert!(
            key.starts_with("lost-") && reason == "destination" && detail.contains("responders"),
            "{key}: {detail}"
        );
    }
    // The engine tries the destination about every 2 s.
    assert!(after >= 6000, "dead {after} ms after their due");
    let mut client = nats.connect();
    let expected = load.ledger().expected() + apart.ledger().expected();
    let all = patient(SOON, || client.stream_length("OUT") as usize >= expected);
    assert!(all, "{} of {expected}", client.stream_length("OUT"));
    let published = read_subject(&nats, "OUT").into_iter();
    let (of_apart, published): (Vec<_>, Vec<_>) = published.partition(|message| message.key.starts_with("apart-"));
    let tally = load.ledger().check(&published).unwrap_or_else(|faults| panic!("{faults}"));
    let tally_apart = apart.ledger().check(&of_apart).unwrap_or_else(|faults| panic!("{faults}"));
    // Messages that wait for a stream delay no others.
    undelayed_by(after, &tally, &tally_apart);
    let detail = &left.dead()[0].2;
    say(&format!(
        "jetstream, no stream: 5 dead {after} ms after their due with `{detail}`; the other subject: {tally}"
    ));
}

/// One claim has one message above the server's limit and 200 small ones; another destination has its own messages.
#[test]
fn a_payload_over_the_limit_is_dead_alone() {
    if !servers_are_there() {
        return;
    }
    let (redis, nats) = (RedisServer::start(&[]), NatsServer::start("max_payload: 64KB"));
    nats.connect().create_stream("OUT", &["out", "other"], &json!({}));
    let instance = Punctual::start(&config(&redis, &nats.url(), "[timeline]\nshards = 1\n"));
    let (api, mut left) = (instance.api(), StoredKeys::new(&redis, 1, &["default"]));
    let due = left.now() + 3000;
    let large = "x".repeat(70_000);
    let small = (0..200).map(|number| (format!("small-{number}"), "out", "text"));
    let other = (0..20).map(|number| (format!("other-{number}"), "other", "text"));
    let mut tasks: Vec<_> = small.chain(other).collect();
    tasks.insert(100, ("large".to_owned(), "out", &large));
    let line = |(id, destination, payload): &(String, &str, &str)| {
        let mut task = task_at(due, destination, payload);
        task["id"] = id.as_str().into();
        format!("{task}\n")
    };
    let answer = api.send("POST", "/v1/tasks:batch", Some(&tasks.iter().map(line).collect::<String>()));
    let created = answer.expect("an answer").lines().iter().filter(|line| line["result"] == "created").count();
    assert_eq!(created, 221);
    let in_time = left.now() < due;
    let mut client = nats.connect();
    let all = patient(SOON, || client.stream_length("OUT") == 220 && !left.dead().is_empty());
    assert!(all, "{} messages, {:?}\n{}", client.stream_length("OUT"), left.dead(), instance.log());
    let dead = left.dead();
    assert_eq!((dead.len(), dead[0].0.as_str(), dead[0].1.as_str()), (1, format!("large:{due}").as_str(), "rejected"));
    assert!(dead[0].2.contains("65536"), "{dead:?}");
    let stored = read_subject(&nats, "OUT");
    // No message waits for the answer timeout: the others to its destination are as late as those to the other one.
    let late = |id: &str| {
        let mine = stored.iter().filter(|message| message.key.starts_with(id));
        mine.map(|message| message.stamp - due).max().expect("messages")
    };
    let (late, of_others) = (late("small"), late("other"));
    assert!(late - of_others < 2000, "the last one came {late} ms late, to the other subject {of_others} ms");
    let claims = api.metric("punctual_claims_total{lane=\"default\"}");
    assert!(claims <= 2.0 || !in_time, "{claims} claims: they were not claimed together");
    say(&format!(
        "jetstream, over max_payload: 1 of 221 dead with `{}`, 220 accepted in {claims} claim(s), the last {late} ms late, \
         to another subject {of_others} ms",
        dead[0].2
    ));
}
