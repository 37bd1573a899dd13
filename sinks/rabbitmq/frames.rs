//! Frames of AMQP 0-9-1, those that a publisher sends and gets: <https://www.rabbitmq.com/amqp-0-9-1-reference>.
//!
//! Pure: bytes in, bytes out. What the server sends is checked; what we send is checked by whoever builds it.

use std::borrow::Cow;

/// Says which protocol is spoken; the first that is sent.
pub(super) const PROTOCOL: &[u8] = b"AMQP\0\0\x09\x01";

/// A frame's bytes beside its payload: type, channel, size, end.
const AROUND: usize = 8;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
const HEARTBEAT: u8 = 8;
const END: u8 = 0xce;

/// Texts of up to 255 bytes: names, keys, properties.
pub(super) const SHORT: usize = 255;

/// What is sent, beside messages.
pub(super) enum Method<'a> {
    StartOk {
        user: &'a str,
        password: &'a str,
    },
    TuneOk {
        channels: u16,
        frame: u32,
        heartbeat: u16,
    },
    Open {
        vhost: &'a str,
    },
    Close,
    CloseOk,
    ChannelOpen,
    ChannelClose,
    ChannelCloseOk,
    /// Asks for an acknowledgement of each message.
    Confirm,
    /// Asks whether an exchange is there.
    Declare {
        exchange: &'a str,
    },
}

/// What the server says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    Heartbeat,
    Start,
    Tune {
        channels: u16,
        frame: u32,
        heartbeat: u16,
    },
    Opened,
    /// The connection ends, and why.
    Closed(Refusal),
    CloseOk,
    Blocked(String),
    Unblocked,
    /// What was asked of a channel is done: opened, confirms on, an exchange is there.
    Done,
    /// The channel ends, and why.
    ChannelClosed(Refusal),
    ChannelCloseOk,
    /// A message comes back; its properties follow.
    Returned {
        refusal: Refusal,
        exchange: String,
        key: String,
    },
    /// Properties, and the length of the body that follows.
    Properties {
        message_id: Option<String>,
        body: u64,
    },
    Body(usize),
    /// These messages are taken (or not), all up to this number if `multiple`.
    Answered {
        tag: u64,
        multiple: bool,
        taken: bool,
    },
    /// What no publisher needs.
    Else,
}

/// A reply code of AMQP with the server's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) code: u16,
    pub(super) words: String,
}

/// What goes with a message beside its payload.
pub(super) struct Properties<'a> {
    pub(super) content_type: Option<&'a str>,
    pub(super) message_id: &'a str,
    pub(super) headers: &'a [(&'a str, Cow<'a, str>)],
}

/// Appends a method.
pub(super) fn write_method(bytes: &mut Vec<u8>, channel: u16, method: &Method<'_>) {
    frame(bytes, METHOD, channel, |bytes| match method {
        Method::StartOk { user, password } => {
            ids(bytes, 10, 11);
            table(bytes, |bytes| {
                entry(bytes, "product", "punctual");
                short(bytes, "capabilities");
                bytes.push(b'F');
                // Why a log-in was refused is said, and that nothing more is taken for now.
                table(bytes, |bytes| {
                    for capability in ["publisher_confirms", "authentication_failure_close", "connection.blocked"] {
                        short(bytes, capability);
                        bytes.extend([b't', 1]);
                    }
                });
            });
            short(bytes, "PLAIN");
            long(bytes, format!("\0{user}\0{password}").as_bytes());
            short(bytes, "en_US");
        }
        Method::TuneOk { channels, frame, heartbeat } => {
            ids(bytes, 10, 31);
            bytes.extend(channels.to_be_bytes());
            bytes.extend(frame.to_be_bytes());
            bytes.extend(heartbeat.to_be_bytes());
        }
        Method::Open { vhost } => {
            ids(bytes, 10, 40);
            short(bytes, vhost);
            bytes.extend([0, 0]);
        }
        Method::Close | Method::ChannelClose => {
            if matches!(method, Method::Close) {
                ids(bytes, 10, 50)
            } else {
                ids(bytes, 20, 40)
            }
            bytes.extend(200_u16.to_be_bytes());
            short(bytes, "done");
            ids(bytes, 0, 0);
        }
        Method::CloseOk => ids(bytes, 10, 51),
        Method::ChannelOpen => {
            ids(bytes, 20, 10);
            bytes.push(0);
        }
        Method::ChannelCloseOk => ids(bytes, 20, 41),
        Method::Confirm => {
            ids(bytes, 85, 10);
            bytes.push(0);
        }
        Method::Declare { exchange } => {
            ids(bytes, 40, 10);
            bytes.extend([0, 0]);
            short(bytes, exchange);
            short(bytes, "direct");
            // Passive: an exchange of any type, and none is made.
            bytes.push(1);
            table(bytes, |_| {});
        }
    });
}

