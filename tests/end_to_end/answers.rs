//! The requests of users, and the expectations that follow from the answers.

use serde_json::json;

use crate::support::http::Definite;
use crate::support::ledger::Ledger;

/// Notes from the answer what happens to the occurrence that a put found.
pub(super) fn ended(ledger: &mut Ledger, id: &str, at: i64, text: &str, answer: &Definite) {
    let body = answer.answer.json();
    match (result(answer), body["in_flight"].as_str()) {
        // A first, unanswered request may have done it, and its answer would have named the key.
        _ if answer.sent_before => ledger.may(id, at, text),
        // It was waiting, and was never published.
        ("replaced", None) => {}
        (_, Some(key)) => {
            assert_eq!(key, format!("{id}:{at}"), "{answer:?}");
            ledger.may(id, at, text);
        }
        // It had ended before, so it was published.
        ("created", None) => ledger.must(id, at, text),
        _ => panic!("`{id}`, due at {at} before: {answer:?}"),
    }
}

pub(super) fn told(answer: &Definite) -> &'static str {
    let in_flight = answer.answer.json()["in_flight"].is_string();
    match result(answer) {
        "created" if in_flight => "created, in flight",
        "created" => "created",
        "replaced" if in_flight => "replaced, in flight",
        "replaced" => "replaced",
        _ => "unchanged",
    }
}

pub(super) fn result(answer: &Definite) -> &'static str {
    let body = answer.answer.json();
    let known = ["created", "replaced", "unchanged"].into_iter().find(|&known| body["result"] == known);
    known.unwrap_or_else(|| panic!("{answer:?}"))
}

pub(super) fn due(answer: &Definite) -> i64 {
    answer.answer.json()["due_ms"].as_i64().unwrap_or_else(|| panic!("{answer:?}"))
}

/// The exact payload bytes of the request.
pub(super) fn payload(kind: &str, number: i64, version: i64) -> String {
    json!({"kind": kind, "number": number, "version": version}).to_string()
}

pub(super) fn rfc3339(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).expect("a time").to_string()
}
