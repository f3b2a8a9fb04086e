//! Fields that a walk enters, and the report of fields that may hide layers: none is skipped
//! silently.
#![allow(missing_docs, dead_code, reason = "models whose fields are looked at by walks only")]

mod common;

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, RwLock};

use candle_dynquant::{Result, TuningConfig, WeightDType, WeightInfo, tune};
use common::toy::{Plain, Toy, assert_walks};
use common::*;

fn linear() -> nn::Linear {
    common::linear(4, 4)
}

fn candle_linear() -> candle_nn::Linear {
    candle_nn::Linear::new(ones(&[4, 4]), None)
}

fn advice(report: &Report) -> Vec<&str> {
    report.hidden.iter().filter_map(|field| field.advice.as_deref()).collect()
}

#[track_caller]
fn assert_each_has(texts: &[&str], parts: &[&str]) {
    assert_eq!(texts.len(), parts.len(), "{texts:?}");
    for (text, part) in texts.iter().zip(parts) {
        assert_parts(text, &[part]);
    }
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
    struct Dropout {
        pr: f64,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct SelfAttention {
        query: nn::Linear,
        key: nn::Linear,
        dropout: candle_nn::Dropout,
        num_attention_heads: usize,
        span: Span,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    struct Layer {
        attention: SelfAttention,
        cross: Option<(SelfAttention, candle_nn::LayerNorm)>,
        dense: nn::Linear,
        norm: candle_nn::RmsNorm,
        act: HiddenAct,
        span: Span,
    }

    #[test]
    fn a_model_of_candle_transformers_form_is_strict_without_attributes() {
        let norm = || candle_nn::LayerNorm::new(ones(&[4]), ones(&[4]), 1e-5);
        let attention = || SelfAttention {
            query: linear(),
            key: linear(),
            dropout: nn::Dropout::new(0.1),
            num_attention_heads: 2,
            span: Span::none(),
        };
        let layer = || Layer {
            attention: attention(),
            cross: Some((attention(), norm())),
            dense: linear(),
            norm: candle_nn::RmsNorm::new(ones(&[4]), 1e-5),
            act: HiddenAct::Gelu,
            span: Span::none(),
        };
        let cache = candle_nn::kv_cache::KvCache::new(2, 16);
        let mut model = model!(
            #[quantizable(strict)]
            Model {
                word_embeddings: nn::Embedding = nn::Embedding::new(ones(&[10, 4]), 4),
                position_embeddings: Option<nn::Embedding> = None,
                layer_norm: nn::LayerNorm = nn::LayerNorm::new(ones(&[4]), ones(&[4]), 1e-12),
                dropout: Dropout = Dropout { pr: 0.1 },
                layers: Vec<Layer> = vec![layer(), layer()],
                heads: HashMap<String, (nn::Linear, Range<usize>)> =
                    [("a".to_owned(), (linear(), 0..3))].into(),
                pooler: Option<candle_nn::Conv1d> = None,
                mask: Option<Tensor> = None,
                cache: RefCell<candle_nn::kv_cache::KvCache> = RefCell::new(cache),
                device: Device = Device::Cpu,
                dtype: DType = DType::F32,
                name: &'static str = "bert",
                span: Span = Span::none(),
            }
        );
        let report = quantize(&mut model);
        // Two layers of 2 + 2 + 1, and a head.
        assert_eq!(report.swapped().count(), 11, "{report}");
        assert!(report.opaque.is_empty() && report.hidden.is_empty(), "{report}");
        let paths: Vec<_> = report.layers.iter().map(|l| l.path.as_str()).collect();
        assert!(paths.contains(&"layers.1.cross.0.query") && paths.contains(&"heads.a.0"));
    }
}

#[test]
fn containers_of_layers_and_of_what_holds_none_are_walked() {
    type Named = (Toy, usize, candle_nn::Activation);
    let mut model = model!(Model {
        pair: Option<(Toy, Tensor)> = Some((Toy::new(), zeros(&[1]))),
        named: Vec<(String, Toy)> = vec![("a".into(), Toy::new()), ("b".into(), Toy::new())],
        by_name: HashMap<String, Named> =
            [("c".into(), (Toy::new(), 3, candle_nn::Activation::Relu))].into(),
        queue: VecDeque<Toy> = [Toy::new()].into(),
        array: [(f32, Toy); 1] = [(1., Toy::new())],
    });
    let layers = "pair.0: Linear, named.0.1: Linear, named.1.1: Linear, by_name.c.0: Linear, \
        queue.0: Linear, array.0.1: Linear";
    assert_walks("containers", &mut model, layers, &[]);
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
    let layers = "ref_cell: Linear, mutex: Linear, rw_lock: Linear, once: Linear, lock: Linear, \
        rc: Linear";
    assert_walks("cells", &mut cells(), layers, &["again = rc"]);

    let mut model = cells();
    let outside = Rc::clone(&model.rc);
    let report = quantize(&mut model);
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
    assert_walks("a cell", &mut model, "1: Linear", &[]);
    let report = quantize(&mut model);
    assert_eq!(report.swapped().count(), 1);
    assert!(model.1.get().quantized);
}

#[test]
fn what_is_in_use_is_an_error_that_names_it() {
    let cell = Rc::new(RefCell::new(Toy::new()));
    let mut model = (0, Rc::clone(&cell));
    let guard = cell.borrow_mut();
    let error = quantize_dynamic(&mut model, &all_int8()).expect_err("borrowed");
    assert_eq!(error.path(), Some("1"));
    assert_parts(&error.to_string(), &["RefCell is already borrowed or locked"]);
    drop(guard);
    let guard = cell.borrow();
    // It may be looked at.
    quantize(&mut model);
    drop(guard);

    // A guard that is forgotten locks for good.
    let models = [cells(), cells()];
    std::mem::forget(models[0].mutex.lock());
    std::mem::forget(models[1].rw_lock.write());
    for (mut model, named) in models.into_iter().zip(["mutex: Mutex", "rw_lock: RwLock"]) {
        let expected = format!("{named} is already borrowed or locked");
        let error = quantize_dynamic(&mut model, &all_int8()).expect_err("locked");
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
}

#[test]
fn a_lock_whose_holder_panicked_is_walked() {
    let mut model = (Mutex::new(Toy::new()), RwLock::new(Toy::new()));
    let poison = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _guards = (model.0.lock(), model.1.write());
        panic!("while they are locked");
    }));
    assert!(poison.is_err() && model.0.is_poisoned() && model.1.is_poisoned());
    assert_walks("poisoned", &mut model, "0: Linear, 1: Linear", &[]);
}

