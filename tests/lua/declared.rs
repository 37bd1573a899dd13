//! Scripts use only keys that the call declares: checked in their text, and in cluster mode.

use std::collections::BTreeSet;

use punctual::timeline::scripts::{ALL, Script};

use super::*;

/// Names that are bound to a key: `local a, b = KEYS[1], KEYS[2]`, `table[...] = KEYS[...]`, and the table of
/// `due_by_lane`.
fn bound(source: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in source.lines() {
        let Some((left, right)) = line.split_once(" = ") else { continue };
        let left = left.trim().trim_start_matches("local ");
        if let Some((table, _)) = left.split_once('[') {
            if right.starts_with("KEYS[") {
                names.insert(format!("{table}["));
            }
            continue;
        }
        for (name, value) in left.split(", ").zip(right.split(", ")) {
            if value.starts_with("KEYS[") {
                names.insert(name.to_owned());
            } else if value.starts_with("due_by_lane(") {
                names.insert(format!("{name}["));
            }
        }
    }
    names
}

/// Functions whose keys are checked, with the number of keys. Keys are the first arguments behind the command of
/// `redis.call`, `redis.pcall` and `first_write`, and behind the list and the command of `call_with`.
const TAKE_KEYS: [(&str, usize); 16] = [
    ("redis.call(", 1),
    ("redis.pcall(", 1),
    ("first_write(", 1),
    ("call_with(", 1),
    ("head_of(", 1),
    ("rank_after(", 1),
    ("largest_of(", 2),
    ("fits(", 1),
    ("counts_of(", 1),
    ("pause_of_lane(", 1),
    ("write_claim(", 4),
    ("leave_order(", 2),
    ("drop_oldest(", 4),
    ("add_dead(", 4),
    ("write_marks(", 1),
    ("keep_paused(", 1),
];

/// Names that are bound to a key in a part: the parameters of its functions.
fn parameters(part: &str) -> BTreeSet<String> {
    let heads = part.lines().filter_map(|line| line.strip_prefix("local function ")?.split_once('('));
    heads.flat_map(|(_, list)| list.trim_end_matches(')').split(", ").map(str::to_owned)).collect()
}

/// Calls whose key is none of these names.
fn undeclared(source: &str, names: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (function, keys) in TAKE_KEYS {
        for (at, _) in source.match_indices(function) {
            let line = source[..at].rsplit('\n').next().unwrap_or_default();
            if line.starts_with("local function ") || line.trim_start().starts_with("--") {
                continue;
            }
            let arguments = source[at + function.len()..].split('\n').next().unwrap_or_default();
            let arguments = if function == "call_with(" {
                arguments.split_once(", ").map_or("", |(_, rest)| rest)
            } else {
                arguments
            };
            let (command, rest) = match arguments.strip_prefix('\'').and_then(|rest| rest.split_once('\'')) {
                Some((command, rest)) => (command, rest),
                // In a part the command is a parameter, too.
                None if arguments.starts_with("command, ") => ("command", &arguments["command".len()..]),
                None => (function, arguments),
            };
            // PUBLISH names a channel: the shard's own, passed as an argument.
            if ["TIME", "PUBLISH"].contains(&command) {
                continue;
            }
            let mut rest = rest;
            for _ in 0..keys {
                let key = rest.trim_start_matches([',', ' ']);
                let is_of_keys = key.starts_with("KEYS[");
                let end = match is_of_keys {
                    true => key.find(']').map(|at| at + 1),
                    false => key.find([',', ')', '[', ' ']),
                };
                let end = end.unwrap_or(key.len());
                let indexed = key[end..].starts_with('[');
                let name = format!("{}{}", &key[..end], if indexed { "[" } else { "" });
                if !is_of_keys && !names.contains(&name) {
                    found.push(format!("{command} {key}"));
                }
                rest = &key[end..];
            }
        }
    }
    found
}

