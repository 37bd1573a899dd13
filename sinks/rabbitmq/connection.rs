//! One connection to RabbitMQ and its channels, by lapin.
//!
//! It never reconnects by itself. Messages that lapin still buffers are dropped with the connection, or with their
//! channel, so that a message whose publish was given up is never sent later.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, ErrorKind, Event, ExchangeKind};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, timeout};

use super::exchanges::Exchanges;
use super::login::{LoggedIn, Login};
use super::refusal::{Blame, NO_CODE, NOT_LOOKED_FOR, Refusal, blame};
use super::socket::Socket;
use crate::{Away, Fault, link};

/// Maximum number of channels in use or being closed. Half as many are kept for later use.
const MAX_CHANNELS: u16 = 64;

/// A connection is replaced once the server has closed channels with one in this many of its numbers.
const SPENT_NUMBERS_DIVISOR: usize = 4;

/// Maximum number of exchanges that are looked for at once. The other channels are for messages.
const MAX_LOOKS: usize = 16;

/// How long the server may take to confirm the close of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(200);

/// A connection that is logged in.
pub(crate) struct RabbitConnection {
    shared: Arc<Shared>,
    free: Arc<Semaphore>,
    /// Maximum number of channels in use or being closed.
    most: usize,
    /// Numbers that channels of this connection can have.
    numbers: usize,
    /// Maximum frame size, in bytes.
    pub(super) frame: usize,
    /// A live server sends something within this time.
    pub(super) heartbeat: Duration,
    answer_timeout: Duration,
}

/// State that the connection, its channels and its listener share.
struct Shared {
    lapin: lapin::Connection,
    socket: Socket,
    /// The runtime for its tasks; it may be dropped outside of one.
    runtime: Handle,
    blocked: watch::Sender<Option<String>>,
    why: OnceLock<String>,
    /// Whether the connection ended for a reason that may concern only one destination.
    one_behind: AtomicBool,
    /// Open channels in confirm mode without messages under way.
    idle: Mutex<Vec<lapin::Channel>>,
    /// Exchanges that are known to exist.
    existing: Mutex<HashSet<String>>,
    /// What the sink remembers of exchanges.
    exchanges: Arc<Exchanges>,
    /// Limits how many exchanges are looked for at once.
    looks: Semaphore,
    /// Number of channels that the server closed.
    spent: AtomicUsize,
}

/// A channel. Dropping it closes the channel; messages that lapin still buffers for it are not sent.
pub(super) struct Channel {
    pub(super) lapin: lapin::Channel,
    shared: Arc<Shared>,
    answer_timeout: Duration,
    /// Released once the channel is closed, because a server limits the number of channels.
    permit: Option<OwnedSemaphorePermit>,
    kept: bool,
    /// Whether it does not matter when its messages arrive late.
    harmless: bool,
}

/// Why a channel could not be opened, or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The server closed the channel.
    Refused(Refusal),
    /// The connection is lost.
    Lost,
}

impl RabbitConnection {
    /// Logs in within `limit`. A channel that is given up is closed within `answer_timeout`, or the connection is cut.
    pub(super) async fn connect(
        login: &Login,
        exchanges: Arc<Exchanges>,
        limit: Duration,
        answer_timeout: Duration,
    ) -> Result<RabbitConnection, Away> {
        let LoggedIn { lapin, socket } = login.connect(limit).await?;
        let settings = lapin.configuration();
        let numbers = usize::from(settings.channel_max());
        let most = numbers.min(2 * usize::from(MAX_CHANNELS)) / 2;
        let (frame, heartbeat) = (settings.frame_max() as usize, Duration::from_secs(settings.heartbeat().into()));
        let shared = Arc::new(Shared {
            lapin,
            socket,
            runtime: Handle::current(),
            blocked: watch::Sender::new(None),
            why: OnceLock::new(),
            one_behind: AtomicBool::new(false),
            idle: Mutex::default(),
            existing: Mutex::default(),
            exchanges,
            looks: Semaphore::new(MAX_LOOKS),
            spent: AtomicUsize::new(0),
        });
        shared.listen();
        let free = Arc::new(Semaphore::new(most));
        Ok(RabbitConnection { shared, free, most, numbers, frame, heartbeat, answer_timeout })
    }

    /// A channel in confirm mode without messages under way.
    ///
    /// A refusal here is that of an earlier channel with the same number, so the next number is tried. See
    /// [`is_worn`](link::Connection::is_worn).
    pub(super) async fn channel(&self) -> Result<Channel, Failed> {
        for _ in 0..self.numbers {
            match self.try_channel().await {
                Err(Failed::Refused(_)) => {}
                other => return other,
            }
        }
        Err(Failed::Lost)
    }

