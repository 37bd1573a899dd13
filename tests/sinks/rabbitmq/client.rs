//! Why the sink filters frames before lapin 4.12.3 sees them and judges outcomes itself: what lapin does with returned
//! messages, and with a channel that the server closes. When one of these tests fails, the library has changed and the
//! filter may no longer be needed.

use futures_util::future::join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::protocol::{AMQPErrorKind, AMQPHardError};
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind};

use super::super::Broker;
use super::Shared;

/// Publishes all messages at once, each to its queue, mandatory or not; returns the result of each.
async fn publish(channel: &Channel, messages: &[(&str, bool, &[u8])]) -> Vec<lapin::Result<Confirmation>> {
    channel.confirm_select(ConfirmSelectOptions::default()).await.expect("confirms");
    let publishing = messages.iter().enumerate().map(|(index, (queue, mandatory, payload))| async move {
        let properties = BasicProperties::default().with_message_id(index.to_string().into());
        let options = BasicPublishOptions { mandatory: *mandatory, immediate: false };
        channel.basic_publish("".into(), (*queue).into(), options, payload, properties).await?.await
    });
    join_all(publishing).await
}

/// RabbitMQ acknowledges several messages at once, some of which it returned before. Here it returns every other one.
#[test]
fn lapin_attaches_a_return_to_whichever_confirm_completes_next() {
    let Some(broker) = Shared::start() else { return };
    let (mut rounds, mut mismatch) = (0, None);
    while mismatch.is_none() && rounds < 20 {
        rounds += 1;
        mismatch = broker.server.with_channel(&broker.vhost, async |channel: Channel| {
            let messages = [("a", true, &b"x"[..]), ("nobody", true, &b"x"[..])].repeat(1000);
            for (index, confirmation) in publish(&channel, &messages).await.into_iter().enumerate() {
                let returned = confirmation.expect("an answer").take_message();
                let id = |delivery: &lapin::message::Delivery| {
                    delivery.properties.message_id().as_ref().map(|id| id.as_str().to_owned())
                };
                let id = returned.and_then(|returned| id(&returned.delivery));
                if id.as_ref().is_some_and(|id| *id != index.to_string()) {
                    return id.map(|id| (index, id));
                }
            }
            None
        });
    }
    let (bearer, returned) = mismatch.expect("each return came with its own confirm");
    crate::support::say(&format!("lapin: the confirm of message {bearer} bears message {returned}, in round {rounds}"));
}

/// RabbitMQ rejects one message for its size and closes the channel. The messages behind it end the whole connection.
#[test]
fn lapin_goes_on_sending_on_a_channel_that_the_server_closed() {
    let Some(broker) = Shared::small() else { return };
    let lost = (0..20).any(|_| {
        broker.server.with_channel(&broker.vhost, async |channel: Channel| {
            let (large, good) = (vec![b'x'; 70_000], vec![b'x'; 60_000]);
            let mut messages = vec![("a", true, &good[..]); 1000];
            messages[3].2 = &large;
            let errors = publish(&channel, &messages).await.into_iter().filter_map(Result::err);
            let is_hard = |kind: &AMQPErrorKind| *kind == AMQPErrorKind::Hard(AMQPHardError::CHANNELERROR);
            errors.into_iter().any(|e| matches!(e.kind(), ErrorKind::ProtocolError(error) if is_hard(error.kind())))
        })
    });
    assert!(lost, "the connection outlived it");
}
