//! Fields that a walk enters, and the report of fields that may hide layers: none is skipped
//! silently.
#![allow(missing_docs, dead_code, reason = "models whose fields are looked at by walks only")]

mod common;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::{
    Layer, LayerKind, QConfig, QConfigSpec, Quantizable, Report, Result, TuningConfig, WeightDType,
    WeightInfo, nn, quantize_dynamic, tune,
};
use candle_nn::{VarBuilder, VarMap};
use common::toy::{Plain, Toy, assert_walks};

fn linear() -> nn::Linear {
    let weight = Tensor::ones((4, 4), DType::F32, &Device::Cpu).expect("a weight");
    nn::Linear::new(weight, None)
}

fn candle_linear() -> candle_nn::Linear {
    let weight = Tensor::ones((4, 4), DType::F32, &Device::Cpu).expect("a weight");
    candle_nn::Linear::new(weight, None)
}

fn quantized<M: Quantizable>(mut model: M) -> Report {
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect("quantizes")
}

/// The form of candle-transformers' `bert.rs`: spans, dropouts, sizes, norms and a device beside
/// the layers. No field needs an attribute.
#[cfg(feature = "tracing")]
mod bert {
    use super::*;
    use tracing::Span;

    #[derive(Quantizable, Clone, Copy)]
    #[quantizable(strict)]
    enum HiddenAct {
        Gelu,
        Relu,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct HiddenActLayer {
        act: HiddenAct,
        span: Span,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct Dropout {
        pr: f64,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct Embeddings {
        word_embeddings: nn::Embedding,
        position_embeddings: Option<nn::Embedding>,
        layer_norm: nn::LayerNorm,
        dropout: Dropout,
        span: Span,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct SelfAttention {
        query: nn::Linear,
        key: nn::Linear,
        value: nn::Linear,
        dropout: candle_nn::Dropout,
        num_attention_heads: usize,
        attention_head_size: usize,
        span: Span,
        span_softmax: Span,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct Layer {
        attention: SelfAttention,
        cross: Option<(SelfAttention, candle_nn::LayerNorm)>,
        dense: nn::Linear,
        norm: candle_nn::RmsNorm,
        act: HiddenActLayer,
        span: Span,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    pub struct Model {
        embeddings: Embeddings,
        layers: Vec<Layer>,
        heads: HashMap<String, (nn::Linear, Range<usize>)>,
        pooler: Option<candle_nn::Conv1d>,
        mask: Option<Tensor>,
        cache: RefCell<candle_nn::kv_cache::KvCache>,
        pub device: Device,
        dtype: DType,
        name: &'static str,
        span: Span,
    }

    fn attention(size: usize, vb: &VarBuilder<'_>) -> candle_core::Result<SelfAttention> {
        Ok(SelfAttention {
            query: nn::linear(size, size, vb.pp("query"))?,
            key: nn::linear(size, size, vb.pp("key"))?,
            value: nn::linear(size, size, vb.pp("value"))?,
            dropout: nn::Dropout::new(0.1),
            num_attention_heads: 2,
            attention_head_size: size / 2,
            span: Span::none(),
            span_softmax: Span::none(),
        })
    }

    #[test]
    fn a_model_of_candle_transformers_form_is_strict_without_attributes() -> candle_core::Result<()>
    {
        let (vars, size) = (VarMap::new(), 8);
        let vb = VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu);
        let layer = |i: usize| -> candle_core::Result<Layer> {
            let vb = vb.pp(format!("layer.{i}"));
            let norm = candle_nn::layer_norm(size, 1e-5, vb.pp("cross.norm"))?;
            Ok(Layer {
                attention: attention(size, &vb)?,
                cross: Some((attention(size, &vb.pp("cross"))?, norm)),
                dense: nn::linear(size, size, vb.pp("dense"))?,
                norm: candle_nn::rms_norm(size, 1e-5, vb.pp("norm"))?,
                act: HiddenActLayer { act: HiddenAct::Gelu, span: Span::none() },
                span: Span::none(),
            })
        };
        let mut model = Model {
            embeddings: Embeddings {
                word_embeddings: nn::embedding(10, size, vb.pp("word"))?,
                position_embeddings: None,
                layer_norm: nn::layer_norm(size, 1e-12, vb.pp("ln"))?,
                dropout: Dropout { pr: 0.1 },
                span: Span::none(),
            },
            layers: vec![layer(0)?, layer(1)?],
            heads: [("a".to_owned(), (nn::linear(size, 2, vb.pp("a"))?, 0..3))].into(),
            pooler: None,
            mask: None,
            cache: RefCell::new(candle_nn::kv_cache::KvCache::new(2, 16)),
            device: Device::Cpu,
            dtype: DType::F32,
            name: "bert",
            span: Span::none(),
        };
        let report =
            quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect("quantizes");
        // Two layers of 3 + 3 + 1, and a head.
        assert_eq!(report.swapped().count(), 15, "{report}");
        assert!(report.opaque.is_empty() && report.hidden.is_empty(), "{report}");
        let paths: Vec<_> = report.layers.iter().map(|l| l.path.as_str()).collect();
        assert!(paths.contains(&"layers.1.cross.0.query") && paths.contains(&"heads.a.0"));
        Ok(())
    }
}

#[test]
fn containers_of_layers_and_of_what_holds_none_are_walked() {
    #[derive(Quantizable)]
    struct Model {
        pair: Option<(Toy, Tensor)>,
        named: Vec<(String, Toy)>,
        by_name: HashMap<String, (Toy, usize, candle_nn::Activation)>,
        queue: VecDeque<Toy>,
        array: [(f32, Toy); 1],
    }
    let tensor = Tensor::zeros(1, DType::F32, &Device::Cpu).expect("a tensor");
    let mut model = Model {
        pair: Some((Toy::new(), tensor)),
        named: vec![("a".into(), Toy::new()), ("b".into(), Toy::new())],
        by_name: [("c".into(), (Toy::new(), 3, candle_nn::Activation::Relu))].into(),
        queue: [Toy::new()].into(),
        array: [(1., Toy::new())],
    };
    assert_walks(
        "containers",
        &mut model,
        &[
            "pair.0: Linear",
            "named.0.1: Linear",
            "named.1.1: Linear",
            "by_name.c.0: Linear",
            "queue.0: Linear",
            "array.0.1: Linear",
        ],
        &[],
    );
}

#[derive(Quantizable)]
struct Cells {
    cell: Cell<usize>,
    ref_cell: RefCell<Toy>,
    mutex: Mutex<Toy>,
    rw_lock: RwLock<Toy>,
    once: OnceCell<Toy>,
    lock: OnceLock<Toy>,
    empty: OnceCell<Toy>,
    rc: Rc<Toy>,
    again: Rc<Toy>,
    cache: Rc<RefCell<Option<(Tensor, Tensor)>>>,
}

fn cells() -> Cells {
    let rc = Rc::new(Toy::new());
    Cells {
        cell: Cell::new(1),
        ref_cell: RefCell::new(Toy::new()),
        mutex: Mutex::new(Toy::new()),
        rw_lock: RwLock::new(Toy::new()),
        once: OnceCell::from(Toy::new()),
        lock: OnceLock::from(Toy::new()),
        empty: OnceCell::new(),
        rc: Rc::clone(&rc),
        again: rc,
        cache: Rc::default(),
    }
}

#[test]
fn cells_and_locks_are_walked() {
    let layers = ["ref_cell", "mutex", "rw_lock", "once", "lock", "rc"];
    let layers = layers.map(|name| format!("{name}: Linear"));
    let layers: Vec<&str> = layers.iter().map(String::as_str).collect();
    assert_walks("cells", &mut cells(), &layers, &["again = rc"]);

    let mut model = cells();
    let outside = Rc::clone(&model.rc);
    let report =
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect("quantizes");
    assert_eq!((report.swapped().count(), report.hidden.len()), (6, 0), "{report}");
    assert!(model.ref_cell.borrow().is_quantized());
    assert!(model.mutex.lock().expect("not poisoned").is_quantized());
    assert!(model.rw_lock.read().expect("not poisoned").is_quantized());
    assert!(model.once.get().expect("a value").is_quantized());
    assert!(model.rc.is_quantized() && Rc::ptr_eq(&model.rc, &model.again));
    assert!(!outside.is_quantized(), "a clone outside keeps the old layer");
}

/// A layer that a [`Cell`] can give a copy of.
#[derive(Quantizable, Clone, Copy)]
#[quantizable(layer)]
struct Copied {
    quantized: bool,
}

impl Layer for Copied {
    fn kind(&self) -> LayerKind {
        LayerKind::Linear
    }

    fn weight_infos(&self) -> Vec<WeightInfo> {
        vec![WeightInfo::new("weight", &[2, 2], WeightDType::F32, 16)]
    }

    fn quantize(&self, _: &QConfig) -> Result<Self> {
        Ok(Self { quantized: true })
    }
}

#[test]
fn a_layer_in_a_cell_is_walked_as_a_copy_and_quantized_in_place() {
    let mut model = (0, Cell::new(Copied { quantized: false }));
    assert_walks("a cell", &mut model, &["1: Linear"], &[]);
    let report =
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect("quantizes");
    assert_eq!(report.swapped().count(), 1);
    assert!(model.1.get().quantized);
}

#[test]
fn what_is_in_use_is_an_error_that_names_it() {
    let fails = |model: &mut (usize, Rc<RefCell<Toy>>)| {
        let error =
            quantize_dynamic(model, &QConfigSpec::int8().min_params(0)).expect_err("borrowed");
        let named = error.path() == Some("1");
        assert!(
            named && error.to_string().contains("RefCell is already borrowed or locked"),
            "{error}"
        );
    };
    let cell = Rc::new(RefCell::new(Toy::new()));
    let mut model = (0, Rc::clone(&cell));
    let guard = cell.borrow_mut();
    fails(&mut model);
    drop(guard);
    let guard = cell.borrow();
    quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect("it may be looked at");
    drop(guard);

    // A guard that is forgotten locks for good.
    let mut model = cells();
    std::mem::forget(model.mutex.lock());
    let error =
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect_err("locked");
    assert!(error.to_string().starts_with("mutex: Mutex is already borrowed or locked"), "{error}");
    let mut model = cells();
    std::mem::forget(model.rw_lock.write());
    let error =
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect_err("locked");
    assert!(
        error.to_string().starts_with("rw_lock: RwLock is already borrowed or locked"),
        "{error}"
    );
}

#[test]
fn a_lock_whose_holder_panicked_is_walked() {
    let mut model = (Mutex::new(Toy::new()), RwLock::new(Toy::new()));
    let poison = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guards = (model.0.lock(), model.1.write());
        panic!("while they are locked");
    }));
    assert!(poison.is_err() && model.0.is_poisoned() && model.1.is_poisoned());
    assert_walks("poisoned", &mut model, &["0: Linear", "1: Linear"], &[]);
}

/// A type that a user forgot to derive for.
struct Forgotten {
    linear: nn::Linear,
}

#[derive(Quantizable)]
struct Hides {
    seen: nn::Linear,
    cross: Vec<(Forgotten, nn::LayerNorm)>,
    leftover: Option<candle_nn::Linear>,
    dynamic: Box<dyn Module>,
    sequential: candle_nn::Sequential,
    shared: Arc<Mutex<nn::Linear>>,
    label: Arc<str>,
    activation: fn(f32) -> f32,
    #[quantizable(skip)]
    skipped: Forgotten,
}

fn hides() -> Hides {
    let forgotten = || Forgotten { linear: linear() };
    Hides {
        seen: linear(),
        cross: Vec::new(),
        leftover: Some(candle_linear()),
        dynamic: Box::new(candle_linear()),
        sequential: candle_nn::seq(),
        shared: Arc::new(Mutex::new(linear())),
        label: "label".into(),
        activation: f32::tanh,
        skipped: forgotten(),
    }
}

#[test]
fn fields_that_may_hold_layers_are_data_with_advice() {
    let report = quantized(hides());
    let hidden: Vec<_> = report.hidden.iter().map(|h| &*h.path).collect();
    assert_eq!(hidden, ["cross", "leftover", "dynamic", "sequential", "shared"]);
    assert_eq!(report.opaque.len(), 7, "all fields that were not visited: {report}");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["hidden"][1]["advice"], "use candle_dynquant::nn::Linear");
    assert_eq!(json["hidden"][1]["path"], "leftover");
    let advice: Vec<_> = report.hidden.iter().filter_map(|h| h.advice.as_deref()).collect();
    for (advice, words) in advice.iter().zip([
        "derive Quantizable for hidden::Forgotten",
        "use candle_dynquant::nn::Linear",
        "dyn candle_core::Module",
        "use candle_dynquant::nn::Sequential",
        "Clone",
    ]) {
        assert!(advice.contains(words), "{advice} lacks {words}");
    }
}

#[test]
fn they_come_first_in_the_report_and_are_counted() {
    let report = quantized(hides());
    let text = report.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("1 of 1 layers swapped"), "{text}");
    let count = "; 5 fields may hold more: {cross,leftover,dynamic,sequential,shared}";
    assert!(lines[0].ends_with(count), "{text}");
    assert_eq!(lines[1], "fields that may hold layers (not visited):", "{text}");
    assert!(lines[2].starts_with("  cross: "), "{text}");
    let rest = text.split("opaque fields (not visited):").nth(1).expect("others");
    assert_eq!(rest, "\n  label: alloc::sync::Arc<str>\n  activation: fn(f32) -> f32\n");
    let lines = format!("{report:#}");
    assert!(
        lines.contains("  leftover: core::option::Option<candle_nn::linear::Linear> (use candle")
    );

