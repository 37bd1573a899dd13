//! The layout of a record: a header that scripts read at fixed offsets, then the body. This is the only place in Rust
//! that knows the offsets; `lua/README.md` has them for the scripts.
//!
//! ```text
//! bytes   1      layout version, 1
//!         2      flags: 1 recurring, 2 `in` (a repeated put starts the time anew), 4 requeued, 8 traced
//!         3-6    revision, big-endian: 1 when created, one more at each replacement
//!         7-14   created, epoch ms, big-endian
//!        15-22   updated, epoch ms
//!        23-30   anchor, epoch ms: the time of the put, from which `in`, and `every` without a start, count
//!        31      length of the lane's name
//!        32-     the lane's name
//!         then, of a requeued occurrence only: one byte length and its idempotency key
//!         then   the body: the task as its user put it, MessagePack with named fields
//!         then, if the request that put it was traced: 26 bytes, its `traceparent`
//! ```
//! The bytes from 31 to the end of the body are equal exactly when the puts were equal; scripts compare them. The trace
//! is not part of them, otherwise every repeated put would replace the task.
//!
//! The functions here accept any record, including damaged ones and those of newer versions.

use std::ops::Range;

use super::{Lane, Traceparent};

/// The layout version that is read and written.
pub const VERSION: u8 = 1;

/// Flag: more occurrences may follow.
pub const RECURRING: u8 = 1;
/// Flag: the schedule is `in`, so a repeated put resets the due time.
pub const RESETS: u8 = 2;
/// Flag: a requeued occurrence, whose key is in the header.
pub const REQUEUED: u8 = 4;
/// Flag: the `traceparent` of the request that put it is at the end.
pub const TRACED: u8 = 8;

/// Offset of the flags, counted from 0 like all offsets here.
pub const FLAGS: usize = 1;
/// Offset of the revision.
pub const REVISION: Range<usize> = 2..6;
/// Offset of `created`.
pub const CREATED: Range<usize> = 6..14;
/// Offset of `updated`.
pub const UPDATED: Range<usize> = 14..22;
/// Offset of the anchor.
pub const ANCHOR: Range<usize> = 22..30;
/// Offset of the part that puts compare; it begins with the length of the lane's name.
pub const TAIL: usize = 30;

/// Whether a record has a flag.
#[must_use]
pub fn has(record: &[u8], flag: u8) -> bool {
    record.get(FLAGS).is_some_and(|flags| flags & flag != 0)
}

/// The lane of a record.
#[must_use]
pub fn lane_of(record: &[u8]) -> Option<Lane> {
    let length = usize::from(*record.get(TAIL)?);
    let name = record.get(TAIL + 1..TAIL + 1 + length)?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Lane and body, the part that puts compare.
#[must_use]
pub fn tail(record: &[u8]) -> &[u8] {
    let end = record.len().saturating_sub(if has(record, TRACED) { Traceparent::BYTES } else { 0 });
    record.get(TAIL..end).unwrap_or_default()
}
