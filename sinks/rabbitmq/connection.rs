//! One connection to RabbitMQ and its channels.
//!
//! It never reconnects by itself, and what it was given and has not written yet is gone with it, or with the channel it
//! was for: a message whose publish was given up is not sent later.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{self, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::frames::{self, Method, Refusal, Said};
use super::login::{Login, Session, Wire};
use crate::link;

/// What waits to be written, in bytes: enough for a system call. What waits longer can still be given up.
const WRITE: usize = 256 * 1024;

/// Channels in use at once, and at most this many wait to be used again.
const CHANNELS: u16 = 64;

/// How long the server is told that the connection ends.
const FAREWELL: Duration = Duration::from_millis(50);

/// A connection that is logged in.
pub(super) struct Connection {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    free: Arc<Semaphore>,
    /// The longest frame, in bytes.
    pub(super) frame: usize,
}

/// What the connection's task and its channels know.
struct Shared {
    routes: Mutex<Routes>,
    blocked: watch::Sender<Option<String>>,
    lost: AtomicBool,
    ended: Notify,
    why: OnceLock<String>,
    heard: Mutex<Instant>,
}

#[derive(Default)]
struct Routes {
    /// Whom to tell what is said on a channel.
    channels: HashMap<u16, mpsc::UnboundedSender<Event>>,
    /// Numbers of channels that are taken, until the server has closed them.
    taken: HashSet<u16>,
    last: u16,
    /// The highest of these numbers.
    most: u16,
    /// Open channels with acknowledgements, and nothing under way.
    idle: Vec<Idle>,
    /// Exchanges that were found to be there.
    exchanges: HashSet<String>,
}

struct Idle {
    number: u16,
    events: mpsc::UnboundedReceiver<Event>,
    tag: u64,
}

/// What is to be written. Bounded by what may be under way.
enum Order {
    Open(u16),
    Frames(u16, Vec<u8>),
    Close(u16),
}

/// What is said on a channel. There are never more of these than messages under way, so their queue needs no bound.
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
    pub(super) async fn connect(login: &Login, limit: Duration) -> Result<Connection, String> {
        let session = login.connect(limit).await?;
        let shared = Arc::new(Shared {
            routes: Mutex::new(Routes { most: session.channels.min(4 * CHANNELS), ..Routes::default() }),
            blocked: watch::Sender::new(None),
            lost: AtomicBool::new(false),
            ended: Notify::new(),
            why: OnceLock::new(),
            heard: Mutex::new(Instant::now()),
        });
        let (orders, inbox) = mpsc::unbounded_channel();
        let free = Arc::new(Semaphore::new(usize::from((session.channels / 2).clamp(1, CHANNELS))));
        let connection = Connection { shared: Arc::clone(&shared), orders, free, frame: session.frame };
        tokio::spawn(run(shared, session, inbox));
        Ok(connection)
    }

    /// A channel on which messages are acknowledged, and nothing is under way.
    pub(super) async fn channel(&self) -> Result<Channel, Failed> {
        let permit = Arc::clone(&self.free).acquire_owned().await.map_err(|_| Failed::Lost)?;
        let idle = self.shared.lock().idle.pop();
        if let Some(Idle { number, events, tag }) = idle {
            let mut channel = self.take_up(number, events, permit);
            channel.tag = tag;
            return Ok(channel);
        }
        let mut channel = self.open(permit).await?;
        channel.ask(&Method::Confirm).await?;
        Ok(channel)
    }

    /// Asks whether an exchange is there, on a channel of its own: the server closes it if not.
    pub(super) async fn find(&self, exchange: &str) -> Result<(), Failed> {
        if exchange.is_empty() || self.shared.lock().exchanges.contains(exchange) {
            return Ok(());
        }
        let permit = Arc::clone(&self.free).acquire_owned().await.map_err(|_| Failed::Lost)?;
        self.open(permit).await?.ask(&Method::Declare { exchange }).await?;
        self.shared.lock().exchanges.insert(exchange.to_owned());
        Ok(())
    }

    /// Forgets that an exchange was there.
    pub(super) fn forget(&self, exchange: &str) {
        self.shared.lock().exchanges.remove(exchange);
    }

    /// Keeps a channel on which nothing is under way for the next who needs one.
    pub(super) fn keep(&self, mut channel: Channel) {
        let mut routes = self.shared.lock();
        if routes.idle.len() < usize::from(CHANNELS / 4) && routes.channels.contains_key(&channel.number) {
            channel.kept = true;
            let (_, nobody) = mpsc::unbounded_channel();
            let events = std::mem::replace(&mut channel.events, nobody);
            routes.idle.push(Idle { number: channel.number, events, tag: channel.tag });
        }
        drop(routes);
    }

    /// Why no message is taken for now, while that is so.
    pub(super) fn blocked(&self) -> watch::Receiver<Option<String>> {
        self.shared.blocked.subscribe()
    }

    /// Since when the server has said nothing at all.
    pub(super) fn silent_since(&self) -> Instant {
        *self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it cannot be used any more.
    pub(super) fn end_words(&self) -> String {
        self.shared.why.get().map_or("the connection was lost", String::as_str).to_owned()
    }

    async fn open(&self, permit: OwnedSemaphorePermit) -> Result<Channel, Failed> {
        let (sender, events) = mpsc::unbounded_channel();
        let number = {
            let mut routes = self.shared.lock();
            if self.shared.lost.load(Ordering::SeqCst) {
                return Err(Failed::Lost);
            }
            let number = routes.free_number().ok_or(Failed::Lost)?;
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
        Channel { number, events, tag: 0, shared, orders, _permit: permit, kept: false }
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
            // From here on nothing more is written of what it was given.
            self.shared.lock().channels.remove(&self.number);
            self.orders.send(Order::Close(self.number)).ok();
        }
    }
}

