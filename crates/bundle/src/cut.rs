//! Where one chunk ends and the next begins.
//!
//! A cut depends only on the bytes since the last one, on the first byte behind it, and on whether a second one follows
//! (bytes are tried in pairs). So whoever stands at a known cut, and knows that those bytes are as they were, knows the
//! next cut without reading; and the same stream has the same chunks, whatever was known about it.

use fastcdc::v2020::{Normalization, cut, select_masks};

/// Shorter only at the end of a stream. A good part of the usual length: so much of each chunk need not be looked at for
/// a cut.
pub const MIN: usize = 192 << 10;
/// What the cuts aim at: an edit of one line sends a little more than this, and a gigabyte is a few thousand chunks.
pub const AVERAGE: usize = 256 << 10;
/// Never longer.
pub const MAX: usize = 1 << 20;

/// The length of the chunk that `bytes` begin with, or `None` if that cannot be known without what follows them.
/// `is_end` says that nothing does. Never 0.
pub fn next(bytes: &[u8], is_end: bool) -> Option<usize> {
    if bytes.is_empty() || bytes.len() < MAX && !is_end {
        return None;
    }
    let (small, large) = select_masks(AVERAGE, Normalization::Level1);
    let (_, length) = cut(bytes, MIN, AVERAGE, MAX, small, large, small << 1, large << 1);
    Some(length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes that cut as any others do.
    fn noise(length: usize, seed: u64) -> Vec<u8> {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 24) as u8
        };
        std::iter::repeat_with(next).take(length).collect()
    }

    fn cuts(bytes: &[u8]) -> Vec<usize> {
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(length) = next(&bytes[at..], true) {
            at += length;
            found.push(at);
        }
        found
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn chunks_cover_the_stream_and_have_the_lengths_they_should(
            length in 0..3 * MAX, seed in any::<u64>(), zeros in any::<bool>()
        ) {
            let bytes = if zeros { vec![0; length] } else { noise(length, seed) };
            let cuts = cuts(&bytes);
            prop_assert_eq!(cuts.last().copied().unwrap_or(0), length);
            let mut from = 0;
            for (index, to) in cuts.iter().enumerate() {
                prop_assert!(to - from <= MAX);
                prop_assert!(to - from >= MIN || index + 1 == cuts.len());
                from = *to;
            }
        }

        #[test]
        fn a_cut_is_known_from_the_bytes_up_to_the_one_behind_it(seed in any::<u64>()) {
            let bytes = noise(3 * MAX, seed);
            let first = next(&bytes, false).unwrap();
            let mut changed = bytes.clone();
            for byte in &mut changed[first + 1..] {
                *byte ^= 0x55;
            }
            prop_assert_eq!(next(&changed, false), Some(first));
        }

        #[test]
        fn after_an_edit_the_cuts_are_soon_the_old_ones(seed in any::<u64>(), at in 0..MAX, more in 1..5000_usize) {
            let bytes = noise(8 * MAX, seed);
            let mut edited = bytes.clone();
            edited.splice(at..at, noise(more, seed ^ 1));
            let old: std::collections::BTreeSet<_> = cuts(&bytes).into_iter().map(|cut| cut + more).collect();
            let shared = cuts(&edited).into_iter().find(|cut| *cut > at + more && old.contains(cut));
            prop_assert!(shared.is_some_and(|cut| cut < 6 * MAX));
        }
    }

    #[test]
    fn more_is_asked_for_until_the_cut_is_certain() {
        let bytes = noise(MAX, 3);
        assert_eq!(next(&bytes[..MAX - 1], false), None);
        assert_eq!(next(&bytes, false), next(&bytes, true));
        assert_eq!(next(&[], true), None);
    }
}
