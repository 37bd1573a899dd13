//! The RabbitMQ sink: publishes by AMQP 0-9-1, with lapin. <https://www.rabbitmq.com/docs/confirms>
//!
//! - The key travels as the property `message_id`, the content type as a property, all other headers as headers.
//!   Messages are persistent and mandatory.
//! - A message is accepted when RabbitMQ acknowledges it without having returned it. By then it is in every queue that
//!   it was routed to. It is rejected when AMQP cannot carry it, or when RabbitMQ refuses it as too large or malformed
//!   and no other message can be meant. Every other outcome is `Retry`. A returned message, or an unknown exchange, is
//!   the destination's fault.
//! - RabbitMQ refuses a message by closing the channel, with all messages under way on it. So each publish has a
//!   channel of its own, and checks an exchange before its first use. After a refusal for size, the smaller messages
//!   are sent again together and the others one by one.
//! - lapin reports a returned message with whichever acknowledgement completes next, so `under_way` judges a message by
//!   the returns that name it. lapin also goes on sending on a closed channel, which would end the connection, and
//!   cannot take back what it was given. So it runs on a socket of our own that drops such frames and can be cut
//!   (`socket`, `frames`).
//! - There is one connection, which never reconnects by itself. When it is lost, all messages in its buffers are lost
//!   with it. It is also cut when the server does not close an abandoned channel within the answer timeout. While
//!   RabbitMQ is blocked (its memory or disk is full), publishes and checks answer `blocked`, and a new connection is
//!   probed before it is used.

mod call;
mod carry;
mod connection;
mod exchanges;
mod frames;
mod login;
pub(crate) mod native;
mod refusal;
mod socket;
pub(crate) mod source;
mod texts;
mod under_way;

use std::sync::Arc;

use async_trait::async_trait;

