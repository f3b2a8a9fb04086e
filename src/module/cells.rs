//! Trees in cells and locks.
//!
//! A walk that changes the tree has it to itself and needs no lock; one that only looks borrows or
//! locks what it looks at, and fails where that is in use.

use std::cell::{Cell, OnceCell, RefCell};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, TryLockError};

use super::walk::{Quantizable, Walk, WalkMut};
use crate::error::Result;

/// Looked at as a copy.
impl<T: Quantizable + Copy> Quantizable for Cell<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        self.get().visit(walk)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.get_mut().visit_mut(walk)
    }
}

impl<T: Quantizable + ?Sized> Quantizable for RefCell<T> {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        match self.try_borrow() {
            Ok(value) => value.visit(walk),
            Err(_) => Err(walk.in_use("RefCell")),
        }
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.get_mut().visit_mut(walk)
    }
}

macro_rules! locks {
    ($($lock:ident.$try_lock:ident),+) => {$(
        /// A lock whose holder panicked is walked as any other: it is the layers that matter.
        impl<T: Quantizable + ?Sized> Quantizable for $lock<T> {
            fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
                match self.$try_lock() {
                    Ok(value) => value.visit(walk),
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner().visit(walk),
                    Err(TryLockError::WouldBlock) => Err(walk.in_use(stringify!($lock))),
                }
            }

            fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
                let value = self.get_mut().unwrap_or_else(PoisonError::into_inner);
                value.visit_mut(walk)
            }
        }
    )+};
}
locks!(Mutex.try_lock, RwLock.try_read);

macro_rules! once {
    ($($cell:ident),+) => {$(
        /// Without a value it is an empty tree.
        impl<T: Quantizable> Quantizable for $cell<T> {
            fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
                self.get().map_or(Ok(()), |value| value.visit(walk))
            }

            fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
                self.get_mut().map_or(Ok(()), |value| value.visit_mut(walk))
            }
        }
    )+};
}

once! { OnceCell, OnceLock }
