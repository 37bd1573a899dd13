//! One connection to RabbitMQ and its channels.
//!
//! It never reconnects by itself, and what it was given and has not written yet is gone with it, or with the channel it
//! was for: a message whose publish was given up is not sent later.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::frames::{self, Method, Properties, Refusal};
use super::login::Login;
use super::pump::{self, Order};
use crate::{Away, Fault, link};

/// Channels in use at once; half as many wait to be used again, and half as many are being closed.
const CHANNELS: u16 = 64;

/// A connection that is logged in.
pub(crate) struct Connection {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    free: Arc<Semaphore>,
    /// Channels that may be in use at once.
    most: usize,
    /// The longest frame, in bytes.
    pub(super) frame: usize,
    /// A server that lives is heard of within this time.
    pub(super) heartbeat: Duration,
}

/// What the connection's task and its channels know.
pub(super) struct Shared {
    pub(super) routes: Mutex<Routes>,
    /// Numbers of channels that are free.
    numbers: Arc<Semaphore>,
    pub(super) blocked: watch::Sender<Option<String>>,
    lost: AtomicBool,
    pub(super) ended: Notify,
    why: OnceLock<String>,
    /// Whether it ended for what may be the fault of one destination.
    one_behind: AtomicBool,
    heard: Mutex<Instant>,
}

#[derive(Default)]
pub(super) struct Routes {
    /// Whom to tell what is said on a channel: whoever uses it.
    pub(super) channels: HashMap<u16, mpsc::UnboundedSender<Event>>,
    /// Numbers of channels that are taken, until the server has closed them.
    pub(super) taken: HashMap<u16, Taken>,
    last: u16,
    /// The highest of these numbers.
    most: u16,
    /// Open channels with acknowledgements, and nothing under way.
    pub(super) idle: Vec<Idle>,
    /// Exchanges that were found to be there.
    exchanges: HashSet<String>,
}

/// The number of a channel, which is free again when this is dropped.
pub(super) struct Taken {
    _place: OwnedSemaphorePermit,
    /// Since when the server is to close it, if it still may have messages on it that were given up.
    pub(super) given_up: Option<Instant>,
}

pub(super) struct Idle {
    pub(super) number: u16,
    sender: mpsc::UnboundedSender<Event>,
    events: mpsc::UnboundedReceiver<Event>,
    tag: u64,
}

/// What is said on a channel. Whoever uses it takes them in at once, so that their queue needs no bound.
#[derive(Debug)]
pub(super) enum Event {
    Done,
    Returned {
        refusal: Refusal,
        exchange: String,
        key: String,
        message_id: Option<String>,
    },
    Answered {
        tag: u64,
        multiple: bool,
        taken: bool,
    },
    /// The last event of a channel.
    Closed(Refusal),
}

/// A channel; closed when it is dropped, and what it was given and is not written yet is forgotten.
pub(super) struct Channel {
    number: u16,
    /// Ends when the connection is lost.
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    /// The number of the last message.
    pub(super) tag: u64,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    _permit: OwnedSemaphorePermit,
    kept: bool,
    /// Whether nothing is lost or doubled when what it was given arrives late.
    harmless: bool,
}

/// Why a channel was not opened, or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The server closed the channel.
    Refused(Refusal),
    /// The connection is lost.
    Lost,
}

impl Connection {
    /// Logs in within `limit`. What is given up is gone within `answer_timeout`, or the connection is.
    pub(super) async fn connect(login: &Login, limit: Duration, answer_timeout: Duration) -> Result<Connection, Away> {
        let session = login.connect(limit).await?;
        let numbers = session.channels.min(2 * CHANNELS);
        let shared = Arc::new(Shared {
            routes: Mutex::new(Routes { most: numbers, ..Routes::default() }),
            numbers: Arc::new(Semaphore::new(usize::from(numbers))),
            blocked: watch::Sender::new(None),
            lost: AtomicBool::new(false),
            ended: Notify::new(),
            why: OnceLock::new(),
            one_behind: AtomicBool::new(false),
            heard: Mutex::new(Instant::now()),
        });
        let (orders, inbox) = mpsc::unbounded_channel();
        let most = usize::from(numbers / 2);
        let connection = Connection {
            shared: Arc::clone(&shared),
            orders,
            free: Arc::new(Semaphore::new(most)),
            most,
            frame: session.frame,
            heartbeat: Duration::from_secs(session.heartbeat.into()),
        };
        tokio::spawn(pump::run(shared, session, inbox, answer_timeout));
        Ok(connection)
    }