impl Routes {
    /// A number that no channel has; there are far more than are in use at once.
    fn free_number(&mut self) -> Option<u16> {
        let most = self.most;
        let number = (1..=most).map(|step| (self.last + step - 1) % most + 1).find(|n| !self.taken.contains(n))?;
        self.last = number;
        self.taken.insert(number);
        Some(number)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        self.lost.store(true, Ordering::SeqCst);
        self.ended.notify_one();
    }
}

/// Serves a connection until it is lost or ended.
async fn run(shared: Arc<Shared>, session: Session, orders: mpsc::UnboundedReceiver<Order>) {
    let silence = Duration::from_secs(2 * u64::from(session.heartbeat));
    let beat = (session.heartbeat > 0).then(|| Duration::from_millis(500 * u64::from(session.heartbeat)));
    let (reader, writer) = io::split(session.wire);
    let pump = Pump {
        shared: Arc::clone(&shared),
        inbox: session.inbox,
        frame: session.frame,
        outbox: BytesMut::new(),
        open: HashSet::new(),
        returns: HashMap::new(),
    };
    let words = pump.run(reader, writer, orders, beat, silence).await;
    shared.why.set(words).ok();
    let mut routes = shared.lock();
    shared.lost.store(true, Ordering::SeqCst);
    // Their ends tell whoever waits.
    routes.channels.clear();
    routes.idle.clear();
}

/// What runs a connection.
struct Pump {
    shared: Arc<Shared>,
    inbox: BytesMut,
    frame: usize,
    outbox: BytesMut,
    /// Channels that the server has open, as far as we are.
    open: HashSet<u16>,
    /// Messages that are on their way back, by channel.
    returns: HashMap<u16, (Event, u64)>,
}

