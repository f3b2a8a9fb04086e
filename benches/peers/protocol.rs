//! The protocol between `run.py` and a process of contenders: one JSON object per line on standard
//! input, and one on standard output.
//!
//! - `{"op": "load", "case": .., "file": .., "out": ..}`: makes the contenders of a case from the
//!   tensors of a file, and writes what they return to another
//! - `{"op": "time", "contender": .., "calls": ..}`: microseconds of a call, one after the other
//! - `{"op": "concurrent", "contender": .., "threads": .., "seconds": ..}`: microseconds per call
//!   where that many threads call in a loop

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};

/// Something that is timed: a whole call.
pub type Contender = Box<dyn Fn() -> Result<Tensor> + Send + Sync>;

pub fn contender(call: impl Fn() -> Result<Tensor> + Send + Sync + 'static) -> Contender {
    Box::new(call)
}

pub type Tensors = HashMap<String, Tensor>;

/// A prepared case: contenders by name, and outputs to compare, also of contenders that do not
/// return them.
#[derive(Default)]
pub struct Case {
    pub contenders: Vec<(&'static str, Contender)>,
    pub outputs: Vec<(&'static str, Tensor)>,
}

pub trait Process {
    fn load(&mut self, case: &Value, tensors: Tensors) -> Result<Case>;

    /// Answers all other requests.
    fn answer(&self, request: &Value) -> Result<Value> {
        anyhow::bail!("unknown request {request}")
    }
}

/// Answers requests until the input ends.
pub fn serve(mut process: impl Process) -> Result<()> {
    let mut case = Case::default();
    for line in std::io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let answer = answer(&mut process, &mut case, &request);
        let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
        let mut stdout = std::io::stdout().lock();
        writeln!(stdout, "{answer}")?;
        stdout.flush()?;
    }
    Ok(())
}

fn answer(process: &mut impl Process, case: &mut Case, request: &Value) -> Result<Value> {
    match text(request, "op")? {
        "load" => {
            let tensors = candle_core::safetensors::load(text(request, "file")?, &Device::Cpu)?;
            *case = process.load(&request["case"], tensors)?;
            let mut outputs: HashMap<_, _> = case.outputs.drain(..).collect();
            for (name, contender) in &case.contenders {
                if !outputs.contains_key(name) {
                    outputs.insert(name, contender()?);
                }
            }
            candle_core::safetensors::save(&outputs, text(request, "out")?)?;
            let names: Vec<_> = case.contenders.iter().map(|(name, _)| name).collect();
            Ok(json!({ "contenders": names }))
        }
        "time" => {
            let (contender, calls) = (find(case, request)?, size(request, "calls")?);
            let start = Instant::now();
            for _ in 0..calls {
                std::hint::black_box(contender()?);
            }
            Ok(json!({ "us": 1e6 * start.elapsed().as_secs_f64() / calls as f64 }))
        }
        "concurrent" => {
            let seconds = request["seconds"].as_f64().context("seconds is missing")?;
            let us = concurrent(
                find(case, request)?,
                size(request, "threads")?,
                Duration::from_secs_f64(seconds),
            )?;
            Ok(json!({ "us": us }))
        }
        _ => process.answer(request),
    }
}

fn find<'a>(case: &'a Case, request: &Value) -> Result<&'a Contender> {
    let wanted = text(request, "contender")?;
    let found = case.contenders.iter().find(|(name, _)| *name == wanted);
    Ok(&found.with_context(|| format!("no contender {wanted}"))?.1)
}

/// Microseconds by calls that `threads` threads got through in `duration`.
fn concurrent(contender: &Contender, threads: usize, duration: Duration) -> Result<f64> {
    let calls = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            while start.elapsed() < duration {
                std::hint::black_box(contender()?);
                calls.fetch_add(1, Relaxed);
            }
            Ok(())
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no panic"))
    })?;
    Ok(1e6 * start.elapsed().as_secs_f64() / calls.into_inner() as f64)
}

pub fn text<'a>(json: &'a Value, key: &str) -> Result<&'a str> {
    let text = json[key].as_str();
    text.with_context(|| format!("{key} is missing"))
}

pub fn size(json: &Value, key: &str) -> Result<usize> {
    let size = json[key].as_u64().map(|size| size as usize);
    size.with_context(|| format!("{key} is missing"))
}

pub fn take(tensors: &mut Tensors, name: &str) -> Result<Tensor> {
    tensors.remove(name).with_context(|| format!("no tensor {name}"))
}
