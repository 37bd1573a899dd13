//! One connection to NATS, its inbox, and the calls that wait for what comes there.
//!
//! It never reconnects by itself: lost is lost, with all that the client library held.

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

/// Messages under way at once, of all calls together; far below the 65 536 answers that the inbox has room for.
pub(super) const MOST_UNDER_WAY: usize = 4096;

/// Where NATS is, and how to get in.
pub(super) struct ServerPlace {
    pub(super) servers: Vec<ServerAddr>,
    pub(super) credentials: Credentials,
    /// How TLS is spoken where it is; without it as the client library does, trusting the system's authorities.
    pub(super) tls: Option<rustls::ClientConfig>,
    pub(super) tls_required: bool,
}

/// A connection, its inbox, and the calls that wait for what comes there.
pub(crate) struct NatsConnection {
    pub(super) client: Client,
    inbox: String,
    routes: Arc<Routes>,
}

impl NatsConnection {
    /// Connects to one of the servers and subscribes to an inbox.
    pub(super) async fn connect(place: &ServerPlace, limit: Duration) -> Result<NatsConnection, Away> {
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

    /// Opens a part of the inbox for one call.
    pub(super) fn open(&self) -> Route {
        self.routes.open()
    }

    /// Why it cannot be used any more.
    pub(super) fn end_words(&self) -> String {
        self.routes.why.get().map_or("the connection was lost", String::as_str).to_owned()
    }

    /// Where the answer to the message of this index is to be sent.
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

/// Whom to tell what comes in.
#[derive(Default)]
struct Routes {
    calls: Mutex<HashMap<u64, mpsc::UnboundedSender<NatsReply>>>,
    next: AtomicU64,
    lost: AtomicBool,
    ended: Notify,
    why: OnceLock<String>,
}

/// One call's part of the inbox; closed when it is dropped.
pub(super) struct Route {
    pub(super) call: u64,
    pub(super) replies: mpsc::UnboundedReceiver<NatsReply>,
    /// Set by its owner when the last answer is in.
    pub(super) lost: bool,
    routes: Arc<Routes>,
}

/// What comes in for a call. There are never more of these than messages under way, so their channel needs no bound.
pub(super) enum NatsReply {
    /// The answer to the message of this index.
    Message(usize, async_nats::Message),
    /// The user may not publish to this subject; the server's words.
    Denied(String, String),
}

impl Routes {
    fn open(self: &Arc<Routes>) -> Route {
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, replies) = mpsc::unbounded_channel();
        let mut calls = self.calls.lock();
        // Else nobody would ever close the channel.
        if !self.lost.load(Ordering::SeqCst) {
            calls.insert(call, sender);
        }
        drop(calls);
        Route { call, replies, lost: false, routes: Arc::clone(self) }
    }

    /// Hands over what comes to the inbox until the connection is lost or ended.
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
        // What came before the end still counts.
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
            // A call that has just ended needs no answer.
            call.send(NatsReply::Message(index, message)).ok();
        }
    }

    /// What the server says of the connection as a whole.
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
                    // No answer would ever come.
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

/// A dead peer is noticed after three pings without an answer, well within an answer timeout, which is twice `limit`.
/// Then the library tries each server once more, which `sealed` makes fail, and gives up.
fn options(place: &ServerPlace, sealed: &Arc<AtomicBool>, routes: &Arc<Routes>, limit: Duration) -> ConnectOptions {
    let (credentials, sealed) = (place.credentials.clone(), Arc::clone(sealed));
    let log_in = move |nonce: Vec<u8>| {
        let again = sealed.load(Ordering::SeqCst);
        let lost = || Err(AuthError::new("a lost connection is made anew"));
        std::future::ready(if again { lost() } else { credentials.log_in(&nonce) })
    };
    let routes = Arc::clone(routes);
    let hear = move |event| {
        routes.hear(&event);
        std::future::ready(())
    };
    let options = ConnectOptions::with_auth_callback(log_in)
        .event_callback(hear)
        .name("punctual")
        // Room for all that may be under way, so that a call waits only for the window and for its answers.
        .client_capacity(2 * MOST_UNDER_WAY)
        .connection_timeout(limit * 2 / 5)
        // The floor keeps a busy machine from looking dead where the answer timeout is very short.
        .ping_interval((limit * 2 / 5).max(Duration::from_millis(250)))
        .ignore_discovered_servers()
        .require_tls(place.tls_required);
    match &place.tls {
        Some(tls) => options.tls_client_config(tls.clone()),
        None => options,
    }
}

/// What an error says of a connection that is being made.
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
