//! Records as the scripts read them: header and lane, then a body that no script parses.

use bytes::Bytes;
use punctual::task::layout;

/// A record with these flags and revision 1 that was created, updated and put at this time.
pub(crate) fn record(flags: u8, lane: &str, at: i64, body: impl AsRef<[u8]>) -> Bytes {
    let mut bytes = vec![layout::VERSION, flags, 0, 0, 0, 1];
    bytes.extend(at.to_be_bytes().repeat(3));
    bytes.push(u8::try_from(lane.len()).expect("a short name"));
    bytes.extend_from_slice(lane.as_bytes());
    bytes.extend_from_slice(body.as_ref());
    bytes.into()
}
