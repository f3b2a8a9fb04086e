//! How far the work is: a bar on a terminal, nothing elsewhere; and whether to go on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use dynquant_embed::program::Interrupted;
use indicatif::{ProgressBar, ProgressStyle};

/// The progress of an index that is made.
pub struct Progress {
    bar: ProgressBar,
    stop: Arc<AtomicBool>,
}

/// The error of an index whose making was interrupted.
const INTERRUPTED: Interrupted =
    Interrupted("interrupted; the index is as it was, and the next run goes on with what is done");

impl Progress {
    /// On stderr, if it is a terminal. The work ends early once `stop` is true.
    pub fn new(stop: Arc<AtomicBool>) -> Self {
        let bar = ProgressBar::no_length();
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar, stop }
    }

    /// Begins a phase of `length` steps, or of a number that is not known.
    pub fn phase(&self, name: &'static str, length: Option<usize>) {
        let template = match length {
            Some(_) => "{msg:16} {wide_bar} {human_pos}/{human_len}, {eta} left",
            None => "{msg:16} {human_pos}",
        };
        // The templates are correct; without them the bar has another look.
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style);
        }
        match length {
            Some(length) => self.bar.set_length(length as u64),
            None => self.bar.unset_length(),
        }
        self.bar.set_message(name);
        self.bar.reset();
    }

    /// Some steps are done.
    ///
    /// # Errors
    /// [`Interrupted`] when the work is to end.
    pub fn advance(&self, steps: usize) -> Result<()> {
        self.bar.inc(steps as u64);
        if self.stop.load(Ordering::Relaxed) {
            Err(INTERRUPTED.into())
        } else {
            Ok(())
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
