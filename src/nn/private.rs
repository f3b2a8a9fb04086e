//! Traits that a derived `Layer` calls; not part of the public API.

use super::projection::Projection;
use crate::error::Result;
use crate::qconfig::QConfig;

/// A field marked `#[quantizable(weight)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an `nn::Projection`",
    label = "this field cannot be a weight",
    note = "a struct of layers of `nn` is no layer: `#[derive(Quantizable)]` is all it needs",
    note = "for another type of weight, write `#[quantizable(layer)]` and implement `Layer`"
)]
pub trait Weight: Sized {
    /// The projection.
    fn projection(&self) -> &Projection;

    /// The projection, to be changed.
    fn projection_mut(&mut self) -> &mut Projection;

    /// The field with a quantized projection.
    ///
    /// # Errors
    /// As [`Projection::quantize`], at its name.
    fn quantize(&self, name: &str, qconfig: &QConfig) -> Result<Self>;
}

impl Weight for Projection {
    fn projection(&self) -> &Projection {
        self
    }

    fn projection_mut(&mut self) -> &mut Projection {
        self
    }

    fn quantize(&self, name: &str, qconfig: &QConfig) -> Result<Self> {
        self.quantize(qconfig).map_err(|error| error.at(name))
    }
}

/// A field marked `#[quantizable(name)]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a name",
    label = "this field cannot be the name",
    note = "a name is a `String`, `Arc<str>`, `Box<str>`, `&'static str` or an `Option` of one"
)]
pub trait Name {
    /// The name, if there is one.
    fn name(&self) -> Option<&str>;
}

macro_rules! names {
    ($($name:ty),+) => {$(
        impl Name for $name {
            fn name(&self) -> Option<&str> {
                Some(self)
            }
        }
    )+};
}
names!(String, std::sync::Arc<str>, Box<str>, &'static str);

impl<N: Name> Name for Option<N> {
    fn name(&self) -> Option<&str> {
        self.as_ref().and_then(N::name)
    }
}
