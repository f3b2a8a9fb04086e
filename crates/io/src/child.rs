//! Child processes that end: within a limit, and with their parent.
//!
//! A child leads its process group, so every process that it starts ends with it. Ctrl-c at a
//! terminal does not reach that group: where this process is ended by SIGINT, SIGTERM or SIGHUP
//! while children run, it ends the children first, then itself by the signal. A program that
//! otherwise handles one of these signals is ended nevertheless while a child runs.
//!
//! SIGKILL cannot be handled. After it, a child on Linux ends once it has used its processor time.

use std::io::{self, ErrorKind, Read, Write};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// The most bytes that a child may write to a pipe.
pub const MAX_OUTPUT: u64 = 64 << 20;

/// The longest time between two checks of a child.
const TICK: Duration = Duration::from_millis(20);

/// Runs a command until it ends, or kills it at `limit`. The command reads `stdin`; its stdout and
/// stderr are returned where they are [`Stdio::piped`]. On Linux `limit` is also the processor time
/// that each of its processes may use.
///
/// # Errors
/// When the command cannot be started, writes more than [`MAX_OUTPUT`], or has not ended within
/// `limit` or its processor time ([`ErrorKind::TimedOut`]).
pub fn run(command: &mut Command, stdin: &[u8], limit: Duration) -> io::Result<Output> {
    let start = Instant::now();
    let left = || limit.saturating_sub(start.elapsed());
    let mut running =
        Running { child: group::start(command.stdin(Stdio::piped()), limit)?, has_ended: false };
    // Each pipe has a thread: a pipe holds little, and a child may write before it reads, or never
    // read.
    if let Some(mut pipe) = running.child.stdin.take() {
        let stdin = stdin.to_vec();
        // A child that ends without reading breaks the pipe; its status says whether that is an
        // error.
        spawn(move || drop(pipe.write_all(&stdin)))?;
    }
    let stdout = running.child.stdout.take().map(read).transpose()?;
    let stderr = running.child.stderr.take().map(read).transpose()?;
    let mut tick = Duration::from_millis(1);
    let status = loop {
        group::heed_signals();
        if let Some(status) = running.child.try_wait()? {
            if group::has_spent_its_time(status) {
                return Err(too_long(limit));
            }
            break status;
        }
        if left().is_zero() {
            return Err(too_long(limit));
        }
        thread::sleep(tick.min(left()));
        tick = (2 * tick).min(TICK);
    };
    let text = |pipe: Option<Receiver<io::Result<Vec<u8>>>>| match pipe {
        // Processes that the child has left behind may still write.
        Some(pipe) => pipe.recv_timeout(left()).map_err(|_| too_long(limit))?,
        None => Ok(Vec::new()),
    };
    let (stdout, stderr) = (text(stdout)?, text(stderr)?);
    running.has_ended = true;
    Ok(Output { status, stdout, stderr })
}

fn too_long(limit: Duration) -> io::Error {
    let message = format!("not ended within {} s", limit.as_secs_f64());
    io::Error::new(ErrorKind::TimedOut, message)
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().spawn(work).map(drop)
}

/// Reads a pipe to its end on a thread.
fn read(pipe: impl Read + Send + 'static) -> io::Result<Receiver<io::Result<Vec<u8>>>> {
    let (sender, receiver) = mpsc::channel();
    spawn(move || {
        let mut bytes = Vec::new();
        let read = pipe.take(MAX_OUTPUT + 1).read_to_end(&mut bytes);
        let is_too_long = bytes.len() as u64 > MAX_OUTPUT;
        let bytes = read.and_then(|_| {
            if is_too_long {
                let message = format!("expected at most {MAX_OUTPUT} bytes of output, got more");
                return Err(io::Error::new(ErrorKind::FileTooLarge, message));
            }
            Ok(bytes)
        });
        // Nobody receives after the limit has passed.
        let _ = sender.send(bytes);
    })?;
    Ok(receiver)
}

/// A child that is killed on drop, with its group, unless it has ended.
struct Running {
    child: Child,
    has_ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            group::kill(&mut self.child);
            // Without a wait the killed child would stay as a zombie.
            let _ = self.child.wait();
        }
        group::forget(&self.child);
    }
}

#[cfg(unix)]
mod group {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use rustix::process::{Pid, Signal, kill_process_group};
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::{flag, low_level};

    use super::*;

    /// The signal that has arrived while children run.
    static RECEIVED: AtomicUsize = AtomicUsize::new(0);
    /// Whether no child runs, in which case signals keep their default effect.
    static IDLE: AtomicBool = AtomicBool::new(true);
    /// The running children; `None` before the first.
    static RUNNING: Mutex<Option<Vec<Pid>>> = Mutex::new(None);

