//! Refused requests: status, code, and every fault with its position. Nothing of them is stored.

use super::Stage;
use crate::support::have;
use crate::support::redis::RedisServer;

pub(super) const JSON: &str = "application/json";
pub(super) const NDJSON: &str = "application/x-ndjson";
pub(super) const TASK: &str = r#"{"schedule":{"in":"1s"},"message":{}}"#;

/// A request and its expected answer.
struct Case {
    method: &'static str,
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
    status: u16,
    code: &'static str,
    /// Pointer and code of each.
    faults: Vec<(&'static str, &'static str)>,
}

impl Case {
    fn of(method: &'static str, path: &str, kind: &str, body: &str) -> Case {
        let headers = if kind.is_empty() { Vec::new() } else { vec![("content-type", kind.to_owned())] };
        let (path, body) = (path.to_owned(), body.to_owned());
        Case { method, path, headers, body, status: 422, code: "invalid", faults: Vec::new() }
    }

    fn is(mut self, status: u16, code: &'static str) -> Case {
        (self.status, self.code) = (status, code);
        self
    }

    fn with(mut self, name: &'static str, value: &str) -> Case {
        self.headers.push((name, value.to_owned()));
        self
    }

    fn at(mut self, pointer: &'static str, code: &'static str) -> Case {
        self.faults.push((pointer, code));
        self
    }
}

fn put(body: &str) -> Case {
    Case::of("PUT", "/v1/tasks/a", JSON, body)
}

fn put_as(id: &str) -> Case {
    Case::of("PUT", &format!("/v1/tasks/{id}"), JSON, TASK)
}

