//! The RabbitMQ sink: publishes by AMQP 0-9-1. <https://www.rabbitmq.com/docs/confirms>
//!
//! - Key: property `message_id`; content type as a property, the other headers as headers. Persistent and mandatory.
//! - Accepted when RabbitMQ acknowledges the message and has not returned it before: by then it is in every queue that it
//!   was routed to. Rejected: what is refused as too large or malformed when nothing else can be meant, and what AMQP
//!   cannot carry. All else is `Retry`; what goes to no queue or to an unknown exchange is the destination's fault.
//! - RabbitMQ refuses a message by closing the channel, with all that is under way on it. So each call has a channel of
//!   its own, an exchange is looked for before its first use, and after a refusal for size the smaller messages go out
//!   again together, the others one by one.
//! - It speaks AMQP itself. The client library at hand attaches a returned message to whichever acknowledgement comes
//!   next, goes on sending on a channel that the server has closed, which ends the connection for all, and takes nothing
//!   back of what it was given.
//! - One connection. It never reconnects by itself: a lost one is given up with all that it held, what the system has not
//!   sent included. So is one on which the server does not take in what was given up within the answer timeout. While
//!   RabbitMQ takes nothing (its memory or disk is full), publishes and checks say `blocked`; a new connection is asked.

mod call;
mod carry;
mod connection;
mod frames;
mod login;
mod pump;
mod refusal;
mod under_way;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use secrecy::SecretString;
use tokio::time::{Instant, timeout, timeout_at};

use crate::answers::Answers;
use crate::config::SinkConfig;
use crate::link::{self, Connection as _, Door, Link};
use crate::target::decode;
use crate::window::Window;
use crate::{Away, Cause, Fault, Message, Outcome, Sink, SinkError};
use call::Call;
use carry::check_target;
use connection::{Connection, Failed};
use login::Login;
use refusal::{Blame, blame};

/// Messages that may be unanswered at once, over all calls; and 16 MiB. A quarter to one destination at most.
const MOST_UNDER_WAY: usize = 4096;
const UNIT: usize = 4096;

/// A sink that publishes to RabbitMQ.
pub struct RabbitSink {
    inner: Arc<Inner>,
}

struct Inner {
    login: Login,
    address: String,
    answer_timeout: Duration,
    window: Window,
    link: Link<Connection>,
    door: Door,
}

impl RabbitSink {
    /// A sink for a server, or for a cluster whose servers are tried in turn; connects when it is first used.
    ///
    /// # Errors
    /// [`SinkError::Config`] when the virtual host, user or password cannot be one, or nobody could be trusted.
    pub fn new(config: &SinkConfig) -> Result<RabbitSink, SinkError> {
        let target = config.target();
        let vhost = match target.path.as_str() {
            "" => "/".to_owned(),
            path => decode(path).filter(|vhost| vhost.len() <= frames::SHORT).ok_or_else(|| {
                SinkError::Config("the path of an amqp URL is a virtual host, with `%2f` for `/`".to_owned())
            })?,
        };
        if target.user.is_some() && target.password.is_none() {
            let words = format!("the URL of `{}` names a user without a password", target.address());
            return Err(SinkError::Config(words));
        }
        let login = Login {
            hosts: target.hosts.clone(),
            user: target.user.clone().unwrap_or_else(|| "guest".to_owned()),
            password: target.password.clone().unwrap_or_else(|| SecretString::from("guest")),
            vhost,
            tls: target.scheme.tls.then(|| login::Trust::new(config.tls())).transpose()?,
            // Twice this without a word, and the server is taken for dead; below, a busy machine would be.
            heartbeat: u16::try_from(config.answer_timeout().as_secs() / 2).unwrap_or(u16::MAX).clamp(2, 60),
        };
        let inner = Inner {
            login,
            address: target.address(),
            answer_timeout: config.answer_timeout(),
            window: Window::new(MOST_UNDER_WAY, UNIT),
            link: Link::new(),
            door: Door::new(),
        };
        Ok(RabbitSink { inner: Arc::new(inner) })
    }
}

