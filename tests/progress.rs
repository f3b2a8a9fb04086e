//! The progress of quantizing, which a function of the user's sees and may end, and its spans.

mod common;

use std::cell::{Cell, RefCell};
use std::fmt::{Debug, Write};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use candle_dynquant::{Result, ops, quantize_dynamic_with};
use common::*;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

#[derive(Quantizable, Clone)]
struct Model {
    words: nn::Embedding,
    layers: Vec<nn::Linear>,
    head: nn::Linear,
    gru: nn::GRU,
}

fn model() -> Result<Model> {
    Ok(Model {
        words: nn::Embedding::new(randn(&[10, 4]), 4),
        layers: vec![linear(6, 4), linear(4, 6)],
        head: linear(3, 4),
        gru: nn::GRU::new(4, 2, Default::default(), VarBuilder::zeros(DType::F32, CPU))?,
    })
}

/// Identities of the float tensors, which a quantized layer does not have.
fn identities(model: &Model) -> Vec<String> {
    let linears = model.layers.iter().chain([&model.head]);
    let tensors = linears.map(nn::Linear::weight);
    let tensors = tensors.chain([model.words.embeddings()]);
    let mut all: Vec<_> = tensors.map(|tensor| format!("{:?}", tensor.id())).collect();
    all.push(format!("{:?}", model.gru));
    all
}

fn spec() -> QConfigSpec {
    all_int8().embeddings()
}

const ORDER: [&str; 5] = ["layers.0", "layers.1", "head", "gru", "words"];

/// Bytes of the float weights in that order.
const BYTES: [usize; 5] = [96, 96, 48, 144, 160];

#[test]
fn each_layer_is_told_in_order_with_totals() -> Result<()> {
    let (mut model, mut seen) = (model()?, Vec::new());
    let report = quantize_dynamic_with(&mut model, &spec(), |progress| {
        seen.push((progress.path.to_owned(), progress.layers, progress.bytes));
        assert_eq!((progress.total_layers, progress.total_bytes), (5, 544));
        ControlFlow::Continue(())
    })?;
    let mut bytes = 0;
    let expected = ORDER.iter().zip(BYTES).enumerate().map(|(i, (path, of_layer))| {
        bytes += of_layer;
        ((*path).to_owned(), i + 1, bytes)
    });
    assert_eq!(seen, expected.collect::<Vec<_>>());
    assert_eq!(report.swapped().count(), 5);
    assert_eq!(report.bytes_before(), 544);
    // Nothing is left to do.
    quantize_dynamic_with(&mut model, &spec(), |progress| panic!("{progress:?}"))?;
    Ok(())
}

#[test]
fn a_call_that_is_cancelled_changes_nothing() -> Result<()> {
    let mut model = model()?;
    let before = identities(&model);
    for last in 1..=ORDER.len() {
        let mut calls = 0;
        let result = quantize_dynamic_with(&mut model, &spec(), |_| {
            calls += 1;
            if calls == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let message = format!("cancelled after {last} of 5 layers");
        assert_kind(result, ErrorKind::Cancelled, &[&message]);
        assert_eq!(calls, last, "it is not called again");
        assert_eq!(identities(&model), before, "cancelled at {last}");
    }
    Ok(())
}

#[test]
fn a_function_that_panics_changes_nothing() -> Result<()> {
    let mut model = model()?;
    let before = identities(&model);
    for last in 1..=ORDER.len() {
        let result = catch_unwind(AssertUnwindSafe(|| {
            quantize_dynamic_with(&mut model, &spec(), |progress| {
                assert_ne!(progress.layers, last, "on purpose");
                ControlFlow::Continue(())
            })
        }));
        assert!(result.is_err(), "the panic got lost");
        assert_eq!(identities(&model), before, "a panic at {last}");
    }
    let report = quantize_dynamic(&mut model, &spec())?;
    assert_eq!(report.swapped().count(), 5);
    Ok(())
}

thread_local! {
    /// Names and fields of the spans and events of this thread.
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static LEVEL: Cell<tracing::Level> = const { Cell::new(tracing::Level::ERROR) };
}

/// Writes spans and events of the crate to the log of their thread, from the thread's level on.
struct Recorder(AtomicU64);

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        let _ = write!(self.0, " {}={value:?}", field.name());
    }
}

impl Subscriber for Recorder {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("candle_dynquant") && *metadata.level() <= LEVEL.get()
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        tracing::subscriber::Interest::sometimes()
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        LOG.with_borrow_mut(|log| log.push(fields.0));
        Id::from_u64(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields("event".to_owned());
        event.record(&mut fields);
        LOG.with_borrow_mut(|log| log.push(fields.0));
    }

    fn exit(&self, _: &Id) {
        LOG.with_borrow_mut(|log| log.push("end".to_owned()));
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
}

/// The log of `f`, from `level` on.
fn traced(level: tracing::Level, f: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    static RECORDER: Once = Once::new();
    RECORDER.call_once(|| {
        let recorder = Recorder(AtomicU64::new(1));
        tracing::subscriber::set_global_default(recorder).expect("the only one");
    });
    LEVEL.set(level);
    let result = f();
    LEVEL.set(tracing::Level::ERROR);
    result.map(|()| LOG.take())
}

#[test]
fn quantizing_is_a_span_with_one_for_each_layer() -> Result<()> {
    let mut model = vec![linear(6, 4), linear(4, 6)];
    let quantize = || quantize_dynamic(&mut model, &all_int8()).map(drop);
    let log = traced(tracing::Level::DEBUG, quantize)?;
    let expected = [
        "quantize_dynamic isa=",
        "quantize_layer path=\"0\" kind=Linear dtype=F32 elements=24 to=",
        "end",
        "quantize_layer path=\"1\" kind=Linear dtype=F32 elements=24 to=",
        "end",
        "event message=quantized layers=2 bytes_before=192 bytes_after=",
        "end",
    ];
    assert_eq!(log.len(), expected.len(), "{log:#?}");
    for (line, expected) in log.iter().zip(expected) {
        assert!(line.starts_with(expected), "{expected}: {log:#?}");
    }
    assert!(log[0].ends_with(" layers=2 bytes=192"), "{}", log[0]);
    Ok(())
}

#[test]
fn a_forward_call_is_a_span_if_asked_for() -> Result<()> {
    let (model, xs) = (model()?, ones(&[2, 4]));
    let norm = nn::RmsNorm::new(ones(&[4]), 1e-6);
    let forward = || -> Result<()> {
        model.words.forward(&Tensor::new(&[1u32], CPU)?)?;
        model.head.forward(&norm.forward(&xs)?)?;
        model.gru.forward(&xs, None)?;
        let heads = xs.reshape((1, 1, 2, 4))?;
        ops::scaled_dot_product_attention(&heads, &heads, &heads, None, 1.)?;
        ops::softmax(&xs, 1)?;
        ops::gelu(&xs)?;
        Ok(())
    };
    assert!(traced(tracing::Level::DEBUG, forward)?.is_empty());
    let log = traced(tracing::Level::TRACE, forward)?;
    let names = "embedding rms-norm linear gru attention softmax activation".split(' ');
    assert_eq!(log, names.flat_map(|name| [name, "end"]).collect::<Vec<_>>());
    Ok(())
}