    /// A channel on which messages are acknowledged, and nothing is under way.
    pub(super) async fn channel(&self) -> Result<Channel, Failed> {
        let permit = Arc::clone(&self.free).acquire_owned().await.map_err(|_| Failed::Lost)?;
        let idle = self.shared.routes.lock().take_idle();
        if let Some((number, events, tag)) = idle {
            let mut channel = self.take_up(number, events, permit);
            channel.tag = tag;
            return Ok(channel);
        }
        let mut channel = self.open(permit).await?;
        channel.ask(&Method::Confirm).await?;
        Ok(channel)
    }

    /// Whether an exchange is known to be there.
    pub(super) fn knows(&self, exchange: &str) -> bool {
        exchange.is_empty() || self.shared.routes.lock().exchanges.contains(exchange)
    }

    /// Asks whether an exchange is there, on a channel on which nothing is under way: the server closes it if not.
    pub(super) async fn find(&self, exchange: &str) -> Result<(), Failed> {
        let mut channel = self.channel().await?;
        channel.ask(&Method::Declare { exchange }).await?;
        self.keep(channel);
        self.shared.routes.lock().exchanges.insert(exchange.to_owned());
        Ok(())
    }

    /// Forgets that an exchange was there.
    pub(super) fn forget(&self, exchange: &str) {
        self.shared.routes.lock().exchanges.remove(exchange);
    }

    /// Keeps a channel on which nothing is under way for the next who needs one.
    pub(super) fn keep(&self, mut channel: Channel) {
        let mut routes = self.shared.routes.lock();
        if routes.idle.len() < self.most / 2
            && let Some(sender) = routes.channels.remove(&channel.number)
        {
            channel.kept = true;
            let (_, nobody) = mpsc::unbounded_channel();
            let events = std::mem::replace(&mut channel.events, nobody);
            routes.idle.push(Idle { number: channel.number, sender, events, tag: channel.tag });
        }
        drop(routes);
    }

    /// Publishes a message that goes nowhere, since no queue has an empty name, and writes nothing: a server says only of a
    /// connection that publishes that it takes nothing, at the first frame of a message. Ends when it has said that (see
    /// [`blocked`](Connection::blocked)) or has taken the message.
    pub(super) async fn probe(&self) -> Result<(), Failed> {
        let mut channel = self.channel().await?;
        channel.harmless = true;
        let mut blocked = self.blocked();
        let tag = channel.publish(|bytes, number| {
            let properties = Properties { content_type: None, message_id: "", headers: &[] };
            frames::write_message(bytes, number, ("", ""), false, &properties, &[], self.frame);
        });
        loop {
            tokio::select! {
                _ = blocked.wait_for(Option::is_some) => return Ok(()),
                event = channel.events.recv() => match event {
                    Some(Event::Answered { tag: answered, .. }) if answered == tag => {
                        self.keep(channel);
                        return Ok(());
                    }
                    Some(Event::Closed(refusal)) => return Err(Failed::Refused(refusal)),
                    Some(Event::Answered { .. } | Event::Done | Event::Returned { .. }) => {}
                    None => return Err(Failed::Lost),
                }
            }
        }
    }

    /// Why no message is taken for now, while that is so.
    pub(super) fn blocked(&self) -> watch::Receiver<Option<String>> {
        self.shared.blocked.subscribe()
    }

    /// Since when the server has said nothing at all.
    pub(super) fn silent_since(&self) -> Instant {
        self.shared.heard()
    }

    /// Whose fault it is that it cannot be used any more.
    pub(super) fn end_fault(&self) -> Fault {
        if self.shared.one_behind.load(Ordering::SeqCst) { Fault::Unclear } else { Fault::Sink }
    }

    /// Why it cannot be used any more.
    pub(super) fn end_words(&self) -> String {
        self.shared.why.get().map_or("the connection was lost", String::as_str).to_owned()
    }