impl Pump {
    /// Returns why it ended.
    async fn run(
        mut self,
        mut reader: ReadHalf<Box<dyn Wire>>,
        mut writer: WriteHalf<Box<dyn Wire>>,
        mut orders: mpsc::UnboundedReceiver<Order>,
        beat: Option<Duration>,
        silence: Duration,
    ) -> String {
        let mut unflushed = false;
        let mut next_beat = Instant::now();
        let shared = Arc::clone(&self.shared);
        let words = loop {
            if let Err(words) = self.read() {
                break words;
            }
            tokio::select! {
                () = shared.ended.notified() => break "the connection was given up".to_owned(),
                read = reader.read_buf(&mut self.inbox) => match read {
                    Ok(0) => break "the server closed the connection".to_owned(),
                    Ok(_) => *shared.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now(),
                    Err(error) => break format!("the connection was lost: {error}"),
                },
                written = write(&mut writer, &mut self.outbox, &mut unflushed), if unflushed || !self.outbox.is_empty() =>
                    if let Err(error) = written { break format!("the connection was lost: {error}") },
                order = orders.recv(), if self.outbox.len() < WRITE => match order {
                    Some(order) => self.take(order),
                    None => break "the connection is not needed any more".to_owned(),
                },
                () = sleep_until(next_beat), if beat.is_some() => {
                    if self.outbox.is_empty() {
                        self.write(frames::write_heartbeat);
                    }
                    next_beat = Instant::now() + beat.unwrap_or_default();
                    let heard = *shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
                    if heard.elapsed() > silence {
                        break format!("the server has said nothing for {silence:?}");
                    }
                }
            }
        };
        // Nothing else is half written: the server hears that this is no accident.
        if self.outbox.is_empty() {
            self.write(|bytes| frames::write_method(bytes, 0, &Method::Close));
            timeout(FAREWELL, write(&mut writer, &mut self.outbox, &mut unflushed)).await.ok();
        }
        words
    }

    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.outbox.extend_from_slice(&bytes);
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Open(number) => {
                self.open.insert(number);
                self.write(|bytes| frames::write_method(bytes, number, &Method::ChannelOpen));
            }
            // Nobody waits for what was given up; and after its end a channel must stay silent, or the connection ends.
            Order::Frames(number, bytes) => {
                if self.open.contains(&number) && self.shared.lock().channels.contains_key(&number) {
                    self.outbox.extend_from_slice(&bytes);
                }
            }
            Order::Close(number) => {
                if self.open.remove(&number) {
                    self.write(|bytes| frames::write_method(bytes, number, &Method::ChannelClose));
                } else {
                    // The server was first.
                    self.shared.lock().taken.remove(&number);
                }
            }
        }
    }

    /// Takes in the frames that have come.
    fn read(&mut self) -> Result<(), String> {
        while let Some((channel, said, length)) = frames::read(&self.inbox, self.frame)? {
            self.inbox.advance(length);
            self.hear(channel, said)?;
        }
        Ok(())
    }

    fn hear(&mut self, channel: u16, said: Said) -> Result<(), String> {
        match said {
            Said::Closed(refusal) => {
                self.write(|bytes| frames::write_method(bytes, 0, &Method::CloseOk));
                return Err(refusal.to_string());
            }
            Said::Blocked(reason) => drop(self.shared.blocked.send_replace(Some(reason))),
            Said::Unblocked => drop(self.shared.blocked.send_replace(None)),
            Said::Done => self.tell(channel, Event::Done),
            Said::Answered { tag, multiple, taken } => self.tell(channel, Event::Answered { tag, multiple, taken }),
            Said::Returned { refusal, exchange, key } => {
                let returned = Event::Returned { refusal, exchange, key, message_id: None };
                self.returns.insert(channel, (returned, 0));
            }
            Said::Properties { message_id: found, body } => {
                if let Some((Event::Returned { message_id, .. }, left)) = self.returns.get_mut(&channel) {
                    (*message_id, *left) = (found, body);
                    self.give_back(channel, 0);
                }
            }
            Said::Body(length) => self.give_back(channel, length as u64),
            Said::ChannelClosed(refusal) => {
                self.write(|bytes| frames::write_method(bytes, channel, &Method::ChannelCloseOk));
                self.open.remove(&channel);
                self.returns.remove(&channel);
                self.tell(channel, Event::Closed(refusal));
                let mut routes = self.shared.lock();
                routes.channels.remove(&channel);
                if let Some(at) = routes.idle.iter().position(|idle| idle.number == channel) {
                    routes.idle.swap_remove(at);
                    routes.taken.remove(&channel);
                }
            }
            Said::ChannelCloseOk => {
                self.returns.remove(&channel);
                self.shared.lock().taken.remove(&channel);
            }
            Said::CloseOk | Said::Heartbeat | Said::Start | Said::Tune { .. } | Said::Opened | Said::Else => {}
        }
        Ok(())
    }

    /// Tells of a message that comes back when the last of its body is there.
    fn give_back(&mut self, channel: u16, length: u64) {
        let Some((_, left)) = self.returns.get_mut(&channel) else { return };
        *left = left.saturating_sub(length);
        if *left == 0
            && let Some((returned, _)) = self.returns.remove(&channel)
        {
            self.tell(channel, returned);
        }
    }

    fn tell(&self, channel: u16, event: Event) {
        if let Some(events) = self.shared.lock().channels.get(&channel) {
            // A call that has just ended needs no answer.
            events.send(event).ok();
        }
    }
}

/// Writes some of what waits, and flushes when that was all. May be dropped and begun again.
async fn write(writer: &mut WriteHalf<Box<dyn Wire>>, outbox: &mut BytesMut, unflushed: &mut bool) -> io::Result<()> {
    if !outbox.is_empty() {
        *unflushed = true;
        writer.write_buf(outbox).await?;
    }
    if outbox.is_empty() {
        writer.flush().await?;
        *unflushed = false;
    }
    Ok(())
}
