//! A quantized model that many threads share: calls of mixed shapes return the bits of one thread,
//! and memory does not grow.

use std::alloc::System;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use candle_core::{DType, Device, Module, Result, Tensor};
use candle_dynquant::{QConfig, QConfigSpec, Quantizable, nn, ops, quantize_dynamic};
use candle_nn::{VarBuilder, VarMap};
use cap::Cap;

use crate::watchdog::Watchdog;

const WORDS: u32 = 500;
const HIDDEN: usize = 96;

/// A model with every kind of quantized layer, and the operations that share threads.
#[derive(Quantizable)]
pub struct Model {
    table: nn::Embedding,
    lstm: nn::LSTM,
    gru: nn::GRU,
    wide: nn::Linear,
    narrow: nn::Linear,
}

impl Model {
    pub fn float() -> Result<Self> {
        let vars = VarMap::new();
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let recurrent = Default::default;
        let wrap = candle_core::Error::wrap;
        Ok(Self {
            table: nn::embedding(WORDS as usize, HIDDEN, vb.pp("table"))?,
            lstm: nn::LSTM::new(HIDDEN, HIDDEN, recurrent(), vb.pp("lstm")).map_err(wrap)?,
            gru: nn::GRU::new(HIDDEN, HIDDEN, recurrent(), vb.pp("gru")).map_err(wrap)?,
            wide: nn::linear(HIDDEN, 8 * HIDDEN, vb.pp("wide"))?,
            narrow: nn::linear(8 * HIDDEN, HIDDEN, vb.pp("narrow"))?,
        })
    }

    pub fn quantized(qconfig: QConfig) -> Result<Self> {
        let mut model = Self::float()?;
        let spec = QConfigSpec::all_kinds(qconfig).embeddings();
        quantize_dynamic(&mut model, &spec).map_err(candle_core::Error::wrap)?;
        Ok(model)
    }

    /// Maps words `[steps, batch]` to `[steps, batch, HIDDEN]`.
    pub fn forward(&self, words: &Tensor) -> Result<Tensor> {
        let wrap = candle_core::Error::wrap;
        let xs = self.table.forward(words)?;
        let (xs, _) = self.lstm.forward(&xs, None).map_err(wrap)?;
        let heads = xs.transpose(0, 1)?.unsqueeze(1)?;
        let xs = ops::scaled_dot_product_attention(&heads, &heads, &heads, None, 0.1)?;
        let xs = xs.squeeze(1)?.transpose(0, 1)?.contiguous()?;
        let (xs, _) = self.gru.forward(&xs, None).map_err(wrap)?;
        let xs = ops::gelu(&self.wide.forward(&xs)?)?;
        ops::softmax_last_dim(&self.narrow.forward(&xs)?)
    }
}

/// Calls and the expected bits of their results.
pub struct Load {
    model: Model,
    calls: Vec<(Tensor, Vec<u32>)>,
    pub done: AtomicU64,
    pub watchdog: Watchdog,
}

impl Load {
    pub fn new(qconfig: QConfig) -> Result<Self> {
        let model = Model::quantized(qconfig)?;
        let alone = rayon::ThreadPoolBuilder::new().num_threads(1).build();
        let alone = alone.map_err(candle_core::Error::wrap)?;
        let mut calls = Vec::new();
        for (steps, batch) in [(1, 1), (12, 1), (3, 9), (1, 64), (5, 33), (2, 200)] {
            let words = (0..steps * batch).map(|i| i as u32 * 31 % WORDS);
            let words = Tensor::from_iter(words, &Device::Cpu)?.reshape((steps, batch))?;
            let expected = alone.install(|| bits(&model.forward(&words)?))?;
            calls.push((words, expected));
        }
        Ok(Self { model, calls, done: AtomicU64::new(0), watchdog: Watchdog::start() })
    }

    /// Makes a call, a different one each time.
    pub fn call(&self) {
        let index = self.done.fetch_add(1, Ordering::Relaxed);
        self.watchdog.step(format_args!("call {index}"));
        let (words, expected) = &self.calls[index as usize % self.calls.len()];
        let got = self.model.forward(words).and_then(|ys| bits(&ys));
        let got = got.expect("a result");
        assert!(got == *expected, "other bits of {words}");
    }

    /// Makes calls from a number of threads, and waits for the last of them to end; a scope alone
    /// does not wait for what ending threads free.
    pub fn call_by_threads(&self, threads: usize, duration: Duration) {
        thread::scope(|scope| {
            let call = || self.call_for(duration);
            let callers: Vec<_> = (0..threads).map(|_| scope.spawn(call)).collect();
            (callers.into_iter()).for_each(|caller| caller.join().expect("no failure"));
        });
    }

    pub fn call_for(&self, duration: Duration) {
        let start = Instant::now();
        while start.elapsed() < duration {
            self.call();
        }
    }
}

fn bits(tensor: &Tensor) -> Result<Vec<u32>> {
    let values = tensor.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f32::to_bits).collect())
}

/// The system's allocator, which counts the bytes that are allocated and not freed. The memory of
/// the process depends on how many threads happened to allocate at once.
pub type Counting = Cap<System>;

/// A program's allocator for [`leaks_nothing`].
pub const fn counting() -> Counting {
    Cap::new(System, usize::MAX)
}

/// Runs `work` for a while, then again for `duration`, which must not leave more memory allocated.
/// The memory that pool threads keep between calls is not counted.
pub fn leaks_nothing(allocator: &Counting, duration: Duration, work: impl Fn(Duration)) {
    const KEPT: usize = 8 << 20;
    work(duration / 5);
    let before = allocator.allocated();
    work(duration);
    let after = allocator.allocated();
    println!("allocated: {} kB, then {} kB", before >> 10, after >> 10);
    assert!(after < before + KEPT, "{before} bytes, then {after}");
}

/// Quantizes and drops a model repeatedly.
pub fn quantize_and_drop(duration: Duration) {
    let start = Instant::now();
    let mut times = 0;
    while start.elapsed() < duration {
        let model = Model::quantized(QConfig::int8()).expect("quantizes");
        let words = Tensor::zeros((2, 2), DType::U32, &Device::Cpu);
        words.and_then(|words| model.forward(&words)).expect("runs");
        times += 1;
    }
    println!("quantized {times} times");
}
