//! Things by number, where numbers of what is gone are used again.

use std::ops::{Index, IndexMut};

#[derive(Debug, Clone)]
pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    vacant: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { items: Vec::new(), vacant: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> u32 {
        match self.vacant.pop() {
            Some(ix) => {
                self.items[ix as usize] = Some(item);
                ix
            }
            None => {
                self.items.push(Some(item));
                self.items.len() as u32 - 1
            }
        }
    }

    pub fn remove(&mut self, ix: u32) -> T {
        self.vacant.push(ix);
        self.items[ix as usize].take().expect("what is removed was there")
    }

    /// The same things by the same numbers, as something else or not at all.
    pub fn map_some<U>(&self, mut make: impl FnMut(u32, &T) -> Option<U>) -> Slab<U> {
        let items: Vec<Option<U>> =
            (0..).zip(&self.items).map(|(ix, item)| make(ix, item.as_ref()?)).collect();
        let vacant = (0..).zip(&items).filter(|(_, item)| item.is_none()).map(|(ix, _)| ix).collect();
        Slab { items, vacant }
    }

    /// All numbers are below this one.
    pub fn end(&self) -> u32 {
        self.items.len() as u32
    }

    pub fn get(&self, ix: u32) -> Option<&T> {
        self.items.get(ix as usize)?.as_ref()
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.items.iter().enumerate().filter_map(|(ix, item)| Some((ix as u32, item.as_ref()?)))
    }

    pub fn len(&self) -> usize {
        self.items.len() - self.vacant.len()
    }
}

impl<T: Clone> Slab<T> {
    /// A copy of some of them.
    pub fn copy_if(&self, mut is_kept: impl FnMut(u32, &T) -> bool) -> Self {
        self.map_some(|ix, item| is_kept(ix, item).then(|| item.clone()))
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, ix: u32) -> &T {
        self.items[ix as usize].as_ref().expect("a number is of something that is there")
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, ix: u32) -> &mut T {
        self.items[ix as usize].as_mut().expect("a number is of something that is there")
    }
}
