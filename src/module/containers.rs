//! Trees made of containers: Option, Vec, VecDeque, arrays, tuples, Box, Arc, Rc, maps.
//!
//! Containers of one value add no path segment, containers of several add the index or the key.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use super::trees::trees;
use super::walk::Quantizable;

trees! { self, walk:
    [T: Quantizable] Option<T> =>
        self.as_ref().map_or(Ok(()), |value| value.visit(walk)),
        self.as_mut().map_or(Ok(()), |value| value.visit_mut(walk));

    [T: Quantizable + ?Sized] Box<T> => (**self).visit(walk), (**self).visit_mut(walk);

    /// Visited once, however many pointers lead to it.
    ///
    /// If a layer below is changed, the pointer is replaced by a changed copy wherever the tree
    /// holds it; pointers held outside the tree keep the old value.
    [T: Quantizable + Clone + 'static] Arc<T> => walk.shared(self), walk.shared(self);

    /// Visited as an `Arc` is.
    [T: Quantizable + Clone + 'static] Rc<T> => walk.shared(self), walk.shared(self);

    [T: Quantizable] [T] =>
        self.iter().enumerate().try_for_each(|(index, item)| walk.child(index, item)),
        self.iter_mut().enumerate().try_for_each(|(index, item)| walk.child(index, item));

    [T: Quantizable] VecDeque<T> =>
        self.iter().enumerate().try_for_each(|(index, item)| walk.child(index, item)),
        self.iter_mut().enumerate().try_for_each(|(index, item)| walk.child(index, item));

    [T: Quantizable] Vec<T> => self.as_slice().visit(walk), self.as_mut_slice().visit_mut(walk);

    [T: Quantizable, const N: usize] [T; N] =>
        self.as_slice().visit(walk), self.as_mut_slice().visit_mut(walk);

    [K: Display, V: Quantizable] BTreeMap<K, V> =>
        self.iter().try_for_each(|(key, value)| walk.child(key, value)),
        self.iter_mut().try_for_each(|(key, value)| walk.child(key, value));

    /// Visited in the order of the keys as they are displayed, so that every walk is the same.
    [K: Display, V: Quantizable, S] HashMap<K, V, S> =>
        in_order(self).try_for_each(|(key, value)| walk.child(key, value)),
        in_order(self).try_for_each(|(key, value)| walk.child(key, value));
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
    ($(($($name:ident $index:tt),+))+) => {
        trees! { self, walk: $(
            [$($name: Quantizable),+] ($($name,)+) =>
                { $(walk.child($index, &self.$index)?;)+ Ok(()) },
                { $(walk.child($index, &mut self.$index)?;)+ Ok(()) };
        )+ }
    };
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
