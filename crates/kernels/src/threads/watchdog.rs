//! Ends a test that hangs.

use std::fmt::Display;
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// The longest that a step of a test may take, however busy the machine is; Miri takes a thousand
/// times as long.
const LIMIT: Duration = Duration::from_secs(if cfg!(miri) { 7_200 } else { 120 });

/// Prints the step that a test is at and aborts the process if the step takes longer than
/// `LIMIT`: a thread that hangs cannot be ended, and would keep the test from failing.
pub struct Watchdog(Arc<Mutex<(Instant, String)>>);

impl Watchdog {
    pub fn start() -> Self {
        let step = Arc::new(Mutex::new((Instant::now(), "the first step".to_owned())));
        let watched = Arc::downgrade(&step);
        thread::spawn(move || watch(&watched));
        Self(step)
    }

    /// Begins a step; of several that threads begin at once, one.
    pub fn step(&self, name: impl Display) {
        // Never waits: in a forked child, a thread that does not exist there may hold the lock.
        if let Ok(mut step) = self.0.try_lock() {
            *step = (Instant::now(), name.to_string());
        }
    }
}

fn watch(step: &Weak<Mutex<(Instant, String)>>) {
    while let Some(step) = step.upgrade() {
        if let Ok(step) = step.lock()
            && step.0.elapsed() > LIMIT
        {
            eprintln!("a test hangs at: {}", step.1);
            std::process::abort();
        }
        drop(step);
        thread::sleep(Duration::from_millis(500));
    }
}