/// A type that a user forgot to derive for.
struct Forgotten {
    linear: nn::Linear,
}

fn hides() -> impl Quantizable {
    let forgotten = Forgotten { linear: linear() };
    model!(Hides {
        seen: nn::Linear = linear(),
        cross: Vec<(Forgotten, nn::LayerNorm)> = Vec::new(),
        leftover: Option<candle_nn::Linear> = Some(candle_linear()),
        dynamic: Box<dyn Module> = Box::new(candle_linear()),
        sequential: candle_nn::Sequential = candle_nn::seq(),
        shared: Arc<Mutex<nn::Linear>> = Arc::new(Mutex::new(linear())),
        label: Arc<str> = "label".into(),
        activation: fn(f32) -> f32 = f32::tanh,
        #[quantizable(skip)]
        skipped: Forgotten = forgotten,
    })
}

#[test]
fn fields_that_may_hold_layers_are_data_with_advice() {
    let report = quantize(&mut hides());
    assert_eq!(hidden(&report), ["cross", "leftover", "dynamic", "sequential", "shared"]);
    assert_eq!(report.opaque.len(), 7, "all fields that were not visited: {report}");
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["hidden"][1]["advice"], "use candle_dynquant::nn::Linear");
    assert_eq!(json["hidden"][1]["path"], "leftover");
    let parts = [
        "derive Quantizable for hidden::Forgotten",
        "use candle_dynquant::nn::Linear",
        "dyn candle_core::Module",
        "use candle_dynquant::nn::Sequential",
        "Clone",
    ];
    assert_each_has(&advice(&report), &parts);
}

