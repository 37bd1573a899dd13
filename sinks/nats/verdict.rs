//! Turns JetStream's answer to a message into an outcome. No other code interprets its error codes.

use std::borrow::Cow;
use std::fmt::Write;

use async_nats::StatusCode;
use serde::Deserialize;

use crate::{DestinationState, Fault, Outcome, Trouble};

/// The answer of a stream to a message.
#[derive(Deserialize)]
struct Ack<'a> {
    #[serde(borrow, default)]
    stream: Cow<'a, str>,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
    #[serde(borrow)]
    error: Option<ApiError<'a>>,
}

/// An error of JetStream; all are in <https://github.com/nats-io/nats-server/blob/main/server/errors.json>.
#[derive(Deserialize)]
struct ApiError<'a> {
    #[serde(default)]
    code: u16,
    #[serde(default)]
    err_code: u16,
    #[serde(borrow, default)]
    description: Cow<'a, str>,
}

/// The outcome of a message. An error is an answer that is no acknowledgement.
pub(super) fn outcome(reply: &async_nats::Message) -> Result<Outcome, String> {
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        let detail = "no responders: no stream takes this subject, or it has no leader";
        return Ok(Outcome::Retry(Trouble::definite(Fault::Destination, detail)));
    }
    let ack = serde_json::from_slice::<Ack<'_>>(&reply.payload).ok();
    let strange = || "something other than a stream answers on this subject".to_owned();
    let ack = ack.filter(|ack| ack.error.is_some() || (ack.seq > 0 && !ack.stream.is_empty())).ok_or_else(strange)?;
    let accepted = if ack.duplicate { Outcome::Duplicate } else { Outcome::Accepted };
    Ok(ack.error.map_or(accepted, |error| refusal(&error)))
}

fn refusal(error: &ApiError<'_>) -> Outcome {
    let mut detail = error.description.clone().into_owned();
    // Writing to a string cannot fail.
    write!(detail, " ({} {})", error.code, error.err_code).ok();
    let retry = |fault, definite| Outcome::Retry(Trouble { fault, definite, detail: detail.clone() });
    match error.err_code {
        // The message or its headers exceed the maximum size.
        10054 | 10097 => Outcome::Reject(detail),
        // The stream is full and discards new messages. Any other error of its store is treated like one of replication.
        10077 if error.description.contains("maximum") => retry(Fault::Refusing, true),
        // The stream is sealed or offline; an expected stream, message id, sequence or subject sequence does not match.
        10109 | 10118 | 10060 | 10070 | 10071 | 10164 => retry(Fault::Destination, true),
        // Limits of the account, storage or memory of the server; JetStream is off, off for the account, or
        // unavailable.
        10002 | 10023 | 10028 | 10047 | 10076 | 10039 | 10008 => retry(Fault::Sink, true),
        // The server has too many messages under way.
        10167 => retry(Fault::Unavailable, true),
        // The same message is being stored already.
        10158 | 10201 => retry(Fault::Unavailable, false),
        // Other errors come from replication, so the message may be stored after all.
        _ => retry(Fault::Destination, false),
    }
}

/// What the answer to the request for the account's limits says about JetStream.
pub(super) fn jetstream_is_on(reply: &async_nats::Message) -> Result<(), String> {
    if reply.status == Some(StatusCode::NO_RESPONDERS) {
        return Err("the server has no JetStream".to_owned());
    }
    match serde_json::from_slice::<Ack<'_>>(&reply.payload).ok().and_then(|ack| ack.error) {
        Some(error) if matches!(error.err_code, 10039 | 10076) => Err(error.description.into_owned()),
        // After any other error JetStream is available: streams accept messages even if the account's limits cannot be
        // read.
        _ => Ok(()),
    }
}