    async fn try_channel(&self) -> Result<Channel, Failed> {
        let permit = Arc::clone(&self.free).acquire_owned().await.map_err(|_| Failed::Lost)?;
        let idle = loop {
            let idle = self.shared.idle.lock().pop();
            if idle.as_ref().is_none_or(|channel| channel.status().connected()) {
                break idle;
            }
            self.shared.spent.fetch_add(1, Ordering::Relaxed);
        };
        let is_new = idle.is_none();
        let lapin = match idle {
            Some(idle) => idle,
            None => self.shared.lapin.create_channel().await.map_err(|error| self.failed(&error))?,
        };
        let (shared, answer_timeout) = (Arc::clone(&self.shared), self.answer_timeout);
        let permit = Some(permit);
        let channel = Channel { lapin, shared, answer_timeout, permit, kept: false, harmless: false };
        if is_new {
            let select = channel.lapin.confirm_select(ConfirmSelectOptions::default());
            select.await.map_err(|error| self.failed(&error))?;
        }
        Ok(channel)
    }

    /// The meaning of an error on a channel.
    pub(super) fn failed(&self, error: &lapin::Error) -> Failed {
        match (link::Connection::alive(self), Refusal::of(error), error.kind()) {
            (true, Some(refusal), _) => Failed::Refused(refusal),
            // lapin has no error for an unknown reply code, and drops the server's text.
            (true, None, ErrorKind::InvalidChannelState(..) | ErrorKind::InvalidChannel(_)) => {
                Failed::Refused(Refusal { code: NO_CODE, detail: error.to_string() })
            }
            _ => Failed::Lost,
        }
    }

    /// Whether an exchange is known to exist.
    pub(super) fn knows(&self, exchange: &str) -> bool {
        exchange.is_empty() || self.shared.existing.lock().contains(exchange)
    }

    /// Checks that an exchange exists, on a channel without messages under way: the server closes the channel if not.
    /// A refusal is remembered for some seconds. If many exchanges are missing and many others wait to be looked for, this
    /// one is refused at once.
    pub(super) async fn find(&self, exchange: &str) -> Result<(), Failed> {
        if let Some(known) = self.known(exchange) {
            return known;
        }
        let refused = |detail: &str| Err(Failed::Refused(Refusal { code: NOT_LOOKED_FOR, detail: detail.to_owned() }));
        let too_many = || refused("many exchanges are missing: this one was not looked for yet");
        let Some(waiting) = self.shared.exchanges.wait(exchange) else { return too_many() };
        let _look = self.shared.looks.acquire().await.map_err(|_| Failed::Lost)?;
        if let Some(known) = self.known(exchange) {
            return known;
        }
        if !waiting.is_admitted() {
            return too_many();
        }
        // Those who wait here got this connection before it was worn.
        if self.shared.spent.load(Ordering::Relaxed) >= self.numbers / 8 * 7 {
            return refused("many exchanges are missing: another connection looks for this one");
        }
        let found = self.declare_passively(exchange).await;
        match &found {
            Ok(()) => {
                self.shared.existing.lock().insert(exchange.to_owned());
                self.shared.exchanges.note_existing(exchange);
            }
            Err(Failed::Refused(refusal)) if blame(refusal.code) == Blame::Destination => {
                self.shared.exchanges.note_missing(exchange, refusal);
            }
            Err(_) => {}
        }
        found
    }

    /// What is known of an exchange without looking for it.
    fn known(&self, exchange: &str) -> Option<Result<(), Failed>> {
        if self.knows(exchange) {
            return Some(Ok(()));
        }
        self.shared.exchanges.refusal(exchange).map(|refusal| Err(Failed::Refused(refusal)))
    }

    /// Checks that a queue exists.
    pub(super) async fn declare_queue_passively(&self, queue: &str) -> Result<(), Failed> {
        let channel = self.channel().await?;
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let declare = channel.lapin.queue_declare(queue.into(), options, FieldTable::default());
        declare.await.map_err(|error| self.failed(&error))?;
        self.keep(channel);
        Ok(())
    }

    async fn declare_passively(&self, exchange: &str) -> Result<(), Failed> {
        let channel = self.channel().await?;
        let options = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
        let kind = ExchangeKind::Direct;
        let declare = channel.lapin.exchange_declare(exchange.into(), kind, options, FieldTable::default());
        declare.await.map_err(|error| self.failed(&error))?;
        self.keep(channel);
        Ok(())
    }

    /// Forgets that an exchange exists.
    pub(super) fn forget(&self, exchange: &str) {
        self.shared.existing.lock().remove(exchange);
    }

    /// Keeps a channel without messages under way for later use.
    pub(super) fn keep(&self, mut channel: Channel) {
        let mut idle = self.shared.idle.lock();
        if idle.len() < self.most / 2 && channel.lapin.status().connected() {
            channel.kept = true;
            idle.push(channel.lapin.clone());
        }
        drop(idle);
    }

