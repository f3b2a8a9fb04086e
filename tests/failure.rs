//! Custom layers that fail: an error or a panic at any call reaches the caller, and the model is
//! unchanged, bit for bit.

mod common;

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use candle_core::Storage;
use candle_dynquant::{Error, LentWeight, Result, WeightInfo};
use candle_dynquant::{Walk, WalkMut};
use common::*;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Failure {
    Error,
    Panic,
}

thread_local! {
    /// Calls so far.
    static CALLS: Cell<usize> = const { Cell::new(0) };
    /// The index of the failing call, and the kind of failure.
    static FAILS: Cell<Option<(usize, Failure)>> = const { Cell::new(None) };
    /// Calls after which all fail that show a layer of this number.
    static STUBBORN: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

const MESSAGE: &str = "a layer that fails";

/// A call that may fail.
fn call() -> Result<()> {
    CALLS.set(CALLS.get() + 1);
    match FAILS.get() {
        Some((at, Failure::Error)) if at == CALLS.get() => {
            Err(Error::new(ErrorKind::InvalidArgument, MESSAGE))
        }
        Some((at, Failure::Panic)) if at == CALLS.get() => panic!("{MESSAGE}"),
        _ => Ok(()),
    }
}

/// A call that cannot return an error.
fn infallible() {
    // The other calls cover errors.
    let _ = call();
}

#[derive(Debug)]
struct Trap {
    number: usize,
    inner: Inner,
}

#[derive(Clone, Debug)]
enum Inner {
    Linear(nn::Linear),
    Table(nn::Embedding),
}

impl Inner {
    fn layer(&self) -> &dyn Layer {
        match self {
            Self::Linear(inner) => inner,
            Self::Table(inner) => inner,
        }
    }
}

impl Clone for Trap {
    fn clone(&self) -> Self {
        infallible();
        Self { number: self.number, inner: self.inner.clone() }
    }
}

impl Layer for Trap {
    fn kind(&self) -> LayerKind {
        infallible();
        self.inner.layer().kind()
    }

    fn checkpoint_name(&self) -> Option<&str> {
        infallible();
        None
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        infallible();
        self.inner.layer().weight_infos()
    }

    fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
        call()?;
        let inner = match &self.inner {
            Inner::Linear(inner) => Inner::Linear(inner.quantize(qconfig)?),
            Inner::Table(inner) => Inner::Table(inner.quantize(qconfig)?),
        };
        Ok(Self { number: self.number, inner })
    }

    fn lend(&self, name: &str) -> Option<LentWeight> {
        infallible();
        self.inner.layer().lend(name)
    }

    fn quantize_sharing(&self, qconfig: &QConfig, lent: &LentWeight) -> Option<Self> {
        infallible();
        let inner = match &self.inner {
            Inner::Linear(inner) => Inner::Linear(inner.quantize_sharing(qconfig, lent)?),
            Inner::Table(inner) => Inner::Table(inner.quantize_sharing(qconfig, lent)?),
        };
        Some(Self { number: self.number, inner })
    }
}

impl Quantizable for Trap {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        call()?;
        walk.layer(self)?;
        call()
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        call()?;
        if let Some((number, after)) = STUBBORN.get()
            && number == self.number
            && CALLS.get() > after
        {
            panic!("{MESSAGE}");
        }
        walk.layer(self)?;
        call()
    }
}

#[derive(Quantizable, Clone)]
struct Block {
    traps: (Trap, Trap),
    within: Arc<Trap>,
}

/// Layers side by side, within pointers, and within pointers within pointers.
#[derive(Quantizable)]
struct Model {
    table: Trap,
    inner: Arc<Trap>,
    block: Arc<Block>,
    list: Vec<Trap>,
    again: Arc<Block>,
    head: Option<Box<Trap>>,
    float: Trap,
}

fn linear(number: usize) -> Trap {
    let values: Vec<f32> = (0..12).map(|i| (i * number + i) as f32 - 6.).collect();
    let weight = Tensor::from_vec(values, (4, 3), CPU).expect("a weight");
    let inner = Inner::Linear(nn::Linear::new(weight, None));
    Trap { number, inner }
}

