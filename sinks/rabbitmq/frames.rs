//! Filters the frames between lapin and RabbitMQ: drops outgoing frames that must not be sent any more, refuses incoming ones
//! that cannot be right, and changes those that lapin cannot read (see [`texts`](super::texts)).
//! <https://www.rabbitmq.com/resources/specs/amqp0-9-1.pdf>, 2.3.5

use std::collections::HashMap;

use bytes::BytesMut;

use super::texts;

/// Maximum frame size to negotiate. A usual message fits into one frame, and a long one leaves room for others.
pub(super) const MAX_FRAME_BYTES: u32 = 128 * 1024;

/// Bytes of a frame before and behind its payload.
const FRAME_HEADER_BYTES: usize = 7;
const FRAME_END_BYTES: usize = 1;

/// How many bytes of a payload are read; an acknowledgement needs the most.
const PARSED_BYTES: usize = 12;

/// Types of frames.
const METHOD_FRAME: u8 = 1;
const HEADER_FRAME: u8 = 2;
const BODY_FRAME: u8 = 3;

/// Methods, by the first four bytes of the payload: class and method.
const CHANNEL_OPEN: [u8; 4] = [0, 20, 0, 10];
const CHANNEL_CLOSE: [u8; 4] = [0, 20, 0, 40];
const CHANNEL_CLOSE_OK: [u8; 4] = [0, 20, 0, 41];
const BASIC_PUBLISH: [u8; 4] = [0, 60, 0, 40];
pub(super) const BASIC_RETURN: [u8; 4] = [0, 60, 0, 50];
pub(super) const BASIC_DELIVER: [u8; 4] = [0, 60, 0, 60];
const BASIC_ACK: [u8; 4] = [0, 60, 0, 80];
const BASIC_NACK: [u8; 4] = [0, 60, 0, 120];

/// The state of a connection and its channels, according to the frames so far.
#[derive(Default)]
pub(super) struct Frames {
    greeted: bool,
    to_server: Reader,
    /// Whether the frame that lapin is writing is sent.
    sends: bool,
    from_server: Reader,
    /// A frame with texts, which lapin gets once it is complete.
    incomplete: Vec<u8>,
    channels: HashMap<u16, Channel>,
}

#[derive(Default)]
struct Channel {
    /// Messages that were sent since the channel was opened.
    published: u64,
    /// Whether the message that lapin is writing is sent.
    sends: bool,
    /// Whether new messages on it are dropped.
    given_up: bool,
    /// Whether a close of either side was sent or confirmed.
    ended: bool,
    /// A return in progress: how many bytes of its body are missing, once that is known.
    returning: Option<Option<u64>>,
}

impl Frames {
    /// Drops all new messages of a channel from now on.
    pub(super) fn give_up(&mut self, channel: u16) {
        self.channels.entry(channel).or_default().given_up = true;
    }

    /// Appends to `out` the bytes that may be sent. Drops messages of an abandoned channel, and every frame behind a
    /// channel's close: such a frame would end the connection.
    pub(super) fn send(&mut self, mut bytes: &[u8], out: &mut BytesMut) {
        if !self.greeted {
            // lapin writes the protocol header in one piece into an empty buffer.
            let (name, rest) = bytes.split_at(bytes.len().min(8));
            out.extend_from_slice(name);
            (self.greeted, bytes) = (true, rest);
        }
        while let Some(part) = self.to_server.next(&mut bytes) {
            match part {
                FramePiece::Head(frame) => {
                    self.sends = frame.channel == 0 || self.channels.entry(frame.channel).or_default().sends(&frame);
                    if self.sends {
                        out.extend_from_slice(frame.bytes);
                    }
                }
                FramePiece::Rest(rest) if self.sends => out.extend_from_slice(rest),
                FramePiece::Rest(_) => {}
            }
        }
    }

