//! Exchanges that RabbitMQ does not know: their messages are refused, and messages to other destinations are accepted.

use std::sync::Arc;

use lapin::Channel;
use lapin::options::ExchangeDeleteOptions;
use punctual_sinks::{Fault, Message, Outcome, Sink};

use super::super::{Broker, PATIENCE, accepted, batch, publish, publish_until_accepted};
use super::Shared;
use super::refusals::{declare_exchange, detail, is_fault_of_destination, to};

/// Takes more than five seconds, because RabbitMQ takes that long to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_exchange_is_only_the_fault_of_its_destination() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    for round in 0..3 {
        let mut mixed = batch("a", round * 100..round * 100 + 100);
        mixed[7].destination = "absent/key".to_owned();
        mixed[8].destination = "absent/other".to_owned();
        mixed[50].destination = "missing/".to_owned();
        let outcomes = publish(&sink, mixed).await;
        for (index, outcome) in outcomes.iter().enumerate() {
            if [7, 8, 50].contains(&index) {
                assert!(is_fault_of_destination(outcome) && detail(outcome).contains("no exchange '"), "{outcome:?}");
            } else {
                assert_eq!(*outcome, Outcome::Accepted, "{index}");
            }
        }
    }
    assert_eq!(broker.received("a").len(), 3 * 97);
    declare_exchange(&broker.server, &broker.vhost, "absent");
    let outcomes = publish(&sink, vec![to("absent/key", 1)]).await;
    assert!(is_fault_of_destination(&outcomes[0]), "it is not looked for again at once: {outcomes:?}");
    publish_until_accepted(&sink, vec![to("absent/key", 1)]).await;
}

/// RabbitMQ closes a channel for each unknown exchange, and lapin cannot use its number again. A connection has 2047.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_unknown_exchanges_than_channels_do_not_affect_other_destinations() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    for round in 0..50 {
        let (mixed, outcomes) = publish_beside_unknown(&sink, round, 60).await;
        let is_unknown =
            |outcome: &Outcome| is_fault_of_destination(outcome) && detail(outcome).contains("no exchange 'nobody-");
        for (message, outcome) in mixed.iter().zip(&outcomes) {
            let is_good = message.destination == "a";
            assert!(if is_good { *outcome == Outcome::Accepted } else { is_unknown(outcome) }, "{outcome:?}");
        }
    }
    assert_eq!(broker.received("a").len(), 50 * 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn further_exchanges_are_refused_at_once_while_many_lookups_run() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    let (mixed, outcomes) = publish_beside_unknown(&sink, 0, 1000).await;
    let again = publish(&sink, mixed.clone()).await;
    let is_looked_for = |outcome: &Outcome| detail(outcome).contains("no exchange 'nobody-");
    let (mut at_first, mut then) = (0, 0);
    for (message, (outcome, later)) in mixed.iter().zip(outcomes.iter().zip(&again)) {
        if message.destination == "a" {
            assert_eq!((outcome, later), (&Outcome::Accepted, &Outcome::Accepted));
        } else {
            assert!(is_fault_of_destination(outcome) && is_fault_of_destination(later), "{outcome:?}, {later:?}");
            at_first += usize::from(is_looked_for(outcome));
            then += usize::from(is_looked_for(outcome) || is_looked_for(later));
        }
    }
    // 64 lookups until many exchanges count as missing, 64 more that may wait then, and those under way.
    assert!((100..160).contains(&at_first), "{at_first}");
    assert_eq!(then, 1000, "exchanges that were refused without a lookup are looked for the next time");
}

/// Publishes messages for unknown exchanges, and one for `a` before every tenth of them.
async fn publish_beside_unknown(sink: &Arc<dyn Sink>, round: usize, unknown: usize) -> (Vec<Message>, Vec<Outcome>) {
    let all = unknown + unknown / 10;
    let mut mixed = batch("a", round * all..(round + 1) * all);
    for (number, message) in mixed.iter_mut().enumerate().filter(|(number, _)| number % 11 != 0) {
        message.destination = format!("nobody-{round}-{number}/key");
    }
    let outcomes = publish(sink, mixed.clone()).await;
    (mixed, outcomes)
}

/// The exchange existed once, and the sink does not ask for it again: the refusal closes the channel that others use,
/// too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_exchange_is_only_the_fault_of_its_destination() {
    let Some(broker) = Shared::start() else { return };
    let sink = broker.sink(PATIENCE);
    declare_exchange(&broker.server, &broker.vhost, "gone");
    assert_eq!(publish(&sink, vec![to("gone/key", 1)]).await, accepted(1));
    broker.server.with_channel(&broker.vhost, async |channel: Channel| {
        channel.exchange_delete("gone".into(), ExchangeDeleteOptions::default()).await.expect("it is deleted");
    });
    let mut mixed = batch("a", 0..1000);
    mixed[500].destination = "gone/key".to_owned();
    mixed[700].destination = "gone/key".to_owned();
    let outcomes = publish(&sink, mixed).await;
    for (index, outcome) in outcomes.iter().enumerate() {
        if [500, 700].contains(&index) {
            let is = matches!(outcome, Outcome::Retry(trouble) if trouble.fault == Fault::Destination);
            assert!(is && detail(outcome).contains("no exchange 'gone'"), "{outcome:?}");
        } else {
            assert_eq!(*outcome, Outcome::Accepted, "{index}");
        }
    }
    declare_exchange(&broker.server, &broker.vhost, "gone");
    assert_eq!(publish(&sink, vec![to("gone/key", 1)]).await, accepted(1));
}