#[test]
fn they_come_first_in_the_report_and_are_counted() {
    let report = quantize(&mut hides());
    let text = report.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("1 of 1 layers swapped"), "{text}");
    let count = "; 5 fields may hold more: {cross,leftover,dynamic,sequential,shared}";
    assert!(lines[0].ends_with(count), "{text}");
    assert_eq!(lines[1], "fields that may hold layers (not visited):", "{text}");
    assert!(lines[2].starts_with("  cross: "), "{text}");
    let rest = text.split("opaque fields (not visited):").nth(1).expect("others");
    assert_eq!(rest, "\n  label: alloc::sync::Arc<str>\n  activation: fn(f32) -> f32\n");
    let line = "  leftover: core::option::Option<candle_nn::linear::Linear> (use candle";
    assert_parts(&format!("{report:#}"), &[line]);

    let one = quantize(&mut model!(One {
        seen: nn::Linear = linear(),
        leftover: candle_nn::Linear = candle_linear(),
    }));
    let text = one.to_string();
    let first = text.lines().next().expect("a line");
    assert!(first.ends_with("; 1 field may hold more: leftover"), "{first}");
    // Nothing to tell where nothing is hidden.
    assert!(!quantize(&mut linear()).to_string().contains("may hold"));
}

#[test]
fn a_model_in_which_nothing_is_found_is_told_where_layers_may_be() {
    let forgotten = || Forgotten { linear: linear() };
    let mut model = model!(Nothing {
        head: candle_nn::Linear = candle_linear(),
        body: Forgotten = forgotten(),
        others: [Forgotten; 1] = [forgotten()],
        last: Vec<Forgotten> = vec![],
        sizes: Plain = Plain(1),
        hidden_size: usize = 4,
    });
    let parts = [
        "head is a candle_nn::linear::Linear; use candle_dynquant::nn::Linear",
        "body is a hidden::Forgotten; derive Quantizable",
        "and 1 more",
    ];
    let message = assert_fails(quantize_dynamic(&mut model, &all_int8()), &parts);
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
    #[derive(Quantizable)]
    struct Bounded<L: Clone + 'static> {
        gate: nn::Linear,
        expert: Arc<Expert<L>>,
        direct: Rc<L>,
    }
    let expert = || Arc::new(Expert { layer: linear() });
    let report =
        quantize(&mut Mixture { gate: linear(), expert: expert(), direct: Rc::new(linear()) });
    let bound = "bound the type parameters behind Arc and Rc by Clone + 'static";
    let advice = advice(&report);
    assert_each_has(&advice, &[bound, bound]);
    assert!(advice[1].starts_with(bound), "{advice:?}");
    let report =
        quantize(&mut Bounded { gate: linear(), expert: expert(), direct: Rc::new(linear()) });
    assert_eq!((report.swapped().count(), report.hidden.len()), (3, 0), "{report}");
}

