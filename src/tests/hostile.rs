//! Hostile input for property tests: arbitrary text, and mutated samples of real input.
//!
//! `PROPTEST_CASES` sets how many cases each property is tried with.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A change of some bytes.
#[derive(Clone, Debug)]
enum Mutation {
    Remove(Index, usize),
    Replace(Index, u8),
    Insert(Index, Vec<u8>),
    /// Repeats the bytes from one place on at another.
    Repeat(Index, Index, usize),
}

impl Mutation {
    fn apply_to(&self, bytes: &mut Vec<u8>) {
        let places = bytes.len() + 1;
        match self {
            Self::Remove(at, count) => {
                let start = at.index(places);
                bytes.drain(start..bytes.len().min(start + count));
            }
            Self::Replace(at, byte) => {
                if let Some(old) = bytes.get_mut(at.index(places)) {
                    *old = *byte;
                }
            }
            Self::Insert(at, inserted) => {
                let at = at.index(places);
                bytes.splice(at..at, inserted.iter().copied());
            }
            Self::Repeat(from, to, count) => {
                let from = from.index(places);
                let to = to.index(places);
                bytes.splice(to..to, bytes[from..bytes.len().min(from + count)].to_vec());
            }
        }
    }
}

fn any_byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), select(&b"=;&?%<>/\"'{}[]:,-+. \0\n0\xff\xc3"[..])]
}

fn any_mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), 1..12_usize).prop_map(|(at, count)| Mutation::Remove(at, count)),
        (any::<Index>(), any_byte()).prop_map(|(at, byte)| Mutation::Replace(at, byte)),
        (any::<Index>(), vec(any_byte(), 1..6)).prop_map(|(at, bytes)| Mutation::Insert(at, bytes)),
        (any::<Index>(), any::<Index>(), 1..40_usize).prop_map(|(from, to, count)| Mutation::Repeat(from, to, count)),
    ]
}

/// Returns text that is arbitrary, or one of the samples with up to seven changes. Bytes that are no UTF-8 are
/// replaced.
pub(crate) fn hostile_text(samples: &'static [&'static str]) -> impl Strategy<Value = String> {
    let mutated = (select(samples), vec(any_mutation(), 0..8)).prop_map(|(sample, mutations)| {
        let mut bytes = sample.as_bytes().to_vec();
        for mutation in &mutations {
            mutation.apply_to(&mut bytes);
        }
        bytes
    });
    let bytes = prop_oneof![1 => vec(any::<u8>(), 0..200), 4 => mutated];
    bytes.prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
