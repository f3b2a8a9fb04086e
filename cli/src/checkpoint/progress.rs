//! A bar on a terminal, and nothing elsewhere.

use std::io::{IsTerminal, stderr};

use candle_dynquant_io::print;

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
        if self.shown {
            print::progress(self.line());
        }
    }

    fn line(&self) -> String {
        let parts = (self.done.min(self.total) * Self::WIDTH / self.total) as usize;
        let bar = "#".repeat(parts);
        let (done, total) = (self.done as f64 / 1e6, self.total as f64 / 1e6);
        let width = Self::WIDTH as usize;
        format!("\r[{bar:width$}] {done:.0} / {total:.0} MB")
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown && self.done > 0 {
            print::progress("\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Progress;

    #[test]
    fn the_bar_is_as_long_as_what_is_done() {
        let mut progress = Progress::new(400_000_000);
        progress.shown = false;
        let mut line_after = |bytes| {
            progress.add(bytes);
            progress.line()
        };
        let bar = |parts: usize| format!("\r[{}{}]", "#".repeat(parts), " ".repeat(40 - parts));
        assert_eq!(line_after(0), format!("{} 0 / 400 MB", bar(0)));
        assert_eq!(line_after(100_000_000), format!("{} 100 / 400 MB", bar(10)));
        assert_eq!(line_after(50_000_000), format!("{} 150 / 400 MB", bar(15)));
        // Files may grow meanwhile.
        assert_eq!(line_after(350_000_000), format!("{} 500 / 400 MB", bar(40)));
        assert_eq!(Progress::new(0).line(), format!("{} 0 / 0 MB", bar(0)));
    }
}
