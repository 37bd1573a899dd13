//! What messages of RabbitMQ become that were written for other programs.

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable};

use super::*;

/// A message of RabbitMQ that came by this exchange, with properties.
fn from_exchange(exchange: &str, properties: BasicProperties) -> Incoming {
    let route = Some((exchange.to_owned(), "cancel".to_owned()));
    Incoming { native: Some(NativeHeaders::RabbitMq(Box::new(properties))), route, ..message(&[]) }
}

fn with_header(name: &str, value: AMQPValue) -> BasicProperties {
    let mut table = FieldTable::default();
    table.insert(name.into(), value);
    BasicProperties::default().with_headers(table)
}

fn by_exchange(dialect: Dialect) -> Door {
    let exchanges = [("orders.delayed", "orders"), ("celery.delayed", "")];
    let exchanges = exchanges.map(|(from, to)| (from.to_owned(), to.to_owned())).into();
    Door { dialect, exchanges, ..door() }
}

#[test]
fn x_delay_means_what_it_means_to_the_plugin() {
    let door = by_exchange(Dialect::XDelay);
    let read = |value: AMQPValue| read_by(&door, &from_exchange("orders.delayed", with_header("x-delay", value)));
    let text = |text: &str| AMQPValue::LongString(text.into());
    for (value, due) in [
        (AMQPValue::LongInt(5000), 5000),
        (AMQPValue::LongLongInt(5_000_000_000), 5_000_000_000),
        (AMQPValue::LongUInt(u32::MAX), 4_294_967_295),
        (AMQPValue::ShortShortInt(-1), 0),
        (AMQPValue::LongInt(0), 0),
        (text("7000"), 7000),
        (text(" -7000"), 0),
        (AMQPValue::Double(1500.9), 1500),
        (AMQPValue::Boolean(true), 0),
        (AMQPValue::Void, 0),
    ] {
        let Ok(Instruction::Put(put)) = read(value.clone()) else { panic!("{value:?}: {:?}", read(value.clone())) };
        assert_eq!((put.due, put.names_id), (at(due), false), "{value:?}");
        assert_eq!(put.new.task.message.destination.as_deref(), Some("orders/cancel"));
        let negated = put.new.task.message.headers.get("x-delay").cloned();
        assert_eq!(negated, (due > 0).then(|| (-due).to_string()), "{value:?}");
    }
    for (value, code) in [
        (text("soon"), "bad_delay"),
        (text("1500.5"), "bad_delay"),
        (AMQPValue::Double(f64::NAN), "bad_delay"),
        (AMQPValue::LongLongInt(i64::MAX), "out_of_range"),
        (AMQPValue::Double(1e300), "out_of_range"),
    ] {
        assert_eq!(read(value.clone()).unwrap_err().code, code, "{value:?}");
    }
    let missing = read_by(&door, &from_exchange("orders.delayed", BasicProperties::default()));
    assert!(matches!(missing, Ok(Instruction::Put(put)) if put.due == at(0)), "it is due at once");
    let unknown = from_exchange("other", with_header("x-delay", AMQPValue::LongInt(1)));
    assert_eq!(read_by(&door, &unknown).unwrap_err().code, "unknown_exchange");
    let to_queue = from_exchange("celery.delayed", with_header("x-delay", AMQPValue::LongInt(1)));
    let Ok(Instruction::Put(put)) = read_by(&door, &to_queue) else { panic!("it is put") };
    assert_eq!(put.new.task.message.destination.as_deref(), Some("cancel"), "a queue, by the default exchange");
    // Without a time, the delay counts from the put.
    let timeless = Incoming { time_ms: None, ..to_queue };
    let Ok(Instruction::Put(put)) = read_by(&door, &timeless) else { panic!("it is put") };
    assert_eq!((put.new.task.schedule.when, put.due), (When::In(Duration::from_millis(1)), at(1001)));
}

#[test]
fn what_punctual_has_published_is_delayed_again_and_otherwise_a_loop() {
    let door = by_exchange(Dialect::XDelay);
    for (delay, is_loop) in [(5000, false), (0, true), (-5000, true)] {
        let mut message = from_exchange("orders.delayed", with_header("x-delay", AMQPValue::LongInt(delay)));
        message.headers.push(("punctual-task".to_owned(), Bytes::from_static(b"a")));
        let code = read_by(&door, &message).err().map(|why| why.code);
        assert_eq!(code, is_loop.then_some("loop"), "{delay}");
    }
}

#[test]
fn an_expiration_is_a_delay_and_the_smaller_of_two_counts() {
    let door = |delay: Option<u64>| Door {
        dialect: Dialect::Expiration,
        to: Some("dead/cancel".to_owned()),
        delay: delay.map(Duration::from_millis),
        ..door()
    };
    let message = |expiration: Option<&str>| {
        let properties = BasicProperties::default();
        let with = expiration.map(|text| properties.clone().with_expiration(text.into()));
        from_exchange("", with.unwrap_or(properties))
    };
    for (expiration, delay, due) in [
        (Some("300"), None, Some(300)),
        (Some("300"), Some(3000), Some(300)),
        (Some("5000"), Some(3000), Some(3000)),
        (None, Some(3000), Some(3000)),
        (None, None, None),
        (Some("soon"), None, None),
    ] {
        match (read_by(&door(delay), &message(expiration)), due) {
            (Ok(Instruction::Put(put)), Some(due)) => {
                assert_eq!(put.due, at(due), "{expiration:?} {delay:?}");
                assert_eq!(put.new.task.message.destination.as_deref(), Some("dead/cancel"));
            }
            (Err(why), None) => assert_eq!(why.code, "no_delay"),
            (other, _) => panic!("{expiration:?} {delay:?}: {other:?}"),
        }
    }
}

