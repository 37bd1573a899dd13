//! One connection to NATS, its inbox, and the publishes that wait for answers.
//!
//! It never reconnects by itself. When it is lost, all messages of the client library are lost with it.

use std::collections::HashMap;
use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_nats::{
    AuthError, Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, ServerAddr, ServerError, Subject,
};
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::timeout;

use super::credentials::Credentials;
use crate::away::{self, Away, Cause};
use crate::link;

/// Maximum number of messages under way over all publishes; far below the 65 536 answers that the inbox has room for.
pub(super) const MAX_UNDER_WAY: usize = 4096;

/// The address of NATS, and the login.
pub(super) struct NatsAddress {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) credentials: Credentials,
    /// TLS settings; with `None` the client library uses the certificates of the system.
    pub(super) tls: Option<rustls::ClientConfig>,
    pub(super) tls_required: bool,
}

/// A connection, its inbox, and the publishes that wait for answers.
pub(crate) struct NatsConnection {
    pub(super) client: Client,
    inbox: String,
    routes: Arc<Routes>,
}

impl NatsConnection {
    /// Connects to one of the servers and subscribes to an inbox.
    pub(super) async fn connect(place: &NatsAddress, limit: Duration) -> Result<NatsConnection, Away> {
        let routes = Arc::new(Routes::default());
        let sealed = Arc::new(AtomicBool::new(false));
        let connecting = async {
            let options = options(place, &sealed, &routes, limit).max_reconnects(place.servers.len());
            let client = options.connect(&place.servers[..]).await?;
            sealed.store(true, Ordering::SeqCst);
            let inbox = client.new_inbox();
            let subscriber = client.subscribe(format!("{inbox}.*.*")).await?;
            Ok((client, inbox, subscriber))
        };
        let (client, inbox, subscriber) = match timeout(limit, connecting).await {
            Ok(connected) => connected.map_err(|error: async_nats::Error| Away::new(cause(&*error), chain(&*error)))?,
            Err(_) => return Err(format!("no answer within {limit:?}").into()),
        };
        tokio::spawn(Arc::clone(&routes).run(subscriber, inbox.len() + 1));
        Ok(NatsConnection { client, inbox, routes })
    }

    /// Opens a part of the inbox for one publish.
    pub(super) fn open(&self) -> Route {
        self.routes.open()
    }

    /// Why the connection cannot be used any more.
    pub(super) fn end_words(&self) -> String {
        self.routes.why.get().map_or("the connection was lost", String::as_str).to_owned()
    }

    /// The reply subject of the message with this index.
    pub(super) fn reply(&self, call: u64, index: usize) -> Subject {
        Subject::from(format!("{}.{call}.{index}", self.inbox))
    }
}

impl link::Connection for NatsConnection {
    fn alive(&self) -> bool {
        !self.routes.lost.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.routes.end();
    }
}

impl Drop for NatsConnection {
    fn drop(&mut self) {
        self.routes.end();
    }
}

/// The publishes that wait for answers.
#[derive(Default)]
struct Routes {
    calls: Mutex<HashMap<u64, mpsc::UnboundedSender<NatsReply>>>,
    next: AtomicU64,
    lost: AtomicBool,
    ended: Notify,
    why: OnceLock<String>,
}

/// The part of the inbox of one publish; dropping it closes it.
pub(super) struct Route {
    pub(super) call: u64,
    pub(super) replies: mpsc::UnboundedReceiver<NatsReply>,
    /// Set by the publish when the connection is lost and every answer that had arrived was read: no more can come.
    pub(super) closed: bool,
    routes: Arc<Routes>,
}

/// An answer for a publish. There are never more than messages under way, so the channel needs no bound.
pub(super) enum NatsReply {
    /// The answer to the message with this index.
    Message(usize, async_nats::Message),
    /// The user may not publish to this subject; with the server's error text.
    Denied(String, String),
}

impl Routes {
    fn open(self: &Arc<Routes>) -> Route {
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = mpsc::unbounded_channel();
        let mut calls = self.calls.lock();
        // After the connection is lost, no code would close this channel.
        if !self.lost.load(Ordering::SeqCst) {
            calls.insert(call, sender);
        }
        drop(calls);
        Route { call, replies, closed: false, routes: Arc::clone(self) }
    }