#[async_trait]
impl Sink for RabbitSink {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (inner, deadline) = (Arc::clone(&self.inner), link::deadline(self.inner.answer_timeout));
        Answers::stream(batch.len(), move |answers| async move {
            let _pass = match inner.door.enter() {
                Ok(pass) => pass,
                Err(trouble) => return answers.give_up(trouble.fault, &trouble.words),
            };
            let connection = match timeout_at(deadline, inner.link.get(inner.connect())).await {
                Ok(Ok(connection)) => connection,
                Ok(Err(away)) => return answers.give_up(Fault::Sink, &away.words),
                Err(_) => return answers.give_up(Fault::Sink, &inner.no_answer()),
            };
            if let Some(words) = blocked(&connection) {
                return answers.give_up(Fault::Sink, &words);
            }
            let ended = {
                let call = Call::new(&inner.window, &connection, &batch, answers.clone());
                timeout_at(deadline, call.run()).await
            };
            match ended {
                Ok(Ok(())) => {}
                Ok(Err(Failed::Refused(refusal))) => answers.give_up(Fault::Sink, &refusal.to_string()),
                Ok(Err(Failed::Lost)) => answers.give_up(connection.end_fault(), &connection.end_words()),
                Err(_) => inner.give_up(&connection, &answers),
            }
        })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let refused = |words: String| Away::new(Cause::Refused, words);
        let address = &self.inner.address;
        self.inner.door.look().map_err(|trouble| refused(trouble.words).of_sink(address))?;
        let asked = timeout_at(link::deadline(self.inner.answer_timeout), async {
            let connection = self.inner.link.get(self.inner.connect()).await?;
            if let Some(words) = blocked(&connection) {
                return Err(refused(words));
            }
            match (connection.probe().await, blocked(&connection)) {
                (_, Some(words)) => Err(refused(words)),
                (Ok(()), None) => Ok(()),
                // The server has answered; to publish like this is simply not among what this user may do.
                (Err(Failed::Refused(refusal)), None) if blame(refusal.code) == Blame::Destination => Ok(()),
                (Err(Failed::Refused(refusal)), None) => Err(refused(refusal.to_string())),
                (Err(Failed::Lost), None) => Err(connection.end_words().into()),
            }
        });
        let answered = asked.await.unwrap_or_else(|_| Err(self.inner.no_answer().into()));
        answered.map_err(|away| away.of_sink(address))
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        let until = Instant::now() + deadline;
        let shut = self.inner.door.shut(deadline).await;
        self.inner.link.close(until).await;
        shut
    }

    fn answer_timeout(&self) -> Duration {
        self.inner.answer_timeout
    }

    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        check_target(destination).map(drop)
    }
}

impl Inner {
    fn no_answer(&self) -> String {
        link::no_answer(&self.address, self.answer_timeout)
    }

    /// Logs in to one of the servers, within half of the answer timeout, and finds out whether it takes messages: else as
    /// many as fit on the way would lie before it, and would be taken at any time.
    async fn connect(&self) -> Result<Connection, Away> {
        let (limit, share) = (self.answer_timeout / 2, self.answer_timeout / 4);
        let connected = async {
            let connection = Connection::connect(&self.login, limit, self.answer_timeout).await?;
            match timeout(share, connection.probe()).await {
                // What it refuses it has read.
                Ok(Ok(()) | Err(Failed::Refused(_))) => Ok(connection),
                Ok(Err(Failed::Lost)) => Err(connection.end_words().into()),
                Err(_) => Err(format!("no answer within {share:?}").into()),
            }
        };
        connected.await.map_err(|away: Away| away.behind(format!("cannot connect to `{}`: ", self.address)))
    }

    /// Answers what is not answered at the deadline. Where the server takes nothing, or says nothing, the connection ends
    /// for all, at once: what is half written could not be given up otherwise.
    fn give_up(&self, connection: &Connection, answers: &Answers) {
        if let Some(words) = blocked(connection) {
            connection.end();
            answers.give_up(Fault::Sink, &words);
        } else if connection.silent_since().elapsed() > connection.heartbeat.max(self.answer_timeout / 2) {
            connection.end();
            answers.give_up(Fault::Sink, &self.no_answer());
        } else {
            answers.give_up(Fault::Unclear, &self.no_answer());
        }
    }
}

/// Why the server takes no messages, if it has said so.
fn blocked(connection: &Connection) -> Option<String> {
    connection.blocked().borrow().as_ref().map(|reason| format!("blocked: {reason}"))
}
