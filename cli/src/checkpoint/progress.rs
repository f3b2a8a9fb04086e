//! A bar on a terminal, and nothing elsewhere.

use std::io::{IsTerminal, Write, stderr};

pub struct Progress {
    done: u64,
    total: u64,
    shown: bool,
}

impl Progress {
    const WIDTH: u64 = 40;

    pub fn new(total: u64) -> Self {
        Self {
            done: 0,
            total: total.max(1),
            shown: stderr().is_terminal(),
        }
    }

    /// So many more bytes are done.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if !self.shown {
            return;
        }
        let parts = (self.done.min(self.total) * Self::WIDTH / self.total) as usize;
        let bar = "#".repeat(parts);
        let (done, total) = (self.done as f64 / 1e6, self.total as f64 / 1e6);
        let width = Self::WIDTH as usize;
        // A bar that cannot be drawn is no reason to stop.
        let _ = write!(stderr(), "\r[{bar:width$}] {done:.0} / {total:.0} MB");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.done > 0 {
            let _ = writeln!(stderr());
        }
    }
}
