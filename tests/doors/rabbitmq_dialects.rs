//! Messages that were written for other programs, over a real RabbitMQ: their headers and properties reach the consumer.

use lapin::message::Delivery;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, ExchangeKind};

use super::rabbitmq::{TIME_LIMIT, servers};
use crate::support::patient;
use crate::support::punctual::Punctual;
use crate::support::rabbitmq::RabbitServer;
use crate::support::redis::RedisServer;

/// An instance with one door, which reads this queue.
fn start(timeline: &RedisServer, rabbit: &RabbitServer, from: &str, door: &str) -> Punctual {
    Punctual::start(&format!(
        "[redis]\nurl = \"{}\"\n[sinks.default]\nurl = \"{}\"\nanswer_timeout = \"7s\"\n\
         [doors.in]\nsink = \"default\"\nfrom = \"{from}\"\nrejected = \"punctual.rejected\"\n{door}",
        timeline.url(),
        rabbit.url("")
    ))
}

fn publish(rabbit: &RabbitServer, exchange: &str, key: &str, body: &[u8], properties: BasicProperties) {
    rabbit.with_channel("", async |channel: Channel| {
        channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let sent = channel.basic_publish(exchange.into(), key.into(), options, body, properties).await;
        assert_eq!(sent.expect("it is sent").await.expect("no error"), Confirmation::Ack(None));
    });
}

fn table(headers: &[(&str, AMQPValue)]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in headers {
        table.insert((*name).into(), value.clone());
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The value of a header.
fn header(delivery: &Delivery, name: &str) -> Option<AMQPValue> {
    delivery.properties.headers().as_ref()?.inner().get(name).cloned()
}

/// The only message of the queue `out`.
fn published(rabbit: &RabbitServer, instance: &Punctual) -> Delivery {
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 1), "{}", instance.log());
    rabbit.queue("", "out").remove(0)
}

#[test]
fn a_message_for_the_plugin_arrives_as_from_the_plugin() {
    let Some((timeline, rabbit)) = servers() else { return };
    rabbit.bind("", "orders.delayed", ExchangeKind::Topic, "punctual.in");
    rabbit.bind("", "orders", ExchangeKind::Topic, "out");
    let instance =
        start(&timeline, &rabbit, "punctual.in", "dialect = \"x-delay\"\nexchanges = [\"orders.delayed=orders\"]");
    let headers = table(&[
        ("x-delay", AMQPValue::LongInt(300)),
        ("number", AMQPValue::ShortInt(7)),
        ("table", AMQPValue::FieldTable(table(&[("truth", AMQPValue::Boolean(true))]))),
        ("CC", AMQPValue::FieldArray(vec![text("punctual.rejected")].into())),
    ]);
    let properties = BasicProperties::default()
        .with_message_id("m1".into())
        .with_correlation_id("c1".into())
        .with_reply_to("answers".into())
        .with_type("Cancel".into())
        .with_priority(5)
        .with_user_id("guest".into())
        .with_content_type("application/json".into())
        .with_headers(headers);
    publish(&rabbit, "orders.delayed", "order.cancel", b"{}", properties);
    let message = published(&rabbit, &instance);
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("orders", "order.cancel"));
    assert_eq!(header(&message, "x-delay"), Some(AMQPValue::LongLongInt(-300)));
    assert_eq!(header(&message, "number"), Some(AMQPValue::ShortInt(7)));
    let inner = AMQPValue::FieldTable(table(&[("truth", AMQPValue::Boolean(true))]));
    assert_eq!((header(&message, "table"), header(&message, "CC")), (Some(inner), None));
    assert_eq!(header(&message, "punctual-message-id"), Some(text("m1")));
    assert!(header(&message, "punctual-task").is_some());
    let properties = &message.properties;
    let texts = [properties.correlation_id(), properties.reply_to(), properties.kind(), properties.content_type()];
    let texts = texts.map(|text| text.as_ref().map(ShortString::as_str));
    assert_eq!(texts, [Some("c1"), Some("answers"), Some("Cancel"), Some("application/json")]);
    assert_eq!((properties.priority(), properties.delivery_mode(), properties.user_id()), (&Some(5), &Some(2), &None));
    assert!(properties.message_id().as_ref().is_some_and(|key| key.as_str().starts_with("in.")), "{properties:?}");
    assert_eq!(message.data, b"{}");
}

