//! Times of several models, run in turns so that other load on the machine affects all.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_core::Tensor;

pub type Run<'a> = Box<dyn FnMut() -> Result<Tensor> + 'a>;

/// The number of rounds that run before times are taken.
const WARM_UP: usize = 2;
const MIN_ROUNDS: usize = 7;
const MAX_ROUNDS: usize = 60;
/// The time after which rounds end, if there were enough.
const LONG_ENOUGH: Duration = Duration::from_secs(2);

/// The median of each model's times, in milliseconds.
pub fn medians(mut runs: Vec<Run<'_>>) -> Result<Vec<f64>> {
    let mut times = vec![Vec::new(); runs.len()];
    let start = Instant::now();
    for round in 0..WARM_UP + MAX_ROUNDS {
        for turn in 0..runs.len() {
            // The order changes, since each model finds the machine as the one before left it.
            let i = if round % 2 == 0 { turn } else { runs.len() - 1 - turn };
            let start = Instant::now();
            runs[i]()?;
            if round >= WARM_UP {
                times[i].push(start.elapsed().as_secs_f64() * 1e3);
            }
        }
        if round >= WARM_UP + MIN_ROUNDS && start.elapsed() > LONG_ENOUGH {
            break;
        }
    }
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(times.into_iter().map(median).collect())
}
