//! `punctual config`: every option, its value and origin; and refused values.

use serde_json::Value;

use super::{punctual, read, run};

#[test]
fn config_shows_every_option_with_its_origin_and_no_secret() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let hash = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    let text = format!(
        "[claim]\nlease = \"20s\"\n[sinks.a]\nurl = \"kafka://me:hunter2@h\"\npatience = \"5s\"\n\
         [sinks.a.properties]\n\"sasl.password\" = \"hunter2\"\n[sinks.b]\nurl = \"nats://hunter2@h\"\n\
         [lanes.default]\nsink = \"a\"\n[lanes.b]\nsink = \"b\"\n[tokens.t]\nsha256 = \"{hash}\"\nscope = \"read\"\n"
    );
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let command = |more: &[&str]| {
        let arguments = [&["config", "--config", path, "--redis", "redis+sentinel://me:hunter2@h/m"], more].concat();
        let mut command = punctual(&arguments);
        command.env("PUNCTUAL__CLAIM__BATCH", "7").env("PUNCTUAL__REDIS__SENTINEL_PASSWORD", "hunter2");
        read(command.output().unwrap())
    };
    let run = command(&[]);
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""));
    for (option, origin) in [
        ("claim.lease = \"20s\"", &*format!("{path}:2")),
        ("claim.batch = \"7\"", "PUNCTUAL__CLAIM__BATCH"),
        ("claim.grace = \"60s\"", "default"),
        ("redis.url = \"redis+sentinel://***@h/m\"", "--redis"),
        ("redis.sentinel_password = \"***\"", "PUNCTUAL__REDIS__SENTINEL_PASSWORD"),
        ("sinks.a.url = \"kafka://***@h\"", &format!("{path}:4")),
        ("sinks.a.patience = \"5s\"", &format!("{path}:5")),
        ("sinks.a.answer_timeout = \"7s\"", "sinks.answer_timeout"),
        ("sinks.a.properties.\"sasl.password\" = \"***\"", &format!("{path}:7")),
        ("sinks.b.url = \"nats://***@h\"", &format!("{path}:9")),
        ("tokens.t.sha256 = \"***\"", &format!("{path}:15")),
        ("tls.ca_file = \"\"", "default"),
    ] {
        let shown = run.out.lines().any(|line| line.split("  # ").map(str::trim).eq([option, origin]));
        assert!(shown, "no `{option}  # {origin}` in:\n{}", run.out);
    }
    let json: Value = serde_json::from_str(&command(&["--json"]).out).unwrap();
    assert_eq!(json["claim.lease"]["value"], "20s");
    assert_eq!(json["claim.lease"]["origin"], format!("{path}:2"));
    assert_eq!(json["claim.catch_up_max"]["value"], 100);
    assert_eq!(json.as_object().unwrap().len(), run.out.lines().count());
    for secret in ["hunter2", hash] {
        assert!(!run.out.contains(secret) && !json.to_string().contains(secret), "{}", run.out);
    }
}

/// The output is valid TOML with the same values, except for secrets.
#[test]
fn config_output_is_a_valid_configuration() {
    let shown = run(&["config", "--redis", "memory:", "--sink", "stdout:"]).out;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &shown).unwrap();
    let again = run(&["config", "--config", file.path().to_str().unwrap()]);
    assert_eq!((again.code, again.err.as_str()), (Some(0), ""), "{shown}");
    let options = |text: &str| text.lines().map(|line| line.split("  # ").next().unwrap().trim().to_owned()).collect();
    let (before, after): (Vec<String>, Vec<String>) = (options(&shown), options(&again.out));
    assert_eq!(before, after);
    // Contains every option of the built-in file.
    for option in
        ["claim.lease", "dead.cap", "http.listen", "limits.headers", "log.format", "timeline.shards", "tls.ca_file"]
    {
        assert!(before.iter().any(|line| line.starts_with(&format!("{option} = "))), "no {option} in {before:?}");
    }
}

#[test]
fn a_configuration_with_faults_is_not_shown_and_all_faults_are() {
    let run = run(&["config", "--redis", "elsewhere", "--sink", "sqs://me:hunter2@h", "--listen", "nowhere"]);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    for option in ["`redis.url` (--redis)", "`http.listen` (--listen)"] {
        assert!(run.err.contains(option), "{}", run.err);
    }
    assert!(!run.err.contains("hunter2"), "{}", run.err);
}
