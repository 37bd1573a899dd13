//! The log: the same fields as text and as JSON, one object per line, no secrets.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use crate::support::have;
use crate::support::http::Api;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;

/// The members of a line, in order. A repeated name is a fault, because readers differ in which value they keep.
struct Line(Vec<(String, Value)>);

impl Line {
    fn read(line: &str) -> Line {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Vec<(String, Value)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        let mut reader = serde_json::Deserializer::from_str(line);
        let members = reader.deserialize_map(Members).unwrap_or_else(|error| panic!("{error} in {line}"));
        reader.end().unwrap_or_else(|error| panic!("{error} in {line}"));
        let names: BTreeSet<&str> = members.iter().map(|(name, _)| &**name).collect();
        assert_eq!(names.len(), members.len(), "a name twice: {line}");
        for needed in ["timestamp", "level", "target", "message"] {
            assert!(names.contains(needed), "no `{needed}`: {line}");
        }
        Line(members)
    }

    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(member, _)| member == name).and_then(|(_, value)| value.as_str()).unwrap_or_default()
    }
}

/// The log of an instance that publishes a task, loses its Redis for a moment, and is stopped.
fn lived(more: &str) -> String {
    let redis = RedisServer::start(&["--requirepass", "hunter2"]);
    let url = redis.url().replace("redis://", "redis://:hunter2@");
    let mut instance = Punctual::start(&format!(
        "[redis]\nurl = \"{url}\"\n[timeline]\nnamespace = \"night\"\n[sinks.a]\nurl = \"stdout:\"\n[sinks.b]\n\
         url = \"{url}\"\n[sinks.c]\nurl = \"kafka://127.0.0.1:1\"\n[lanes.default]\nsink = \"a\"\n\
         [lanes.other]\nsink = \"b\"\n[lanes.away]\nsink = \"c\"\n[log]\nfilter = \"debug\"\n{more}"
    ));
    let task = r#"{"schedule":{"in":"10ms"},"message":{"destination":"x"},"lane":"other"}"#;
    assert_eq!(Api::new(instance.port).put("a", task).unwrap().status, 201);
    instance.until("publishing", |instance| {
        instance.api().metric("punctual_published_total{sink=\"b\",outcome=\"accepted\"}") > 0.0
    });
    redis.server.signal("STOP");
    instance.until("cut off", |instance| instance.log().contains("redis is unavailable"));
    redis.server.signal("CONT");
    instance.until("connected again", |instance| instance.log().matches("connected to redis").count() > 1);
    instance.signal("TERM");
    assert_eq!(instance.wait(), 0);
    instance.log()
}

/// Takes more than five seconds: an instance runs and is stopped twice.
#[test]
fn the_log_has_the_same_content_as_text_and_as_json_lines() {
    if !have("redis-server") {
        return;
    }
    let (text, json) = (lived("format = \"text\"\n"), lived("format = \"json\"\n"));
    for log in [&text, &json] {
        assert!(!log.contains("hunter2"), "a secret:\n{log}");
    }
    let lines: Vec<Line> = json.lines().map(Line::read).collect();
    let serving = lines.iter().find(|line| line.get("message") == "serving").unwrap();
    for (name, value) in
        [("level", "INFO"), ("namespace", "night"), ("lanes", "away -> c, default -> a, other -> b"), ("version", "")]
    {
        let found = serving.get(name);
        assert!(if value.is_empty() { !found.is_empty() } else { found == value }, "{name}: {found}");
    }
    // A JSON line contains the same as a text line, in fields of the same names.
    let serving_text = text.lines().find(|line| line.contains(" serving ")).unwrap();
    for (name, _) in &serving.0 {
        let of_every_line = ["timestamp", "level", "target", "message"].contains(&&**name);
        assert!(of_every_line || serving_text.contains(&format!(" {name}=")), "no `{name}` in {serving_text}");
    }
    // Nothing about single tasks above DEBUG, and no ERROR in a normal run.
    for line in lines.iter().filter(|line| line.get("level") != "DEBUG") {
        assert!(line.0.iter().all(|(name, _)| name != "member"), "{:?}", line.0);
        assert_ne!(line.get("level"), "ERROR", "{:?}", line.0);
    }
}