/// Takes more than five seconds: the first message waits that long.
#[test]
fn a_short_expiration_does_not_wait_behind_a_long_one() {
    let Some((timeline, rabbit)) = servers() else { return };
    rabbit.with_channel("", async |channel: Channel| {
        let arguments = table(&[("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text("out"))]);
        let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        channel.queue_declare("waiting".into(), options, arguments).await.expect("a queue");
    });
    let expiring = |ms: &str| BasicProperties::default().with_message_id(ms.into()).with_expiration(ms.into());
    let instance = start(&timeline, &rabbit, "waiting", "dialect = \"expiration\"\nto = \"out\"\n");
    publish(&rabbit, "", "waiting", b"long", expiring("6000"));
    publish(&rabbit, "", "waiting", b"short", expiring("300"));
    let first = published(&rabbit, &instance);
    assert_eq!((first.data.as_slice(), first.properties.expiration()), (b"short".as_slice(), &None));
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 2), "{}", instance.log());
    // Without a door, the messages expire as before.
    drop(instance);
    publish(&rabbit, "", "waiting", b"alone", expiring("300"));
    assert!(patient(TIME_LIMIT, || rabbit.count("", "out") == 3), "the queue dead-letters it");
}

/// What MassTransit 8 sends to its scheduler and to a consumer: envelopes, to the exchange of a queue. Takes more than five
/// seconds: the cancel must be read before the due.
#[test]
fn a_scheduled_message_of_masstransit_arrives_in_its_envelope_and_a_cancelled_one_does_not() {
    let Some((timeline, rabbit)) = servers() else { return };
    rabbit.bind("", "punctual", ExchangeKind::Fanout, "punctual.in");
    rabbit.bind("", "orders", ExchangeKind::Fanout, "out");
    let instance = start(&timeline, &rabbit, "punctual.in", "dialect = \"masstransit\"\n");
    let tokens = ["b2d10000-5c7f-0015-5a5e-08dcd8a1b2c3", "b2d10000-5c7f-0015-0a0a-08dcd8a1b2c4"];
    let send = |kind: &str, message: serde_json::Value| {
        let envelope = serde_json::json!({
            "messageId": "e9a00000-5c7f-0015-5a5e-08dcd8a1b2c5",
            "conversationId": "e9a00000-5c7f-0015-5a5e-08dcd8a1b2c6",
            "destinationAddress": "rabbitmq://localhost/punctual",
            "messageType": [format!("urn:message:MassTransit.Scheduling:{kind}")],
            "message": message,
            "headers": {"shop": "7"},
        });
        let properties = BasicProperties::default().with_content_type("application/vnd.masstransit+json".into());
        publish(&rabbit, "punctual", "", envelope.to_string().as_bytes(), properties);
    };
    let due = jiff::Timestamp::now() + jiff::SignedDuration::from_millis(6000);
    for token in tokens {
        let (kind, payload) = ("urn:message:Shop:CancelOrder", serde_json::json!({"order": 7}));
        let message = serde_json::json!({"correlationId": token, "scheduledTime": due.to_string(), "payload": payload,
            "payloadType": [kind], "destination": "rabbitmq://localhost/orders"});
        send("ScheduleMessage", message);
    }
    send("CancelScheduledMessage", serde_json::json!({"tokenId": tokens[1], "timestamp": due.to_string()}));
    let message = published(&rabbit, &instance);
    assert!(jiff::Timestamp::now() >= due, "never early");
    assert_eq!((message.exchange.as_str(), message.routing_key.as_str()), ("orders", ""));
    let content_type = message.properties.content_type().as_ref().map(ShortString::as_str);
    assert_eq!(content_type, Some("application/vnd.masstransit+json"));
    let envelope: serde_json::Value = serde_json::from_slice(&message.data).expect("an envelope");
    assert_eq!(envelope["message"], serde_json::json!({"order": 7}));
    assert_eq!(envelope["messageType"], serde_json::json!(["urn:message:Shop:CancelOrder"]));
    let headers = serde_json::json!({"shop": "7", "MT-Scheduling-TokenId": tokens[0].replace('-', "")});
    assert_eq!(envelope["headers"], headers);
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert_eq!(rabbit.count("", "out"), 1, "the other one was cancelled");
    assert_eq!(["created", "cancelled"].map(|result| super::results(&instance, result)), [2.0, 1.0]);
}

#[test]
fn a_rejected_message_keeps_its_properties() {
    let Some((timeline, rabbit)) = servers() else { return };
    let instance = start(&timeline, &rabbit, "punctual.in", "dialect = \"celery\"\nexchanges = [\"celery.delayed=\"]");
    let headers = table(&[("id", text("a")), ("eta", text("tomorrow")), ("retries", AMQPValue::LongInt(0))]);
    let properties =
        BasicProperties::default().with_correlation_id("c1".into()).with_expiration("1".into()).with_headers(headers);
    rabbit.bind("", "celery.delayed", ExchangeKind::Topic, "punctual.in");
    publish(&rabbit, "celery.delayed", "celery", b"[]", properties);
    assert!(patient(TIME_LIMIT, || rabbit.count("", "punctual.rejected") == 1), "{}", instance.log());
    let copy = rabbit.queue("", "punctual.rejected").remove(0);
    assert_eq!(header(&copy, "punctual-rejected"), Some(text("bad_time")));
    assert_eq!(header(&copy, "retries"), Some(AMQPValue::LongInt(0)));
    let correlation = copy.properties.correlation_id().as_ref().map(ShortString::as_str);
    assert_eq!((correlation, copy.properties.expiration()), (Some("c1"), &None));
}
