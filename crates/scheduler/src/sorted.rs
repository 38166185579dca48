//! A set in order, small while there is one thing in it: most shapes have one job, and a tree for one is ten times as large.

use std::collections::BTreeSet;
use std::ops::RangeBounds;

#[derive(Debug, Clone, Default)]
pub(crate) enum Sorted<K> {
    #[default]
    Empty,
    One(K),
    Many(BTreeSet<K>),
}

impl<K: Ord + Copy> Sorted<K> {
    pub fn insert(&mut self, key: K) {
        match self {
            Self::Empty => *self = Self::One(key),
            Self::One(one) => *self = Self::Many([*one, key].into()),
            Self::Many(all) => drop(all.insert(key)),
        }
    }

    pub fn remove(&mut self, key: &K) {
        match self {
            Self::One(one) if one == key => *self = Self::Empty,
            Self::Empty | Self::One(_) => {}
            Self::Many(all) => {
                all.remove(key);
                if all.is_empty() {
                    *self = Self::Empty;
                }
            }
        }
    }

    pub fn first(&self) -> Option<K> {
        match self {
            Self::Empty => None,
            Self::One(one) => Some(*one),
            Self::Many(all) => all.first().copied(),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(_) => 1,
            Self::Many(all) => all.len(),
        }
    }

    pub fn range(&self, range: impl RangeBounds<K> + Clone) -> impl Iterator<Item = K> {
        let one = match self {
            Self::One(one) if range.contains(one) => Some(*one),
            _ => None,
        };
        let many = if let Self::Many(all) = self { Some(all.range(range).copied()) } else { None };
        one.into_iter().chain(many.into_iter().flatten())
    }
}