    /// Publishes a message to a queue that cannot exist, so nothing is stored. A server reports that it is blocked only
    /// at the first frame of a message. Ends when the server has reported that (see
    /// [`blocked`](RabbitConnection::blocked)) or has accepted the message.
    pub(super) async fn probe(&self) -> Result<(), Failed> {
        let mut channel = self.channel().await?;
        channel.harmless = true;
        let mut blocked = self.blocked();
        let probing = async {
            let (options, properties) = (BasicPublishOptions::default(), BasicProperties::default());
            channel.lapin.basic_publish("".into(), "".into(), options, &[], properties).await?.await
        };
        tokio::select! {
            _ = blocked.wait_for(Option::is_some) => return Ok(()),
            probed = probing => probed.map_err(|error| self.failed(&error))?,
        };
        self.keep(channel);
        Ok(())
    }

    /// Why the server is blocked, while it is.
    pub(super) fn blocked(&self) -> watch::Receiver<Option<String>> {
        self.shared.blocked.subscribe()
    }

    /// When the server last sent anything.
    pub(super) fn silent_since(&self) -> Instant {
        self.shared.socket.heard()
    }

    /// Ends the connection at once. Nothing more is sent, including messages that lapin buffers.
    pub(super) fn cut(&self) {
        self.shared.cut("the connection was given up".to_owned());
    }

    /// The fault to report for messages on an ended connection.
    pub(super) fn end_fault(&self) -> Fault {
        if self.shared.one_behind.load(Ordering::SeqCst) { Fault::Unclear } else { Fault::Sink }
    }

    /// Why the connection cannot be used any more.
    pub(super) fn end_words(&self) -> String {
        self.shared.why.get().map_or("the connection was lost", String::as_str).to_owned()
    }
}

impl link::Connection for RabbitConnection {
    fn alive(&self) -> bool {
        self.shared.lapin.status().connected() && !self.shared.socket.is_cut()
    }

    /// lapin never uses the number of a channel again that the server closed, in the lifetime of a connection: what is
    /// sent on it fails with the former refusal. So a connection is replaced before its numbers are used up.
    fn is_worn(&self) -> bool {
        self.shared.spent.load(Ordering::Relaxed) >= (self.numbers / SPENT_NUMBERS_DIVISOR).max(1)
    }

    /// Closes the connection in order. If messages were given up, it is cut instead, because the server would read them
    /// before the close.
    fn end(&self) {
        if self.free.available_permits() < self.most || self.shared.blocked.borrow().is_some() {
            return self.cut();
        }
        let shared = Arc::clone(&self.shared);
        self.shared.runtime.spawn(async move {
            timeout(CLOSE_TIMEOUT, shared.lapin.close(200, "done".into())).await.ok();
            shared.cut("the connection was given up".to_owned());
        });
    }
}

impl Drop for RabbitConnection {
    /// Nobody uses it any more: it was replaced, or ended before.
    fn drop(&mut self) {
        if link::Connection::alive(self) {
            link::Connection::end(self);
        }
    }
}

impl Shared {
    /// Handles lapin's events until the connection ends.
    fn listen(self: &Arc<Shared>) {
        let (mut events, shared) = (self.lapin.events_listener(), Arc::downgrade(self));
        self.runtime.spawn(async move {
            while let Some(event) = events.next().await {
                let Some(shared) = shared.upgrade() else { return };
                match event {
                    Event::ConnectionBlocked(reason) => drop(shared.blocked.send_replace(Some(reason))),
                    Event::ConnectionUnblocked => drop(shared.blocked.send_replace(None)),
                    // lapin also reports errors of channels here.
                    Event::Error(error) if !shared.lapin.status().connected() => return shared.cut(end_words(&error)),
                    _ => {}
                }
            }
        });
    }

    fn cut(&self, why: String) {
        self.why.set(why).ok();
        self.socket.cut();
        self.idle.lock().clear();
    }

    /// A channel was not closed in time, so the server has not read the messages before its close. Cuts the connection;
    /// otherwise those messages would be published some time later.
    fn cut_behind(&self) {
        let blocked = self.blocked.borrow().clone();
        match blocked {
            Some(reason) => self.cut(format!("blocked: {reason}")),
            None => {
                // One queue can cause this: RabbitMQ stops reading a connection if the target of one of its channels is
                // behind. A probe on the next connection shows the state of the server.
                self.one_behind.store(true, Ordering::SeqCst);
                self.cut("the server does not read what it is sent".to_owned());
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        if !self.lapin.status().connected() {
            self.shared.spent.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.shared.socket.give_up(self.lapin.id());
        let (lapin, harmless, permit) = (self.lapin.clone(), self.harmless, self.permit.take());
        let (shared, limit) = (Arc::downgrade(&self.shared), self.answer_timeout * 9 / 10);
        self.shared.runtime.spawn(async move {
            let _permit = permit;
            let closed = timeout(limit, lapin.close(200, "done".into())).await;
            if let (Err(_), false, Some(shared)) = (closed, harmless, shared.upgrade()) {
                shared.cut_behind();
            }
        });
    }
}

fn end_words(error: &lapin::Error) -> String {
    match (Refusal::of(error), error.kind()) {
        (Some(refusal), _) => refusal.to_string(),
        (None, ErrorKind::MissingHeartbeatError) => "the server was silent for too long".to_owned(),
        _ => format!("the connection was lost: {error}"),
    }
}