    #[derive(Quantizable)]
    struct One {
        seen: nn::Linear,
        leftover: candle_nn::Linear,
    }
    let one = quantized(One { seen: linear(), leftover: candle_linear() });
    let first = one.to_string().lines().next().map(str::to_owned).expect("a line");
    assert!(first.ends_with("; 1 field may hold more: leftover"), "{first}");
    // Nothing to tell where nothing is hidden.
    assert!(!quantized(linear()).to_string().contains("may hold"));
}

#[test]
fn a_model_in_which_nothing_is_found_is_told_where_layers_may_be() {
    #[derive(Quantizable)]
    struct Nothing {
        head: candle_nn::Linear,
        body: Forgotten,
        others: [Forgotten; 1],
        last: Vec<Forgotten>,
        sizes: Plain,
        hidden_size: usize,
    }
    let forgotten = || Forgotten { linear: linear() };
    let mut model = Nothing {
        head: candle_linear(),
        body: forgotten(),
        others: [forgotten()],
        last: vec![],
        sizes: Plain(1),
        hidden_size: 4,
    };
    let error =
        quantize_dynamic(&mut model, &QConfigSpec::int8().min_params(0)).expect_err("no layers");
    let message = error.to_string();
    for words in [
        "head is a candle_nn::linear::Linear; use candle_dynquant::nn::Linear",
        "body is a hidden::Forgotten; derive Quantizable",
        "and 1 more",
    ] {
        assert!(message.contains(words), "{message} lacks {words}");
    }
    assert!(!message.contains("hidden_size") && !message.contains("Plain"), "{message}");
}

