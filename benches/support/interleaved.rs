//! Times several contenders in turns, so that a machine's drift hits all alike.

use std::time::{Duration, Instant};

/// A sample lasts long enough that the clock and one interruption do not matter.
const SAMPLE: Duration = Duration::from_micros(500);

/// Median microseconds of a call of each.
pub fn interleaved<const C: usize, T, E>(
    mut contenders: [impl FnMut() -> Result<T, E>; C],
    rounds: usize,
) -> Result<[f64; C], E> {
    let mut calls = [1usize; C];
    for (calls, contender) in calls.iter_mut().zip(&mut contenders) {
        contender()?;
        let start = Instant::now();
        for _ in 0..3 {
            contender()?;
        }
        *calls = (3. * SAMPLE.as_secs_f64() / start.elapsed().as_secs_f64()).ceil() as usize;
    }
    let mut samples = [const { Vec::new() }; C];
    for _ in 0..rounds {
        for ((samples, contender), calls) in samples.iter_mut().zip(&mut contenders).zip(calls) {
            let start = Instant::now();
            for _ in 0..calls {
                std::hint::black_box(contender()?);
            }
            samples.push(1e6 * start.elapsed().as_secs_f64() / calls as f64);
        }
    }
    Ok(samples.map(|mut samples| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }))
}
