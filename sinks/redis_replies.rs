//! A stream from a Redis that ends at a reply that is too long. The client library reads a reply into memory whatever its
//! length, so a hostile server could fill the memory, even before the login.
//! <https://redis.io/docs/latest/develop/reference/protocol-spec/>

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Maximum size of one reply, in bytes; far more than any call of punctual asks for.
const MAX_REPLY_BYTES: u64 = 64 << 20;

/// What each element of a reply counts in addition, in bytes: about what it takes in memory.
const ELEMENT_BYTES: u64 = 64;

/// Maximum number of bytes of a line that are looked at: a type and a number.
const MAX_HEAD_BYTES: usize = 24;

/// A stream whose replies are limited.
pub(crate) struct LimitedReplies<S> {
    stream: S,
    reply: ReplySize,
}

/// How much of a reply has arrived.
struct ReplySize {
    /// Bytes of it so far, and [`ELEMENT_BYTES`] for each element that has ended.
    bytes: u64,
    /// How many of its elements have not ended; an array counts its own.
    open: u64,
    /// How many bytes of a string are missing.
    missing: u64,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// The last byte of the current line so far.
    last: u8,
}

impl<S> LimitedReplies<S> {
    pub(crate) fn new(stream: S) -> LimitedReplies<S> {
        LimitedReplies { stream, reply: ReplySize::new() }
    }
}

impl ReplySize {
    fn new() -> ReplySize {
        ReplySize { bytes: 0, open: 1, missing: 0, line: Vec::new(), last: 0 }
    }

    /// Counts bytes from the server.
    ///
    /// # Errors
    /// If a reply is too long, or has a length that the client library might read as another number.
    fn receive(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            bytes = if self.missing > 0 { self.take_string(bytes) } else { self.take_line(bytes)? };
            if self.bytes.saturating_add(self.missing) > MAX_REPLY_BYTES {
                return Err(io::Error::other(format!("it sent a reply of more than {} MiB", MAX_REPLY_BYTES >> 20)));
            }
        }
        Ok(())
    }

    /// Consumes the missing part of a string. Returns the bytes behind it.
    fn take_string<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (part, rest) = bytes.split_at(bytes.len().min(usize::try_from(self.missing).unwrap_or(usize::MAX)));
        self.bytes += part.len() as u64;
        self.missing -= part.len() as u64;
        if self.missing == 0 {
            self.end_element();
        }
        rest
    }

    /// Consumes the current line up to its end. Returns the bytes behind it. Only a line feed behind a carriage return
    /// ends a line.
    fn take_line<'a>(&mut self, bytes: &'a [u8]) -> io::Result<&'a [u8]> {
        let mut last = self.last;
        let ends = |&byte: &u8| std::mem::replace(&mut last, byte) == b'\r' && byte == b'\n';
        let end = bytes.iter().position(ends);
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        self.bytes += part.len() as u64;
        self.last = last;
        let room = MAX_HEAD_BYTES.saturating_sub(self.line.len());
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        if end.is_some() {
            self.end_line()?;
        }
        Ok(rest)
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.last = 0;
        let kind = line.first().copied().unwrap_or_default();
        if !b"$=!*~>%|".contains(&kind) || line == b"$-1\r\n" || line == b"*-1\r\n" {
            self.end_element();
            return Ok(());
        }
        let digits = line[1..].strip_suffix(b"\r\n").filter(|digits| digits.iter().all(u8::is_ascii_digit));
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
        let number = number.ok_or_else(|| io::Error::other("it sent a reply with an invalid length"))?;
        match kind {
            // With its line break.
            b'$' | b'=' | b'!' => {
                self.missing = number.saturating_add(2);
                return Ok(());
            }
            b'*' | b'~' | b'>' => self.open = self.open.saturating_add(number),
            b'%' => self.open = self.open.saturating_add(number.saturating_mul(2)),
            // Attributes stand before the element that they are of.
            _ => self.open = self.open.saturating_add(number.saturating_mul(2)).saturating_add(1),
        }
        self.end_element();
        Ok(())
    }

    fn end_element(&mut self) {
        self.open -= 1;
        self.bytes += ELEMENT_BYTES;
        if self.open == 0 {
            *self = ReplySize::new();
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LimitedReplies<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        Poll::Ready(self.reply.receive(&into.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for LimitedReplies<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every reply ends where the protocol says so, in pieces of any length.
    #[test]
    fn the_end_of_a_reply_is_found() {
        for reply in [
            "+OK\r\n",
            "-ERR no such thing\r\n",
            ":42\r\n",
            "$5\r\na\r\nb\n\r\n",
            "$0\r\n\r\n",
            "$-1\r\n",
            "*-1\r\n",
            "*0\r\n",
            "_\r\n",
            "#t\r\n",
            ",1.5\r\n",
            "*3\r\n$1\r\na\r\n*2\r\n:1\r\n+x\r\n$-1\r\n",
            "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n$3\r\n*9\n\r\n",
            "~1\r\n=7\r\ntxt:abc\r\n",
            ">3\r\n+message\r\n+a\r\n$2\r\nhi\r\n",
            "|1\r\n+ttl\r\n:9\r\n*1\r\n!5\r\nERR x\r\n",
            "(3492890328409238509324850943850943825024385\r\n",
        ] {
            for size in 1..=reply.len() {
                let mut so_far = ReplySize::new();
                for (number, piece) in reply.as_bytes().chunks(size).enumerate() {
                    assert!(so_far.bytes > 0 || number == 0, "{reply:?} ended before its end, in pieces of {size}");
                    so_far.receive(piece).unwrap();
                }
                let ended = (so_far.bytes, so_far.open, so_far.missing, so_far.line.len());
                assert_eq!(ended, (0, 1, 0, 0), "{reply:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn a_reply_that_does_not_end_is_refused() {
        let refused = |begin: &str, piece: &[u8]| -> u64 {
            let mut reply = ReplySize::new();
            let mut bytes = begin.len() as u64;
            if reply.receive(begin.as_bytes()).is_err() {
                return bytes;
            }
            while reply.receive(piece).is_ok() {
                bytes += piece.len() as u64;
                assert!(bytes <= 2 * MAX_REPLY_BYTES, "{begin:?}");
            }
            bytes
        };
        let piece = vec![b'a'; 1 << 16];
        assert!(refused("$2000000000\r\n", &piece) < 100, "its length says enough");
        assert!(refused("$9223372036854775807\r\n", &piece) < 100);
        for odd in [
            "$000000000000000000000000000000002000000000\r\n",
            "$-0\r\n",
            "=-1\r\n",
            "!-1\r\n",
            "$?\r\n",
            "*\u{a0}1\r\n",
            "$+1\r\n",
        ] {
            assert!(ReplySize::new().receive(odd.as_bytes()).is_err(), "{odd:?}");
        }
        assert!(refused("+", &b"\n+".repeat(1 << 10)) <= MAX_REPLY_BYTES, "a line ends at both of its last bytes only");
        assert!(refused("+", &piece) <= MAX_REPLY_BYTES);
        assert!(refused("*2147483647\r\n", &b"+OK\r\n".repeat(1 << 10)) <= MAX_REPLY_BYTES);
        assert!(refused("*1\r\n", &b"*1\r\n".repeat(1 << 10)) <= MAX_REPLY_BYTES, "nested for ever");
        let many = b"+OK\r\n".repeat(1 << 20);
        let mut replies = ReplySize::new();
        (0..20).for_each(|_| replies.receive(&many).expect("short replies, however many"));
    }
}
