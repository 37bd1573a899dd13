//! Interprets the refusals of RabbitMQ: whose fault each is. Other code compares only with 403, where it looks for a
//! queue.

use std::fmt;

use lapin::ErrorKind;

use crate::Cause;

/// The code of a refusal that the server did not explain.
pub(super) const NO_CODE: u16 = 0;

/// The code of our own refusal to look for an exchange. The codes of AMQP have three digits.
pub(super) const NOT_LOOKED_FOR: u16 = 1;

/// A reply code of AMQP with the server's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) detail: String,
}

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The message, if the refusal can concern no other one.
    Message,
    /// The exchange or the queue, or a missing permission on them.
    Destination,
    /// The server, the login, or this sink itself. No single message is at fault.
    Sink,
    /// Unknown.
    Unclear,
}

/// The reply codes of AMQP 0-9-1, as RabbitMQ uses them: <https://www.rabbitmq.com/amqp-0-9-1-reference#constants>.
pub(super) fn blame(code: u16) -> Blame {
    match code {
        // Content too large; precondition failed: larger than the maximum, or an invalid property.
        311 | 406 => Blame::Message,
        // No route, no consumers; access refused, not found, locked; not allowed (publishing to an internal exchange).
        312 | 313 | 403 | 404 | 405 | 530 => Blame::Destination,
        NOT_LOOKED_FOR => Blame::Destination,
        // The server stops, or an operator has closed the connection; no such virtual host; out of resources; internal
        // error.
        320 | 402 | 506 | 541 => Blame::Sink,
        // Invalid frames, or a method that the server does not implement.
        501..=505 | 540 => Blame::Sink,
        _ => Blame::Unclear,
    }
}

impl Refusal {
    /// The refusal inside an error, if the server sent one.
    pub(super) fn of(error: &lapin::Error) -> Option<Refusal> {
        match error.kind() {
            ErrorKind::ProtocolError(error) => {
                Some(Refusal { code: error.get_id(), detail: error.get_message().as_str().to_owned() })
            }
            _ => None,
        }
    }

    /// The cause, if a login was refused.
    pub(super) fn of_log_in(&self) -> Cause {
        match self.code {
            530 if self.detail.contains("vhost") && self.detail.contains("not found") => Cause::Refused,
            // User or password; a virtual host that the user may not use.
            403 | 530 => Cause::LogIn,
            _ => Cause::Refused,
        }
    }

    /// Whether the text names this exchange as a whole, as in `no exchange 'x' in vhost '/'` and `access to exchange
    /// 'x' in vhost ...`. The server truncates long texts, which may then name none.
    pub(super) fn names(&self, exchange: &str) -> bool {
        // The name of the default exchange in such texts.
        let exchange = if exchange.is_empty() { "amq.default" } else { exchange };
        // A topic permission can forbid some keys of an exchange only. In this text the key comes first, and users
        // choose it.
        let named = self.detail.split_once("exchange '").filter(|(before, _)| !before.contains("access to topic '"));
        named.and_then(|(_, rest)| rest.strip_prefix(exchange)).is_some_and(|rest| rest.starts_with("' in vhost '"))
    }

    /// The maximum message size in `message size 70000 is larger than configured max size 65536`; without that number,
    /// one less than the size of the message.
    pub(super) fn limit(&self) -> Option<u64> {
        let number = |before: &str| -> Option<u64> {
            let (_, rest) = self.detail.split_once(before)?;
            rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
        };
        let size = number("message size ")?;
        Some(number("max size ").filter(|limit| *limit < size).unwrap_or(size.saturating_sub(1)))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            NO_CODE | NOT_LOOKED_FOR => formatter.write_str(&self.detail),
            code => write!(formatter, "{} ({code})", self.detail),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All codes of <https://www.rabbitmq.com/resources/specs/amqp0-9-1.extended.xml>.
    #[test]
    fn every_reply_code_maps_to_the_party_at_fault() {
        for (code, expected) in [
            (NO_CODE, Blame::Unclear),
            (NOT_LOOKED_FOR, Blame::Destination),
            (200, Blame::Unclear),
            (311, Blame::Message),
            (312, Blame::Destination),
            (313, Blame::Destination),
            (320, Blame::Sink),
            (402, Blame::Sink),
            (403, Blame::Destination),
            (404, Blame::Destination),
            (405, Blame::Destination),
            (406, Blame::Message),
            (501, Blame::Sink),
            (502, Blame::Sink),
            (503, Blame::Sink),
            (504, Blame::Sink),
            (505, Blame::Sink),
            (506, Blame::Sink),
            (530, Blame::Destination),
            (540, Blame::Sink),
            (541, Blame::Sink),
            (999, Blame::Unclear),
        ] {
            assert_eq!(blame(code), expected, "{code}");
        }
    }

    #[test]
    fn login_refusal_codes_distinguish_a_bad_user_from_other_reasons() {
        for (code, expected) in [(403, Cause::LogIn), (530, Cause::LogIn), (320, Cause::Refused), (541, Cause::Refused)]
        {
            assert_eq!(Refusal { code, detail: String::new() }.of_log_in(), expected, "{code}");
        }
        let no_host = Refusal { code: 530, detail: "NOT_ALLOWED - vhost orders not found".to_owned() };
        assert_eq!(no_host.of_log_in(), Cause::Refused, "it is not the password that is wrong");
    }

    #[test]
    fn an_exchange_name_is_read_from_the_refusal_text() {
        let refusal = |detail: &str| Refusal { code: 404, detail: detail.to_owned() };
        for (detail, exchange) in [
            ("NOT_FOUND - no exchange 'it's' in vhost '/'", "it's"),
            ("NOT_FOUND - no exchange 'x' in vhost' in vhost '/'", "x' in vhost"),
            ("ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'u'", ""),
            ("ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'", "x"),
        ] {
            assert!(refusal(detail).names(exchange), "{detail}");
            for other in ["", "x", "it", "it's' in vhost '/"] {
                assert_eq!(refusal(detail).names(other), other == exchange, "{detail}: {other}");
            }
        }
        for detail in [
            "NOT_FOUND - no queue 'x' in vhost '/'",
            "ACCESS_REFUSED - access to topic 'k' in exchange exchange 'x' in vhost '/' refused for user 'u'",
            "ACCESS_REFUSED - access to topic 'exchange 'x' in vhost '/'' in exchange 'y' in vhost '/' refused for user 'u'",
            "NOT_FOUND - no exchange 'x...",
            "exchange '",
        ] {
            assert!(!refusal(detail).names("x") && !refusal(detail).names(""), "{detail}");
        }
    }

    #[test]
    fn the_size_limit_is_read_from_the_refusal_text() {
        for (detail, limit) in [
            ("PRECONDITION_FAILED - message size 70000 is larger than configured max size 65536", Some(65_536)),
            ("PRECONDITION_FAILED - message size 70000 is larger than max size 65536, so it is", Some(65_536)),
            ("PRECONDITION_FAILED - message size 70000 is too large", Some(69_999)),
            ("PRECONDITION_FAILED - message size 7 is larger than max size 70", Some(6)),
            ("PRECONDITION_FAILED - invalid expiration", None),
            ("message size ", None),
        ] {
            assert_eq!(Refusal { code: 406, detail: detail.to_owned() }.limit(), limit, "{detail}");
        }
    }
}