#[test]
fn a_parameter_behind_an_arc_without_its_bounds_is_told_them() {
    #[derive(Quantizable, Clone)]
    struct Expert<L> {
        layer: L,
    }
    #[derive(Quantizable)]
    struct Mixture<L> {
        gate: nn::Linear,
        expert: Arc<Expert<L>>,
        direct: Rc<L>,
    }
    let advice: Vec<_> = quantized(Mixture {
        gate: linear(),
        expert: Arc::new(Expert { layer: linear() }),
        direct: Rc::new(linear()),
    })
    .hidden
    .into_iter()
    .filter_map(|field| field.advice)
    .collect();
    assert_eq!(advice.len(), 2, "{advice:?}");
    let bound = "bound the type parameters behind Arc and Rc by Clone + 'static";
    assert!(advice.iter().all(|a| a.contains(bound)), "{advice:?}");
    assert!(advice[1].starts_with(bound), "{advice:?}");

    #[derive(Quantizable)]
    struct Bounded<L: Clone + 'static> {
        gate: nn::Linear,
        expert: Arc<Expert<L>>,
        direct: Rc<L>,
    }
    let report = quantized(Bounded {
        gate: linear(),
        expert: Arc::new(Expert { layer: linear() }),
        direct: Rc::new(linear()),
    });
    assert_eq!((report.swapped().count(), report.hidden.len()), (3, 0), "{report}");
}

