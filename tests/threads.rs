//! Layers and operations in rayon pools of many sizes, called in every way: each call ends with the
//! bits of one thread.
//!
//! `DYNQUANT_LONG=1 cargo test --release --test threads` makes thousands of calls of each.

mod common;

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use candle_core::Result;
use candle_dynquant::nn::{self, Nonlinearity};
use candle_dynquant::ops;
use candle_dynquant_support::watchdog::Watchdog;
use common::*;
use rayon::prelude::*;

/// A computation, and the bits of its result on one thread.
struct Case {
    name: String,
    run: Box<dyn Fn() -> Result<Tensor> + Send + Sync>,
    expected: Vec<u32>,
}

impl Case {
    fn new<F>(name: impl Into<String>, run: F) -> Result<Self>
    where
        F: Fn() -> Result<Tensor> + Send + Sync + 'static,
    {
        let expected = bits(&pool(1).install(&run)?);
        Ok(Self { name: name.into(), run: Box::new(run), expected })
    }

    fn check(&self) {
        let got = bits(&(self.run)().expect("a result"));
        assert!(got == self.expected, "{}: other bits", self.name);
    }
}

fn pool(threads: usize) -> rayon::ThreadPool {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    pool.expect("a pool")
}

fn long() -> bool {
    std::env::var_os("DYNQUANT_LONG").is_some_and(|value| value == "1")
}

const PRESETS: [(&str, QConfig); 4] = [
    ("default", QConfig::pytorch()),
    ("per_row", QConfig::int8()),
    ("float16", QConfig::float16()),
    ("bfloat16", QConfig::bfloat16()),
];

fn quantized<L: Quantizable>(mut layer: L, qconfig: &QConfig) -> L {
    let spec = QConfigSpec::all_kinds(qconfig.clone());
    quantize_dynamic(&mut layer, &spec).expect("quantizes");
    layer
}

fn rnn(input: usize, hidden: usize) -> Result<nn::RNN> {
    let rnn = |vb| {
        let rnn = nn::RNN::new(input, hidden, Nonlinearity::Tanh, Default::default(), vb);
        rnn.map_err(candle_core::Error::wrap)
    };
    let vars = VarMap::new();
    rnn(VarBuilder::from_varmap(&vars, DType::F32, CPU))?;
    // Variables have gradients, and a float layer of variables uses candle's operations.
    let vars = vars.data().lock().expect("no panic while it was locked");
    rnn(weights(vars.iter().map(|(name, var)| (name, var.as_tensor().detach()))))
}

/// A recurrent layer in which one task quantizes more activations than a `Linear` does on one
/// thread.
fn large_rnn(steps: usize) -> Result<Case> {
    let rnn = quantized(rnn(8, 512)?, &QConfig::pytorch());
    let xs = randn(&[steps, 32, 8]);
    Case::new("RNN, default", move || Ok(rnn.forward(&xs, None)?.0))
}

