//! `#[derive(Quantizable)]` on every shape of type.

#![allow(dead_code, reason = "what is skipped is never read")]

mod common;

use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::Arc;

use candle_dynquant::{LayerKind, Quantizable, quantize_dynamic};
use common::toy::{Plain, Toy, assert_walks};

const LSTM: fn() -> Toy = || Toy::of(LayerKind::LSTM);

#[derive(Quantizable, Clone)]
struct Named {
    first: Toy,
    hidden_size: Plain,
    r#type: Toy,
}

#[derive(Quantizable)]
struct Tuple(Toy, Plain, Toy);

#[derive(Quantizable)]
struct Newtype(Toy);

#[derive(Quantizable)]
struct Unit;

#[derive(Quantizable)]
struct NoFields {}

fn named() -> Named {
    Named { first: Toy::new(), hidden_size: Plain(4), r#type: LSTM() }
}

#[test]
fn structs() {
    assert_walks(
        "named",
        &mut named(),
        &["first: Linear", "type: LSTM"],
        &["hidden_size ? derive::common::toy::Plain"],
    );
    assert_walks(
        "tuple",
        &mut Tuple(Toy::new(), Plain(0), LSTM()),
        &["0: Linear", "2: LSTM"],
        &["1 ? derive::common::toy::Plain"],
    );
    assert_walks("newtype", &mut Newtype(Toy::new()), &["0: Linear"], &[]);
    assert_walks("unit", &mut Unit, &[], &[]);
    assert_walks("no fields", &mut NoFields {}, &[], &[]);
    assert_walks("a layer as root", &mut Toy::new(), &[": Linear"], &[]);
}

#[derive(Quantizable)]
enum Shape {
    Unit,
    Newtype(Named),
    NewtypeOpaque(Plain),
    NewtypeRenamed(#[quantizable(rename = "inner")] Toy),
    NewtypeSkipped(#[quantizable(skip)] Toy),
    Pair(Toy, Plain),
    PairSkipped(#[quantizable(skip)] Toy, Toy),
    Named {
        query: Toy,
        #[quantizable(rename = "output.dense")]
        output: Toy,
    },
    Empty(),
}

/// No value exists, but the type can be a field's.
#[derive(Quantizable)]
enum Never {}

#[derive(Quantizable)]
struct Holder {
    shape: Shape,
    never: Option<Never>,
}

#[test]
fn enums() {
    let cases: Vec<(&str, Shape, &[&str], &[&str])> = vec![
        ("unit", Shape::Unit, &[], &[]),
        ("empty tuple", Shape::Empty(), &[], &[]),
        (
            "newtype: no segment",
            Shape::Newtype(named()),
            &["shape.first: Linear", "shape.type: LSTM"],
            &["shape.hidden_size ? derive::common::toy::Plain"],
        ),
        (
            "opaque newtype: reported where it stands",
            Shape::NewtypeOpaque(Plain(1)),
            &[],
            &["shape ? derive::common::toy::Plain"],
        ),
        ("renamed newtype", Shape::NewtypeRenamed(Toy::new()), &["shape.inner: Linear"], &[]),
        ("skipped newtype", Shape::NewtypeSkipped(Toy::new()), &[], &[]),
        (
            "pair",
            Shape::Pair(Toy::new(), Plain(1)),
            &["shape.0: Linear"],
            &["shape.1 ? derive::common::toy::Plain"],
        ),
        (
            "pair: skipping changes no index",
            Shape::PairSkipped(Toy::new(), LSTM()),
            &["shape.1: LSTM"],
            &[],
        ),
        (
            "named",
            Shape::Named { query: Toy::new(), output: LSTM() },
            &["shape.query: Linear", "shape.output.dense: LSTM"],
            &[],
        ),
    ];
    for (case, shape, layers, others) in cases {
        let mut holder = Holder { shape, never: None };
        assert_walks(case, &mut holder, layers, others);
    }
}

/// A user's block behind a trait object.
trait Block: Quantizable {
    fn width(&self) -> usize;
}

impl Block for Named {
    fn width(&self) -> usize {
        self.hidden_size.0
    }
}

/// A trait whose objects hide their contents.
trait Hidden {}

impl Hidden for Toy {}

/// No module tree.
struct Foreign;

#[derive(Quantizable)]
struct Containers {
    none: Option<Toy>,
    some: Option<Toy>,
    nested: Option<Vec<Option<Toy>>>,
    list: Vec<Toy>,
    array: [Toy; 2],
    one: (Toy,),
    #[allow(clippy::type_complexity)]
    eight: (Toy, (), (), (), (), (), (), Toy),
    boxed: Box<Toy>,
    block: Box<dyn Block>,
    blocks: Vec<Box<dyn Block + Send>>,
    slice: Box<[Toy]>,
    arc: Arc<Toy>,
    tree_map: BTreeMap<u32, Toy>,
    hash_map: HashMap<String, Toy>,
    unit: (),
    phantom: PhantomData<Foreign>,
}

#[test]
fn containers() {
    let mut model = Containers {
        none: None,
        some: Some(Toy::new()),
        nested: Some(vec![None, Some(Toy::new())]),
        list: vec![Toy::new(), LSTM()],
        array: [Toy::new(), LSTM()],
        one: (Toy::new(),),
        eight: (Toy::new(), (), (), (), (), (), (), LSTM()),
        boxed: Box::new(Toy::new()),
        block: Box::new(named()),
        blocks: vec![Box::new(named())],
        slice: Box::new([Toy::new()]),
        arc: Arc::new(Toy::new()),
        tree_map: [(10, LSTM()), (9, Toy::new())].into(),
        hash_map: [("b".to_owned(), LSTM()), ("a".to_owned(), Toy::new())].into(),
        unit: (),
        phantom: PhantomData,
    };
    assert_walks(
        "containers",
        &mut model,
        &[
            "some: Linear",
            "nested.1: Linear",
            "list.0: Linear",
            "list.1: LSTM",
            "array.0: Linear",
            "array.1: LSTM",
            "one.0: Linear",
            "eight.0: Linear",
            "eight.7: LSTM",
            "boxed: Linear",
            "block.first: Linear",
            "block.type: LSTM",
            "blocks.0.first: Linear",
            "blocks.0.type: LSTM",
            "slice.0: Linear",
            "arc: Linear",
            "tree_map.9: Linear",
            "tree_map.10: LSTM",
            "hash_map.a: Linear",
            "hash_map.b: LSTM",
        ],
        &[
            "block.hidden_size ? derive::common::toy::Plain",
            "blocks.0.hidden_size ? derive::common::toy::Plain",
        ],
    );
    assert_eq!(model.block.width(), 4, "the trait object is still of its type");
}

/// A field that cannot be visited is reported as a whole, by its full type.
#[derive(Quantizable)]
struct Opaque {
    float: candle_nn::Linear,
    option: Option<candle_nn::Linear>,
    hidden: Box<dyn Hidden>,
    shared_hidden: Arc<dyn Hidden>,
    borrowed: &'static Toy,
    function: fn(&Toy) -> bool,
    nested: Vec<Option<(Toy, Plain)>>,
}

#[test]
fn opaque_fields_have_their_full_type_names() {
    let weight =
        candle_core::Tensor::zeros((2, 2), candle_core::DType::F32, &candle_core::Device::Cpu);
    let linear = candle_nn::Linear::new(weight.expect("a tensor of zeros"), None);
    let toy: &'static Toy = Box::leak(Box::new(Toy::new()));
    let mut model = Opaque {
        float: linear.clone(),
        option: Some(linear),
        hidden: Box::new(Toy::new()),
        shared_hidden: Arc::new(Toy::new()),
        borrowed: toy,
        function: Toy::is_quantized,
        nested: vec![],
    };
    let this = module_path!();
    assert_walks(
        "opaque",
        &mut model,
        &[],
        &[
            "float ? candle_nn::linear::Linear",
            "option ? core::option::Option<candle_nn::linear::Linear>",
            &format!("hidden ? alloc::boxed::Box<dyn {this}::Hidden>"),
            &format!("shared_hidden ? alloc::sync::Arc<dyn {this}::Hidden>"),
            &format!("borrowed ? &{this}::common::toy::Toy"),
            &format!("function ? {}", std::any::type_name::<for<'a> fn(&'a Toy) -> bool>()),
            &format!(
                "nested ? alloc::vec::Vec<core::option::Option<({this}::common::toy::Toy, {this}::common::toy::Plain)>>"
            ),
        ],
    );
}

/// A BERT in candle's style: spans beside layers, and names that are not Rust identifiers.
mod bert {
    use super::*;

    #[derive(Clone)]
    pub struct Span(pub u64);

    #[derive(Quantizable, Clone)]
    pub struct Dense {
        pub inner: Toy,
        pub span: Span,
    }

    #[derive(Quantizable, Clone)]
    pub struct SelfAttention {
        pub query: Toy,
        pub key: Toy,
        pub value: Toy,
        pub num_attention_heads: usize,
        pub span_softmax: Span,
    }

    #[derive(Quantizable, Clone)]
    pub struct Layer {
        #[quantizable(rename = "attention.self")]
        pub attention: SelfAttention,
        #[quantizable(rename = "attention.output")]
        pub output: Dense,
        #[quantizable(flatten)]
        pub feed_forward: FeedForward,
        #[quantizable(skip)]
        pub span: Span,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    pub struct FeedForward {
        pub intermediate: Toy,
        pub down: Option<Toy>,
        #[quantizable(skip)]
        pub activation: fn(f32) -> f32,
    }

    #[derive(Quantizable, Clone)]
    #[quantizable(strict)]
    pub struct Model {
        #[quantizable(rename = "encoder.layer")]
        pub layers: Vec<Layer>,
        pub pooler: Option<Dense>,
    }

    pub fn dense() -> Dense {
        Dense { inner: Toy::new(), span: Span(1) }
    }

    pub fn layer() -> Layer {
        Layer {
            attention: SelfAttention {
                query: Toy::new(),
                key: Toy::new(),
                value: Toy::new(),
                num_attention_heads: 12,
                span_softmax: Span(1),
            },
            output: dense(),
            feed_forward: FeedForward {
                intermediate: Toy::new(),
                down: None,
                activation: f32::tanh,
            },
            span: Span(1),
        }
    }
}

#[test]
fn a_nested_model() {
    let span = std::any::type_name::<bert::Span>();
    let mut model = bert::Model { layers: vec![bert::layer()], pooler: Some(bert::dense()) };
    assert_walks(
        "bert",
        &mut model,
        &[
            "encoder.layer.0.attention.self.query: Linear",
            "encoder.layer.0.attention.self.key: Linear",
            "encoder.layer.0.attention.self.value: Linear",
            "encoder.layer.0.attention.output.inner: Linear",
            "encoder.layer.0.intermediate: Linear",
            "pooler.inner: Linear",
        ],
        &[
            &format!("encoder.layer.0.attention.self.span_softmax ? {span}"),
            &format!("encoder.layer.0.attention.output.span ? {span}"),
            &format!("pooler.span ? {span}"),
        ],
    );
    let float = model.clone();
    let report = quantize_dynamic(&mut model, &candle_dynquant::QConfigSpec::int8().min_params(0))
        .expect("every layer of the model can be quantized");
    assert_eq!(report.swapped().count(), 6);
    assert!(model.layers[0].attention.query.is_quantized());
    assert!(!float.layers[0].attention.query.is_quantized());
}
