//! Turns the delivery report of a message into an outcome.

use rdkafka::types::RDKafkaErrorCode;

use crate::{Fault, Outcome, Trouble};

/// What to do with a message after its report.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AfterReport {
    /// Answer it with this outcome.
    Is(Outcome),
    /// Send it again alone: its record batch was refused, which says nothing about a single message in it.
    Again,
}

/// The text of the error, without librdkafka's own name for it.
pub(super) fn detail(code: RDKafkaErrorCode) -> String {
    let text = code.to_string();
    let inner = text.split_once(" (").and_then(|(_, detail)| detail.strip_suffix(')'));
    inner.unwrap_or(&text).to_owned()
}

/// The outcome of a message whose topic the brokers do not list. It was not handed to librdkafka.
pub(super) fn unlisted() -> Outcome {
    let detail = detail(RDKafkaErrorCode::UnknownTopicOrPartition);
    let detail = format!("{detail}: there is no such topic, or this user may not write to it");
    Outcome::Retry(Trouble { fault: Fault::Destination, definite: true, detail })
}

/// Interprets the error of a delivery; `alone`: the message was alone in its record batch.
///
/// No error is definite, not even one that says that nothing was written, because it describes only the last of several
/// attempts. An earlier attempt of librdkafka may have been written, and a broker that has just started may not know
/// its topics yet.
pub(super) fn verdict(code: RDKafkaErrorCode, alone: bool) -> AfterReport {
    use RDKafkaErrorCode as Code;
    let detail = detail(code);
    let open = |fault| AfterReport::Is(Outcome::Retry(Trouble::open(fault, detail.clone())));
    match code {
        Code::NoError => AfterReport::Is(Outcome::Accepted),

        // The record batch exceeds a limit of the topic or the broker, or contains an invalid record.
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidRecord if alone => {
            AfterReport::Is(Outcome::Reject(detail))
        }
        Code::MessageSizeTooLarge | Code::MessageBatchTooLarge | Code::InvalidRecord | Code::InvalidDifferentRecord
            if !alone =>
        {
            AfterReport::Again
        }

        // The topic does not exist, is not permitted, or is configured to refuse such messages.
        Code::UnknownTopic
        | Code::UnknownTopicOrPartition
        | Code::UnknownTopicId
        | Code::UnknownPartition
        | Code::InvalidTopic
        | Code::TopicAuthorizationFailed
        | Code::PolicyViolation
        | Code::InvalidTimestamp
        | Code::UnsupportedForMessageFormat => open(Fault::Destination),

        // The broker refuses every message of this client, no broker is reachable, or the producer has ended.
        Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState
        | Code::SecurityDisabled
        | Code::ClusterAuthorizationFailed
        | Code::TransactionalIdAuthorizationFailed
        | Code::UnsupportedVersion
        | Code::UnsupportedFeature
        | Code::UnsupportedCompressionType
        | Code::InvalidRequiredAcks
        | Code::Authentication
        | Code::SSL
        | Code::Resolve
        | Code::AllBrokersDown
        | Code::BrokerDestroy
        | Code::DestroyBroker
        | Code::Fatal
        | Code::InvalidProducerEpoch
        | Code::InvalidProducerIdMapping
        | Code::ProducerFenced
        | Code::Fenced
        | Code::GaplessGuarantee
        | Code::Inconsistent => open(Fault::Sink),

        // Timeouts; a partition or broker that is temporarily unavailable; a change of its leader; too few replicas; a
        // quota; a full disk; messages that were purged "in the queue" after an attempt; the numbers of the idempotent
        // producer.
        Code::MessageTimedOut
        | Code::TimedOutQueue
        | Code::OperationTimedOut
        | Code::RequestTimedOut
        | Code::NotLeaderForPartition
        | Code::LeaderNotAvailable
        | Code::NotEnoughReplicas
        | Code::NotEnoughReplicasAfterAppend
        | Code::BrokerNotAvailable
        | Code::ReplicaNotAvailable
        | Code::BrokerTransportFailure
        | Code::NetworkException
        | Code::KafkaStorageError
        | Code::FencedLeaderEpoch
        | Code::UnknownLeaderEpoch
        | Code::ThrottlingQuotaExceeded
        | Code::PurgeQueue
        | Code::PurgeInflight
        | Code::QueueFull
        | Code::OutOfOrderSequenceNumber
        | Code::DuplicateSequenceNumber
        | Code::UnknownProducerId => open(Fault::Unavailable),

        _ => open(Fault::Unclear),
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::types::{RDKafkaErrorCode as Code, RDKafkaRespErr};

    use super::*;

    fn all() -> impl Iterator<Item = Code> {
        (-200..150_i32).filter_map(|number| RDKafkaRespErr::try_from(number).ok()).map(Code::from)
    }

    #[test]
    fn every_error_has_its_verdict() {
        use Fault::{Destination, Sink, Unavailable, Unclear};
        assert_eq!(verdict(Code::NoError, false), AfterReport::Is(Outcome::Accepted));
        let table: &[(Fault, &[Code])] = &[
            (
                Destination,
                &[
                    Code::UnknownTopic,
                    Code::UnknownTopicOrPartition,
                    Code::TopicAuthorizationFailed,
                    Code::InvalidTopic,
                ],
            ),
            (
                Sink,
                &[
                    Code::ClusterAuthorizationFailed,
                    Code::SaslAuthenticationFailed,
                    Code::Authentication,
                    Code::SSL,
                    Code::AllBrokersDown,
                    Code::Resolve,
                    Code::Fatal,
                    Code::ProducerFenced,
                ],
            ),
            (
                Unavailable,
                &[
                    Code::MessageTimedOut,
                    Code::TimedOutQueue,
                    Code::PurgeInflight,
                    Code::PurgeQueue,
                    Code::NotLeaderForPartition,
                    Code::LeaderNotAvailable,
                    Code::NotEnoughReplicas,
                    Code::NotEnoughReplicasAfterAppend,
                    Code::KafkaStorageError,
                    Code::ThrottlingQuotaExceeded,
                    Code::BrokerTransportFailure,
                    Code::NetworkException,
                    Code::OutOfOrderSequenceNumber,
                    Code::UnknownProducerId,
                ],
            ),
            (Unclear, &[Code::InvalidMessage, Code::InvalidDifferentRecord, Code::Unknown]),
        ];
        for (fault, codes) in table {
            for code in *codes {
                let trouble = Trouble { fault: *fault, definite: false, detail: detail(*code) };
                assert_eq!(verdict(*code, true), AfterReport::Is(Outcome::Retry(trouble)), "{code:?}");
            }
        }
        assert!(all().count() > 150, "{}", all().count());
    }

    #[test]
    fn kafka_rejects_a_message_only_for_its_own_error_and_only_when_sent_alone() {
        let rejected = |alone| {
            let rejects = move |code: &Code| matches!(verdict(*code, alone), AfterReport::Is(Outcome::Reject(_)));
            all().filter(rejects).collect::<Vec<_>>()
        };
        assert_eq!(rejected(false), []);
        assert_eq!(rejected(true), [Code::MessageSizeTooLarge, Code::MessageBatchTooLarge, Code::InvalidRecord]);
        let accepted = all().filter(|code| verdict(*code, true) == AfterReport::Is(Outcome::Accepted));
        assert_eq!(accepted.collect::<Vec<_>>(), [Code::NoError]);
        assert_eq!(detail(Code::MessageSizeTooLarge), "Broker: Message size too large");
        assert_eq!(verdict(Code::MessageSizeTooLarge, false), AfterReport::Again);
    }
}
