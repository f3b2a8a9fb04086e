//! Trees made of containers: Option, Vec, VecDeque, arrays, tuples, Box, Arc, Rc, maps.
//!
//! Containers of one value add no path segment, containers of several add the index or the key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use super::walk::{Quantizable, Walk, WalkMut};
use crate::error::Result;

impl<T: Quantizable> Quantizable for Option<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        self.as_ref().map_or(Ok(()), |value| value.visit(walk))
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.as_mut().map_or(Ok(()), |value| value.visit_mut(walk))
    }
}

impl<T: Quantizable + ?Sized> Quantizable for Box<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        (**self).visit(walk)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        (**self).visit_mut(walk)
    }
}

/// Visited once, however many pointers lead to it.
///
/// If a layer below is changed, the pointer is replaced by a changed copy wherever the tree holds
/// it; pointers held outside the tree keep the old value.
impl<T: Quantizable + Clone + 'static> Quantizable for Arc<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        walk.shared(self)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        walk.shared(self)
    }
}

/// As an `Arc`.
impl<T: Quantizable + Clone + 'static> Quantizable for Rc<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        walk.shared(self)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        walk.shared(self)
    }
}

macro_rules! items {
    ($($items:ty),+) => {$(
        impl<T: Quantizable> Quantizable for $items {
            fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
                let mut items = self.iter().enumerate();
                items.try_for_each(|(index, item)| walk.child(index, item))
            }

            fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
                let mut items = self.iter_mut().enumerate();
                items.try_for_each(|(index, item)| walk.child(index, item))
            }
        }
    )+};
}
items!([T], VecDeque<T>);

impl<T: Quantizable> Quantizable for Vec<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        self.as_slice().visit(walk)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.as_mut_slice().visit_mut(walk)
    }
}

impl<T: Quantizable, const N: usize> Quantizable for [T; N] {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        self.as_slice().visit(walk)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.as_mut_slice().visit_mut(walk)
    }
}

impl<K: Display, V: Quantizable> Quantizable for BTreeMap<K, V> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        self.iter()
            .try_for_each(|(key, value)| walk.child(key, value))
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.iter_mut()
            .try_for_each(|(key, value)| walk.child(key, value))
    }
}

/// Visited in the order of the keys as they are displayed, so that every walk is the same.
impl<K: Display, V: Quantizable, S> Quantizable for HashMap<K, V, S> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        in_order(self).try_for_each(|(key, value)| walk.child(key, value))
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        in_order(self).try_for_each(|(key, value)| walk.child(key, value))
    }
}

fn in_order<K: Display, V>(
    entries: impl IntoIterator<Item = (K, V)>,
) -> impl Iterator<Item = (String, V)> {
    let entries = entries.into_iter();
    let mut entries: Vec<_> = entries.map(|(k, v)| (k.to_string(), v)).collect();
    entries.sort_by(|(a, _), (b, _)| a.cmp(b));
    entries.into_iter()
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),+))+) => {$(
        impl<$($name: Quantizable),+> Quantizable for ($($name,)+) {
            fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
                $(walk.child($index, &self.$index)?;)+
                Ok(())
            }

            fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
                $(walk.child($index, &mut self.$index)?;)+
                Ok(())
            }
        }
    )+};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6)
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7)
}
