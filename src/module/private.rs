//! What `#[derive(Quantizable)]` expands to calls on; no part of the public interface.
//!
//! Whether a field is a module tree is decided by its type, not by its spelling, and so inside
//! generic types too. [`Field`] has a method `visit` of its own where its type is
//! `Quantizable`; where it is not, the compiler finds the method of the same name in
//! [`OpaqueField`], which reports the field.

use super::{Quantizable, Walk, WalkMut};
use crate::error::Result;

/// A field to look at.
#[derive(Debug)]
pub struct Field<'a, T: ?Sized>(pub &'a T);

/// A field that the walk may change.
#[derive(Debug)]
pub struct FieldMut<'a, T: ?Sized>(pub &'a mut T);

/// Fields of any type; a type's own methods come before these.
pub trait OpaqueField: Sized {
    /// The walk that the field is shown to.
    type Walk<'v>;

    /// Reports the field under `name`.
    ///
    /// # Errors
    /// Never.
    fn visit(self, name: &str, walk: &mut Self::Walk<'_>) -> Result<()>;

    /// Reports the field at the present path.
    ///
    /// # Errors
    /// Never.
    fn visit_here(self, walk: &mut Self::Walk<'_>) -> Result<()>;
}

impl<T: Quantizable + ?Sized> Field<'_, T> {
    /// Visits the field under `name`.
    ///
    /// # Errors
    /// As [`Quantizable::visit`].
    pub fn visit(self, name: &str, walk: &mut Walk<'_>) -> Result<()> {
        walk.child(name, self.0)
    }

    /// Visits the field at the present path.
    ///
    /// # Errors
    /// As [`Quantizable::visit`].
    pub fn visit_here(self, walk: &mut Walk<'_>) -> Result<()> {
        self.0.visit(walk)
    }
}

impl<T: ?Sized> OpaqueField for Field<'_, T> {
    type Walk<'v> = Walk<'v>;

    fn visit(self, name: &str, walk: &mut Walk<'_>) -> Result<()> {
        walk.opaque(name, std::any::type_name::<T>());
        Ok(())
    }

    fn visit_here(self, walk: &mut Walk<'_>) -> Result<()> {
        walk.opaque_here(std::any::type_name::<T>());
        Ok(())
    }
}

impl<T: Quantizable + ?Sized> FieldMut<'_, T> {
    /// Visits the field under `name`.
    ///
    /// # Errors
    /// As [`Quantizable::visit_mut`].
    pub fn visit(self, name: &str, walk: &mut WalkMut<'_>) -> Result<()> {
        walk.child(name, self.0)
    }

    /// Visits the field at the present path.
    ///
    /// # Errors
    /// As [`Quantizable::visit_mut`].
    pub fn visit_here(self, walk: &mut WalkMut<'_>) -> Result<()> {
        self.0.visit_mut(walk)
    }
}

/// Reported by the walk that looks; the walk that changes passes by in silence.
impl<T: ?Sized> OpaqueField for FieldMut<'_, T> {
    type Walk<'v> = WalkMut<'v>;

    fn visit(self, _name: &str, _walk: &mut WalkMut<'_>) -> Result<()> {
        Ok(())
    }

    fn visit_here(self, _walk: &mut WalkMut<'_>) -> Result<()> {
        Ok(())
    }
}

/// Compiles only where a field is a module tree.
pub fn assert_quantizable<T: Quantizable + ?Sized>() {}
