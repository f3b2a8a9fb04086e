//! Whether a text that is too long is cut, and at which end.

use dynquant_embed::Direction;
use serde::Deserialize;

use super::super::App;

/// The truncation fields of a request.
#[derive(Default, Deserialize)]
pub struct Truncation {
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: End,
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
    pub fn cut(&self, app: &App) -> Option<Direction> {
        let direction = match self.truncation_direction {
            End::Left => Direction::Left,
            End::Right => Direction::Right,
        };
        let truncate = self.truncate.unwrap_or(app.auto_truncate);
        truncate.then_some(direction)
    }
}