/// What the answer to the request for the streams of a subject says.
pub(super) fn stream_state(reply: &async_nats::Message) -> DestinationState {
    #[derive(Deserialize)]
    struct Streams {
        streams: Option<Vec<String>>,
        error: Option<serde::de::IgnoredAny>,
    }
    match serde_json::from_slice::<Streams>(&reply.payload) {
        Ok(Streams { error: None, streams: Some(streams) }) if !streams.is_empty() => DestinationState::Exists,
        Ok(Streams { error: None, .. }) => DestinationState::Missing("no stream takes this subject".to_owned()),
        _ => DestinationState::Unknown("JetStream does not tell which streams there are".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use async_nats::Subject;
    use bytes::Bytes;

    use super::*;

    fn reply(status: Option<StatusCode>, payload: &str) -> async_nats::Message {
        async_nats::Message {
            subject: Subject::from("_INBOX.x.1.0"),
            reply: None,
            payload: Bytes::copy_from_slice(payload.as_bytes()),
            headers: None,
            status,
            description: None,
            length: 0,
        }
    }

    fn refused(err_code: u16, description: &str) -> Outcome {
        let payload = format!(
            r#"{{"error":{{"code":400,"err_code":{err_code},"description":"{description}"}},"stream":"S","seq":0}}"#
        );
        outcome(&reply(None, &payload)).expect("an acknowledgement")
    }

    #[test]
    fn every_answer_has_its_outcome() {
        use Fault::{Destination, Refusing, Sink, Unavailable};
        assert_eq!(outcome(&reply(None, r#"{"stream":"S","seq":1}"#)), Ok(Outcome::Accepted));
        let known = r#"{"stream":"S","seq":7,"duplicate":true,"domain":"d"}"#;
        assert_eq!(outcome(&reply(None, known)), Ok(Outcome::Duplicate));
        let nobody = outcome(&reply(Some(StatusCode::NO_RESPONDERS), ""));
        assert!(matches!(nobody, Ok(Outcome::Retry(Trouble { fault: Destination, definite: true, .. }))));
        for strange in ["", "pong", "{}", "[]", r#"{"stream":"","seq":1}"#, r#"{"success":true}"#] {
            assert!(outcome(&reply(None, strange)).is_err(), "{strange}");
        }
        assert_eq!(
            refused(10054, "message size exceeds maximum allowed"),
            Outcome::Reject("message size exceeds maximum allowed (400 10054)".to_owned())
        );
        assert!(matches!(refused(10097, "header size exceeds maximum allowed of 64k"), Outcome::Reject(_)));
        for (err_code, description, fault, definite) in [
            (10077, "maximum messages exceeded", Refusing, true),
            (10077, "maximum bytes exceeded", Refusing, true),
            (10077, "store is closed", Destination, false),
            (10109, "invalid operation on sealed stream", Destination, true),
            (10118, "stream is offline", Destination, true),
            (10060, "expected stream does not match", Destination, true),
            (10070, "wrong last msg ID: x", Destination, true),
            (10071, "wrong last sequence: 1", Destination, true),
            (10164, "wrong last sequence", Destination, true),
            (10002, "resource limits exceeded for account", Sink, true),
            (10023, "insufficient resources", Sink, true),
            (10028, "insufficient memory resources available", Sink, true),
            (10047, "insufficient storage resources available", Sink, true),
            (10076, "jetstream not enabled", Sink, true),
            (10039, "jetstream not enabled for account", Sink, true),
            (10008, "JetStream system temporarily unavailable", Sink, true),
            (10167, "too many requests", Unavailable, true),
            (10158, "duplicate message id is in process", Unavailable, false),
            (10201, "duplicate message id is in process", Unavailable, false),
            (10041, "raft error", Destination, false),
            (0, "raft: not leader", Destination, false),
            (65000, "something new", Destination, false),
        ] {
            let detail = format!("{description} (400 {err_code})");
            let expected = Outcome::Retry(Trouble { fault, definite, detail });
            assert_eq!(refused(err_code, description), expected);
        }
    }
}
