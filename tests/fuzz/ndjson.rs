//! The body of a batch: every line that is not blank gets its own answer, in order. Neither the chunks of the body nor
//! the other lines change it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::Request;
use futures_util::stream;
use http_body_util::BodyExt;
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use punctual::clock::ManualClock;
use punctual::engine::{EngineState, Intake, LaneRequirements};
use punctual::http::{Access, Api, ApiLimits, BlockingPool, BodyBudget};
use punctual::metrics::Metrics;
use punctual::task::{Lane, spec};
use punctual::timeline::Link;
use punctual::timeline::memory::MemoryTimeline;
use serde_json::{Value, json};

use super::task_json::{self, LIMITS, NOW};
use super::{Target, Verdict};

/// Maximum length of a line, in bytes. It is small, so that inputs exceed it.
const LONGEST: usize = 300;

const WORDS: &[&str] = &[
    "\n",
    "\r\n",
    "\n\n",
    " \n",
    "\r",
    "\u{feff}",
    "\u{2028}",
    "{",
    "}",
    "null",
    "\"id\":\"a\"",
    "\t",
    "  ",
    "{\"id\":\"w\",\"schedule\":{\"in\":\"1s\"},\"message\":{}}\n",
    "\u{0}",
    "\u{b}",
    "\u{c}",
];

pub(super) const TARGET: Target = Target { name: "ndjson", check, written: inputs, dictionary: WORDS, inputs: 200 };

fn inputs() -> BoxedStrategy<Vec<u8>> {
    let task = ("[a-c]", 1..5_u8, 0..300_usize).prop_map(|(id, seconds, blanks)| {
        let blanks = " ".repeat(if blanks < 200 { 0 } else { blanks });
        format!("{{\"id\":\"{id}\",\"schedule\":{{\"every\":\"{seconds}m\"}},{blanks}\"message\":{{}}}}")
    });
    let odd = select(&["", " ", "{}", "[", "{\"id\":\"\\ud800\"}", "{\"id\":7}", "\u{feff}{}", "\u{b}"][..]);
    let long = (290..620_usize, select(&["x", " ", "\t"][..])).prop_map(|(length, what)| what.repeat(length));
    let line = prop_oneof![
        4 => task,
        3 => task_json::written(),
        2 => odd.prop_map(str::to_owned),
        1 => long,
    ];
    let end = select(&["\n", "\n", "\r\n", "  \n", ""][..]);
    let written = vec((line, end), 0..12)
        .prop_map(|lines| lines.into_iter().map(|(line, end)| line + end).collect::<String>().into_bytes());
    written.boxed()
}

fn check(input: &[u8]) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let answers = put(vec![input.to_vec()]).await;
        are_of_their_lines(input, &answers)?;
        for cut in cuts(input) {
            let lengths: Vec<_> = cut.iter().map(Vec::len).collect();
            prop_assert_eq!(&put(cut).await, &answers, "cut into {:?}", lengths);
        }
        // A line that is sent alone gets the same answer, except for what earlier lines did to its task.
        let lines: Vec<&[u8]> = input.split(|&byte| byte == b'\n').collect();
        for answer in answers.iter().filter(|answer| answer["error"].is_object()).take(5) {
            let line = lines[usize::try_from(answer["line"].as_u64().unwrap()).unwrap() - 1];
            // Alone it would be the first line, where a byte-order mark is skipped.
            if line.trim_ascii_start().starts_with(MARK) {
                continue;
            }
            let alone = put(vec![line.to_vec()]).await;
            prop_assert_eq!(alone.len(), 1);
            prop_assert_eq!(&alone[0]["error"], &answer["error"]);
        }
        Ok(())
    })
}

/// The same body in different chunks: small ones, larger ones, and cut before and after each line end.
fn cuts(input: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let parts = |length: usize| input.chunks(length).map(<[u8]>::to_vec).collect();
    let after = input.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    let mut before = vec![Vec::new()];
    for &byte in input {
        if byte == b'\n' {
            before.push(Vec::new());
        }
        before.last_mut().unwrap().push(byte);
    }
    let few = 2 + input.iter().map(|&byte| usize::from(byte)).sum::<usize>() % 97;
    // One chunk per byte takes too long for larger inputs.
    let small = if input.len() < 1000 { 1 } else { 7 };
    vec![parts(small), parts(few), after, before]
}

