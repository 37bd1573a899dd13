//! Dead occurrences of one lane beside those of another.

use std::time::Duration;

use super::{Form, REPORT, Stage};
use crate::support::{patient, say};

pub(super) fn fill_the_dead(form: Form) {
    let Some(stage) = Stage::start("[dead]\ncap = 200\ncap_bytes = \"1MiB\"") else { return };
    let mut redis = stage.redis.connect();
    let api = stage.instance.api();
    let line = |id: &str, lane: &str, payload: &str| {
        // A one-shot without catch-up that is overdue by more than the grace is dead at once, as `too late`.
        format!(
            "{{\"id\":\"{id}\",\"schedule\":{{\"at\":\"2020-01-01T00:00:00Z\"}},\"catch_up\":\"none\",\"lane\":\"{lane}\",\"message\":{{\"destination\":\"out\",\"payload\":\"{payload}\"}}}}\n"
        )
    };
    let put = |lines: &str| api.send("POST", "/v1/tasks:batch", Some(lines)).expect("an answer");
    let listed = |lane: &str| {
        let list = api.send("GET", &format!("/v1/dead?lane={lane}&limit=1000"), None).expect("an answer").json();
        list["items"].as_array().expect("a list").len()
    };
    let own: String = (0..5).map(|n| line(&format!("own-{n}"), "victim", "x")).collect();
    put(&own);
    assert!(patient(Duration::from_secs(10), || listed("victim") == 5), "the victim's are dead");
    let before = stage.watch("dead, before", &|| std::thread::sleep(Duration::from_secs(form.choose(1, 10))));
    let (rounds, count) = (form.choose(2, 50), 1000);
    let during = stage.watch("dead, meanwhile", &|| {
        for round in 0..rounds {
            let large = "x".repeat(if round % 2 == 0 { 1 } else { 20_000 });
            let lines: String = (0..count).map(|n| line(&format!("flood-{round}-{n}"), "default", &large)).collect();
            put(&lines);
        }
        let dead = || api.metric("punctual_dead_total{lane=\"default\",reason=\"too late\"}") as usize;
        assert!(patient(Duration::from_secs(60), || dead() >= rounds * count), "{} are dead", dead());
    });
    let bytes: Vec<String> = (0..4)
        .map(|shard| {
            redis::cmd("MEMORY")
                .arg("USAGE")
                .arg(format!("punctual:{{default:{shard}}}:dead:records"))
                .query::<Option<u64>>(&mut redis)
        })
        .map(|bytes| format!("{} KiB", bytes.expect("an answer").unwrap_or_default() >> 10))
        .collect();
    say(&format!(
        "{REPORT} dead: {} of `default` are left, {} of `victim`; {}",
        listed("default"),
        listed("victim"),
        bytes.join(", ")
    ));
    assert_eq!(listed("victim"), 5, "the dead of others stay");
    assert!(listed("default") <= 4 * 200, "each lane has its own limit");
    form.judge(&stage.instance, &before, &during);
}

whole_forms!(fill_the_dead);
