//! What a refusal of RabbitMQ says of whose fault it is: the only classifier.

use std::fmt;

use super::frames::Refusal;

/// Whose fault a refusal is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The message's, if it was the only one that can be meant.
    Message,
    /// The exchange's, the queue's, or what the user may do there.
    Destination,
    /// The server's, the log-in's, or ours: none of the messages.
    Sink,
    /// It does not tell.
    Unclear,
}

/// The reply codes of AMQP 0-9-1, and RabbitMQ's use of them: <https://www.rabbitmq.com/amqp-0-9-1-reference#constants>.
pub(super) fn blame(code: u16) -> Blame {
    match code {
        // Content too large; precondition failed: larger than the maximum, or a property that cannot be.
        311 | 406 => Blame::Message,
        // No route, no consumers; access refused, not found, locked; not allowed (publishing to a server's own exchange).
        312 | 313 | 403 | 404 | 405 | 530 => Blame::Destination,
        // The server is stopped, or an operator has closed the connection; no such virtual host; out of resources; an
        // error inside.
        320 | 402 | 506 | 541 => Blame::Sink,
        // The frames are wrong, or the server does not know what they ask for.
        501..=505 | 540 => Blame::Sink,
        _ => Blame::Unclear,
    }
}

impl Refusal {
    /// The exchange that the words name, as in `no exchange 'x' in vhost '/'`, `access to exchange 'x' in vhost ...`.
    pub(super) fn exchange(&self) -> Option<&str> {
        let (_, rest) = self.words.split_once("exchange '")?;
        let name = rest.split_once("' in vhost").map_or_else(|| rest.strip_suffix('\''), |(name, _)| Some(name))?;
        // So the exchange without a name is called.
        Some(if name == "amq.default" { "" } else { name })
    }

    /// The size, in bytes, of the message that the words call too large: `message size 70000 is larger than ...`.
    pub(super) fn size(&self) -> Option<usize> {
        let (_, rest) = self.words.split_once("message size ")?;
        rest.split(' ').next()?.parse().ok()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({})", self.words, self.code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All that <https://www.rabbitmq.com/resources/specs/amqp0-9-1.extended.xml> has.
    #[test]
    fn every_reply_code_has_its_blame() {
        for (code, expected) in [
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
    fn the_words_name_the_exchange_and_the_size() {
        let refusal = |words: &str| Refusal { code: 404, words: words.to_owned() };
        for (words, exchange) in [
            ("NOT_FOUND - no exchange 'it's' in vhost '/'", Some("it's")),
            ("ACCESS_REFUSED - access to exchange 'amq.default' in vhost '/' refused for user 'u'", Some("")),
            ("ACCESS_REFUSED - cannot publish to internal exchange 'x' in vhost '/'", Some("x")),
            ("NOT_FOUND - no queue 'q' in vhost '/'", None),
            ("exchange '", None),
        ] {
            assert_eq!(refusal(words).exchange(), exchange, "{words}");
        }
        let large = "PRECONDITION_FAILED - message size 70000 is larger than configured max size 65536";
        assert_eq!(refusal(large).size(), Some(70_000));
        assert_eq!(refusal("PRECONDITION_FAILED - invalid expiration").size(), None);
    }
}