    /// Distributes the messages of the inbox until the connection is lost or ended.
    async fn run(self: Arc<Routes>, mut inbox: async_nats::Subscriber, prefix: usize) {
        loop {
            tokio::select! {
                biased;
                message = inbox.next() => match message {
                    Some(message) => self.deliver(message, prefix),
                    None => break,
                },
                () = self.ended.notified() => break,
            }
        }
        // Messages that arrived before the end still count.
        while let Some(Some(message)) = inbox.next().now_or_never() {
            self.deliver(message, prefix);
        }
        let mut calls = self.calls.lock();
        self.lost.store(true, Ordering::SeqCst);
        calls.clear();
    }

    fn deliver(&self, message: async_nats::Message, prefix: usize) {
        let token = message.subject.as_str().get(prefix..).and_then(|token| token.split_once('.'));
        let Some((Ok(call), Ok(index))) = token.map(|(call, index)| (call.parse(), index.parse())) else { return };
        if let Some(call) = self.calls.lock().get(&call) {
            // An error means that the publish has ended.
            call.send(NatsReply::Message(index, message)).ok();
        }
    }

    /// Handles an event of the connection.
    fn hear(&self, event: &Event) {
        match event {
            Event::Disconnected | Event::Closed => self.end(),
            Event::ServerError(ServerError::Other(detail)) => {
                if let Some((_, rest)) = detail.split_once("Permissions Violation for Publish to \"") {
                    let subject = rest.split('"').next().unwrap_or_default();
                    for call in self.calls.lock().values() {
                        call.send(NatsReply::Denied(subject.to_owned(), detail.clone())).ok();
                    }
                } else if detail.contains("Permissions Violation for Subscription") {
                    // Without the subscription no answer would arrive.
                    self.why.set(format!("the user may not subscribe to its inbox: {detail}")).ok();
                    self.end();
                }
            }
            _ => {}
        }
    }

    fn end(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.ended.notify_one();
    }
}

impl Drop for Route {
    fn drop(&mut self) {
        self.routes.calls.lock().remove(&self.call);
    }
}

/// A dead peer is noticed after three missed pings, well within an answer timeout, which is twice `limit`. The library
/// then tries each server once more. `sealed` makes these attempts fail, and the library gives up.
fn options(place: &NatsAddress, sealed: &Arc<AtomicBool>, routes: &Arc<Routes>, limit: Duration) -> ConnectOptions {
    let (credentials, sealed) = (place.credentials.clone(), Arc::clone(sealed));
    let log_in = move |nonce: Vec<u8>| {
        let is_reconnect = sealed.load(Ordering::SeqCst);
        let lost = || Err(AuthError::new("a lost connection is not reconnected"));
        std::future::ready(if is_reconnect { lost() } else { credentials.log_in(&nonce) })
    };
    let routes = Arc::clone(routes);
    let hear = move |event| {
        routes.hear(&event);
        std::future::ready(())
    };
    let options = ConnectOptions::with_auth_callback(log_in)
        .event_callback(hear)
        .name("punctual")
        // Room for all messages under way, so that a publish waits only for the window and its answers.
        .client_capacity(2 * MAX_UNDER_WAY)
        .connection_timeout(limit * 2 / 5)
        // The lower bound keeps a busy machine from looking dead if the answer timeout is very short.
        .ping_interval((limit * 2 / 5).max(Duration::from_millis(250)))
        .ignore_discovered_servers()
        .require_tls(place.tls_required);
    match &place.tls {
        Some(tls) => options.tls_client_config(tls.clone()),
        None => options,
    }
}

/// The cause of a failed attempt to connect.
fn cause(error: &(dyn Error + 'static)) -> Cause {
    use ConnectErrorKind::{Authentication, AuthorizationViolation};
    let refused = |error: &ConnectError| matches!(error.kind(), Authentication | AuthorizationViolation);
    let mut behind = Some(error);
    while let Some(error) = behind {
        if error.downcast_ref().is_some_and(refused) {
            return Cause::LogIn;
        }
        behind = error.source();
    }
    if away::of_certificate(error) { Cause::Untrusted } else { Cause::Unreachable }
}

/// An error with its causes.
fn chain(error: &dyn Error) -> String {
    let mut detail = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        let cause = error.to_string();
        if !detail.contains(&cause) {
            detail = format!("{detail}: {cause}");
        }
        source = error.source();
    }
    detail
}
