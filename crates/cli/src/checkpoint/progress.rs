//! A progress bar, on a terminal only.

use std::io::{IsTerminal, stderr};

use candle_dynquant_io::print;

pub struct Progress {
    done: u64,
    total: u64,
    /// Prints the bar; `None` if stderr is not a terminal.
    show: Option<fn(String)>,
}

impl Progress {
    const WIDTH: u64 = 40;

    pub fn new(total: u64) -> Self {
        Self {
            done: 0,
            total: total.max(1),
            show: stderr().is_terminal().then_some(print::progress),
        }
    }

    /// Advances the bar by `bytes`.
    pub fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if let Some(show) = self.show {
            show(self.line());
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
        if let Some(show) = self.show
            && self.done > 0
        {
            show("\n".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::Progress;

    thread_local! {
        static SHOWN: RefCell<String> = const { RefCell::new(String::new()) };
    }

    fn new(total: u64) -> Progress {
        let show = |text: String| SHOWN.with_borrow_mut(|shown| shown.push_str(&text));
        Progress { show: Some(show), ..Progress::new(total) }
    }

    #[test]
    fn the_bar_is_as_long_as_what_is_done() {
        let mut progress = new(400_000_000);
        // Files may grow in the meantime.
        for bytes in [0, 100_000_000, 50_000_000, 350_000_000] {
            progress.add(bytes);
        }
        drop(progress);
        let bar = |parts: usize| format!("\r[{}{}]", "#".repeat(parts), " ".repeat(40 - parts));
        let expected = [
            format!("{} 0 / 400 MB", bar(0)),
            format!("{} 100 / 400 MB", bar(10)),
            format!("{} 150 / 400 MB", bar(15)),
            format!("{} 500 / 400 MB\n", bar(40)),
        ];
        assert_eq!(SHOWN.take(), expected.concat());
        assert_eq!(new(0).line(), format!("{} 0 / 0 MB", bar(0)));
        // A bar that was never shown is not ended.
        assert_eq!(SHOWN.take(), "");
    }
}