const MARK: &[u8] = "\u{feff}".as_bytes();

/// One answer per line that is not blank, in order: its task's result, or its faults.
fn are_of_their_lines(input: &[u8], answers: &[Value]) -> Verdict {
    let mut answers = answers.iter();
    let mut known: BTreeMap<String, String> = BTreeMap::new();
    for (number, line) in input.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii_start();
        let is_mark = number == 0 && line.trim_ascii_end() == MARK;
        if line.is_empty() || is_mark {
            continue;
        }
        let Some(answer) = answers.next() else {
            return Err(TestCaseError::fail(format!("line {} is not answered", number + 1)));
        };
        prop_assert_eq!(&answer["line"], &json!(number + 1));
        let code = &answer["error"]["code"];
        if line.len() > LONGEST {
            prop_assert_eq!(code, "too_large");
            continue;
        }
        let line = if number == 0 { line.strip_prefix(MARK).unwrap_or(line).trim_ascii_start() } else { line };
        match spec::read(line.trim_ascii_end(), &LIMITS, true, NOW) {
            Err(faults) => {
                prop_assert!(["invalid", "malformed"].map(Value::from).contains(code), "{answer}");
                let errors = answer["error"]["errors"].as_array().unwrap();
                let reported = errors.iter().filter(|error| error["code"] != "unknown_lane");
                prop_assert_eq!(reported.cloned().collect::<Vec<_>>(), json!(faults).as_array().unwrap().clone());
            }
            Ok(read) if read.lane != Lane::default() => prop_assert_eq!(code, "invalid"),
            Ok(read) => {
                let (id, task) = (read.id.unwrap().to_string(), spec::write(&read.task, &read.lane).to_string());
                prop_assert_eq!(&answer["id"], &Value::from(id.as_str()));
                let expected = match known.insert(id, task.clone()) {
                    None => "created",
                    // Also with `in`, because the clock stands still: the due is the same.
                    Some(former) if former == task => "unchanged",
                    Some(_) => "replaced",
                };
                prop_assert_eq!(&answer["result"], &json!(expected), "{}", answer);
                prop_assert!(answer["due_ms"].as_i64() > Some(0));
            }
        }
    }
    prop_assert!(answers.next().is_none(), "an answer to no line");
    Ok(())
}

/// Answers to a body that arrives in these chunks, from an API with a timeline of its own.
async fn put(parts: Vec<Vec<u8>>) -> Vec<Value> {
    let timeline = Arc::new(MemoryTimeline::new(Arc::new(ManualClock::new(NOW)), 1));
    let rules = BTreeMap::from([(Lane::default(), LaneRequirements::default())]);
    let state = EngineState::new(Link::Up(1));
    let minute = Duration::from_secs(60);
    let limits =
        ApiLimits { body: LONGEST, bodies: 1 << 20, body_timeout: minute, timeline_timeout: minute, task: LIMITS };
    let api = Arc::new(Api {
        intake: Intake::new(timeline, rules),
        engine: Box::new(move || state.clone()),
        failed_attempt: Box::new(|_| None),
        is_lane_paused: Box::new(|_| false),
        is_sink_unavailable: Box::new(|_| false),
        doors: Box::new(Vec::new),
        access: Access::default(),
        metrics: Arc::new(Metrics::new("0", "i0")),
        limits,
        zone: None,
        instance: "i0".into(),
        bodies: BodyBudget::new(limits.bodies),
        blocking: BlockingPool::default(),
    });
    let body = Body::from_stream(stream::iter(parts.into_iter().map(Ok::<_, Infallible>)));
    let request = Request::post("/v1/tasks:batch").header("host", "127.0.0.1");
    let request = request.header("content-type", "application/x-ndjson").body(body).unwrap();
    let response = TowerToHyperService::new(api.router()).call(request).await.unwrap();
    assert_eq!(response.status(), 200);
    let answers = response.into_body().collect().await.unwrap().to_bytes();
    answers
        .split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}