    fn running() -> MutexGuard<'static, Option<Vec<Pid>>> {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn start(command: &mut Command, limit: Duration) -> io::Result<Child> {
        let mut running = running();
        if running.is_none() {
            for signal in [SIGINT, SIGTERM, SIGHUP] {
                // Under nohup, for example.
                if !is_ignored(signal) {
                    flag::register_conditional_default(signal, &IDLE)?;
                    flag::register_usize(signal, &RECEIVED, signal as usize)?;
                }
            }
        }
        let children = running.get_or_insert_default();
        IDLE.store(false, Ordering::SeqCst);
        match command.process_group(0).spawn() {
            Ok(child) => {
                let pid = Pid::from_child(&child);
                children.push(pid);
                limit_processor_time(pid, limit);
                Ok(child)
            }
            Err(error) => {
                IDLE.store(children.is_empty(), Ordering::SeqCst);
                drop(running);
                heed_signals();
                Err(error)
            }
        }
    }

    fn is_ignored(signal: i32) -> bool {
        // The file is missing on systems other than Linux.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }

    #[cfg(target_os = "linux")]
    fn limit_processor_time(pid: Pid, limit: Duration) {
        use rustix::process::{Resource, Rlimit, prlimit};
        let seconds = limit.as_secs().saturating_add(1);
        // SIGXCPU at the first, SIGKILL at the second.
        let limit = Rlimit { current: Some(seconds), maximum: Some(seconds.saturating_add(1)) };
        let no_core = Rlimit { current: Some(0), maximum: Some(0) };
        // The child may have ended, or have a lower limit.
        let _ = prlimit(Some(pid), Resource::Cpu, limit);
        // SIGXCPU would write one.
        let _ = prlimit(Some(pid), Resource::Core, no_core);
    }

    #[cfg(not(target_os = "linux"))]
    fn limit_processor_time(_: Pid, _: Duration) {}

    /// Whether the child was ended at its limit of processor time, which it can reach before the
    /// next check of its limit.
    pub fn has_spent_its_time(status: ExitStatus) -> bool {
        status.signal() == Some(Signal::XCPU.as_raw())
    }

    /// Ends the children and this process if a signal has arrived.
    pub fn heed_signals() {
        let signal = RECEIVED.load(Ordering::SeqCst);
        if signal != 0 {
            let running = running();
            for pid in running.iter().flatten() {
                let _ = kill_process_group(*pid, Signal::KILL);
            }
            // The call returns for unknown signals only.
            let _ = low_level::emulate_default_handler(signal as i32);
        }
    }

    pub fn kill(child: &mut Child) {
        let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
        // The child may have left the group.
        let _ = child.kill();
    }

    pub fn forget(child: &Child) {
        let pid = Pid::from_child(child);
        {
            let mut running = running();
            let children = running.get_or_insert_default();
            children.retain(|other| *other != pid);
            IDLE.store(children.is_empty(), Ordering::SeqCst);
        }
        // Heeds a signal that arrived before this one, which has no other handler.
        heed_signals();
    }
}

#[cfg(not(unix))]
mod group {
    use super::*;

    pub fn start(command: &mut Command, _: Duration) -> io::Result<Child> {
        command.spawn()
    }

    pub fn has_spent_its_time(_: ExitStatus) -> bool {
        false
    }

    pub fn heed_signals() {}

    pub fn kill(child: &mut Child) {
        // The child may have ended.
        let _ = child.kill();
    }

    pub fn forget(_: &Child) {}
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// A limit far longer than any test takes, also on a busy machine.
    const LONG: Duration = Duration::from_secs(120);
    const SHORT: Duration = Duration::from_millis(300);

    fn kind(script: &str, stdin: &[u8]) -> ErrorKind {
        run(&mut sh(script), stdin, SHORT).unwrap_err().kind()
    }

    #[test]
    fn it_reads_and_writes_more_than_pipes_hold() {
        let text = b"0123456789abcde\n".repeat(1 << 16);
        let output = run(&mut sh("tee /dev/stderr"), &text, LONG).unwrap();
        assert!(output.status.success());
        assert!(output.stdout == text && output.stderr == text);
    }

    #[test]
    fn it_may_leave_its_input_and_fail() {
        let output = run(&mut sh("echo no >&2; exit 3"), &vec![0; 1 << 20], LONG).unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert!(output.stdout.is_empty() && output.stderr == b"no\n");
    }

    #[test]
    fn it_is_killed_at_the_limit_with_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("mark");
        let script = format!("(sleep 1; touch {}) & sleep 1000", mark.display());
        assert_eq!(kind(&script, b""), ErrorKind::TimedOut);
        assert_eq!(kind("while :; do :; done", &vec![0; 1 << 20]), ErrorKind::TimedOut);
        // A process that the child leaves behind does not hold its output open either.
        assert_eq!(kind("sleep 1000 & exit 0", b""), ErrorKind::TimedOut);
        thread::sleep(Duration::from_millis(900));
        assert!(!mark.exists());
    }

    #[test]
    fn the_end_of_its_processor_time_is_its_limit() {
        // The kernel sends the signal before this process looks again, on a busy machine.
        let killed = run(&mut sh("kill -s XCPU $$"), b"", LONG).unwrap_err();
        assert_eq!(killed.kind(), ErrorKind::TimedOut);
        assert!(!run(&mut sh("kill -s KILL $$"), b"", LONG).unwrap().status.success());
    }

    #[test]
    fn output_without_end_is_not_kept() {
        let error = run(&mut sh("exec cat /dev/zero"), b"", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn one_that_is_not_there_is_an_error() {
        let error = run(&mut Command::new("/nothing/here"), b"", LONG).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
