//! Whether a text that is too long is cut, and at which end.

use dynquant_embed::Direction;
use serde::Deserialize;

use super::super::rest::Rest;
use crate::app::App;
use crate::error::Refusal;

/// The truncation fields of a request.
#[derive(Default, Deserialize)]
pub struct Truncation {
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: End,
    /// The fields that the route has not, which must be neutral.
    #[serde(flatten)]
    rest: Rest,
}

/// The end of a text to cut.
#[derive(Clone, Copy, Default, Deserialize)]
enum End {
    #[serde(alias = "left")]
    Left,
    #[default]
    #[serde(alias = "right")]
    Right,
}

impl Truncation {
    /// The end to cut, if any.
    ///
    /// # Errors
    /// When the request has a field that the route has not.
    pub fn cut(&self, app: &App) -> Result<Option<Direction>, Refusal> {
        self.rest.check()?;
        let direction = match self.truncation_direction {
            End::Left => Direction::Left,
            End::Right => Direction::Right,
        };
        let truncate = self.truncate.unwrap_or(app.auto_truncate);
        Ok(truncate.then_some(direction))
    }
}