    /// Checks bytes from the server, and appends to `out` what lapin may read.
    ///
    /// # Errors
    /// If a frame is longer than [`MAX_FRAME_BYTES`], or if the server breaks the protocol in a way that lapin would
    /// take for an acknowledgement.
    pub(super) fn receive(&mut self, mut bytes: &[u8], out: &mut BytesMut) -> Result<(), &'static str> {
        while let Some(part) = self.from_server.next(&mut bytes) {
            let frame = match part {
                FramePiece::Head(frame) => frame,
                FramePiece::Rest(rest) if self.incomplete.is_empty() => {
                    out.extend_from_slice(rest);
                    continue;
                }
                FramePiece::Rest(rest) => {
                    self.incomplete.extend_from_slice(rest);
                    complete(&mut self.incomplete, out);
                    continue;
                }
            };
            if frame.size > MAX_FRAME_BYTES as usize {
                return Err("it sent a frame that is longer than it may be");
            }
            if frame.channel != 0 {
                self.channels.entry(frame.channel).or_default().receive(&frame)?;
            }
            // The end of each frame is a part of its own.
            let has_texts = matches!(frame.method(), Some(BASIC_DELIVER | BASIC_RETURN)) || frame.kind == HEADER_FRAME;
            if has_texts {
                self.incomplete.extend_from_slice(frame.bytes);
            } else {
                out.extend_from_slice(frame.bytes);
            }
        }
        Ok(())
    }
}

impl Channel {
    fn sends(&mut self, frame: &Frame<'_>) -> bool {
        match frame.method() {
            Some(CHANNEL_OPEN) => {
                *self = Channel::default();
                true
            }
            Some(CHANNEL_CLOSE | CHANNEL_CLOSE_OK) => {
                self.ended = true;
                true
            }
            Some(BASIC_PUBLISH) => {
                self.sends = !self.ended && !self.given_up;
                self.published += u64::from(self.sends);
                self.sends
            }
            Some(_) => !self.ended,
            // lapin writes the frames of a message without others in between.
            None => self.sends,
        }
    }

    fn receive(&mut self, frame: &Frame<'_>) -> Result<(), &'static str> {
        match (frame.kind, frame.method(), self.returning) {
            (_, Some(BASIC_RETURN), _) => self.returning = Some(None),
            // lapin would forget the incomplete return.
            (_, Some(BASIC_ACK | BASIC_NACK), Some(_)) => return Err("it sent an answer in the middle of a message"),
            // lapin treats an acknowledgement of 0, or of a tag it has not sent, as one for all messages.
            (_, Some(BASIC_ACK | BASIC_NACK), None)
                if !frame.number(4).is_some_and(|tag| (1..=self.published).contains(&tag)) =>
            {
                return Err("it answered a message that was never sent");
            }
            (HEADER_FRAME, _, Some(None)) => self.returning = frame.number(4).filter(|size| *size > 0).map(Some),
            (BODY_FRAME, _, Some(Some(left))) => {
                self.returning = left.checked_sub(frame.size as u64).filter(|left| *left > 0).map(Some);
            }
            _ => {}
        }
        Ok(())
    }
}

/// Moves a frame to `out` once it is complete, with texts that lapin can read.
fn complete(frame: &mut Vec<u8>, out: &mut BytesMut) {
    let Some(size) = frame[3..].first_chunk().copied().map(u32::from_be_bytes) else { return };
    let end = FRAME_HEADER_BYTES + size as usize;
    if frame.len() < end + FRAME_END_BYTES {
        return;
    }
    let (is_header, payload) = (frame[0] == HEADER_FRAME, &mut frame[FRAME_HEADER_BYTES..end]);
    if is_header {
        texts::mend_header(payload);
    } else {
        texts::mend_method(payload);
    }
    out.extend_from_slice(frame);
    frame.clear();
}

/// Finds the frames in pieces of any length.
#[derive(Default)]
struct Reader {
    /// The beginning of a frame: its header and the first bytes of its payload.
    head: Vec<u8>,
    /// How many bytes of the current frame are missing.
    left: usize,
}

enum FramePiece<'a> {
    Head(Frame<'a>),
    Rest(&'a [u8]),
}

/// The beginning of a frame.
struct Frame<'a> {
    kind: u8,
    channel: u16,
    /// Size of the whole payload, in bytes.
    size: usize,
    bytes: &'a [u8],
}

impl Reader {
    /// Removes and returns the next part of `bytes`.
    fn next<'a, 'b: 'a>(&'a mut self, bytes: &mut &'b [u8]) -> Option<FramePiece<'a>> {
        if self.left > 0 {
            let rest = take(bytes, self.left);
            self.left -= rest.len();
            if self.left == 0 {
                self.head.clear();
            }
            return (!rest.is_empty()).then_some(FramePiece::Rest(rest));
        }
        self.head.extend_from_slice(take(bytes, FRAME_HEADER_BYTES.saturating_sub(self.head.len())));
        let size = match self.head[..] {
            [_, _, _, a, b, c, d, ..] => u32::from_be_bytes([a, b, c, d]) as usize,
            _ => return None,
        };
        let wanted = FRAME_HEADER_BYTES + size.min(PARSED_BYTES);
        self.head.extend_from_slice(take(bytes, wanted - self.head.len()));
        if self.head.len() < wanted {
            return None;
        }
        self.left = FRAME_HEADER_BYTES + size + FRAME_END_BYTES - wanted;
        let (kind, channel) = (self.head[0], u16::from_be_bytes([self.head[1], self.head[2]]));
        Some(FramePiece::Head(Frame { kind, channel, size, bytes: &self.head }))
    }
}

/// Removes and returns the first bytes, at most `most`.
fn take<'a>(bytes: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = bytes.split_at(bytes.len().min(most));
    *bytes = rest;
    taken
}