/// Appends a persistent message, in frames of at most `most` bytes.
pub(super) fn write_message(
    bytes: &mut Vec<u8>,
    channel: u16,
    (exchange, key): (&str, &str),
    mandatory: bool,
    properties: &Properties<'_>,
    payload: &[u8],
    most: usize,
) {
    frame(bytes, METHOD, channel, |bytes| {
        ids(bytes, 60, 40);
        bytes.extend([0, 0]);
        short(bytes, exchange);
        short(bytes, key);
        bytes.push(u8::from(mandatory));
    });
    frame(bytes, HEADER, channel, |bytes| {
        ids(bytes, 60, 0);
        bytes.extend((payload.len() as u64).to_be_bytes());
        // The bits of content type, headers, delivery mode and message id, in the order of these.
        let flags: u16 = if properties.content_type.is_some() { 0xb080 } else { 0x3080 };
        bytes.extend(flags.to_be_bytes());
        properties.content_type.iter().for_each(|content_type| short(bytes, content_type));
        table(bytes, |bytes| properties.headers.iter().for_each(|(name, value)| entry(bytes, name, value)));
        bytes.push(2);
        short(bytes, properties.message_id);
    });
    for part in payload.chunks(most - AROUND) {
        frame(bytes, BODY, channel, |bytes| bytes.extend_from_slice(part));
    }
}

/// Appends a sign of life.
pub(super) fn write_heartbeat(bytes: &mut Vec<u8>) {
    frame(bytes, HEARTBEAT, 0, |_| {});
}

fn frame(bytes: &mut Vec<u8>, kind: u8, channel: u16, write: impl FnOnce(&mut Vec<u8>)) {
    bytes.push(kind);
    bytes.extend(channel.to_be_bytes());
    sized(bytes, write);
    bytes.push(END);
}