#[test]
fn every_key_in_a_call_comes_from_keys() {
    for Script { verb, source, own_source: text, parts, .. } in ALL {
        let name = verb.as_str();
        assert!(text.contains("redis.call("), "{name}");
        assert_eq!(undeclared(text, &bound(text)), Vec::<String>::new(), "{name}");
        // No name is bound a second time at the top level.
        for key in bound(text) {
            let again = format!("\n{key} = ");
            assert!(!source.contains(&again), "{name} binds {key} anew");
        }
        for part in *parts {
            let path = format!("{}/lua/parts/{part}.lua", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(path).unwrap();
            assert_eq!(undeclared(&text, &parameters(&text)), Vec::<String>::new(), "{part}");
        }
    }
    let bad = "local due = KEYS[1]\nredis.call('HGET', 'tasks', id)\nredis.call('ZADD', due .. lane, 1)\nredis.call('GET', due)\n";
    assert_eq!(undeclared(bad, &bound(bad)).len(), 1, "a literal is found");
    for bad in ["redis.call('GET', other)\n", "first_write('HDEL', other, '')\n", "call_with(list, 'ZADD', other)\n"] {
        assert!(undeclared(bad, &BTreeSet::new())[0].contains(" other"), "{bad}");
    }
    assert_eq!(
        undeclared("x = head_of(other) + largest_of(due, other)\n", &BTreeSet::from(["due".to_owned()])).len(),
        2
    );
}

#[test]
fn scripts_publish_only_on_the_channel_from_their_arguments() {
    for Script { verb, own_source: source, arguments, .. } in ALL {
        let name = verb.as_str();
        let published = source.match_indices("'PUBLISH', ").chain(source.match_indices("wake("));
        for (at, call) in published {
            let channel = &source[at + call.len()..];
            let channel = &channel[..channel.find(", ").unwrap()];
            let place = arguments.iter().position(|argument| *argument == "wake").unwrap() + 1;
            let given = format!("ARGV[{place}]");
            let bound = channel == "channel"
                && source.contains("local post, channel, declared = ARGV[3] == 'post', ARGV[4], tonumber(ARGV[5])");
            assert!(channel == given || bound, "{name} publishes on {channel}");
        }
    }
}

/// While a slot moves, some of its keys are on the old node and others on the new one. A script that starts anyway is
/// stopped half way, at a key that it has emptied. Here all keys of every call exist. So only the key that never exists
/// prevents a script from starting.
#[tokio::test]
async fn no_script_starts_while_its_slot_moves() {
    if !have("redis-server") {
        return;
    }
    let [node, other] = RedisServer::start_masters(16384);
    let stage = Stage::on(Arc::new(node)).await;
    stage.put(&[put("a", 900, "x"), put_in("default", RECURRING, "b", 900, "x"), put("c", 5000, "x")]).await;
    stage.claim("i.1", 10).await;
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("a", 900, Verdict::Dead(dead_record("x")))]).await;
    stage.put(&[put("d", 900, "x")]).await;
    stage.claim("i.2", 1).await;
    stage.glance(&[("default", true)]).await;
    let other_lane = LanePauseRequest::Pause { until: None, about: PauseNote::default() };
    stage.timeline.pause_lane(stage.shard, &lane("other"), other_lane, NEVER).await.unwrap();
    let pause = TaskPauseRequest::Pause(PauseNote::default());
    stage.timeline.pause(stage.shard, &task("c"), pause, NEVER).await.unwrap();
    let mut raw = stage.raw();
    for hash in ["changes", "crashes", "counts"] {
        ::redis::cmd("HSET").arg(stage.key(hash)).arg("z").arg("1:0").exec(&mut raw).unwrap();
    }
    let names = [
        "due:default",
        "leases:default",
        "claims:default",
        "reap-at:default",
        "tasks",
        "changes",
        "crashes",
        "counts",
        "dead",
        "dead:records",
        "dead:order",
        "dead:bytes",
        "lanes",
        "largest",
        "pauses",
        "pauses:lanes",
    ];
    let keys: Vec<String> = names.iter().map(|name| stage.key(name)).collect();
    let existing: usize = ::redis::cmd("EXISTS").arg(&keys).query(&mut raw).unwrap();
    assert_eq!(existing, keys.len(), "{:?}", stage.state());
    let before = stage.state();

    let slot = stage.server.slot(&keys[0]).to_string();
    stage.server.cluster(&["SETSLOT", &slot, "MIGRATING", &other.node_id()]);
    let (timeline, shard, default) = (&stage.timeline, stage.shard, Lane::default());
    let key: Key = "a:900".parse().unwrap();
    let settle = Settle {
        token: token("i.2"),
        verdicts: vec![settlement("d", 900, Verdict::Finished)],
        rest: RestOfClaim::Keep,
        lease: LEASE,
        dead_cap: DeadCap::of(1000),
        quiet: false,
    };
    let ClaimRequest { token: claim, max, max_bytes, lease, not_after, .. } = claim_of("i.3", 1);
    let suspects = SuspectsRequest { token: claim, max, max_bytes, lease, not_after, unreadable: false, after: None };
    let browse = BrowseRequest { filter: DeadFilter::default(), after: None, max: 9, whole: true };
    let scan = ScanRequest { filter: TaskFilter::default(), cursor: 0, count: 9 };
    let upcoming = UpcomingRequest { after: DuePosition { due: at(0), member: None }, max: 9, prefix: String::new() };
    stage.now(100_000);
    let answers = [
        timeline.put(shard, PutMode::Put, vec![put("c", 6000, "y")], NEVER).await.map(drop),
        timeline.get(shard, &task("c")).await.map(drop),
        timeline.cancel(shard, &task("c"), None, NEVER).await.map(drop),
        timeline.claim(shard, &default, claim_of("i.3", 10)).await.map(drop),
        timeline.claim_suspects(shard, &default, suspects).await.map(drop),
        timeline.settle(shard, &default, settle).await.map(drop),
        timeline.extend(shard, &[(lane("default"), token("i.2"))], LEASE).await.map(drop),
        timeline.reap(shard, &default, reaping()).await.map(drop),
        timeline.glance(shard, glancing(&[("default", true)])).await.map(drop),
        timeline.requeue(shard, &key, None, NEVER).await.map(drop),
        timeline.discard(shard, &key, None, NEVER).await.map(drop),
        timeline.browse(shard, browse).await.map(drop),
        timeline.show(shard, &key).await.map(drop),
        timeline.scan(shard, &default, scan).await.map(drop),
        timeline.upcoming(shard, &default, upcoming).await.map(drop),
        timeline.count(shard, &default, CountRequest::default()).await.map(drop),
        timeline.pause(shard, &task("c"), TaskPauseRequest::Resume, NEVER).await.map(drop),
        timeline.pause_lane(shard, &default, LanePauseRequest::Resume, NEVER).await.map(drop),
        timeline.move_due(shard, &task("c"), MoveRequest::Trigger { new_key: false }, NEVER).await.map(drop),
    ];
    assert_eq!(answers.len(), ALL.len());
    for (place, answer) in answers.into_iter().enumerate() {
        let refused = matches!(&answer, Err(TimelineError::Refused(detail)) if detail.starts_with("TRYAGAIN"));
        assert!(refused, "call {place}: {answer:?}");
    }
    stage.server.cluster(&["SETSLOT", &slot, "STABLE"]);
    assert_eq!(stage.state(), before);
}

