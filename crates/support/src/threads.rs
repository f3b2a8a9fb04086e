//! Fixes the thread counts of candle's pools for a whole process.

use std::process::{Command, ExitCode};

/// Restarts this program with `RAYON_NUM_THREADS` and `CANDLE_NUM_THREADS` set to `threads`, unless
/// they are already; where a process cannot replace its program, waits for a second process and
/// returns its exit code.
///
/// The pools read the variables when they start, and a running process cannot set its own
/// environment safely.
///
/// # Errors
/// When the program cannot be started again.
pub fn respawn(threads: usize) -> std::io::Result<Option<ExitCode>> {
    const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];
    let threads = threads.to_string();
    let set = |name| std::env::var(name).is_ok_and(|value| value == threads);
    if VARIABLES.into_iter().all(set) {
        return Ok(None);
    }
    let mut again = Command::new(std::env::current_exe()?);
    again.args(std::env::args_os().skip(1)).envs(VARIABLES.map(|name| (name, &threads)));
    #[cfg(unix)]
    {
        // The program is replaced, so a signal to this process leaves no child running.
        use std::os::unix::process::CommandExt;
        Err(again.exec())
    }
    #[cfg(not(unix))]
    {
        let code = again.status()?.code();
        let code = code.and_then(|code| u8::try_from(code).ok());
        Ok(Some(code.map_or(ExitCode::FAILURE, ExitCode::from)))
    }
}
