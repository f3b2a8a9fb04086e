//! SIGINT and SIGTERM.

use std::io;

/// Waits for SIGINT or SIGTERM; the handlers are installed when this returns.
#[cfg(unix)]
pub fn interrupted() -> io::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        }
    })
}

/// Waits for ctrl-c.
#[cfg(not(unix))]
pub fn interrupted() -> io::Result<impl Future<Output = &'static str>> {
    Ok(async {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "ctrl-c",
            // Without signals the program runs until it is killed.
            Err(_) => std::future::pending().await,
        }
    })
}