#[test]
fn a_task_of_celery_is_due_at_its_eta() {
    let door = by_exchange(Dialect::Celery);
    let read = |eta: AMQPValue| {
        let properties = with_header("eta", eta);
        let mut table = properties.headers().clone().unwrap();
        table.insert("id".into(), AMQPValue::LongString("5f2c".into()));
        read_by(&door, &from_exchange("celery.delayed", properties.with_headers(table)))
    };
    let text = |text: &str| AMQPValue::LongString(text.into());
    for (eta, due) in [
        (text("2026-11-21T12:00:05+00:00"), 5000),
        (text("2026-11-21T13:00:05.000001+01:00"), 5001),
        (text("2026-11-21T12:00:05"), 5000),
        (text("2026-11-21T12:00:05.250000"), 5250),
        (AMQPValue::Void, 0),
    ] {
        let Ok(Instruction::Put(put)) = read(eta.clone()) else { panic!("{eta:?}: {:?}", read(eta.clone())) };
        assert_eq!((put.due, put.new.id.as_str(), put.names_id), (at(due), "5f2c", true), "{eta:?}");
        assert_eq!(put.new.task.message.destination.as_deref(), Some("cancel"));
    }
    for eta in [text("tomorrow"), text(""), AMQPValue::LongInt(5)] {
        assert_eq!(read(eta.clone()).unwrap_err().code, "bad_time", "{eta:?}");
    }
}

/// An envelope of MassTransit with this message.
fn envelope(name: &str, message: &str) -> Incoming {
    let body = format!(
        r#"{{"messageId":"5d2a0000-0000-0000-0000-000000000001","sourceAddress":"rabbitmq://localhost/shop",
        "destinationAddress":"rabbitmq://localhost/punctual","messageType":["urn:message:MassTransit.Scheduling:{name}"],
        "message":{message},"headers":{{"tenant":"acme"}},"host":{{"machineName":"a"}}}}"#
    );
    Incoming { body: Some(body.into()), ..from_exchange("punctual", BasicProperties::default()) }
}

#[test]
fn a_scheduled_message_of_masstransit_is_published_in_its_envelope() {
    let door = Door { dialect: Dialect::MassTransit, ..door() };
    let schedule = r#"{"correlationId":"AB2A0000-0000-0000-0000-000000000002","scheduledTime":"2026-11-21T12:00:05.1230000Z",
        "payloadType":["urn:message:Shop:CancelOrder"],"destination":"rabbitmq://localhost/orders?bind=true",
        "payload":{"order":1.50}}"#;
    let Ok(Instruction::Put(put)) = read_by(&door, &envelope("ScheduleMessage", schedule)) else { panic!("it is put") };
    assert_eq!((put.new.id.as_str(), put.due), ("ab2a0000-0000-0000-0000-000000000002", at(5123)));
    assert_eq!(put.new.task.message.destination.as_deref(), Some("orders/"));
    let body = String::from_utf8(put.new.task.message.payload.bytes().to_vec()).unwrap();
    let expected = concat!(
        r#"{"destinationAddress":"rabbitmq://localhost/orders?bind=true","#,
        r#""headers":{"MT-Scheduling-TokenId":"AB2A0000000000000000000000000002","tenant":"acme"},"#,
        r#""host":{"machineName":"a"},"message":{"order":1.50},"#,
        r#""messageId":"5d2a0000-0000-0000-0000-000000000001","messageType":["urn:message:Shop:CancelOrder"],"#,
        r#""sourceAddress":"rabbitmq://localhost/shop"}"#
    );
    assert_eq!(body, expected);
    let cancel = envelope("CancelScheduledMessage", r#"{"tokenId":"ab2a0000-0000-0000-0000-000000000002"}"#);
    assert_eq!(read_by(&door, &cancel), Ok(Instruction::Cancel(put.new.id)));
    for (name, message, code) in [
        ("ScheduleMessage", schedule.replace("2026-11-21T", "soon"), "bad_time"),
        ("ScheduleMessage", schedule.replace("rabbitmq://localhost/orders", "topic:orders"), "no_destination"),
        ("ScheduleMessage", "{}".to_owned(), "bad_body"),
        ("CancelScheduledMessage", "null".to_owned(), "bad_body"),
        ("Other", schedule.to_owned(), "bad_body"),
    ] {
        let rejected = read_by(&door, &envelope(name, &message)).unwrap_err();
        assert_eq!(rejected.code, code, "{name}: {message}");
    }
    let no_json = Incoming { body: Some(Bytes::from_static(b"<a/>")), ..envelope("Other", "1") };
    assert_eq!(read_by(&door, &no_json).unwrap_err().code, "bad_body");
}