/// A cluster rejects a call with keys in different slots, and a script that uses a key of another slot.
#[tokio::test]
async fn all_scripts_run_in_a_cluster() {
    if !have("redis-server") {
        return;
    }
    let stage = Stage::on(Arc::new(RedisServer::start_cluster())).await;
    stage.put(&[put("a", 900, "x"), put_in("other", 0, "b", 900, "x")]).await;
    stage.put(&[put_in("other", RECURRING, "a", 950, "y"), put("c", 900, "x")]).await;
    assert!(stage.get("b").await.is_some());
    assert_eq!(claimed(&stage.claim("i.1", 10).await), [("c".to_owned(), 900)]);
    let extended = stage.timeline.extend(stage.shard, &[(lane("default"), token("i.1"))], LEASE).await;
    assert_eq!(extended, Ok(vec![true]));
    stage.settle("i.1", RestOfClaim::Keep, vec![settlement("c", 900, Verdict::Dead(dead_record("x")))]).await;
    assert_eq!(stage.requeue("c:900").await, RequeueAnswer::Requeued);
    stage.crash("i.2").await;
    assert_eq!(stage.glance(&[("default", true), ("other", true)]).await.lanes.len(), 2);
    assert_eq!(claimed(&stage.claim("i.3", 10).await), [("!c:900".to_owned(), 1000)]);
    stage.settle("i.3", RestOfClaim::Keep, vec![settlement("!c:900", 1000, Verdict::Dead(dead_record("x")))]).await;
    let key: Key = "c:900".parse().unwrap();
    let request = BrowseRequest { filter: DeadFilter::default(), after: None, max: 9, whole: true };
    assert_eq!(stage.timeline.browse(stage.shard, request).await.unwrap().dead.len(), 1);
    assert!(stage.timeline.show(stage.shard, &key).await.unwrap().is_some());
    assert_eq!(stage.timeline.discard(stage.shard, &key, None, NEVER).await, Ok(true));
    assert!(matches!(stage.cancel("a").await, CancelAnswer::Cancelled { .. }));
    let pause = LanePauseRequest::Pause { until: None, about: PauseNote::default() };
    assert!(stage.timeline.pause_lane(stage.shard, &lane("default"), pause, NEVER).await.is_ok());
    assert!(stage.claim("i.4", 10).await.paused);
}