#[test]
fn whatever_matches_nothing_fields_that_may_hold_layers_are_named() {
    struct Encoder(#[allow(dead_code)] nn::Linear);
    #[derive(Quantizable)]
    struct Model {
        embeddings: nn::Embedding,
        encoder: Vec<Encoder>,
    }
    let message = |spec: &QConfigSpec| {
        let table = Tensor::zeros((4, 4), DType::F32, &Device::Cpu).expect("a tensor");
        let mut model =
            Model { embeddings: nn::Embedding::new(table, 4), encoder: vec![Encoder(linear())] };
        let error = quantize_dynamic(&mut model, spec).expect_err("nothing matches");
        error.to_string()
    };
    let per_row = QConfig::int8;
    // If nothing is left to quantize, tuning says the same.
    #[derive(Quantizable)]
    struct Done {
        layer: nn::Linear,
        encoder: Vec<Encoder>,
    }
    let mut done = Done { layer: linear(), encoder: vec![Encoder(linear())] };
    let spec = QConfigSpec::int8().min_params(0);
    quantize_dynamic(&mut done, &spec).expect("quantizes");
    let config = TuningConfig::default().spec(spec);
    let tuned = tune(&mut done, &config, |_| candle_core::Result::Ok(1.));
    let all = [
        tuned.expect_err("nothing to quantize").to_string(),
        message(&QConfigSpec::int8().min_params(0)),
        message(&QConfigSpec::int8().min_params(0).embeddings().min_params(1_000)),
        message(&QConfigSpec::new().kind(LayerKind::Linear, per_row())),
        message(&QConfigSpec::new().regex("query", per_row())),
        message(&QConfigSpec::new().name("layer.0", per_row())),
    ];
    for message in all {
        let named = "; fields that may hold more: encoder is a alloc::vec::Vec<hidden::";
        let cure = "::Encoder, or mark the field #[quantizable(skip)]";
        assert!(message.contains(named), "{message}");
        assert!(message.ends_with(cure), "{message}");
    }
}

/// Types that a user defines without a derive, and which own no layer.
mod plain {
    #[derive(Clone, PartialEq)]
    pub enum Activation {
        Gelu,
        Relu,
    }
    pub struct Marker;
    #[derive(Clone, Copy)]
    pub struct Sizes {
        pub hidden: usize,
        pub slope: Option<f64>,
    }
}

#[test]
fn what_cannot_own_a_layer_is_no_alarm() {
    #[derive(Quantizable)]
    struct Model<'a> {
        act: plain::Activation,
        marker: plain::Marker,
        acts: [plain::Activation; 3],
        sizes: plain::Sizes,
        pair: Option<(plain::Sizes, bool)>,
        borrowed: Option<&'a Toy>,
        beside: (plain::Sizes, &'a Toy),
        layer: Toy,
    }
    let toy = Toy::new();
    let report = quantized(Model {
        act: plain::Activation::Gelu,
        marker: plain::Marker,
        acts: std::array::from_fn(|_| plain::Activation::Relu),
        sizes: plain::Sizes { hidden: 1, slope: None },
        pair: None,
        borrowed: None,
        beside: (plain::Sizes { hidden: 1, slope: Some(0.) }, &toy),
        layer: Toy::new(),
    });
    let paths = |mut of: Vec<&str>| {
        of.sort_unstable();
        of.join(" ")
    };
    let opaque = report.opaque.iter().map(|field| field.path.as_str());
    // An enum without fields and a type without values cannot hold a layer.
    assert_eq!(paths(opaque.collect()), "beside borrowed pair sizes", "{report}");
    let hidden = report.hidden.iter().map(|field| field.path.as_str());
    assert_eq!(paths(hidden.collect()), "beside borrowed", "{report}");
}

#[test]
fn a_name_tells_nothing_of_what_a_type_holds() {
    struct LayerConfig {
        inner: nn::Linear,
    }
    #[derive(Quantizable)]
    struct Sizes {
        name: String,
    }
    #[derive(Quantizable)]
    struct Model {
        head: nn::Linear,
        body: LayerConfig,
        sizes: Sizes,
    }
    let report = quantized(Model {
        head: linear(),
        body: LayerConfig { inner: linear() },
        sizes: Sizes { name: "a".into() },
    });
    let paths: Vec<_> = report.hidden.iter().map(|h| h.path.as_str()).collect();
    assert_eq!(paths, ["body"], "{report}");
}

#[test]
fn advice_is_what_makes_a_walk_see_the_layers() {
    mod two {
        pub(super) struct Linear(pub super::nn::Linear);
    }
    #[derive(PartialEq, Eq, Hash)]
    enum Kind {
        Text,
    }
    #[derive(Quantizable)]
    struct Model {
        head: nn::Linear,
        by_kind: HashMap<Kind, nn::Linear>,
        kinds: HashMap<Kind, usize>,
        tried: std::result::Result<nn::Linear, String>,
        own: two::Linear,
    }
    let report = quantized(Model {
        head: linear(),
        by_kind: [(Kind::Text, linear())].into(),
        kinds: HashMap::new(),
        tried: Ok(linear()),
        own: two::Linear(linear()),
    });
    let advice: Vec<_> = report.hidden.iter().filter_map(|h| h.advice.as_deref()).collect();
    assert_eq!(advice.len(), 3, "{report}");
    for (advice, start) in advice.iter().zip([
        "use keys that implement Display, such as String, in place of hidden::",
        "hold the value itself in place of the Result, or mark",
        "derive Quantizable for hidden::",
    ]) {
        assert!(advice.starts_with(start), "{advice}");
    }
}

/// A trait that a project defines for the forms of a product.
trait QuantMethod {
    fn product(&self) -> usize;
}

#[test]
fn trait_objects_and_norms_of_ones_own_are_told_apart() {
    #[derive(Quantizable)]
    struct Norm {
        weight: Tensor,
        eps: f64,
    }
    #[derive(Quantizable)]
    struct Model {
        boxed: Box<dyn Module>,
        shared: Option<Arc<dyn QuantMethod>>,
        norm: Norm,
        layer: Toy,
    }
    let report = quantized(Model {
        boxed: Box::new(candle_linear()),
        shared: None,
        norm: Norm {
            weight: Tensor::ones(1_000, DType::F32, &Device::Cpu).expect("a tensor"),
            eps: 1e-6,
        },
        layer: Toy::new(),
    });
    let hidden: Vec<_> = report.hidden.iter().map(ToString::to_string).collect();
    assert_eq!(hidden.len(), 2, "{report}");
    for (text, of) in hidden.iter().zip(["dyn candle_core::Module", "QuantMethod, or make"]) {
        assert!(text.contains(of), "{text}");
    }
    assert!(report.float_tensors.is_empty(), "{report}");
}