fn model() -> Model {
    let head = linear(7);
    let Inner::Linear(tied) = &head.inner else { unreachable!() };
    let table = nn::Embedding::new(tied.weight().clone(), 3);
    let inner = Arc::new(linear(2));
    let block = Arc::new(Block { traps: (linear(3), linear(4)), within: Arc::clone(&inner) });
    Model {
        table: Trap { number: 1, inner: Inner::Table(table) },
        inner,
        again: Arc::clone(&block),
        block,
        list: vec![linear(5), linear(6)],
        head: Some(Box::new(head)),
        float: linear(8),
    }
}

fn spec() -> QConfigSpec {
    all_int8().embeddings().exclude(["float"])
}

/// Every weight by the address of its memory and its bits, and every pointer.
fn state(model: &Model) -> (Vec<(usize, Vec<u32>)>, [*const (); 4]) {
    let block = &model.block;
    let traps = [
        &model.table,
        &model.inner,
        &block.traps.0,
        &block.traps.1,
        &block.within,
        &model.list[0],
        &model.list[1],
        model.head.as_ref().expect("a head"),
        &model.float,
    ];
    let weights = traps.map(|trap| {
        let weight = match &trap.inner {
            Inner::Linear(inner) => inner.weight(),
            Inner::Table(inner) => inner.embeddings(),
        };
        let quantized = trap.inner.layer().weight_infos()[0].quantized;
        assert!(!quantized, "layer {} was quantized", trap.number);
        let (storage, _) = weight.storage_and_layout();
        let Storage::Cpu(storage) = &*storage else { unreachable!() };
        let values = storage.as_slice::<f32>().expect("f32");
        let bits = values.iter().map(|value| value.to_bits()).collect();
        (values.as_ptr().addr(), bits)
    });
    let pointers = [
        Arc::as_ptr(&model.inner).cast(),
        Arc::as_ptr(&model.block).cast(),
        Arc::as_ptr(&model.again).cast(),
        Arc::as_ptr(&block.within).cast(),
    ];
    (weights.into(), pointers)
}

fn message(panic: &(dyn Any + Send)) -> Option<&str> {
    let formatted = panic.downcast_ref::<String>().map(String::as_str);
    formatted.or(panic.downcast_ref::<&str>().copied())
}

/// Quantizes with these failures; returns whether one passed through.
fn fails(case: &str, model: &mut Model) -> bool {
    CALLS.set(0);
    let result = catch_unwind(AssertUnwindSafe(|| quantize_dynamic(model, &spec())));
    match result {
        Ok(Ok(_)) => return false,
        Ok(Err(error)) => assert!(error.to_string().contains(MESSAGE), "{case}: {error}"),
        Err(panic) => assert_eq!(message(&*panic), Some(MESSAGE), "{case}"),
    }
    true
}

/// The number of calls of a model that is quantized.
fn all_calls() -> usize {
    assert!(!fails("none", &mut model()));
    let calls = CALLS.get();
    assert!(calls > 100, "{calls} calls");
    calls
}

/// Runs `f`, whose calls all panic, without printing the messages.
fn in_silence(f: impl FnOnce()) {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if message(info.payload()) != Some(MESSAGE) {
            hook(info);
        }
    }));
    f();
}

#[test]
fn whichever_call_fails_the_model_is_as_it_was() {
    in_silence(|| {
        let calls = all_calls();
        for failure in [Failure::Error, Failure::Panic] {
            let mut passed = 0;
            for at in 1..=calls {
                let case = format!("{failure:?} at call {at} of {calls}");
                let mut model = model();
                let before = state(&model);
                FAILS.set(Some((at, failure)));
                let failed = fails(&case, &mut model);
                FAILS.set(None);
                if failed {
                    assert_eq!(state(&model), before, "{case}");
                    passed += 1;
                    // A failed call can be repeated.
                    assert!(!fails(&case, &mut model), "{case}: again");
                } else {
                    assert_eq!(failure, Failure::Error, "{case}: a panic was lost");
                }
            }
            assert!(passed > 30, "{failure:?}: {passed} of {calls}");
        }
    });
}

/// A layer fails from some call on, also while an earlier installation is undone.
#[test]
fn a_layer_that_fails_again_and_again() {
    in_silence(|| {
        let calls = all_calls();
        for (number, after) in (1..=8).flat_map(|n| (0..calls).map(move |at| (n, at))) {
            let case = format!("layer {number} after call {after}");
            let mut model = model();
            let before = state(&model);
            STUBBORN.set(Some((number, after)));
            let failed = fails(&case, &mut model);
            STUBBORN.set(None);
            if failed {
                assert_eq!(state(&model), before, "{case}");
            }
        }
    });
}
