//! Somebody empties Redis under a running instance, or restores a backup: instances with different layouts never run at the same time.

use super::*;
use crate::outage::{config, until_logged};
use crate::support::punctual::Punctual;
use crate::support::{have, patient};

fn stored(redis: &RedisServer) -> Option<String> {
    ::redis::cmd("GET").arg("punctual:{default}:layout").query(&mut redis.connect()).unwrap()
}

/// Takes more than five seconds: the layout is read every five.
#[test]
fn a_missing_layout_is_written_again_and_a_different_layout_ends_the_instance() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let mut instance = Punctual::start(&config(&redis, "memory:"));
    until_logged(&mut instance, &[" INFO ", "timeline created; it has no tasks yet"]);
    let own = stored(&redis).expect("a layout");
    let task = r#"{"schedule":{"every":"1h"},"message":{"destination":"out"}}"#;
    for id in ["a", "b", "c"] {
        assert_eq!(instance.api().put(id, task).expect("an answer").status, 201);
    }
    let waiting = || instance.api().metric("punctual_pending{lane=\"default\"}") == 3.0;
    assert!(patient(SOON, waiting), "{}", instance.log());
    // A second start finds the tasks.
    let mut other = Punctual::start(&config(&redis, "memory:"));
    until_logged(&mut other, &[" INFO ", "timeline found", "tasks=3"]);

    ::redis::cmd("FLUSHALL").exec(&mut redis.connect()).unwrap();
    // One of them writes the layout again, and the other one notices by its mark.
    for instance in [&mut instance, &mut other] {
        until_logged(instance, &[" ERROR ", "the timeline is lost", "tasks=\"default 3\""]);
        assert_eq!(instance.api().metric("punctual_timeline_lost_total"), 1.0);
        let ready = instance.api().ready().expect("an answer");
        assert!(ready.status == 200 && ready.json()["timeline"]["lost"].is_string(), "{ready:?}");
    }
    drop(other);
    let again = stored(&redis).expect("a layout");
    assert!(again != own && again.starts_with("1 "), "{again}");
    // A backup is restored: that is no second loss.
    ::redis::cmd("SET").arg("punctual:{default}:layout").arg(&own).exec(&mut redis.connect()).unwrap();
    std::thread::sleep(Duration::from_secs(7));
    assert_eq!(instance.api().metric("punctual_timeline_lost_total"), 1.0);
    let own = again.rsplit_once(' ').expect("a mark").0.to_owned();

    ::redis::cmd("SET").arg("punctual:{default}:layout").arg("1 8").exec(&mut redis.connect()).unwrap();
    assert_eq!(instance.wait(), 2, "{}", instance.log());
    let said = instance.log();
    assert!(said.contains("a timeline of 8 shards") && said.contains(&format!("expected: `{own}`")), "{said}");
    assert_eq!(stored(&redis).as_deref(), Some("1 8"));
}
