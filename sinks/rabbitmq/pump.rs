//! The task that runs a connection: writes what is ordered, and tells the channels what is said on them.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{self, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use super::connection::{Event, Shared};
use super::frames::{self, Method, Said};
use super::login::{Session, Wire};

/// What waits to be written, in bytes: enough for a system call. What waits longer can still be given up.
const WRITE: usize = 256 * 1024;

/// What is read at once, in bytes, at least.
const READ: usize = 16 * 1024;

/// How long the server has to hear that the connection ends, and to say so.
const FAREWELL: Duration = Duration::from_millis(200);

/// What is to be written. Bounded by what may be under way.
pub(super) enum Order {
    Open(u16),
    Frames(u16, Vec<u8>),
    Close(u16),
}

/// Serves a connection until it is lost or ended.
pub(super) async fn run(
    shared: Arc<Shared>,
    session: Session,
    orders: mpsc::UnboundedReceiver<Order>,
    answer_timeout: Duration,
) {
    let (reader, writer) = io::split(session.wire);
    let mut pump = Pump {
        shared: Arc::clone(&shared),
        reader,
        writer,
        inbox: session.inbox,
        frame: session.frame,
        outbox: BytesMut::new(),
        unflushed: false,
        open: HashSet::new(),
        returns: HashMap::new(),
        parted: false,
    };
    let words = pump.serve(orders, Duration::from_secs(session.heartbeat.into()), answer_timeout).await;
    shared.lose(words);
    pump.part().await;
}

/// What runs a connection.
struct Pump {
    shared: Arc<Shared>,
    reader: ReadHalf<Box<dyn Wire>>,
    writer: WriteHalf<Box<dyn Wire>>,
    inbox: BytesMut,
    frame: usize,
    outbox: BytesMut,
    unflushed: bool,
    /// Channels that the server has open, as far as we are.
    open: HashSet<u16>,
    /// Messages that are on their way back, by channel: how much of their bodies is missing, once that is known.
    returns: HashMap<u16, (Event, Option<u64>)>,
    /// Whether one of both sides has said that the connection ends, and the other knows.
    parted: bool,
}

impl Pump {
    /// Returns why it ended.
    async fn serve(
        &mut self,
        mut orders: mpsc::UnboundedReceiver<Order>,
        heartbeat: Duration,
        answer_timeout: Duration,
    ) -> String {
        let shared = Arc::clone(&self.shared);
        let mut ended = pin!(shared.ended.notified());
        let beat = heartbeat / 2;
        let every = beat.min(answer_timeout / 10);
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_beat = Instant::now();
        loop {
            if let Err(words) = self.read() {
                return words;
            }
            self.inbox.reserve(READ);
            let to_write = self.unflushed || !self.outbox.is_empty();
            tokio::select! {
                () = &mut ended => return "the connection was given up".to_owned(),
                read = self.reader.read_buf(&mut self.inbox) => match read {
                    Ok(0) => return "the server closed the connection".to_owned(),
                    Ok(_) => shared.hears(),
                    Err(error) => return format!("the connection was lost: {error}"),
                },
                written = write(&mut self.writer, &mut self.outbox, &mut self.unflushed), if to_write =>
                    if let Err(error) = written { return format!("the connection was lost: {error}") },
                order = orders.recv(), if self.outbox.len() < WRITE => match order {
                    Some(order) => self.take_all(order, &mut orders),
                    None => return "the connection is not needed any more".to_owned(),
                },
                _ = ticks.tick() => {
                    if last_beat.elapsed() >= beat {
                        last_beat = Instant::now();
                        if self.outbox.is_empty() {
                            self.write(frames::write_heartbeat);
                        }
                    }
                    if let Err(words) = self.look_after(2 * heartbeat, answer_timeout - every) {
                        return words;
                    }
                }
            }
        }
    }

    /// Whether the server is heard of, and takes in what it is sent: what is on a channel when that is given up is gone
    /// when the server has closed it. Where it does not, the connection ends: else all that would be sent some day.
    fn look_after(&self, silence: Duration, limit: Duration) -> Result<(), String> {
        if self.shared.heard().elapsed() > silence {
            return Err(format!("the server has said nothing for {silence:?}"));
        }
        let given_up = self.shared.routes.lock().given_up();
        if given_up.is_some_and(|since| since.elapsed() >= limit) {
            return Err(match &*self.shared.blocked.borrow() {
                Some(reason) => format!("blocked: {reason}"),
                None => {
                    // One queue can do that to all: RabbitMQ stops reading a connection when what a channel of it feeds
                    // is behind. A probe on the next one tells how the server is.
                    self.shared.one_may_be_behind();
                    "the server does not take in what it is sent".to_owned()
                }
            });
        }
        Ok(())
    }