fn schedule(schedule: &str) -> Case {
    put(&format!(r#"{{"schedule":{schedule},"message":{{}}}}"#))
}

fn message(message: &str) -> Case {
    put(&format!(r#"{{"schedule":{{"in":"1s"}},"message":{message}}}"#))
}

fn more(schedule: &str, more: &str) -> Case {
    put(&format!(r#"{{"schedule":{schedule},"message":{{}},{more}}}"#))
}

fn preview(body: &str) -> Case {
    Case::of("POST", "/v1/preview", JSON, body)
}

fn post_under(key: &str) -> Case {
    Case::of("POST", "/v1/tasks", JSON, TASK).with("idempotency-key", key)
}

/// Documents that are no tasks.
fn documents() -> Vec<Case> {
    let broken = |body: &str| put(body).is(400, "malformed").at("", "not_json");
    vec![
        broken(""),
        broken(r#"{"schedule":"#),
        broken(r#"{'schedule':{'in':'1s'},'message':{}}"#),
        broken(&format!("{TASK}{TASK}")),
        broken(&"[".repeat(5000)),
        broken(r#"{"schedule":{"in":"1s"},"message":{"payload":NaN}}"#),
        put("[]").at("", "wrong_type"),
        put(&format!("{}{}", "[".repeat(5000), "]".repeat(5000))).at("", "wrong_type"),
        put("null").at("", "wrong_type"),
        put("{}").at("/schedule", "missing_field").at("/message", "missing_field"),
        put(r#"{"schedule":null,"message":null}"#).at("/schedule", "wrong_type").at("/message", "wrong_type"),
        put(r#"{"schedule":{"in":"soon"},"message":{"payload":1,"payload_base64":"aGk="},"lane":"A","colour":1}"#)
            .at("/schedule/in", "bad_duration")
            .at("/message", "exclusive_fields")
            .at("/lane", "bad_lane")
            .at("/colour", "unknown_field"),
        put(r#"{"id":"b","schedule":{"in":"1s"},"message":{}}"#).at("/id", "unknown_field"),
        put(r#"{"schedule":{"in":"1s"},"schedule":{"in":"2s"},"message":{}}"#).at("/schedule", "duplicate_field"),
        put(r#"{"schedule":{"in":"1s"},"message":{},"a/b~c":1}"#).at("/a~1b~0c", "unknown_field"),
        put(r#"{"schedule":{"in":"\ud800"},"message":{}}"#).at("/schedule/in", "not_json"),
        // Names are compared with their case.
        put(r#"{"schedule":{"in":"1s"},"Message":{}}"#).at("/message", "missing_field").at("/Message", "unknown_field"),
    ]
}

fn schedules() -> Vec<Case> {
    let (at, every, cron) = ("/schedule/at", "/schedule/every", "/schedule/cron");
    vec![
        schedule("{}").at("/schedule", "missing_field"),
        schedule(r#"{"in":"1s","at":"2026-12-24T18:00:00Z"}"#).at("/schedule", "exclusive_fields"),
        schedule(r#"{"every":"1h","cron":"@daily"}"#).at("/schedule", "exclusive_fields"),
        schedule(r#"{"in":"1s","zone":"Europe/Berlin"}"#).at("/schedule/zone", "not_applicable"),
        schedule(r#"{"in":"1s","limit":3}"#).at("/schedule/limit", "not_applicable"),
        schedule(r#"{"every":"1h","zone":"Europe/Berlin"}"#).at("/schedule/zone", "not_applicable"),
        // Durations.
        schedule(r#"{"in":"-5s"}"#).at("/schedule/in", "bad_duration"),
        schedule(r#"{"in":5}"#).at("/schedule/in", "wrong_type"),
        schedule(r#"{"in":"99999999999999999999s"}"#).at("/schedule/in", "bad_duration"),
        schedule(r#"{"in":"2932896d23h59m"}"#).at("/schedule/in", "out_of_range"),
        schedule(r#"{"in":"1.5s"}"#).at("/schedule/in", "bad_duration"),
        schedule(r#"{"every":"0ms"}"#).at(every, "bad_duration"),
        schedule(r#"{"every":"1s1h"}"#).at(every, "bad_duration"),
        schedule(r#"{"every":"2932896d"}"#).at(every, "out_of_range"),
        // Times.
        schedule(r#"{"at":"tomorrow"}"#).at(at, "bad_time"),
        schedule(r#"{"at":"2026-12-24T18:00:00"}"#).at(at, "bad_time"),
        schedule(r#"{"at":"2026-02-30T18:00:00Z"}"#).at(at, "bad_time"),
        schedule(r#"{"at":1795262400}"#).at(at, "wrong_type"),
        schedule(r#"{"at":"1969-12-31T23:59:59Z"}"#).at(at, "out_of_range"),
        schedule(r#"{"at":"9999-12-31T23:59:59.9999Z"}"#).at(at, "out_of_range"),
        schedule(r#"{"every":"1h","end":"2026-11-21T12:59:59Z"}"#).at("/schedule/end", "end_before_first"),
        schedule(r#"{"cron":"0 9 * * *","end":"2026-11-21T13:00:00Z"}"#).at("/schedule/end", "end_before_first"),
        schedule(r#"{"every":"1h","limit":0}"#).at("/schedule/limit", "out_of_range"),
        schedule(r#"{"every":"1h","limit":1.5}"#).at("/schedule/limit", "out_of_range"),
        schedule(r#"{"every":"1h","limit":9007199254740992}"#).at("/schedule/limit", "out_of_range"),
        schedule(r#"{"every":"1h","spread":"1h"}"#).at("/schedule/spread", "spread_too_long"),
        schedule(r#"{"cron":"0,1 * * * *","spread":"2m"}"#).at("/schedule/spread", "spread_too_long"),
        // Cron.
        schedule(r#"{"cron":"x"}"#).at(cron, "bad_cron"),
        schedule(r#"{"cron":""}"#).at(cron, "bad_cron"),
        schedule(r#"{"cron":"60 * * * *"}"#).at(cron, "bad_cron"),
        schedule(r#"{"cron":"* * * * * * *"}"#).at(cron, "bad_cron"),
        schedule(r#"{"cron":", * * * *"}"#).at(cron, "bad_cron"),
        schedule(r#"{"cron":"0 0 31 2 *"}"#).at(cron, "never_due"),
        schedule(r#"{"cron":"0 0 30 2 *","zone":"Asia/Tokyo"}"#).at(cron, "never_due"),
        schedule(&format!(r#"{{"cron":"{} * * * *"}}"#, "0,".repeat(300))).at(cron, "too_large"),
        schedule(r#"{"cron":"@daily","zone":"Mars/Olympus"}"#).at("/schedule/zone", "bad_zone"),
        schedule(r#"{"cron":"@daily","zone":""}"#).at("/schedule/zone", "bad_zone"),
        schedule(r#"{"cron":"@daily","zone":"../../etc/passwd"}"#).at("/schedule/zone", "bad_zone"),
        schedule(r#"{"cron":"x","zone":"y"}"#).at(cron, "bad_cron").at("/schedule/zone", "bad_zone"),
    ]
}

fn policies() -> Vec<Case> {
    let in_1s = r#"{"in":"1s"}"#;
    vec![
        more(in_1s, r#""retry":{"max":-1}"#).at("/retry/max", "out_of_range"),
        more(in_1s, r#""retry":{"max":4294967296}"#).at("/retry/max", "out_of_range"),
        more(in_1s, r#""retry":{"max":9,"interval":"1s"}"#).at("/retry", "retry_too_long"),
        more(in_1s, r#""retry":{"max":1,"jitter":"2932896d"}"#).at("/retry", "retry_too_long"),
        more(in_1s, r#""retry":{"interval":"0s"}"#).at("/retry/interval", "bad_duration"),
        more(in_1s, r#""retry":[]"#).at("/retry", "wrong_type"),
        // The gap against the worst case: 200 + 400 + 800 and three times 500 ms; a spread leaves less room.
        more(r#"{"every":"2s"}"#, r#""retry":{"max":3}"#).at("/retry", "retry_too_long"),
        more(r#"{"every":"4s","spread":"3s"}"#, r#""retry":{"max":3}"#).at("/retry", "retry_too_long"),
        more(r#"{"cron":"* * * * * *"}"#, r#""retry":{"max":2,"interval":"400ms"}"#).at("/retry", "retry_too_long"),
        more(in_1s, r#""catch_up":"some""#).at("/catch_up", "bad_value"),
        more(in_1s, r#""catch_up":true"#).at("/catch_up", "wrong_type"),
        more(in_1s, r#""lane":"none""#).at("/lane", "unknown_lane"),
        more(in_1s, r#""lane":"""#).at("/lane", "bad_lane"),
        more(in_1s, r#""lane":"a{b}""#).at("/lane", "bad_lane"),
        more(in_1s, r#""lane":"alerts""#).at("/message/destination", "missing_field"),
        put(r#"{"schedule":{"in":"1s"},"message":{"destination":"$SYS.a"},"lane":"alerts"}"#)
            .at("/message/destination", "bad_destination"),
    ]
}

fn messages() -> Vec<Case> {
    let header = |name: &str, value: &str| message(&format!(r#"{{"headers":{{"{name}":{value}}}}}"#));
    let many: Vec<_> = (0..65).map(|n| format!("\"h{n}\":\"\"")).collect();
    vec![
        message(&format!(r#"{{"payload":"{}"}}"#, "x".repeat(512 * 1024))).at("/message/payload", "too_large"),
        message(&format!(r#"{{"payload_base64":"{}"}}"#, "AAAA".repeat(180_000)))
            .at("/message/payload_base64", "too_large"),
        message(r#"{"payload_base64":"aGk"}"#).at("/message/payload_base64", "bad_base64"),
        message(r#"{"payload_base64":"a-_="}"#).at("/message/payload_base64", "bad_base64"),
        message(r#"{"payload":1,"content_type":"text/plain"}"#).at("/message/content_type", "not_applicable"),
        message(r#"{"payload":1,"payload_base64":"aGk="}"#).at("/message", "exclusive_fields"),
        message(r#"{"destination":""}"#).at("/message/destination", "bad_value"),
        message(r#"{"destination":"a\nb"}"#).at("/message/destination", "bad_value"),
        message(&format!(r#"{{"key":"{}"}}"#, "k".repeat(1025))).at("/message/key", "bad_value"),
        message(r#"{"payload_base64":"aGk=","content_type":"text/plain\r\nx: y"}"#)
            .at("/message/content_type", "bad_value"),
        header("Nats-Msg-Id", "\"x\"").at("/message/headers/Nats-Msg-Id", "reserved_header"),
        header("Idempotency-Key", "\"x\"").at("/message/headers/Idempotency-Key", "reserved_header"),
        header("PUNCTUAL-due", "\"x\"").at("/message/headers/PUNCTUAL-due", "reserved_header"),
        header("content-type", "\"x\"").at("/message/headers/content-type", "reserved_header"),
        header("bcc", "\"x\"").at("/message/headers/bcc", "reserved_header"),
        header("x", "\"a\\r\\nset-cookie: b\"").at("/message/headers/x", "bad_header"),
        header("x", "\"a\\u0000\"").at("/message/headers/x", "bad_header"),
        header("x: y", "\"a\"").at("/message/headers/x: y", "bad_header"),
        header("", "\"a\"").at("/message/headers/", "bad_header"),
        header("x", "7").at("/message/headers/x", "wrong_type"),
        message(&format!("{{\"headers\":{{{}}}}}", many.join(","))).at("/message/headers", "too_many"),
        header("x", &format!("\"{}\"", "v".repeat(16 * 1024))).at("/message/headers", "too_large"),
        message(r#"{"headers":["x"]}"#).at("/message/headers", "wrong_type"),
    ]
}

fn ids_and_requests() -> Vec<Case> {
    let id = |text: &str| put_as(text).at("/id", "bad_id");
    let media = |case: Case| case.is(415, "unsupported_media_type");
    vec![
        id("a%20b"),
        id("a%2Fb"),
        id("a%252Fb"),
        id(".."),
        id("%2e%2e"),
        id(&"a".repeat(201)),
        id("-a"),
        id("%FF"),
        id("a%00"),
        id("%C3%A4"),
        id("a%0D%0Ax:y"),
        id("!a:1"),
        id("%7Bdefault:0%7D"),
        put_as("a/b").is(404, "no_route"),
        put_as("../a").is(404, "no_route"),
        put_as("").is(404, "no_route"),
        Case::of("GET", "/v1/tasks/a%20b", "", "").at("/id", "bad_id"),
        Case::of("DELETE", "/v1/tasks/!a", "", "").at("/id", "bad_id"),
        Case::of("PUT", "/v1/tasks/-a", JSON, "{}")
            .at("/id", "bad_id")
            .at("/schedule", "missing_field")
            .at("/message", "missing_field"),
        media(Case::of("PUT", "/v1/tasks/a", "", TASK)),
        media(Case::of("PUT", "/v1/tasks/a", JSON, TASK).with("content-encoding", "gzip")),
        media(Case::of("POST", "/v1/tasks:batch", "application/x-ndjson", TASK).with("content-encoding", "zstd")),
        media(Case::of("PUT", "/v1/tasks/a", "application/json; charset=utf-16", TASK)),
        media(Case::of("PUT", "/v1/tasks/a", "application/x-www-form-urlencoded", TASK)),
        media(Case::of("PUT", "/v1/tasks/a", "text/plain", TASK)),
        media(Case::of("POST", "/v1/tasks", NDJSON, TASK)),
        media(Case::of("POST", "/v1/tasks:batch", JSON, TASK)),
        media(Case::of("POST", "/v1/tasks:batch", "application/jsonl", TASK)),
        media(Case::of("POST", "/v1/preview", "", TASK)),
        Case::of("POST", "/v1/tasks/a", JSON, TASK).is(405, "no_method"),
        Case::of("PATCH", "/v1/tasks/a", JSON, TASK).is(405, "no_method"),
        Case::of("DELETE", "/v1/tasks", "", "").is(405, "no_method"),
        Case::of("GET", "/v1/tasks:batch", "", "").is(405, "no_method"),
        Case::of("GET", "/nowhere", "", "").is(404, "no_route"),
        Case::of("GET", "//v1/tasks/a", "", "").is(404, "no_route"),
        put(&" ".repeat((1 << 20) + 1)).is(413, "too_large"),
        put(&"x".repeat(5 << 20)).is(413, "too_large"),
    ]
}

fn posts_and_previews() -> Vec<Case> {
    let key = |key: &str| post_under(key).at("/idempotency-key", "bad_idempotency_key");
    vec![
        key(""),
        key("\"\""),
        key("a b"),
        key("\u{e4}"),
        key(&"k".repeat(256)),
        key("a").with("idempotency-key", "a"),
        Case::of("POST", "/v1/tasks", JSON, "{}")
            .with("idempotency-key", "a b")
            .at("/idempotency-key", "bad_idempotency_key")
            .at("/schedule", "missing_field")
            .at("/message", "missing_field"),
        Case::of("POST", "/v1/tasks", JSON, r#"{"id":"b","schedule":{"in":"1s"},"message":{}}"#)
            .at("/id", "unknown_field"),
        preview("no").is(400, "malformed").at("", "not_json"),
        preview("{}").at("/schedule", "missing_field"),
        preview(r#"{"schedule":{"in":"1s"},"message":{}}"#).at("/message", "unknown_field"),
        preview(r#"{"schedule":{"cron":"0 0 31 2 *"}}"#).at("/schedule/cron", "never_due"),
        preview(r#"{"schedule":{"every":"1h"},"count":0}"#).at("/count", "out_of_range"),
        preview(r#"{"schedule":{"every":"1h"},"count":101}"#).at("/count", "out_of_range"),
        preview(r#"{"schedule":{"every":"1h"},"from":"soon"}"#).at("/from", "bad_time"),
        preview(r#"{"schedule":{"every":"1h"},"id":"a b"}"#).at("/id", "bad_id"),
        preview(r#"{"schedule":{"every":"1h","spread":"5m"},"z":1}"#)
            .at("/id", "missing_field")
            .at("/z", "unknown_field"),
        preview(r#"{"schedule":{"every":"1h","end":"2027-01-01T00:00:00Z"},"from":"2027-01-01T00:00:00Z"}"#)
            .at("/schedule/end", "end_before_first"),
    ]
}

fn the_dead() -> Vec<Case> {
    let list = |query: &str| Case::of("GET", &format!("/v1/dead{query}"), "", "");
    let key = |method, path: &str| Case::of(method, &format!("/v1/dead/{path}"), "", "").at("/key", "bad_key");
    let many = |body: &str| Case::of("POST", "/v1/dead:requeue", JSON, body);
    vec![
        list("?lane=A").at("/lane", "bad_lane"),
        list("?lane=").at("/lane", "bad_lane"),
        list("?reason=rejectd").at("/reason", "bad_value"),
        list("?from=yesterday").at("/from", "bad_time"),
        // A `+` is a space in a query.
        list("?from=2026-11-21T13:00:00+01:00").at("/from", "bad_time"),
        list("?from=2026-11-21T13:00:00Z&to=2026-11-21T13:00:00Z").at("/to", "out_of_range"),
        list("?lane=defualt").at("/lane", "unknown_lane"),
        list("?limit=0").at("/limit", "out_of_range"),
        list("?limit=1001").at("/limit", "out_of_range"),
        list("?limit=all").at("/limit", "wrong_type"),
        list("?limit=-1").at("/limit", "wrong_type"),
        list("?cursor=x").at("/cursor", "bad_value"),
        list("?cursor=1.a").at("/cursor", "bad_value"),
        list("?cursor=9999999999999999999999.a:1").at("/cursor", "bad_value"),
        list("?lane=a&lane=b").at("/lane", "duplicate_field"),
        list("?lanes=a&x%22=1").at("/lanes", "unknown_field").at("/x\"", "unknown_field"),
        key("GET", "a"),
        key("GET", "a:0"),
        key("GET", "a:01"),
        key("GET", "a:253402300800000"),
        key("GET", "!a:1"),
        key("GET", "%FF"),
        key("GET", "a%00:1"),
        key("DELETE", "a%20b:1"),
        key("DELETE", "%7Bdefault:0%7D"),
        Case::of("POST", "/v1/dead/a/requeue", JSON, "").at("/key", "bad_key"),
        Case::of("POST", "/v1/dead/a/requeue", JSON, r#"{"a":1}"#).at("/key", "bad_key").at("/a", "unknown_field"),
        Case::of("POST", "/v1/dead/a:1/requeue", JSON, "[]").at("", "wrong_type"),
        Case::of("POST", "/v1/dead/a:1/requeue", JSON, "no").is(400, "malformed").at("", "not_json"),
        // Pages of other sites cannot send these.
        Case::of("POST", "/v1/dead/a:1/requeue", "", "").is(415, "unsupported_media_type"),
        Case::of("POST", "/v1/dead:requeue", "text/plain", "{}").is(415, "unsupported_media_type"),
        Case::of("POST", "/v1/dead:discard", "", "{}").is(415, "unsupported_media_type"),
        Case::of("POST", "/v1/dead:discard", JSON, "").is(400, "malformed").at("", "not_json"),
        many("[]").at("", "wrong_type"),
        // A forgotten member must not select everything.
        many("{}").at("", "missing_field"),
        many(r#"{"dry_run":true,"all":false}"#).at("", "missing_field"),
        many(r#"{"all":true,"lane":"a"}"#).at("/all", "exclusive_fields"),
        many(r#"{"all":"yes","reason":"poison"}"#).at("/all", "wrong_type"),
        many(r#"{"lane":"defualt"}"#).at("/lane", "unknown_lane"),
        many(r#"{"all":true,"limit":1}"#).at("/limit", "unknown_field"),
        many(r#"{"lane":null}"#).at("/lane", "wrong_type"),
        many(r#"{"reason":"Rejected"}"#).at("/reason", "bad_value"),
        many(r#"{"from":0}"#).at("/from", "wrong_type"),
        many(r#"{"all":true,"cursor":"1.a:1"}"#).at("/cursor", "bad_value"),
        many(r#"{"all":true,"cursor":"1~1.a"}"#).at("/cursor", "bad_value"),
        Case::of("GET", "/v1/dead:requeue", "", "").is(405, "no_method"),
        Case::of("POST", "/v1/dead", JSON, "{}").is(405, "no_method"),
        Case::of("GET", "/v1/dead/", "", "").is(404, "no_route"),
    ]
}

/// A line of a batch, status and code of its answer, and its fault.
type Line = (String, u16, &'static str, Option<(&'static str, &'static str)>);

fn lines() -> Vec<Line> {
    let malformed = Some(("", "not_json"));
    vec![
        ("nonsense".to_owned(), 400, "malformed", malformed),
        (r#"{"id":"a","schedule":{"in":"1s"},"mess"#.to_owned(), 400, "malformed", malformed),
        (r#"age":{}}"#.to_owned(), 400, "malformed", malformed),
        (format!("{TASK}{TASK}"), 400, "malformed", malformed),
        ("[]".to_owned(), 422, "invalid", Some(("", "wrong_type"))),
        (TASK.to_owned(), 422, "invalid", Some(("/id", "missing_field"))),
        (TASK.replacen('{', r#"{"id":"a b","#, 1), 422, "invalid", Some(("/id", "bad_id"))),
        (TASK.replacen('{', r#"{"id":7,"#, 1), 422, "invalid", Some(("/id", "wrong_type"))),
        (TASK.replacen('{', r#"{"id":"a","lane":"none","#, 1), 422, "invalid", Some(("/lane", "unknown_lane"))),
        (TASK.replacen('{', r#"{"id":"a","id":"b","#, 1), 422, "invalid", Some(("/id", "duplicate_field"))),
        ("x".repeat(5 << 20), 413, "too_large", None),
    ]
}

/// Number of keys in Redis.
pub(super) fn keys(connection: &mut redis::Connection) -> u64 {
    redis::cmd("DBSIZE").query(connection).unwrap()
}

#[tokio::test]
async fn bad_input_is_refused_with_all_its_faults_and_leaves_nothing_in_redis() {
    if !have("redis-server") {
        return;
    }
    let redis = RedisServer::start(&[]);
    let (stage, mut connection) = (Stage::over(&redis).await, redis.connect());
    let cases =
        [documents(), schedules(), policies(), messages(), ids_and_requests(), posts_and_previews(), the_dead()];
    let cases: Vec<_> = cases.into_iter().flatten().collect();
    let count = cases.len() + lines().len();
    assert!(count >= 60, "{count} rows");
    let (before, mut wrong) = (keys(&mut connection), Vec::new());
    for case in cases {
        let headers: Vec<_> = case.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let about = format!("{} {} {headers:?} {:.300}", case.method, case.path, case.body);
        let answer = stage.send(case.method, &case.path, &headers, &case.body).await;
        let found = (answer.problem(), faults(&answer.json()));
        if found != ((case.status, case.code.to_owned()), sorted(&case.faults)) {
            wrong.push(format!("{about}: {answer:?}"));
        }
        assert_eq!(keys(&mut connection), before, "{about} left something");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (line, status, code, fault) in lines() {
        let about = format!("the line {line:.300}");
        let answer = stage.batch(&line).await;
        let answers = answer.lines();
        assert_eq!((answer.status, answers.len()), (200, 1), "{about}: {answer:?}");
        let error = &answers[0]["error"];
        assert_eq!((error["status"].as_u64(), error["code"].as_str()), (Some(status.into()), Some(code)), "{about}");
        assert_eq!(faults(error), sorted(fault.as_slice()), "{about}: {error}");
        assert_eq!(keys(&mut connection), before, "{about} left something");
    }
    // A valid task leaves keys, so the count above means something.
    assert_eq!(stage.put("a", TASK).await.status, 201);
    assert!(keys(&mut connection) > before);
}

#[tokio::test]
async fn no_answer_names_more_than_a_hundred_faults() {
    let stage = Stage::start().await;
    let names: Vec<_> = (0..500).map(|n| format!("\"nats-{n}\":\"\"")).collect();
    let task = format!(r#"{{"schedule":{{"in":"1s"}},"message":{{"headers":{{{}}}}}}}"#, names.join(","));
    for (id, faults) in [("a", 100), ("a%20b", 100)] {
        let answer = stage.put(id, &task).await.json();
        assert_eq!(answer["errors"].as_array().unwrap().len(), faults, "{id}");
    }
}

#[tokio::test]
async fn refused_puts_are_counted_by_error_code_alone_and_in_a_batch() {
    let stage = Stage::start().await;
    let wrong = r#"{"schedule":{},"message":{}}"#;
    stage.put("a", wrong).await;
    stage.post("/v1/tasks", wrong).await;
    stage.batch(&wrong.replacen('{', r#"{"id":"a","#, 1)).await;
    stage.put("a", "no").await;
    stage.put("a", &"x".repeat(2 << 20)).await;
    let text = stage.metrics.text();
    for (code, count) in [("invalid", 3), ("malformed", 1), ("too_large", 1)] {
        let line = format!("punctual_puts_total{{result=\"{code}\"}} {count}\n");
        assert!(text.contains(&line), "no {line} in {text}");
    }
}

fn faults(problem: &serde_json::Value) -> Vec<(String, String)> {
    let errors = problem["errors"].as_array().into_iter().flatten();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let mut faults: Vec<_> = errors.map(|fault| (text(&fault["pointer"]), text(&fault["code"]))).collect();
    faults.sort();
    faults
}

fn sorted(faults: &[(&str, &str)]) -> Vec<(String, String)> {
    let mut faults: Vec<_> = faults.iter().map(|(pointer, code)| ((*pointer).to_owned(), (*code).to_owned())).collect();
    faults.sort();
    faults
}

#[tokio::test]
async fn a_refused_method_is_answered_with_the_allowed_methods() {
    let stage = Stage::start().await;
    let answer = stage.call("POST", "/v1/tasks/a", JSON, TASK).await;
    let allowed = answer.header("allow").unwrap();
    for method in ["put", "get", "delete"] {
        assert!(allowed.contains(method), "{allowed}");
    }
}
