//! Scripts touch only the keys that they were given: read off their text, and seen in cluster mode.

use std::collections::BTreeSet;

use punctual::timeline::scripts::{ALL, Script};

use super::*;

/// Names that stand for a key: `local a, b = KEYS[1], KEYS[2]`, and `table[...] = KEYS[...]`.
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
            }
        }
    }
    names
}

/// Calls whose key is not one of them.
fn undeclared(source: &str) -> Vec<String> {
    let names = bound(source);
    let mut found = Vec::new();
    for call in source.match_indices("redis.call(").chain(source.match_indices("redis.pcall(")) {
        let arguments = &source[call.0 + call.1.len()..];
        let arguments = &arguments[..arguments.find('\n').unwrap_or(arguments.len())];
        let (command, rest) = arguments
            .split_once(['\'', ')'])
            .map_or((arguments, ""), |(_, rest)| rest.split_once('\'').unwrap_or((rest, "")));
        // PUBLISH names a channel: the shard's own, given as an argument.
        if ["TIME", "PUBLISH"].contains(&command) {
            continue;
        }
        let key = rest.trim_start_matches([',', ' ']);
        let end = key.find([',', ')', '[', ' ']).unwrap_or(key.len());
        let indexed = key[end..].starts_with('[');
        let known =
            key.starts_with("KEYS[") || names.contains(&format!("{}{}", &key[..end], if indexed { "[" } else { "" }));
        if !known {
            found.push(format!("{command} {key}"));
        }
    }
    found
}

#[test]
fn every_key_in_a_call_comes_from_keys() {
    for Script { verb, source, .. } in ALL {
        let name = verb.as_str();
        assert!(source.contains("redis.call("), "{name}");
        assert_eq!(undeclared(source), Vec::<String>::new(), "{name}");
        // None is bound anew on the way, and none is made of strings.
        for key in bound(source) {
            let again = format!("\n{key} = ");
            assert!(!source.contains(&again), "{name} binds {key} anew");
        }
    }
    let bad = "local due = KEYS[1]\nredis.call('HGET', 'tasks', id)\nredis.call('ZADD', due .. lane, 1)\nredis.call('GET', due)\n";
    assert_eq!(undeclared(bad).len(), 1, "a literal is found");
    assert!(undeclared("redis.call('GET', other)\n")[0].starts_with("GET other"));
}

#[test]
fn every_channel_is_the_one_that_was_given() {
    for Script { verb, source, arguments, .. } in ALL {
        let name = verb.as_str();
        for (at, _) in source.match_indices("'PUBLISH', ") {
            let channel = &source[at + "'PUBLISH', ".len()..];
            let channel = &channel[..channel.find(", ").unwrap()];
            let place = arguments.iter().position(|argument| *argument == "wake").unwrap() + 1;
            let given = format!("ARGV[{place}]");
            let bound = channel == "channel"
                && source.contains("local post, channel, declared = ARGV[3] == 'post', ARGV[4], tonumber(ARGV[5])");
            assert!(channel == given || bound, "{name} publishes on {channel}");
        }
    }
}

/// A cluster refuses a call with keys in different slots, and a script that touches a key of another slot.
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
    stage.settle("i.1", Rest::Keep, vec![settlement("c", 900, Verdict::Dead(burial("x")))]).await;
    assert_eq!(stage.requeue("c:900").await, RequeueAnswer::Requeued);
    stage.crash("i.2").await;
    assert_eq!(stage.glance(&[("default", true), ("other", true)]).await.lanes.len(), 2);
    assert_eq!(claimed(&stage.claim("i.3", 10).await), [("!c:900".to_owned(), 1000)]);
    stage.settle("i.3", Rest::Keep, vec![settlement("!c:900", 1000, Verdict::Dead(burial("x")))]).await;
    let key: Key = "c:900".parse().unwrap();
    let request = BrowseRequest { filter: DeadFilter::default(), after: None, max: 9, whole: true };
    assert_eq!(stage.timeline.browse(stage.shard, request).await.unwrap().dead.len(), 1);
    assert!(stage.timeline.show(stage.shard, &key).await.unwrap().is_some());
    assert_eq!(stage.timeline.discard(stage.shard, &key, None, NEVER).await, Ok(true));
    assert!(matches!(stage.cancel("a").await, CancelAnswer::Cancelled { .. }));
}