    async fn open(&self, permit: OwnedSemaphorePermit) -> Result<Channel, Failed> {
        let (sender, events) = mpsc::unbounded_channel();
        let place = Arc::clone(&self.shared.numbers).acquire_owned().await.map_err(|_| Failed::Lost)?;
        let number = {
            let mut routes = self.shared.routes.lock();
            if self.shared.lost.load(Ordering::SeqCst) {
                return Err(Failed::Lost);
            }
            let number = routes.free_number(place).ok_or(Failed::Lost)?;
            routes.channels.insert(number, sender);
            number
        };
        let mut channel = self.take_up(number, events, permit);
        self.orders.send(Order::Open(number)).map_err(|_| Failed::Lost)?;
        channel.done().await?;
        Ok(channel)
    }

    fn take_up(&self, number: u16, events: mpsc::UnboundedReceiver<Event>, permit: OwnedSemaphorePermit) -> Channel {
        let (shared, orders) = (Arc::clone(&self.shared), self.orders.clone());
        Channel { number, events, tag: 0, shared, orders, _permit: permit, kept: false, harmless: false }
    }
}

impl link::Connection for Connection {
    fn alive(&self) -> bool {
        !self.shared.lost.load(Ordering::SeqCst)
    }

    fn end(&self) {
        self.shared.end();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Channel {
    /// Hands over a message; its acknowledgement will bear the number that is returned.
    pub(super) fn publish(&mut self, write: impl FnOnce(&mut Vec<u8>, u16)) -> u64 {
        self.tag += 1;
        let mut bytes = Vec::new();
        write(&mut bytes, self.number);
        // Whoever hears of a lost connection hears it from the events.
        self.orders.send(Order::Frames(self.number, bytes)).ok();
        self.tag
    }

    async fn ask(&mut self, method: &Method<'_>) -> Result<(), Failed> {
        let mut bytes = Vec::new();
        frames::write_method(&mut bytes, self.number, method);
        self.orders.send(Order::Frames(self.number, bytes)).map_err(|_| Failed::Lost)?;
        self.done().await
    }

    async fn done(&mut self) -> Result<(), Failed> {
        loop {
            match self.events.recv().await {
                Some(Event::Done) => return Ok(()),
                Some(Event::Closed(refusal)) => return Err(Failed::Refused(refusal)),
                Some(_) => {}
                None => return Err(Failed::Lost),
            }
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.kept {
            let mut routes = self.shared.routes.lock();
            // From here on nothing more is written of what it was given.
            routes.channels.remove(&self.number);
            if !self.harmless
                && let Some(taken) = routes.taken.get_mut(&self.number)
            {
                taken.given_up = Some(Instant::now());
            }
            drop(routes);
            self.orders.send(Order::Close(self.number)).ok();
        }
    }
}

impl Routes {
    /// A channel that nobody uses: its number, what is said on it from now on, and the number of its last message.
    fn take_idle(&mut self) -> Option<(u16, mpsc::UnboundedReceiver<Event>, u64)> {
        let Idle { number, sender, events, tag } = self.idle.pop()?;
        self.channels.insert(number, sender);
        Some((number, events, tag))
    }

    /// A number that no channel has: there are as many as places.
    fn free_number(&mut self, place: OwnedSemaphorePermit) -> Option<u16> {
        let most = self.most;
        let number = (1..=most).map(|step| (self.last + step - 1) % most + 1).find(|n| !self.taken.contains_key(n))?;
        self.last = number;
        self.taken.insert(number, Taken { _place: place, given_up: None });
        Some(number)
    }

    /// Since when the server is to close the channel that it has not closed for longest, of those that may have messages
    /// on them that were given up.
    pub(super) fn given_up(&self) -> Option<Instant> {
        self.taken.values().filter_map(|taken| taken.given_up).min()
    }
}

impl Shared {
    /// When the server was last heard of.
    pub(super) fn heard(&self) -> Instant {
        *self.heard.lock()
    }

    pub(super) fn hears(&self) {
        *self.heard.lock() = Instant::now();
    }

    fn end(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.ended.notify_one();
    }

    /// It ends for what may be the fault of one destination.
    pub(super) fn one_may_be_behind(&self) {
        self.one_behind.store(true, Ordering::SeqCst);
    }

    /// It is lost: tells whoever waits.
    pub(super) fn lose(&self, words: String) {
        self.why.set(words).ok();
        let mut routes = self.routes.lock();
        self.lost.store(true, Ordering::SeqCst);
        routes.channels.clear();
        routes.idle.clear();
        self.numbers.close();
    }
}