use tokio::time::{Instant, timeout, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::networked::{Broker, Peer};
use crate::target::decode;
use crate::window::Window;
use crate::{Away, Cause, DestinationState, Fault, Message, Password, SinkError};
use call::RabbitPublish;
use carry::{MAX_TEXT_BYTES, check_target};
use connection::{Failed, RabbitConnection};
use exchanges::Exchanges;
use login::Login;
use refusal::{Blame, blame};

/// The limit of unanswered messages over all publishes, in units of 4 KiB: 16 MiB, and 4096 messages because each takes
/// at least one unit. One destination gets at most a quarter.
const MAX_UNDER_WAY: usize = 4096;
const UNIT_BYTES: usize = 4096;

/// A server, or a cluster whose servers are tried in turn.
pub(crate) struct Rabbit {
    login: Login,
    peer: Peer,
    window: Window,
    exchanges: Arc<Exchanges>,
}

impl Rabbit {
    /// Reads the configuration.
    ///
    /// # Errors
    /// [`SinkError::Config`] if virtual host, user or password cannot be used, or if TLS has no trusted certificates.
    pub(crate) fn new(config: &SinkConfig) -> Result<Rabbit, SinkError> {
        let target = config.target();
        let vhost = match target.path.as_str() {
            "" => "/".to_owned(),
            path => decode(path).filter(|vhost| vhost.len() <= MAX_TEXT_BYTES).ok_or_else(|| {
                SinkError::url("the path of an amqp URL is a virtual host, with `%2f` for `/`".to_owned())
            })?,
        };
        if target.user.is_some() && target.password.is_none() {
            let detail = format!("the URL of `{}` names a user without a password", target.address());
            return Err(SinkError::url(detail));
        }
        let login = Login {
            hosts: target.hosts.clone(),
            user: target.user.clone().unwrap_or_else(|| "guest".to_owned()),
            password: target.password.clone().unwrap_or_else(|| Password::given("guest".into())),
            vhost,
            tls: target.scheme.tls.then(|| login::TrustedCertificates::new(config.tls())).transpose()?,
            // After twice this time without a sign of the server, it counts as dead. A lower value would take a busy
            // machine for dead.
            heartbeat: u16::try_from(config.answer_timeout().as_secs() / 2).unwrap_or(u16::MAX).clamp(2, 60),
        };
        Ok(Rabbit {
            login,
            peer: Peer::new(config),
            window: Window::new(MAX_UNDER_WAY, UNIT_BYTES),
            exchanges: Arc::default(),
        })
    }

    /// Answers the remaining messages at the deadline. If the server is blocked or silent, the connection is cut at
    /// once, because half-written messages could not be withdrawn otherwise.
    fn give_up(&self, connection: &RabbitConnection, answers: &Answers) {
        if let Some(detail) = blocked(connection) {
            connection.cut();
            answers.give_up(Fault::Sink, &detail);
        } else if connection.silent_since().elapsed() > connection.heartbeat.max(self.peer.answer_timeout / 2) {
            connection.cut();
            answers.give_up(Fault::Sink, &self.peer.no_answer());
        } else {
            answers.give_up(Fault::Unanswered, &self.peer.no_answer());
        }
    }
}

#[async_trait]
impl Broker for Rabbit {
    type Connection = RabbitConnection;

    const KIND: &'static str = "rabbitmq";

    fn peer(&self) -> &Peer {
        &self.peer
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_target(destination).map(drop)
    }

    /// Logs in to one of the servers and probes whether it accepts messages. Otherwise messages would fill the buffers
    /// on the way and could be published at any later time.
    async fn connect(&self) -> Result<RabbitConnection, Away> {
        let answer_timeout = self.peer.answer_timeout;
        let exchanges = Arc::clone(&self.exchanges);
        let connection = RabbitConnection::connect(&self.login, exchanges, answer_timeout / 2, answer_timeout).await?;
        let share = answer_timeout / 4;
        match timeout(share, connection.probe()).await {
            // A refusal shows that the server reads messages.
            Ok(Ok(()) | Err(Failed::Refused(_))) => Ok(connection),
            Ok(Err(Failed::Lost)) => Err(connection.end_words().into()),
            Err(_) => Err(format!("no answer within {share:?}").into()),
        }
    }

    async fn publish(
        &self,
        connection: &Arc<RabbitConnection>,
        batch: Vec<Message>,
        answers: &Answers,
        deadline: Instant,
    ) {
        if let Some(detail) = blocked(connection) {
            return answers.give_up(Fault::Sink, &detail);
        }
        let ended = {
            let call = RabbitPublish::new(&self.window, connection, &batch, answers.clone());
            timeout_at(deadline, call.run()).await
        };
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(Failed::Refused(refusal))) => answers.give_up(Fault::Sink, &refusal.to_string()),
            Ok(Err(Failed::Lost)) => answers.give_up(connection.end_fault(), &connection.end_words()),
            Err(_) => self.give_up(connection, answers),
        }
    }

    async fn look_for(
        &self,
        connection: &RabbitConnection,
        destination: &str,
        _deadline: Instant,
    ) -> Result<DestinationState, Away> {
        let Ok((exchange, key)) = check_target(destination) else {
            return Ok(DestinationState::Missing("it names neither an exchange nor a queue".to_owned()));
        };
        let found = match exchange {
            "" => connection.declare_queue_passively(key).await,
            exchange => connection.find(exchange).await,
        };
        match found {
            Ok(()) if exchange.is_empty() => Ok(DestinationState::Exists),
            Ok(()) => Ok(DestinationState::Unknown(
                "the exchange exists; the server does not tell whether it routes this key to a queue".to_owned(),
            )),
            // A user who may publish to a queue need not be allowed to declare it.
            Err(Failed::Refused(refusal)) if refusal.code == 403 && exchange.is_empty() => {
                Ok(DestinationState::Unknown(refusal.to_string()))
            }
            Err(Failed::Refused(refusal)) => Ok(DestinationState::Missing(refusal.to_string())),
            Err(Failed::Lost) => Err(connection.end_words().into()),
        }
    }

    async fn ask(&self, connection: &RabbitConnection, _deadline: Instant) -> Result<(), Away> {
        let refused = |detail: String| Away::new(Cause::Refused, detail);
        if let Some(detail) = blocked(connection) {
            return Err(refused(detail));
        }
        match (connection.probe().await, blocked(connection)) {
            (_, Some(detail)) => Err(refused(detail)),
            (Ok(()), None) => Ok(()),
            // The server answered; this user may just not publish to the default exchange.
            (Err(Failed::Refused(refusal)), None) if blame(refusal.code) == Blame::Destination => Ok(()),
            (Err(Failed::Refused(refusal)), None) => Err(refused(refusal.to_string())),
            (Err(Failed::Lost), None) => Err(connection.end_words().into()),
        }
    }
}

/// Why the server is blocked, if it is.
fn blocked(connection: &RabbitConnection) -> Option<String> {
    connection.blocked().borrow().as_ref().map(|reason| format!("blocked: {reason}"))
}
