//! The targets of a rule: kinds or names, one or several.

use crate::module::LayerKind;

/// An element of the list for [`QConfigSpec::of`](crate::QConfigSpec::of), as in PyTorch's sets: a
/// kind of layer, or a name and everything below it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(pub(super) OneTarget);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum OneTarget {
    /// All layers of a kind.
    Kind(LayerKind),
    /// A name and everything below it.
    Name(String),
}

impl From<LayerKind> for Target {
    fn from(kind: LayerKind) -> Self {
        Self(OneTarget::Kind(kind))
    }
}

impl From<&str> for Target {
    fn from(name: &str) -> Self {
        Self(OneTarget::Name(name.to_owned()))
    }
}

impl From<String> for Target {
    fn from(name: String) -> Self {
        Self(OneTarget::Name(name))
    }
}

/// Kinds of layers or names, one or several, as [`QConfigSpec`](crate::QConfigSpec)'s rules take
/// them: a `&str` or a [`LayerKind`] by itself, or an array, a slice or a `Vec` of them.
#[doc(hidden)]
pub trait OneOrMany<T> {
    /// All of them.
    fn items(self) -> Vec<T>;
}

/// Targets that stand by themselves.
macro_rules! one {
    ($($target:ty => $one:ty),+) => {$(
        impl OneOrMany<$target> for $one {
            fn items(self) -> Vec<$target> {
                vec![self.into()]
            }
        }
    )+};
}

one! {
    Target => &str, Target => String, Target => LayerKind, Target => Target, LayerKind => LayerKind
}

impl<T, I: Into<T>, const N: usize> OneOrMany<T> for [I; N] {
    fn items(self) -> Vec<T> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T, I: Into<T>> OneOrMany<T> for Vec<I> {
    fn items(self) -> Vec<T> {
        self.into_iter().map(Into::into).collect()
    }
}

impl<T, I: Into<T> + Clone> OneOrMany<T> for &[I] {
    fn items(self) -> Vec<T> {
        self.iter().cloned().map(Into::into).collect()
    }
}

impl<T, I: Into<T> + Clone, const N: usize> OneOrMany<T> for &[I; N] {
    fn items(self) -> Vec<T> {
        self.as_slice().items()
    }
}

impl<T, I: Into<T> + Clone> OneOrMany<T> for &Vec<I> {
    fn items(self) -> Vec<T> {
        self.as_slice().items()
    }
}
