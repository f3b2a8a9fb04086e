//! isa
use crate::error::Result;
/// isa
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(());
impl Isa {
    /// a
    ///
    /// # Errors
    /// x
    pub fn active() -> Result<Self> {
        Ok(Self(()))
    }
}
impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("portable")
    }
}
