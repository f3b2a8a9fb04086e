//! Trees in cells and locks.
//!
//! A walk that changes the tree has it exclusively and needs no lock; a walk that only reads
//! borrows or locks what it visits, and fails where that is in use.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, TryLockError};

use super::trees::trees;
use super::walk::Quantizable;

trees! { self, walk:
    /// Visited as a copy.
    [T: Quantizable + Copy] Cell<T> => self.get().visit(walk), self.get_mut().visit_mut(walk);

    [T: Quantizable + ?Sized] RefCell<T> =>
        match self.try_borrow() {
            Ok(value) => value.visit(walk),
            Err(_) => Err(walk.in_use("RefCell")),
        },
        self.get_mut().visit_mut(walk);
}

macro_rules! locks {
    ($($lock:ident.$try_lock:ident),+) => {
        trees! { self, walk: $(
            /// A lock whose holder panicked is walked as any other: it is the layers that matter.
            [T: Quantizable + ?Sized] $lock<T> =>
                match self.$try_lock() {
                    Ok(value) => value.visit(walk),
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().visit(walk),
                    Err(TryLockError::WouldBlock) => Err(walk.in_use(stringify!($lock))),
                },
                self.get_mut().unwrap_or_else(PoisonError::into_inner).visit_mut(walk);
        )+ }
    };
}

locks!(Mutex.try_lock, RwLock.try_read);

macro_rules! once {
    ($($cell:ident),+) => {
        trees! { self, walk: $(
            /// An empty tree if it has no value.
            [T: Quantizable] $cell<T> =>
                self.get().map_or(Ok(()), |value| value.visit(walk)),
                self.get_mut().map_or(Ok(()), |value| value.visit_mut(walk));
        )+ }
    };
}

once! { OnceCell, OnceLock }