fn cases() -> Result<Vec<Case>> {
    let vb = variables();
    let mut cases = vec![large_rnn(4)?];

    let wide = quantized(rnn(8, 512)?, &QConfig::int8());
    let xs = randn(&[1, 544, 8]);
    cases.push(Case::new("RNN of a wide batch, per_row", move || Ok(wide.forward(&xs, None)?.0))?);
    for (batch, hidden, steps) in [(1, 256, 8), (40, 64, 3)] {
        for (preset, qconfig) in &PRESETS {
            let name = |kind| format!("{kind}, batch {batch}, {preset}");
            let vb = vb.pp(name("layers"));
            let lstm = nn::LSTM::new(32, hidden, Default::default(), vb.pp("lstm"))?;
            let gru = nn::GRU::new(32, hidden, Default::default(), vb.pp("gru"))?;
            let (lstm, gru) = (quantized(lstm, qconfig), quantized(gru, qconfig));
            let xs = randn(&[steps, batch, 32]);
            let of_gru = xs.clone();
            cases.push(Case::new(name("LSTM"), move || Ok(lstm.forward(&xs, None)?.0))?);
            cases.push(Case::new(name("GRU"), move || Ok(gru.forward(&of_gru, None)?.0))?);
        }
    }
    for (preset, qconfig) in &PRESETS {
        let linear = quantized(nn::Linear::new(randn(&[700, 512]), None), qconfig);
        let xs = randn(&[48, 512]);
        cases.push(Case::new(format!("Linear, {preset}"), move || linear.forward(&xs))?);
    }
    let xs = randn(&[2, 4, 96, 32]);
    cases.push(Case::new("attention", move || {
        ops::scaled_dot_product_attention(&xs, &xs, &xs, None, 0.2)?.contiguous()
    })?);
    let xs = randn(&[2, 4, 96, 32]);
    cases.push(Case::new("attention, bfloat16", move || {
        let precision = ops::Precision::BFloat16;
        let mask = ops::Mask::Causal;
        ops::scaled_dot_product_attention_with(&xs, &xs, &xs, mask, 0.2, precision)?.contiguous()
    })?);
    let (flat, weight) = (randn(&[128, 384]), randn(&[384]));
    let (xs, of_norm) = (flat.clone(), weight.clone());
    cases.push(Case::new("layer norm", move || ops::layer_norm(&xs, &of_norm, None, 1e-5))?);
    let (xs, w) = (flat.clone(), weight.clone());
    let of_sum = move || ops::add_layer_norm(&xs, &xs, &w, Some(&w), 1e-5);
    cases.push(Case::new("layer norm of a sum", of_sum)?);
    let xs = flat.clone();
    let of_sum = move || {
        let (normal, sum) = ops::add_rms_norm(&xs, &xs, &weight, 1e-5)?;
        Tensor::cat(&[normal, sum], 0)
    };
    cases.push(Case::new("RMS norm of a sum", of_sum)?);
    let xs = flat.clone();
    cases.push(Case::new("softmax", move || ops::softmax_last_dim(&xs))?);
    cases.push(Case::new("gelu", move || ops::gelu(&flat))?);
    let mut table = nn::Embedding::new(randn(&[50, 128]), 128);
    quantize_dynamic(&mut table, &QConfigSpec::new().embeddings()).expect("quantizes");
    let ids = Tensor::from_iter((0..1_000u32).map(|i| i * 7 % 50), CPU)?;
    cases.push(Case::new("Embedding", move || table.forward(&ids))?);
    Ok(cases)
}

/// The ways in which a call gets into a pool; each makes about that many calls.
type Way = fn(&rayon::ThreadPool, usize, &(dyn Fn() + Sync));

const WAYS: [(&str, Way); 7] = [
    ("install", |pool, calls, call| {
        pool.install(|| (0..calls).for_each(|_| call()));
    }),
    ("par_iter", |pool, calls, call| {
        pool.install(|| (0..calls).into_par_iter().for_each(|_| call()));
    }),
    ("join", |pool, calls, call| {
        let half = || (0..calls.div_ceil(2)).for_each(|_| call());
        pool.install(|| rayon::join(half, half));
    }),
    ("scope", |pool, calls, call| {
        pool.scope(|scope| (0..calls).for_each(|_| scope.spawn(|_| call())));
    }),
    // A worker of one pool waits for another pool, and meanwhile runs the work of its pool.
    ("nested pools", |outer, calls, call| {
        let inner = pool(3);
        let call = || inner.install(call);
        outer.install(|| (0..calls).into_par_iter().for_each(|_| call()));
    }),
    // A call that ran another piece of the iterator while it waited would lock twice.
    ("par_iter over a lock", |pool, calls, call| {
        let lock = Mutex::new(());
        let call = |_| {
            let _guard = lock.lock();
            call();
        };
        pool.install(|| (0..calls).into_par_iter().for_each(call));
    }),
    ("threads beside the pool", |pool, calls, call| {
        let half = || (0..calls.div_ceil(2)).for_each(|_| call());
        std::thread::scope(|scope| {
            scope.spawn(half);
            pool.install(half);
        });
    }),
];

#[test]
fn every_call_in_a_pool_ends_with_the_bits_of_one_thread() -> Result<()> {
    let calls = if long() { 100 } else { 6 };
    let watchdog = Watchdog::start();
    let cases = cases()?;
    for threads in [2, 3, 4, 8, 20] {
        let pool = pool(threads);
        for (way, run) in WAYS {
            for case in &cases {
                let name = format!("{} by {way} on {threads} threads", case.name);
                watchdog.step(&name);
                run(&pool, calls, &|| {
                    case.check();
                    watchdog.step(&name);
                });
            }
            // The ways take turns: a thread that helps works for others.
            let name = format!("all by {way} on {threads} threads");
            let turn = AtomicUsize::new(0);
            run(&pool, calls * cases.len() / 4, &|| {
                cases[turn.fetch_add(1, Ordering::Relaxed) % cases.len()].check();
                watchdog.step(&name);
            });
        }
    }
    for case in &cases {
        let name = format!("{} by Device::with_context", case.name);
        watchdog.step(&name);
        Device::Cpu.with_context(|| {
            for _ in 0..calls {
                case.check();
                watchdog.step(&name);
            }
        });
    }
    Ok(())
}