    /// Tells the server that this is no accident, or that we have heard so. Not where something else is half written, or
    /// given up and perhaps not read yet: the server would read that before.
    async fn part(&mut self) {
        if !self.parted {
            let given_up = self.shared.routes.lock().given_up().is_some() || self.shared.blocked.borrow().is_some();
            if given_up || !self.outbox.is_empty() {
                return;
            }
            self.write(|bytes| frames::write_method(bytes, 0, &Method::Close));
        }
        let parting = async {
            while self.unflushed || !self.outbox.is_empty() {
                write(&mut self.writer, &mut self.outbox, &mut self.unflushed).await?;
            }
            // It closes the connection when it has read that; before, it might lose it.
            while self.reader.read_buf(&mut self.inbox).await? > 0 && self.read().is_ok() {}
            io::Result::Ok(())
        };
        timeout(FAREWELL, parting).await.ok();
    }

    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.outbox.extend_from_slice(&bytes);
    }

    /// Takes an order, and those behind it, as many as are written at once.
    fn take_all(&mut self, first: Order, orders: &mut mpsc::UnboundedReceiver<Order>) {
        self.take(first);
        while self.outbox.len() < WRITE
            && let Ok(order) = orders.try_recv()
        {
            self.take(order);
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Open(number) => {
                self.open.insert(number);
                self.write(|bytes| frames::write_method(bytes, number, &Method::ChannelOpen));
            }
            // Nobody waits for what was given up; and after its end a channel must stay silent, or the connection ends.
            Order::Frames(number, bytes) => {
                if self.open.contains(&number) && self.shared.routes.lock().channels.contains_key(&number) {
                    self.outbox.extend_from_slice(&bytes);
                }
            }
            Order::Close(number) => {
                if self.open.remove(&number) {
                    self.write(|bytes| frames::write_method(bytes, number, &Method::ChannelClose));
                } else {
                    // The server was first.
                    self.shared.routes.lock().taken.remove(&number);
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
        let returning = self.returns.contains_key(&channel);
        match said {
            Said::Closed(refusal) => {
                self.parted = true;
                self.write(|bytes| frames::write_method(bytes, 0, &Method::CloseOk));
                return Err(refusal.to_string());
            }
            Said::CloseOk => return Err("the server closed the connection".to_owned()),
            Said::Blocked(reason) => drop(self.shared.blocked.send_replace(Some(reason))),
            Said::Unblocked => drop(self.shared.blocked.send_replace(None)),
            // Which one came back, and that it did, would be lost.
            Said::Answered { .. } | Said::Returned { .. } if returning => {
                return Err("it sent an answer in the middle of a message".to_owned());
            }
            Said::Done => self.tell(channel, Event::Done),
            Said::Answered { tag, multiple, taken } => self.tell(channel, Event::Answered { tag, multiple, taken }),
            Said::Returned { refusal, exchange, key } => {
                let returned = Event::Returned { refusal, exchange, key, message_id: None };
                self.returns.insert(channel, (returned, None));
            }
            Said::Properties { message_id: found, body } => {
                if let Some((Event::Returned { message_id, .. }, left)) = self.returns.get_mut(&channel) {
                    (*message_id, *left) = (found, Some(body));
                    self.give_back(channel, 0);
                }
            }
            Said::Body(length) => self.give_back(channel, length as u64),
            Said::ChannelClosed(refusal) => {
                self.write(|bytes| frames::write_method(bytes, channel, &Method::ChannelCloseOk));
                self.open.remove(&channel);
                self.returns.remove(&channel);
                // Told and forgotten in one: whoever takes the channel up again finds its end, or not the channel.
                let mut routes = self.shared.routes.lock();
                if let Some(events) = routes.channels.remove(&channel) {
                    events.send(Event::Closed(refusal)).ok();
                }
                if let Some(at) = routes.idle.iter().position(|idle| idle.number == channel) {
                    routes.idle.swap_remove(at);
                    routes.taken.remove(&channel);
                }
            }
            Said::ChannelCloseOk => {
                self.returns.remove(&channel);
                self.shared.routes.lock().taken.remove(&channel);
            }
            Said::Heartbeat | Said::Start | Said::Tune { .. } | Said::Opened | Said::Else => {}
        }
        Ok(())
    }

    /// Tells of a message that comes back when the last of its body is there.
    fn give_back(&mut self, channel: u16, length: u64) {
        let Some((_, Some(left))) = self.returns.get_mut(&channel) else { return };
        *left = left.saturating_sub(length);
        if *left == 0
            && let Some((returned, _)) = self.returns.remove(&channel)
        {
            self.tell(channel, returned);
        }
    }

    fn tell(&self, channel: u16, event: Event) {
        if let Some(events) = self.shared.routes.lock().channels.get(&channel) {
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
