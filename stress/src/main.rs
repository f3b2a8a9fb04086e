//! One quantized model under load, for ten minutes in all unless told otherwise:
//!
//! ```text
//! cargo run --release -p stress [-- SECONDS]
//! ```
//!
//! Calls of mixed shapes by 64 threads of the standard library, in a rayon pool, in tokio's
//! blocking pool, and in forked children; then quantizing and dropping a model again and again.
//! Every result has the bits of one thread, nothing hangs, and memory does not grow.

use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use candle_dynquant::QConfig;
use candle_dynquant_io::print;
use candle_dynquant_support::load::{Counting, Load, counting, leaks_nothing, quantize_and_drop};

#[global_allocator]
static ALLOCATOR: Counting = counting();

const CALLERS: usize = 64;

/// Made once: a pool that is dropped does not wait for its threads, whose memory would be counted.
static POOL: LazyLock<rayon::ThreadPool> = LazyLock::new(|| {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(CALLERS);
    pool.build().expect("a pool")
});

/// A way to make calls of a load for a while.
type Way = fn(&Arc<Load>, Duration) -> Result<()>;

const WAYS: [(&str, Way); 4] = [
    ("std::thread", |load, duration| {
        load.call_by_threads(CALLERS, duration);
        Ok(())
    }),
    ("rayon", |load, duration| {
        POOL.broadcast(|_| load.call_for(duration));
        Ok(())
    }),
    ("tokio's blocking pool", |load, duration| {
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(CALLERS).build()?;
        let tasks: Vec<_> = (0..CALLERS)
            .map(|_| {
                let load = Arc::clone(load);
                runtime.spawn_blocking(move || load.call_for(duration))
            })
            .collect();
        tasks.into_iter().try_for_each(|task| runtime.block_on(task)).context("a task of tokio's")
    }),
    ("forked children beside callers", |load, duration| {
        let start = Instant::now();
        thread::scope(|scope| {
            (0..4).for_each(|_| _ = scope.spawn(|| load.call_for(duration)));
            while start.elapsed() < duration {
                fork_and_call(load)?;
            }
            Ok(())
        })
    }),
];

/// A child of this process, forked while other threads are at work, makes some calls.
fn fork_and_call(load: &Load) -> Result<()> {
    // SAFETY: the child, which has no thread but this one, computes and exits without unwinding
    // into what it shares with its parent.
    let child = unsafe { libc::fork() };
    ensure!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    if child == 0 {
        let calls = std::panic::AssertUnwindSafe(|| (0..20).for_each(|_| load.call()));
        let status = std::panic::catch_unwind(calls).is_err();
        // SAFETY: nothing of the parent's, such as its buffers, is flushed twice.
        unsafe { libc::_exit(i32::from(status)) };
    }
    let start = Instant::now();
    let mut status = 0;
    loop {
        // SAFETY: `child` is a child that has not been waited for, `status` a local.
        match unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } {
            0 => {}
            pid if pid == child => break,
            _ => anyhow::bail!("waitpid: {}", std::io::Error::last_os_error()),
        }
        if start.elapsed() > Duration::from_secs(60) {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            anyhow::bail!("a forked child hangs");
        }
        thread::sleep(Duration::from_millis(1));
    }
    ensure!(status == 0, "a forked child ended with {status}");
    load.done.fetch_add(20, Ordering::Relaxed);
    Ok(())
}

fn main() -> Result<()> {
    let seconds = std::env::args().nth(1).map(|seconds| seconds.parse());
    let seconds = seconds.transpose().context("the argument is a number of seconds")?;
    let each = Duration::from_secs(seconds.unwrap_or(600)) / (WAYS.len() as u32 + 1);
    for (way, run) in WAYS {
        let load = Arc::new(Load::new(QConfig::pytorch())?);
        print::line(way)?;
        leaks_nothing(&ALLOCATOR, each.mul_f64(5. / 6.), |duration| {
            run(&load, duration).expect("no failure");
        });
        print::line(format_args!("{} calls", load.done.load(Ordering::Relaxed)))?;
    }
    print::line("quantize and drop")?;
    leaks_nothing(&ALLOCATOR, each.mul_f64(5. / 6.), quantize_and_drop);
    Ok(print::line("no fault")?)
}