impl Frame<'_> {
    fn method(&self) -> Option<[u8; 4]> {
        self.bytes[FRAME_HEADER_BYTES..].first_chunk().filter(|_| self.kind == METHOD_FRAME).copied()
    }

    /// The eight-byte number at this position of the payload.
    fn number(&self, at: usize) -> Option<u64> {
        self.bytes[FRAME_HEADER_BYTES..].get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&[kind][..], &channel.to_be_bytes(), &size, payload, &[0xce]].concat()
    }

    fn method(channel: u16, method: [u8; 4], arguments: &[u8]) -> Vec<u8> {
        frame(METHOD_FRAME, channel, &[&method[..], arguments].concat())
    }

    fn header(channel: u16, size: u64) -> Vec<u8> {
        frame(HEADER_FRAME, channel, &[&[0, 60, 0, 0][..], &size.to_be_bytes(), &[0, 0]].concat())
    }

    /// A message with a body in two frames.
    fn message(channel: u16, body: u8) -> Vec<u8> {
        let publish = method(channel, BASIC_PUBLISH, &[0, 0, 0, 1, b'a', 1]);
        [publish, header(channel, 40), frame(BODY_FRAME, channel, &[body; 30]), frame(BODY_FRAME, channel, &[body; 10])]
            .concat()
    }

    fn ack(channel: u16, tag: u64, multiple: bool) -> Vec<u8> {
        method(channel, BASIC_ACK, &[&tag.to_be_bytes()[..], &[u8::from(multiple)]].concat())
    }

    /// What lapin may write in this order: channel 2 ends in the middle, 3 is given up, and 2 is opened again.
    #[test]
    fn no_frame_follows_a_channel_close_and_no_message_starts_after_a_give_up() {
        let before = [
            (b"AMQP\0\0\x09\x01".to_vec(), true),
            (method(2, CHANNEL_OPEN, &[0]), true),
            (method(3, CHANNEL_OPEN, &[0]), true),
            (message(2, 1), true),
            (message(3, 2), true),
            (method(2, CHANNEL_CLOSE, &[0; 9]), true),
            (message(2, 3), false),
            (method(2, [0, 60, 0, 20], &[0; 30]), false),
            (frame(8, 0, &[]), true),
        ];
        let behind = [
            (message(3, 4), false),
            (method(3, [0, 85, 0, 10], &[0]), true),
            (method(3, CHANNEL_CLOSE_OK, &[]), true),
            (message(3, 5), false),
            (method(2, CHANNEL_OPEN, &[0]), true),
            (message(2, 6), true),
        ];
        let sent = |of: &[(Vec<u8>, bool)]| -> Vec<u8> {
            of.iter().filter(|(_, sent)| *sent).flat_map(|(bytes, _)| bytes.clone()).collect()
        };
        let all = |of: &[(Vec<u8>, bool)]| -> Vec<u8> { of.iter().flat_map(|(bytes, _)| bytes.clone()).collect() };
        let (expected, first, second) = ([sent(&before), sent(&behind)].concat(), all(&before), all(&behind));
        for size in 8..first.len() {
            let (mut frames, mut out) = (Frames::default(), BytesMut::new());
            first.chunks(size).for_each(|piece| frames.send(piece, &mut out));
            frames.give_up(3);
            second.chunks(size - 7).for_each(|piece| frames.send(piece, &mut out));
            assert_eq!(out, expected[..], "in pieces of {size}");
        }
    }

    /// A message that has begun when its channel is given up is sent whole, because half of it would end the
    /// connection.
    #[test]
    fn a_message_half_sent_when_its_channel_is_given_up_is_still_sent_whole() {
        let (open, message) = (method(3, CHANNEL_OPEN, &[0]), message(3, 1));
        let publish = method(3, BASIC_PUBLISH, &[0, 0, 0, 1, b'a', 1]).len();
        for begun in publish..message.len() {
            let (mut frames, mut out) = (Frames { greeted: true, ..Frames::default() }, BytesMut::new());
            frames.send(&open, &mut out);
            frames.send(&message[..begun], &mut out);
            frames.give_up(3);
            frames.send(&message[begun..], &mut out);
            frames.send(&message, &mut out);
            assert_eq!(out, [&open[..], &message].concat()[..], "after {begun} bytes");
        }
    }

    #[test]
    fn an_answer_that_fits_no_message_ends_the_connection() {
        let returned = method(1, BASIC_RETURN, &[1, 56, 0, 0, 0]);
        let body = |length: usize| frame(BODY_FRAME, 1, &vec![7; length]);
        for (bytes, is_valid) in [
            (ack(1, 1, false), true),
            (ack(1, 2, true), true),
            (ack(1, 3, false), false),
            (ack(1, 3, true), false),
            (ack(1, u64::MAX, true), false),
            (ack(1, 0, true), false),
            (ack(2, 1, false), false),
            (method(1, BASIC_NACK, &[0, 0, 0, 0, 0, 0, 0, 3, 0]), false),
            (method(1, BASIC_ACK, &[0, 0]), false),
            ([returned.clone(), ack(1, 1, false)].concat(), false),
            ([returned.clone(), header(1, 8), ack(1, 1, false)].concat(), false),
            ([returned.clone(), header(1, 8), body(7), ack(1, 1, false)].concat(), false),
            ([returned.clone(), header(1, 8), body(5), body(3), ack(1, 1, false)].concat(), true),
            ([returned, header(1, 0), ack(1, 1, false)].concat(), true),
        ] {
            for size in 1..=bytes.len() {
                let (mut frames, mut out) = (Frames { greeted: true, ..Frames::default() }, BytesMut::new());
                frames.send(&[method(1, CHANNEL_OPEN, &[0]), message(1, 1), message(1, 2)].concat(), &mut out);
                let mut read = BytesMut::new();
                let result = bytes.chunks(size).try_for_each(|piece| frames.receive(piece, &mut read));
                assert!(!is_valid || read == bytes[..], "{bytes:?} in pieces of {size}: {read:?}");
                assert_eq!(result.is_ok(), is_valid, "{bytes:?} in pieces of {size}");
            }
        }
    }
}
