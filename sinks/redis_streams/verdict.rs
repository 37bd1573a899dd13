//! Turns Redis' answer to a message into an outcome, and tells whether an answer concerns the whole connection.
//! `source` interprets the error codes of its own commands, `redis_access` those of logins and checks.

use redis::{RedisError, ServerError, Value};

use crate::{Fault, Outcome, Trouble};

/// The outcome of a message, from the answer to its XADD.
pub(super) fn outcome(reply: Result<Value, RedisError>) -> Outcome {
    let error = match reply {
        Ok(Value::BulkString(_) | Value::SimpleString(_) | Value::VerbatimString { .. }) => return Outcome::Accepted,
        Ok(Value::ServerError(error)) => error,
        Ok(_) => return Outcome::Retry(Trouble::open(Fault::Unclear, "the answer to XADD is no id")),
        // The connection was lost with everything under way.
        Err(error) => return Outcome::Retry(Trouble::open(Fault::Sink, format!("the connection was lost: {error}"))),
    };
    let detail = detail(&error);
    let details = error.details().unwrap_or_default();
    let fault = match error.code() {
        // The payload exceeds the server's limit, which was lowered after it was requested.
        "ERR" if details.starts_with("Protocol error: invalid bulk length") => return Outcome::Reject(detail),
        // The key is no stream, this user may not write it, the stream is at its last possible id, or its slot is elsewhere.
        "WRONGTYPE" => Fault::Destination,
        "NOPERM" if of_a_key(details) => Fault::Destination,
        "ERR" if details.contains("exhausted the last possible ID") => Fault::Destination,
        "MOVED" | "ASK" | "TRYAGAIN" | "CROSSSLOT" => Fault::Destination,
        "LOADING" | "OOM" | "CLUSTERDOWN" | "READONLY" | "MASTERDOWN" | "MISCONF" | "NOREPLICAS" | "BUSY"
        | "NOAUTH" | "WRONGPASS" | "NOPERM" | "NOPROTO" => Fault::Sink,
        // XADD is renamed or unknown, and other errors that concern every command.
        "ERR" if details.starts_with("unknown command") || details.starts_with("Protocol error") => Fault::Sink,
        _ => Fault::Unclear,
    };
    Outcome::Retry(Trouble::definite(fault, detail))
}

/// Whether a `NOPERM` concerns the key. Otherwise it concerns the command, and so every message.
fn of_a_key(details: &str) -> bool {
    details.contains("key")
}

/// Whether a new connection might help. An error of one stream would be the same on every connection, and replacing
/// this one would lose all messages under way.
pub(super) fn needs_new_connection(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    match error.code() {
        "READONLY" | "NOAUTH" => true,
        "NOPERM" => !of_a_key(error.details().unwrap_or_default()),
        _ => false,
    }
}

/// `CODE details`, as Redis writes it.
pub(super) fn detail(error: &ServerError) -> String {
    format!("{} {}", error.code(), error.details().unwrap_or_default()).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn said(reply: &str) -> Outcome {
        outcome(parse_redis_value(format!("{reply}\r\n").as_bytes()))
    }

    #[test]
    fn only_an_error_of_the_connection_ends_the_connection() {
        for (detail, ends) in [
            ("READONLY You can't write against a read only replica.", true),
            ("NOAUTH Authentication required.", true),
            ("NOPERM this user has no permissions to run the 'xadd' command", true),
            ("NOPERM No permissions to access a key", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false),
        ] {
            let reply = parse_redis_value(format!("-{detail}\r\n").as_bytes()).expect("an answer");
            assert_eq!(needs_new_connection(&reply), ends, "{detail}");
        }
    }

    #[test]
    fn every_answer_has_its_outcome() {
        use Fault::{Destination, Sink, Unclear};
        assert_eq!(said("$15\r\n1700000000000-0"), Outcome::Accepted);
        let too_long = "ERR Protocol error: invalid bulk length";
        assert_eq!(said(&format!("-{too_long}")), Outcome::Reject(too_long.to_owned()));
        for (fault, detail) in [
            (Sink, "LOADING Redis is loading the dataset in memory"),
            (Sink, "OOM command not allowed when used memory > 'maxmemory'."),
            (Sink, "CLUSTERDOWN The cluster is down"),
            (Sink, "READONLY You can't write against a read only replica."),
            (Sink, "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
            (Sink, "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."),
            (Sink, "NOREPLICAS Not enough good replicas to write."),
            (Sink, "BUSY Redis is busy running a script."),
            (Sink, "NOAUTH Authentication required."),
            (Sink, "NOPERM this user has no permissions to run the 'xadd' command"),
            (Sink, "ERR unknown command 'XADD', with args beginning with: "),
            (Sink, "ERR Protocol error: too big mbulk count string"),
            (Destination, "WRONGTYPE Operation against a key holding the wrong kind of value"),
            (Destination, "NOPERM this user has no permissions to access one of the keys used as arguments"),
            (Destination, "NOPERM No permissions to access a key"),
            (Destination, "ERR The stream has exhausted the last possible ID, unable to add more items"),
            (Destination, "MOVED 3999 127.0.0.1:6381"),
            (Destination, "ASK 3999 127.0.0.1:6381"),
            (Destination, "TRYAGAIN Multiple keys request during rehashing of slot"),
            (Unclear, "ERR something new"),
            (Unclear, "NEWCODE something newer"),
        ] {
            assert_eq!(
                said(&format!("-{detail}")),
                Outcome::Retry(Trouble::definite(fault, detail.trim_end())),
                "{detail}"
            );
        }
        assert!(matches!(said(":1"), Outcome::Retry(trouble) if !trouble.definite));
        let broken = RedisError::from(std::io::Error::from(std::io::ErrorKind::BrokenPipe));
        assert!(matches!(outcome(Err(broken)), Outcome::Retry(Trouble { fault: Sink, definite: false, .. })));
    }
}
