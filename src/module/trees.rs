//! Trees by a table: a row for each type.

/// Makes types trees by their two visits, `self, walk: [generics] Type => visit, visit_mut;`.
macro_rules! trees {
    ($self:ident, $walk:ident: $(
        $(#[$meta:meta])* [$($generics:tt)*] $tree:ty => $visit:expr, $visit_mut:expr;
    )+) => {$(
        $(#[$meta])*
        impl<$($generics)*> $crate::module::Quantizable for $tree {
            fn visit(&$self, $walk: &mut $crate::module::Walk<'_>) -> $crate::error::Result<()> {
                $visit
            }

            #[allow(unused_variables, reason = "of some there is nothing to be changed")]
            fn visit_mut(
                &mut $self,
                $walk: &mut $crate::module::WalkMut<'_>,
            ) -> $crate::error::Result<()> {
                $visit_mut
            }
        }
    )+};
}

/// Makes layers trees of one layer each.
macro_rules! layers {
    ($([$($generics:tt)*] $layer:ty),+) => {
        $crate::module::trees::trees! { self, walk: $(
            [$($generics)*] $layer => walk.layer(self), walk.layer(self);
        )+ }
    };
    ($layer:ty) => { $crate::module::trees::layers! { [] $layer } };
}

pub(crate) use {layers, trees};