#[test]
fn whatever_matches_nothing_fields_that_may_hold_layers_are_named() {
    struct Encoder(#[allow(dead_code)] nn::Linear);
    let message = |spec: &QConfigSpec| {
        let mut model = model!(Model {
            embeddings: nn::Embedding = nn::Embedding::new(zeros(&[4, 4]), 4),
            encoder: Vec<Encoder> = vec![Encoder(linear())],
        });
        quantize_dynamic(&mut model, spec).expect_err("nothing matches").to_string()
    };
    let per_row = QConfig::int8;
    // If nothing is left to quantize, tuning says the same.
    let mut done = model!(Done {
        layer: nn::Linear = linear(),
        encoder: Vec<Encoder> = vec![Encoder(linear())],
    });
    quantize(&mut done);
    let config = TuningConfig::default().spec(all_int8());
    let tuned = tune(&mut done, &config, |_| candle_core::Result::Ok(1.));
    let all = [
        tuned.expect_err("nothing to quantize").to_string(),
        message(&all_int8()),
        message(&all_int8().embeddings().min_params(1_000)),
        message(&QConfigSpec::new().kind(LayerKind::Linear, per_row())),
        message(&QConfigSpec::new().regex("query", per_row())),
        message(&QConfigSpec::new().name("layer.0", per_row())),
    ];
    for message in all {
        let named = "; fields that may hold more: encoder is a alloc::vec::Vec<hidden::";
        let cure = "::Encoder, or mark the field #[quantizable(skip)]";
        assert!(message.contains(named) && message.ends_with(cure), "{message}");
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
    let toy: &Toy = Box::leak(Box::new(Toy::new()));
    let report = quantize(&mut model!(Model {
        act: plain::Activation = plain::Activation::Gelu,
        marker: plain::Marker = plain::Marker,
        acts: [plain::Activation; 3] = std::array::from_fn(|_| plain::Activation::Relu),
        sizes: plain::Sizes = plain::Sizes { hidden: 1, slope: None },
        pair: Option<(plain::Sizes, bool)> = None,
        borrowed: Option<&'static Toy> = None,
        beside: (plain::Sizes, &'static Toy) = (plain::Sizes { hidden: 1, slope: Some(0.) }, toy),
        layer: Toy = Toy::new(),
    }));
    let paths = |mut of: Vec<&str>| {
        of.sort_unstable();
        of.join(" ")
    };
    let opaque = report.opaque.iter().map(|field| field.path.as_str());
    // An enum without fields and a type without values cannot hold a layer.
    assert_eq!(paths(opaque.collect()), "beside borrowed pair sizes", "{report}");
    assert_eq!(paths(hidden(&report)), "beside borrowed", "{report}");
}

#[test]
fn advice_is_what_makes_a_walk_see_the_layers() {
    mod two {
        pub(super) struct Linear(pub super::nn::Linear);
    }
    // A name tells nothing of what a type holds.
    struct LayerConfig {
        inner: nn::Linear,
    }
    #[derive(Quantizable)]
    struct Sizes {
        name: String,
    }
    #[derive(PartialEq, Eq, Hash)]
    enum Kind {
        Text,
    }
    let report = quantize(&mut model!(Model {
        head: nn::Linear = linear(),
        by_kind: HashMap<Kind, nn::Linear> = [(Kind::Text, linear())].into(),
        kinds: HashMap<Kind, usize> = HashMap::new(),
        tried: std::result::Result<nn::Linear, String> = Ok(linear()),
                own: two::Linear = two::Linear(linear()),
        body: LayerConfig = LayerConfig { inner: linear() },
        sizes: Sizes = Sizes { name: "a".into() },
    }));
    assert_eq!(hidden(&report), ["by_kind", "tried", "own", "body"]);
    let starts = [
        "use keys that implement Display, such as String, in place of hidden::",
        "hold the value itself in place of the Result, or mark",
        "derive Quantizable for hidden::",
        "derive Quantizable for hidden::",
    ];
    let advice = advice(&report);
    assert_each_has(&advice, &starts);
    assert!(advice.iter().zip(starts).all(|(advice, start)| advice.starts_with(start)));
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
    let report = quantize(&mut model!(Model {
        boxed: Box<dyn Module> = Box::new(candle_linear()),
        shared: Option<Arc<dyn QuantMethod>> = None,
        norm: Norm = Norm { weight: ones(&[1_000]), eps: 1e-6 },
        layer: Toy = Toy::new(),
    }));
    for (field, part) in
        report.hidden.iter().zip(["dyn candle_core::Module", "QuantMethod, or make"])
    {
        assert_parts(&field.to_string(), &[part]);
    }
    assert_eq!(report.hidden.len(), 2, "{report}");
    assert!(report.float_tensors.is_empty(), "{report}");
}