/// 30,000 calls on each number of threads in the long form.
#[test]
fn a_large_recurrence_ends_in_a_pool() -> Result<()> {
    let calls = if long() { 30_000 } else { 30 };
    let watchdog = Watchdog::start();
    let case = large_rnn(20)?;
    for threads in [3, 4, 8] {
        pool(threads).install(|| {
            for call in 0..calls {
                case.check();
                watchdog.step(format_args!("call {call} on {threads} threads"));
            }
        });
        println!("{calls} calls on {threads} threads");
    }
    Ok(())
}

/// A function to call as its thread ends.
struct AtEnd(Cell<Option<Box<dyn FnOnce()>>>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

thread_local! {
    static AT_END: AtEnd = const { AtEnd(Cell::new(None)) };
}

/// Thread-locals are destroyed from the last to the first: the crate's are gone if the thread began
/// with the caller's, and are created at the end if it made no other call.
#[test]
fn a_call_in_a_destructor_of_a_thread_has_the_same_bits() -> Result<()> {
    let watchdog = Watchdog::start();
    let cases = Arc::new(cases()?);
    for (index, case) in cases.iter().enumerate() {
        for (calls_before, calls_after) in [(false, true), (true, false), (false, false)] {
            watchdog.step(&case.name);
            let (sender, receiver) = mpsc::channel();
            let (of_end, of_thread) = (Arc::clone(&cases), Arc::clone(&cases));
            let at_end = move || {
                _ = sender.send(bits(&(of_end[index].run)().expect("a result")));
            };
            let thread = thread::spawn(move || {
                if calls_before {
                    of_thread[index].check();
                }
                AT_END.with(|own| own.0.set(Some(Box::new(at_end))));
                if calls_after {
                    of_thread[index].check();
                }
            });
            thread.join().expect("no panic");
            let got = receiver.recv().expect("bits");
            assert!(got == case.expected, "{}: other bits", case.name);
        }
    }
    Ok(())
}

const CHILD: &str = "DYNQUANT_WITHOUT_THREADS";

/// Runs in a process that cannot start threads: the only thread makes all calls.
#[test]
fn child_without_threads() -> Result<()> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    assert!(std::thread::Builder::new().spawn(|| {}).is_err());
    let rnn = rnn(8, 512)?;
    let xs = randn(&[3, 32, 8]);
    let float = rnn.forward(&xs, None)?.0;
    for (_, qconfig) in &PRESETS {
        let int8 = quantized(rnn.clone(), qconfig);
        let ys = int8.forward(&xs, None)?.0;
        assert!((ys - &float)?.abs()?.max_all()?.to_scalar::<f32>()? < 0.1);
    }
    let layer = nn::Linear::new(randn(&[700, 512]), None);
    let xs = randn(&[48, 512]);
    // Not by the float layer: candle multiplies in rayon's pool.
    let float16 = quantized(layer.clone(), &QConfig::float16()).forward(&xs)?;
    let ys = quantized(layer, &QConfig::int8()).forward(&xs)?;
    assert!((ys - float16)?.abs()?.max_all()?.to_scalar::<f32>()? < 2.);
    ops::softmax_last_dim(&randn(&[128, 384]))?;
    println!("ended without threads");
    Ok(())
}

#[test]
fn where_no_thread_can_be_started_the_caller_computes_alone() {
    let child = std::env::current_exe().map(std::process::Command::new);
    let child = child
        .expect("own path")
        // With one test thread the tests run on the main thread.
        .args(["child_without_threads", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .env("CANDLE_NUM_THREADS", "4")
        .env("RAYON_NUM_THREADS", "4")
        // No system has as much memory for a stack.
        .env("RUST_MIN_STACK", (1u64 << 50).to_string())
        .output()
        .expect("the child runs");
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && output.contains("ended without threads"), "{child:?}");
}