/// Puts the length of what is written, in four bytes, before it.
fn sized(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = bytes.len();
    bytes.extend([0; 4]);
    write(bytes);
    let length = u32::try_from(bytes.len() - at - 4).expect("a message is far smaller");
    bytes[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

fn table(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    sized(bytes, write);
}

/// An entry of a table, with a text.
fn entry(bytes: &mut Vec<u8>, name: &str, value: &str) {
    short(bytes, name);
    bytes.push(b'S');
    long(bytes, value.as_bytes());
}

fn short(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(u8::try_from(text.len()).expect("checked by the caller"));
    bytes.extend_from_slice(text.as_bytes());
}

fn long(bytes: &mut Vec<u8>, text: &[u8]) {
    sized(bytes, |bytes| bytes.extend_from_slice(text));
}

fn ids(bytes: &mut Vec<u8>, class: u16, method: u16) {
    bytes.extend(class.to_be_bytes());
    bytes.extend(method.to_be_bytes());
}

/// Reads the frame that the bytes begin with: its channel, what it says, and its length. `None`: not all of it is there.
///
/// # Errors
/// Says what is there instead of a frame.
pub(super) fn read(bytes: &[u8], most: usize) -> Result<Option<(u16, Said, usize)>, String> {
    if bytes.starts_with(b"AMQP") {
        return Err("it speaks another version of AMQP".to_owned());
    }
    let Some((head, rest)) = bytes.split_at_checked(AROUND - 1) else { return Ok(None) };
    let (channel, size) = (u16::from_be_bytes([head[1], head[2]]), [head[3], head[4], head[5], head[6]]);
    let size = u32::from_be_bytes(size) as usize;
    if !matches!(head[0], METHOD | HEADER | BODY | HEARTBEAT) || size > most.saturating_sub(AROUND) {
        return Err("what it sends is not AMQP".to_owned());
    }
    if rest.len() <= size {
        return Ok(None);
    }
    let (payload, end) = rest.split_at(size);
    let malformed = || "it sent a malformed frame".to_owned();
    if end[0] != END {
        return Err(malformed());
    }
    let mut reader = Reader(payload);
    let said = match head[0] {
        METHOD => method(&mut reader),
        HEADER => properties(&mut reader),
        BODY => Some(Said::Body(size)),
        _ => Some(Said::Heartbeat),
    };
    Ok(Some((channel, said.ok_or_else(malformed)?, size + AROUND)))
}

fn method(reader: &mut Reader<'_>) -> Option<Said> {
    Some(match (reader.u16()?, reader.u16()?) {
        (10, 10) => Said::Start,
        (10, 30) => Said::Tune { channels: reader.u16()?, frame: reader.u32()?, heartbeat: reader.u16()? },
        (10, 41) => Said::Opened,
        (10, 50) => Said::Closed(reader.refusal()?),
        (10, 51) => Said::CloseOk,
        (10, 60) => Said::Blocked(reader.short()?),
        (10, 61) => Said::Unblocked,
        (20, 11) | (40, 11) | (85, 11) => Said::Done,
        (20, 40) => Said::ChannelClosed(reader.refusal()?),
        (20, 41) => Said::ChannelCloseOk,
        (60, 50) => Said::Returned { refusal: reader.refusal()?, exchange: reader.short()?, key: reader.short()? },
        (60, taken @ (80 | 120)) => {
            Said::Answered { tag: reader.u64()?, multiple: reader.u8()? & 1 == 1, taken: taken == 80 }
        }
        _ => Said::Else,
    })
}

/// Reads the properties of a message that comes back: as we wrote them, so that none but ours are looked for.
fn properties(reader: &mut Reader<'_>) -> Option<Said> {
    reader.take(4)?;
    let body = reader.u64()?;
    let flags = reader.u16()?;
    let has = |bit: u16| flags & (1 << bit) != 0;
    // Content type and encoding; headers; delivery mode and priority; correlation id, reply to, expiration.
    for bit in [15, 14] {
        if has(bit) {
            reader.short()?;
        }
    }
    if has(13) {
        let length = reader.u32()? as usize;
        reader.take(length)?;
    }
    reader.take(usize::from(has(12)) + usize::from(has(11)))?;
    for bit in [10, 9, 8] {
        if has(bit) {
            reader.short()?;
        }
    }
    let message_id = if has(7) { Some(reader.short()?) } else { None };
    Some(Said::Properties { message_id, body })
}

/// Takes values off the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    fn short(&mut self) -> Option<String> {
        let length = self.u8()?;
        Some(String::from_utf8_lossy(self.take(usize::from(length))?).into_owned())
    }

    fn refusal(&mut self) -> Option<Refusal> {
        Some(Refusal { code: self.u16()?, words: self.short()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(payload: &[u8], most: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        let headers = [("tenant", Cow::Borrowed("söhne")), ("empty", Cow::Borrowed(""))];
        let properties = Properties { content_type: Some("text/plain"), message_id: "x:1", headers: &headers };
        write_message(&mut bytes, 7, ("exchange", "key"), true, &properties, payload, most);
        bytes
    }

    fn all(mut bytes: &[u8], most: usize) -> Vec<(u16, Said)> {
        let mut all = Vec::new();
        while let Some((channel, said, length)) = read(bytes, most).expect("frames") {
            all.push((channel, said));
            bytes = &bytes[length..];
        }
        assert_eq!(bytes, [0_u8; 0]);
        all
    }

    #[test]
    fn a_message_is_cut_into_frames_and_its_id_is_found_again() {
        let properties = |body| Said::Properties { message_id: Some("x:1".to_owned()), body };
        assert_eq!(all(&message(b"", 4096), 4096), [(7, Said::Else), (7, properties(0))]);
        let bytes = message(&[9; 250], 108);
        let expected = [Said::Else, properties(250), Said::Body(100), Said::Body(100), Said::Body(50)];
        assert_eq!(all(&bytes, 200).into_iter().map(|(_, said)| said).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn what_the_server_says_is_read() {
        let mut bytes = Vec::new();
        let refusal = |code, words: &str| Refusal { code, words: words.to_owned() };
        frame(&mut bytes, METHOD, 3, |bytes| {
            ids(bytes, 60, 50);
            bytes.extend(312_u16.to_be_bytes());
            ["NO_ROUTE", "exchange", "key"].iter().for_each(|text| short(bytes, text));
        });
        frame(&mut bytes, METHOD, 3, |bytes| {
            ids(bytes, 60, 80);
            bytes.extend(77_u64.to_be_bytes());
            bytes.push(1);
        });
        frame(&mut bytes, METHOD, 0, |bytes| {
            ids(bytes, 10, 50);
            bytes.extend(403_u16.to_be_bytes());
            short(bytes, "ACCESS_REFUSED");
            ids(bytes, 0, 0);
        });
        write_heartbeat(&mut bytes);
        let returned = Said::Returned {
            refusal: refusal(312, "NO_ROUTE"),
            exchange: "exchange".to_owned(),
            key: "key".to_owned(),
        };
        let expected = [
            (3, returned),
            (3, Said::Answered { tag: 77, multiple: true, taken: true }),
            (0, Said::Closed(refusal(403, "ACCESS_REFUSED"))),
            (0, Said::Heartbeat),
        ];
        assert_eq!(all(&bytes, 4096), expected);
    }

    #[test]
    fn what_is_cut_short_waits_and_what_is_no_frame_is_refused() {
        let bytes = message(b"payload", 4096);
        let first = read(&bytes, 4096).expect("a frame").expect("all of it").2;
        for length in 0..first {
            assert_eq!(read(&bytes[..length], 4096), Ok(None), "{length}");
        }
        for bad in [&b"AMQP\0\0\x09\x01"[..], b"HTTP/1.1 400 Bad Request", b"\x01\0\0\xff\xff\xff\xff\0"] {
            assert!(read(bad, 4096).is_err(), "{bad:?}");
        }
        // Every byte of a frame may be wrong: an error at worst.
        for at in 0..bytes.len() {
            let mut broken = bytes.clone();
            broken[at] ^= 0xff;
            read(&broken, 4096).ok();
        }
        for length in 0..20 {
            let mut bytes = Vec::new();
            frame(&mut bytes, METHOD, 0, |bytes| bytes.extend(std::iter::repeat_n(60, length)));
            read(&bytes, 4096).ok();
        }
    }
}
