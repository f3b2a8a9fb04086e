//! Times several contenders in turns, so that drift of the machine hits all alike.

use std::thread;
use std::time::{Duration, Instant};

/// The shortest sample, for which the clock's resolution and one interruption do not matter.
const SAMPLE: Duration = Duration::from_micros(500);

/// The pause between samples: the threads of candle's pool spin for some 0.4 milliseconds after a
/// call, and would take a core from the next contender.
const PAUSE: Duration = Duration::from_millis(2);

/// The warm-up before each sample.
const WARM_UP: Duration = Duration::from_millis(6);

/// The median time of a call of each contender, in microseconds.
pub fn interleaved<T, E>(
    contenders: &[impl Fn() -> Result<T, E>],
    rounds: usize,
) -> Result<Vec<f64>, E> {
    let mut calls = Vec::new();
    for contender in contenders {
        contender()?;
        let start = Instant::now();
        for _ in 0..3 {
            contender()?;
        }
        calls.push((3. * SAMPLE.as_secs_f64() / start.elapsed().as_secs_f64()).ceil() as usize);
    }
    let mut samples = vec![Vec::new(); contenders.len()];
    for _ in 0..rounds {
        for ((samples, contender), calls) in samples.iter_mut().zip(contenders).zip(&calls) {
            thread::sleep(PAUSE);
            // The first calls wake the contender's threads, and the system may take some
            // milliseconds to move each to its core.
            let awake = Instant::now() + WARM_UP;
            while Instant::now() < awake {
                contender()?;
            }
            let start = Instant::now();
            for _ in 0..*calls {
                std::hint::black_box(contender()?);
            }
            samples.push(1e6 * start.elapsed().as_secs_f64() / *calls as f64);
        }
    }
    Ok(samples.into_iter().map(median).collect())
}

/// The median of one sample or more.
pub fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}
