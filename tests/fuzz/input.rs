//! Inputs: generated in the reader's format, mutated from the corpus, and random bytes.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Maximum length of an input, in bytes.
const LONGEST: usize = 16 << 10;

/// One mutation of an input.
#[derive(Clone, Debug)]
enum Change {
    Flip(Index, u8),
    Set(Index, u8),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    Repeat(Index, usize, usize),
    /// Continues with the rest of another input.
    Splice(Index, Index, Index),
}

/// Any input: half are mutations of the corpus, and most of the others come from `written`.
pub(super) fn any(
    corpus: Vec<Vec<u8>>,
    dictionary: &'static [&'static str],
    written: BoxedStrategy<Vec<u8>>,
) -> BoxedStrategy<Vec<u8>> {
    let others = corpus.clone();
    let changed = (select(corpus), vec(change(dictionary), 1..6)).prop_map(move |(mut input, changes)| {
        changes.into_iter().for_each(|change| change.make(&mut input, &others));
        input.truncate(LONGEST);
        input
    });
    let nonsense = vec(any_byte(), 0..80);
    prop_oneof![10 => changed, 9 => written, 1 => nonsense].boxed()
}

fn any_byte() -> impl Strategy<Value = u8> {
    prop_oneof![Just(b' '), Just(b'\n'), Just(0), Just(0xff), b' '..=b'~', 0..=255_u8]
}

fn change(dictionary: &'static [&'static str]) -> impl Strategy<Value = Change> {
    let at = || prop::arbitrary::any::<Index>();
    let word = select(dictionary).prop_map(|word| word.as_bytes().to_vec());
    prop_oneof![
        (at(), 0..8_u8).prop_map(|(at, bit)| Change::Flip(at, 1 << bit)),
        (at(), any_byte()).prop_map(|(at, byte)| Change::Set(at, byte)),
        (at(), prop_oneof![3 => word, 1 => vec(any_byte(), 1..8)]).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
        (at(), 1..40_usize).prop_map(|(at, length)| Change::Remove(at, length)),
        (at(), 1..40_usize, 1..100_usize).prop_map(|(at, length, times)| Change::Repeat(at, length, times)),
        (at(), at(), at()).prop_map(|(at, other, from)| Change::Splice(at, other, from)),
    ]
}

impl Change {
    fn make(self, input: &mut Vec<u8>, others: &[Vec<u8>]) {
        let place = |at: Index, of: &[u8]| at.index(of.len() + 1);
        match self {
            Change::Flip(at, bit) if !input.is_empty() => *at.get_mut(input) ^= bit,
            Change::Set(at, byte) if !input.is_empty() => *at.get_mut(input) = byte,
            Change::Flip(..) | Change::Set(..) => {}
            Change::Insert(at, bytes) => {
                let at = place(at, input);
                input.splice(at..at, bytes);
            }
            Change::Remove(at, length) => {
                let at = place(at, input);
                input.drain(at..input.len().min(at + length));
            }
            Change::Repeat(at, length, times) => {
                let at = place(at, input);
                let part = input[at..input.len().min(at + length)].repeat(times);
                input.splice(at..at, part);
            }
            Change::Splice(at, other, from) => {
                input.truncate(place(at, input));
                let other = other.get(others);
                input.extend_from_slice(&other[place(from, other)..]);
            }
        }
    }
}
