//! Sets of small numbers as ranges: which elements of an array nobody has yet, or somebody has.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A set of numbers; ranges in order that neither touch nor overlap. As a text: `0-99,105`, or nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Ranges(VecDeque<(u32, u32)>);

impl Ranges {
    /// The numbers from 0, as many as these.
    pub fn first(count: u32) -> Self {
        Self(count.checked_sub(1).map(|last| (0, last)).into_iter().collect())
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it has a number.
    pub fn contains(&self, number: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        after.checked_sub(1).is_some_and(|at| number <= self.0[at].1)
    }

    /// The smallest.
    pub fn min(&self) -> Option<u32> {
        self.0.front().map(|(first, _)| *first)
    }

    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }

    /// Those from a number on, in order.
    pub fn from(&self, least: u32) -> impl Iterator<Item = u32> + '_ {
        let at = self.0.partition_point(|(_, last)| *last < least);
        self.0.range(at..).flat_map(move |(first, last)| (*first).max(least)..=*last)
    }

    /// Takes out the smallest, as many as these at most.
    pub fn take(&mut self, mut count: u32) -> Self {
        let mut taken = Self::default();
        while count > 0
            && let Some((first, last)) = self.0.pop_front()
        {
            let length = last - first + 1;
            if length > count {
                taken.0.push_back((first, first + count - 1));
                self.0.push_front((first + count, last));
                return taken;
            }
            taken.0.push_back((first, last));
            count -= length;
        }
        taken
    }

    /// Takes out a number; whether it was there.
    pub fn remove(&mut self, number: u32) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= number);
        let Some(at) = after.checked_sub(1).filter(|at| number <= self.0[*at].1) else { return false };
        let (first, last) = self.0[at];
        match (first == number, last == number) {
            (true, true) => drop(self.0.remove(at)),
            (true, false) => self.0[at].0 += 1,
            (false, true) => self.0[at].1 -= 1,
            (false, false) => {
                self.0[at].1 = number - 1;
                self.0.insert(at + 1, (number + 1, last));
            }
        }
        true
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u32) {
        self.add(number, number);
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: &Self) {
        other.0.iter().for_each(|(first, last)| self.add(*first, *last));
    }

    fn add(&mut self, first: u32, last: u32) {
        // All that overlap or touch become one.
        let from = self.0.partition_point(|(_, end)| end.saturating_add(1) < first);
        let to = self.0.partition_point(|(begin, _)| *begin <= last.saturating_add(1));
        let (mut first, mut last) = (first, last);
        for (begin, end) in self.0.drain(from..to.max(from)) {
            first = first.min(begin);
            last = last.max(end);
        }
        self.0.insert(from, (first, last));
    }
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            if first == last { write!(f, "{comma}{first}")? } else { write!(f, "{comma}{first}-{last}")? }
        }
        Ok(())
    }
}

impl FromStr for Ranges {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut ranges = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            match (first.parse::<u32>(), last.parse::<u32>()) {
                (Ok(first), Ok(last)) if first <= last => ranges.add(first, last),
                _ => return Err("not a list of ranges".into()),
            }
        }
        Ok(ranges)
    }
}

impl TryFrom<String> for Ranges {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Ranges> for String {
    fn from(ranges: Ranges) -> Self {
        ranges.to_string()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Deed {
        Insert(u32),
        Remove(u32),
        Take(u32),
        Add(u32, u32),
    }

    fn deed() -> impl Strategy<Value = Deed> {
        prop_oneof![
            (0u32..200).prop_map(Deed::Insert),
            (0u32..200).prop_map(Deed::Remove),
            (0u32..20).prop_map(Deed::Take),
            (0u32..200, 0u32..30).prop_map(|(first, more)| Deed::Add(first, first + more)),
        ]
    }

    proptest! {
        #[test]
        fn ranges_are_a_set(count in 0u32..200, deeds in prop::collection::vec(deed(), 0..60)) {
            let mut ranges = Ranges::first(count);
            let mut set: BTreeSet<u32> = (0..count).collect();
            for deed in deeds {
                match deed {
                    Deed::Insert(number) => {
                        ranges.insert(number);
                        set.insert(number);
                    }
                    Deed::Remove(number) => prop_assert_eq!(ranges.remove(number), set.remove(&number)),
                    Deed::Take(count) => {
                        let taken: Vec<u32> = ranges.take(count).iter().collect();
                        let expected: Vec<u32> = set.iter().copied().take(count as usize).collect();
                        prop_assert_eq!(&taken, &expected);
                        set.retain(|number| !expected.contains(number));
                    }
                    Deed::Add(first, last) => {
                        let mut other = Ranges::default();
                        other.add(first, last);
                        ranges.extend(&other);
                        set.extend(first..=last);
                    }
                }
                prop_assert_eq!(ranges.iter().collect::<Vec<_>>(), set.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(ranges.from(50).collect::<Vec<_>>(), set.range(50..).copied().collect::<Vec<_>>());
                prop_assert_eq!((ranges.len() as usize, ranges.min()), (set.len(), set.first().copied()));
                prop_assert!((0..240).all(|number| ranges.contains(number) == set.contains(&number)));
                prop_assert_eq!(ranges.to_string().parse::<Ranges>().unwrap(), ranges.clone());
                // As few as can be: they do not touch.
                prop_assert!(ranges.0.iter().zip(ranges.0.iter().skip(1)).all(|(one, next)| one.1 + 1 < next.0));
            }
        }
    }
}
