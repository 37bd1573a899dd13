//! How the bytes of a record lie: a header that scripts read at fixed places, then the body. The one page in Rust that
//! knows these places; `lua/README.md` has them for the scripts.
//!
//! ```text
//! bytes   1      layout version, 1
//!         2      flags: 1 recurring, 2 `in` (a repeated put counts anew), 4 requeued, 8 traced
//!         3-6    revision, big-endian: 1 when created, one more at each replacement
//!         7-14   created, epoch ms, big-endian
//!        15-22   updated, epoch ms
//!        23-30   anchor, epoch ms: the time of the put, from which `every` and `in` count
//!        31      length of the lane's name
//!        32-     the lane's name
//!         then, of a requeued occurrence only: one byte length and its idempotency key
//!         then   the body: the task as its user asked for it, MessagePack with named fields
//!         then, if the request that put it was traced: 26 bytes, its `traceparent`
//! ```
//! What stands from byte 31 to the end of the body is equal exactly when the same was asked for: scripts compare it as
//! it is. The trace is no part of that, or each repeat of a put would replace the task.
//!
//! What is read here is read of any record, also of one that a newer version wrote or that is damaged.

use std::ops::Range;

use super::{Lane, Traceparent};

/// The version that is written and read.
pub const VERSION: u8 = 1;

/// Flag: more occurrences may follow.
pub const RECURRING: u8 = 1;
/// Flag: the schedule is `in`.
pub const RESETS: u8 = 2;
/// Flag: a requeued occurrence, whose key stands in the header.
pub const REQUEUED: u8 = 4;
/// Flag: the `traceparent` of the request that put it stands at the end.
pub const TRACED: u8 = 8;

/// Where the flags stand, counted from 0, as all places here.
pub const FLAGS: usize = 1;
/// Where the revision stands.
pub const REVISION: Range<usize> = 2..6;
/// Where `created` stands.
pub const CREATED: Range<usize> = 6..14;
/// Where `updated` stands.
pub const UPDATED: Range<usize> = 14..22;
/// Where the anchor stands.
pub const ANCHOR: Range<usize> = 22..30;
/// Where the part begins that is equal when the same was asked for: the length of the lane's name.
pub const TAIL: usize = 30;

/// Whether a record has a flag.
#[must_use]
pub fn has(record: &[u8], flag: u8) -> bool {
    record.get(FLAGS).is_some_and(|flags| flags & flag != 0)
}

/// The lane that a record names.
#[must_use]
pub fn lane_of(record: &[u8]) -> Option<Lane> {
    let length = usize::from(*record.get(TAIL)?);
    let name = record.get(TAIL + 1..TAIL + 1 + length)?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

/// Lane and body: what puts compare.
#[must_use]
pub fn tail(record: &[u8]) -> &[u8] {
    let end = record.len().saturating_sub(if has(record, TRACED) { Traceparent::BYTES } else { 0 });
    record.get(TAIL..end).unwrap_or_default()
}
