//! What all sinks with a network connection share. Each broker implements how to connect, publish and check
//! ([`Broker`]). [`Networked`] guarantees that a publish is always answered in time and does not start once the sink is
//! closed.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use tokio::time::{Instant, timeout_at};

use crate::answers::Answers;
use crate::link::{Connection, PublishTracker, SharedConnection, deadline, no_answer};
use crate::{Away, Cause, DestinationState, Fault, Message, Outcome, Sink, SinkConfig, SinkError};

/// The address of a broker, and its answer timeout.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    /// Without secrets.
    pub(crate) address: String,
    pub(crate) answer_timeout: Duration,
}

impl Peer {
    pub(crate) fn new(config: &SinkConfig) -> Peer {
        Peer { address: config.address(), answer_timeout: config.answer_timeout() }
    }

    /// The error if there is no connection.
    pub(crate) fn not_connected(&self, away: Away) -> Away {
        let beginning = away.cause.beginning();
        away.with_prefix(format!("{beginning}`{}`: ", self.address))
    }

    /// The error text if no answer arrived in time.
    pub(crate) fn no_answer(&self) -> String {
        no_answer(&self.address, self.answer_timeout)
    }
}

/// One kind of broker.
#[async_trait]
pub(crate) trait Broker: Send + Sync + 'static {
    /// The connection to publish on.
    type Connection: Connection;

    /// Its name, as in [`Sink::kind`].
    const KIND: &'static str;

    /// Its address.
    fn peer(&self) -> &Peer;

    /// See [`Sink::check_destination`].
    fn check_destination(&self, destination: &str) -> Result<(), String>;

    /// Connects, and probes the server if necessary. Takes at most three quarters of the answer timeout.
    async fn connect(&self) -> Result<Self::Connection, Away>;

    /// See [`Sink::takes_tombstones`].
    const TAKES_TOMBSTONES: bool = false;

    /// The cause to report if the deadline passes before there is a connection.
    const UNCONNECTED: Fault = Fault::Sink;

    /// Sees the batch before there is a connection; may answer messages that need none.
    fn prepare(&self, _batch: &[Message], _answers: &Answers) {}

    /// Whether a connection that seems usable really is. Ends it if not.
    async fn check_or_end(&self, _connection: &Self::Connection) -> bool {
        true
    }

    /// Publishes a batch. All messages are answered at `deadline`.
    async fn publish(
        &self,
        connection: &Arc<Self::Connection>,
        batch: Vec<Message>,
        answers: &Answers,
        deadline: Instant,
    );

    /// Checks that the broker answers and would accept messages; writes nothing.
    async fn ask(&self, connection: &Self::Connection, deadline: Instant) -> Result<(), Away>;

    /// See [`Sink::look_for`].
    async fn look_for(
        &self,
        connection: &Self::Connection,
        destination: &str,
        deadline: Instant,
    ) -> Result<DestinationState, Away>;

    /// Ends resources other than the shared connection.
    async fn close(&self, _until: Instant) {}
}

/// A sink that publishes over one connection, which is made when it is first needed.
pub(crate) struct Networked<B: Broker> {
    shared: Arc<Shared<B>>,
}

struct Shared<B: Broker> {
    broker: B,
    link: SharedConnection<B::Connection>,
    publishes: PublishTracker,
}

impl<B: Broker> Networked<B> {
    pub(crate) fn new(broker: B) -> Networked<B> {
        Networked {
            shared: Arc::new(Shared { broker, link: SharedConnection::new(), publishes: PublishTracker::default() }),
        }
    }
}

impl<B: Broker> Shared<B> {
    async fn connection(&self) -> Result<Arc<B::Connection>, Away> {
        let connection = self.link.get(self.connect()).await?;
        if self.broker.check_or_end(&connection).await {
            return Ok(connection);
        }
        self.link.get(self.connect()).await
    }

    async fn connect(&self) -> Result<B::Connection, Away> {
        self.broker.connect().await.map_err(|away| self.broker.peer().not_connected(away))
    }

    /// Asks the broker something, within `answer_timeout`.
    async fn ask<T>(
        &self,
        question: impl AsyncFnOnce(&B::Connection, Instant) -> Result<T, Away>,
    ) -> Result<T, SinkError> {
        let (peer, deadline) = (self.broker.peer(), deadline(self.broker.peer().answer_timeout));
        let closed = |trouble: crate::Trouble| Away::new(Cause::Refused, trouble.detail).of_sink(&peer.address);
        self.publishes.check_open().map_err(closed)?;
        let asked = timeout_at(deadline, async {
            let connection = self.connection().await?;
            question(&connection, deadline).await
        });
        let answered = asked.await.unwrap_or_else(|_| Err(peer.no_answer().into()));
        answered.map_err(|away| away.of_sink(&peer.address))
    }

    async fn publish(&self, batch: Vec<Message>, answers: Answers, deadline: Instant) {
        let _pass = match self.publishes.enter() {
            Ok(pass) => pass,
            Err(trouble) => return answers.give_up(trouble.fault, &trouble.detail),
        };
        self.broker.prepare(&batch, &answers);
        if answers.complete() {
            return;
        }
        match timeout_at(deadline, self.connection()).await {
            Ok(Ok(connection)) => self.broker.publish(&connection, batch, &answers, deadline).await,
            Ok(Err(away)) => answers.give_up(Fault::Sink, &away.detail),
            Err(_) => answers.give_up(B::UNCONNECTED, &self.broker.peer().no_answer()),
        }
    }
}

#[async_trait]
impl<B: Broker> Sink for Networked<B> {
    fn publish(&self, batch: Vec<Message>) -> BoxStream<'static, (usize, Outcome)> {
        let (shared, deadline) = (Arc::clone(&self.shared), deadline(self.answer_timeout()));
        Answers::stream(batch.len(), move |answers| async move { shared.publish(batch, answers, deadline).await })
    }

    async fn check(&self) -> Result<(), SinkError> {
        let broker = &self.shared.broker;
        self.shared.ask(async |connection, deadline| broker.ask(connection, deadline).await).await
    }

    async fn look_for(&self, destination: &str) -> Result<DestinationState, SinkError> {
        let broker = &self.shared.broker;
        if let Err(detail) = broker.check_destination(destination) {
            return Ok(DestinationState::Missing(detail));
        }
        self.shared.ask(async |connection, deadline| broker.look_for(connection, destination, deadline).await).await
    }

    async fn close(&self, deadline: Duration) -> Result<(), SinkError> {
        let until = Instant::now() + deadline;
        let shut = self.shared.publishes.shut(deadline).await;
        self.shared.link.close(until).await;
        self.shared.broker.close(until).await;
        shut
    }

    fn answer_timeout(&self) -> Duration {
        self.shared.broker.peer().answer_timeout
    }

    fn kind(&self) -> &'static str {
        B::KIND
    }

    fn takes_tombstones(&self) -> bool {
        B::TAKES_TOMBSTONES
    }

    fn check_destination(&self, destination: &str) -> Result<(), String> {
        self.shared.broker.check_destination(destination)
    }
}
