//! The trace that a task was put in: the `traceparent` of the request, as W3C Trace Context defines it.
//!
//! Only version 00 is known, and passed on unchanged. Any other or invalid value counts as none.

use std::fmt;
use std::str::FromStr;

/// A `traceparent`: version, trace id, id of the caller's span, flags.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Traceparent([u8; Traceparent::BYTES]);

/// Not a `traceparent` of version 00.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of version 00")]
pub struct BadTraceparent;

/// First and last byte of each field; in text form, dashes separate them.
const FIELDS: [(usize, usize); 4] = [(0, 1), (1, 17), (17, 25), (25, 26)];

impl Traceparent {
    /// The name of the header, in requests and in messages.
    pub const HEADER: &str = "traceparent";

    /// Size in bytes: version 1, trace id 16, span id 8, flags 1.
    pub const BYTES: usize = 26;

    /// The binary form.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; Traceparent::BYTES] {
        &self.0
    }

    /// The trace with this binary form.
    ///
    /// # Errors
    /// If the version is not 00, or the trace id or the span id is zero.
    pub fn from_bytes(bytes: [u8; Traceparent::BYTES]) -> Result<Traceparent, BadTraceparent> {
        let [_, trace, span, _] = FIELDS.map(|(from, to)| bytes[from..to].iter().any(|&byte| byte != 0));
        if bytes[0] == 0 && trace && span { Ok(Traceparent(bytes)) } else { Err(BadTraceparent) }
    }
}

impl FromStr for Traceparent {
    type Err = BadTraceparent;

    fn from_str(text: &str) -> Result<Traceparent, BadTraceparent> {
        let mut bytes = [0; Traceparent::BYTES];
        let mut parts = text.split('-');
        for (from, to) in FIELDS {
            let part = parts.next().ok_or(BadTraceparent)?.as_bytes();
            if part.len() != 2 * (to - from) {
                return Err(BadTraceparent);
            }
            for (byte, digits) in bytes[from..to].iter_mut().zip(part.chunks(2)) {
                *byte = digit(digits[0])? << 4 | digit(digits[1])?;
            }
        }
        if parts.next().is_some() { Err(BadTraceparent) } else { Traceparent::from_bytes(bytes) }
    }
}

/// A hexadecimal digit; the standard allows only lower case.
fn digit(byte: u8) -> Result<u8, BadTraceparent> {
    match byte {
        b'0'..=b'9' => Ok(byte - b'0'),
        b'a'..=b'f' => Ok(byte - b'a' + 10),
        _ => Err(BadTraceparent),
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (from, to)) in FIELDS.into_iter().enumerate() {
            if index > 0 {
                f.write_str("-")?;
            }
            for byte in &self.0[from..to] {
                write!(f, "{byte:02x}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Traceparent({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the standard.
    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_reads_back_unchanged() {
        let trace: Traceparent = EXAMPLE.parse().unwrap();
        assert_eq!(trace.to_string(), EXAMPLE);
        assert_eq!(Traceparent::from_bytes(*trace.as_bytes()), Ok(trace));
        let flags = EXAMPLE.replace("-01", "-ff");
        assert_eq!(flags.parse::<Traceparent>().unwrap().to_string(), flags, "flags are handed on as they are");
    }

    #[test]
    fn an_invalid_traceparent_is_refused() {
        let (zeros, short) = ("0".repeat(32), "0".repeat(16));
        for (why, text) in [
            ("empty", String::new()),
            ("another version", EXAMPLE.replace("00-4bf", "01-4bf")),
            ("the version that is forbidden", EXAMPLE.replace("00-4bf", "ff-4bf")),
            ("upper case", EXAMPLE.to_uppercase()),
            ("a trace id of zeros", EXAMPLE.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros)),
            ("a span id of zeros", EXAMPLE.replace("00f067aa0ba902b7", &short)),
            ("cut short", EXAMPLE[..54].to_owned()),
            ("something after it", format!("{EXAMPLE}-00")),
            ("a digit too many", format!("{EXAMPLE}0")),
            ("a space before it", format!(" {EXAMPLE}")),
            ("no digit", EXAMPLE.replace("4bf9", "4bg9")),
            ("a sign in a digit's place", EXAMPLE.replace("4bf9", "+bf9")),
            ("fields that begin elsewhere", EXAMPLE.replace("-00f067aa0ba902b7-", "00-f067aa0ba902b7-")),
            ("not even ASCII", EXAMPLE.replace("4bf9", "äöü")),
        ] {
            assert_eq!(text.parse::<Traceparent>(), Err(BadTraceparent), "{why}: {text}");
        }
    }
}
