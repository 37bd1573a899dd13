//! Wrong usage and wrong configuration: exit code 2, every fault at once, no secret.

use super::{punctual, read, run};

#[test]
fn help_and_version_are_no_failures_and_no_command_is() {
    for arguments in [&["--help"][..], &["serve", "--help"], &["task", "put", "--help"], &["--version"]] {
        let run = run(arguments);
        assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{arguments:?}");
        assert!(run.out.contains("punctual"), "{arguments:?}: {}", run.out);
    }
    for arguments in
        [&[][..], &["nonsense"], &["serve", "--nonsense"], &["task"], &["task", "put", "a"], &["demo", "--tasks", "0"]]
    {
        let run = run(arguments);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(run.err.contains("Usage") || run.err.starts_with("error: "), "{arguments:?}: {}", run.err);
    }
}

#[test]
fn verify_and_bench_fail_with_a_hint_to_punctual_lab() {
    for command in ["verify", "bench"] {
        let run = run(&[command, "--seconds", "1"]);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{command}");
        assert!(run.err.contains(&format!("hint: `punctual-lab {command}`")), "{}", run.err);
    }
}

#[test]
fn every_fault_of_the_configuration_is_reported_at_once() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "[claim]\nleese = \"1s\"\nlease = \"10s\"\n[sinks.a]\nurl = \"nats://me:hunter2@x\"\n[lanes.b]\nsink = \"aa\"\n";
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let output = punctual(&["serve", "--config", path, "--listen", "nowhere"])
        .env("PUNCTUAL__CLAIM__BATCH", "many")
        .env("PUNCTUAL__REDIS__ULR", "redis://:hunter2@y")
        .output()
        .unwrap();
    let run = read(output);
    assert_eq!((run.code, run.out.as_str()), (Some(2), ""));
    for line in [
        "error: the configuration cannot be used".to_owned(),
        format!("`claim.leese` ({path}:2): there is no such option"),
        "hint: did you mean `claim.lease`?".to_owned(),
        "7s is more than half of `claim.lease`, 10s".to_owned(),
        format!("`lanes.b.sink` ({path}:7): `aa` is not configured, only `a`"),
        "hint: did you mean `a`?".to_owned(),
        "`claim.batch` (PUNCTUAL__CLAIM__BATCH): `many`".to_owned(),
        "hint: did you mean `PUNCTUAL__REDIS__URL`?".to_owned(),
        "`http.listen` (--listen): `nowhere`: an address is expected".to_owned(),
    ] {
        assert!(run.err.contains(&line), "no `{line}` in:\n{}", run.err);
    }
    assert!(!run.err.contains("hunter2"), "{}", run.err);
}

#[test]
fn an_invalid_configuration_is_refused_before_anything_starts() {
    for (arguments, detail) in [
        (&["serve", "--redis", "memory:"][..], "there is no sink to publish to"),
        (&["serve", "--sink", "stdout:", "--redis", "http://a"], "`redis.url` (--redis)"),
        (
            &["serve", "--redis", "memory:", "--sink", "carrier-pigeon://a"],
            "`sinks.default.url` (--sink): there is no sink for `carrier-pigeon://`",
        ),
        (&["serve", "--sink", "stdout:", "--namespace", "UP"], "`timeline.namespace` (--namespace)"),
        (
            &["serve", "--sink", "stdout:", "--config", "/nowhere.toml"],
            "cannot read the configuration file `/nowhere.toml`",
        ),
    ] {
        let run = run(arguments);
        assert_eq!((run.code, run.out.as_str()), (Some(2), ""), "{arguments:?}: {}", run.err);
        assert!(run.err.starts_with("error: ") && run.err.contains(detail), "{arguments:?}: {}", run.err);
    }
    let output =
        punctual(&["serve", "--redis", "memory:", "--sink", "stdout:"]).env("PUNCTUAL__LOG__FILTER", "a=b=c").output();
    let run = read(output.unwrap());
    assert!(
        run.code == Some(2)
            && run.err.contains("`log.filter` (PUNCTUAL__LOG__FILTER): `a=b=c` cannot be used as a log filter"),
        "{}",
        run.err
    );
}
