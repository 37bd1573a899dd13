//! `punctual preview`: the dues that a put would answer, without an instance.

use serde_json::Value;

use super::{run, run_with, serve, url};

/// The dues in the output.
fn dues(arguments: &[&str]) -> Vec<String> {
    let run = run(&[&["preview"], arguments].concat());
    assert_eq!((run.code, run.err.as_str()), (Some(0), ""), "{arguments:?}");
    // The time in UTC comes first.
    run.out.lines().map(|line| line.split("  ").next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_preview_shows_the_dues_that_a_put_answers() {
    let server = serve(&[]);
    let schedule = ["--cron", "*/7 3 * * MON-FRI", "--zone", "Europe/Berlin"];
    let place = url(&server);
    let put = run(&[&["task", "put", "a", "--json", "--url", place.as_str()], &schedule[..]].concat());
    let answer: Value = serde_json::from_str(&put.out).unwrap();
    let next = answer["next"].as_array().unwrap().iter().map(|next| next["due"].as_str().unwrap().to_owned());
    let reported: Vec<String> = [answer["due"].as_str().unwrap().to_owned()].into_iter().chain(next).collect();
    assert_eq!(reported.len(), 4, "{answer}");
    assert_eq!(dues(&[&schedule[..], &["--count", "4"]].concat()), reported);
}

#[test]
fn a_preview_follows_the_clock_changes_of_its_zone() {
    let night = ["--cron", "30 2 * * *", "--zone", "Europe/Berlin", "--from", "2027-03-27T00:00:00Z", "--count", "3"];
    assert_eq!(dues(&night), ["2027-03-27T01:30:00.000Z", "2027-03-28T01:00:00.000Z", "2027-03-29T00:30:00.000Z"]);
}

#[test]
fn a_due_is_shown_in_utc_and_on_the_clock_of_its_zone() {
    let night = [
        "preview",
        "--cron",
        "30 9 * * *",
        "--zone",
        "Europe/Berlin",
        "--from",
        "2026-11-22T00:00:00Z",
        "--count",
        "1",
    ];
    let run = run(&night);
    let expected = "2026-11-22T08:30:00.000Z  2026-11-22 09:30:00 +01:00 Europe/Berlin\n";
    assert_eq!((run.code, run.out.as_str()), (Some(0), expected), "{}", run.err);
}

#[test]
fn the_dues_of_all_tasks_of_a_file_are_one_table() {
    let lines = concat!(
        r#"{"id":"berlin","schedule":{"cron":"0 9 * * *","zone":"Europe/Berlin"},"message":{}}"#,
        "\n\n",
        r#"{"id":"utc","schedule":{"cron":"30 8 * * *"},"message":{}}"#,
        "\n",
        r#"{"id":"twice","schedule":{"every":"1h","start":"2026-11-22T07:00:00Z","limit":2},"message":{}}"#,
    );
    let range = ["--from", "2026-11-22T00:00:00Z", "--to", "2026-11-23T00:00:00Z"];
    let table = run_with(&[&["preview", "-f", "-"], &range[..]].concat(), lines);
    let expected = "2026-11-22T07:00:00.000Z  2026-11-22 07:00:00 +00:00 UTC  twice\n\
                    2026-11-22T08:00:00.000Z  2026-11-22 09:00:00 +01:00 Europe/Berlin  berlin\n\
                    2026-11-22T08:00:00.000Z  2026-11-22 08:00:00 +00:00 UTC  twice\n\
                    2026-11-22T08:30:00.000Z  2026-11-22 08:30:00 +00:00 UTC  utc\n";
    assert_eq!((table.code, table.out.as_str()), (Some(0), expected), "{}", table.err);
    let first = run_with(&["preview", "-f", "-", "--count", "1", "--json", "--from", range[1]], lines);
    let ids: Vec<Value> =
        first.out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone()).collect();
    assert_eq!(ids, ["twice", "berlin", "utc"], "{}", first.err);
    let wrong = run_with(&["preview", "-f", "-"], &format!("{lines}\n{{\"id\":\"a b\"}}"));
    assert!(wrong.code == Some(1) && wrong.err.contains("line 5: cannot preview: "), "{}", wrong.err);
}

/// As an instance does with `tasks.zone`.
#[test]
fn a_default_zone_is_that_of_cron_schedules_which_name_none() {
    let cron =
        ["--cron", "0 9 * * *", "--from", "2027-01-01T00:00:00Z", "--count", "1", "--default-zone", "Asia/Tokyo"];
    let flags = run(&[&["preview"], &cron[..]].concat());
    assert_eq!(flags.out, "2027-01-02T00:00:00.000Z  2027-01-02 09:00:00 +09:00 Asia/Tokyo\n", "{}", flags.err);
    let line =
        |id: &str, zone: &str| format!(r#"{{"id":"{id}","schedule":{{"cron":"0 9 * * *"{zone}}},"message":{{}}}}"#);
    let tasks = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(tasks.path(), line("a", "") + "\n" + &line("b", r#","zone":"UTC""#)).expect("two tasks");
    let path = tasks.path().display().to_string();
    let both = run(&[&["preview", "-f", &path], &cron[2..]].concat());
    let dues: Vec<&str> = both.out.lines().map(|line| line.split("  ").next().unwrap_or_default()).collect();
    assert_eq!(dues, ["2027-01-01T09:00:00.000Z", "2027-01-02T00:00:00.000Z"], "{}{}", both.out, both.err);
    let nowhere = run(&["preview", "--cron", "0 9 * * *", "--default-zone", "Mars"]);
    assert_eq!(nowhere.code, Some(2), "{}", nowhere.err);
}

#[test]
fn a_file_holds_a_task_or_a_schedule() {
    let schedule = r#"{"every":"1h","start":"2026-01-01T00:00:00Z","limit":2}"#;
    for file in [
        schedule.to_owned(),
        format!(r#"{{"schedule":{schedule},"message":{{"payload":1}}}}"#),
        format!(r#"{{"id":"a","schedule":{schedule},"message":{{}},"lane":"night"}}"#),
    ] {
        let run = run_with(&["preview", "-f", "-", "--from", "2026-05-01T00:30:00Z", "--json"], &file);
        assert_eq!(run.code, Some(0), "{file}: {}", run.err);
        let reported: Value = serde_json::from_str(&run.out).unwrap();
        assert_eq!(reported["next"][0]["due"], "2026-05-01T01:00:00.000Z");
        assert_eq!(reported["next"][1]["due_ms"], 1_777_600_800_000_i64);
        assert_eq!(reported["next"].as_array().unwrap().len(), 2, "the limit");
    }
}

#[test]
fn a_preview_accepts_a_task_as_large_as_an_instance_can_be_set_to_accept() {
    let payload = "a".repeat(600 * 1024);
    let file = format!(r#"{{"schedule":{{"at":"2027-01-01T00:00:00Z"}},"message":{{"payload":"{payload}"}}}}"#);
    let run = run_with(&["preview", "-f", "-"], &file);
    assert_eq!((run.code, run.out.as_str()), (Some(0), "2027-01-01T00:00:00.000Z\n"), "{}", run.err);
}

#[test]
fn a_preview_reports_the_same_faults_as_the_api() {
    let server = serve(&[]);
    let (place, bad) = (url(&server), ["--cron", "0 0 30 2 *"]);
    let put = run(&[&["task", "put", "a", "--url", place.as_str()], &bad[..]].concat());
    let preview = run(&[&["preview"], &bad[..]].concat());
    assert_eq!((put.code, preview.code, preview.out.as_str()), (Some(1), Some(1), ""));
    let detail = |text: &str| text[text.find("/schedule").expect(text)..].to_owned();
    assert_eq!(detail(&put.err), detail(&preview.err));
    for (file, detail) in [
        (
            r#"{"cron":"x","zone":"Europe/Berln"}"#,
            "error: cannot preview: 2 faults\n  /schedule/cron: `x` is not a cron",
        ),
        (r#"{"schedule":{"in":"1s"},"message":{"headers":{"nats-x":"1"}}}"#, "/message/headers/nats-x: "),
        ("{", "the file is not JSON: "),
        ("[]", "/schedule: an object is expected, not a list"),
    ] {
        let run = run_with(&["preview", "-f", "-"], file);
        assert!(run.code == Some(1) && run.err.contains(detail), "{file}: {}", run.err);
    }
    for (arguments, code) in [
        (&["preview", "--every", "1h", "--spread", "5m"][..], 1),
        (&["preview", "--in", "1s", "--count", "101"], 1),
        (&["preview", "-f", "/nowhere.json"], 2),
        (&["preview", "--in", "1s", "--at", "2027-01-01T00:00:00Z"], 2),
        (&["preview"], 2),
    ] {
        assert_eq!(run(arguments).code, Some(code), "{arguments:?}");
    }
}
