//! `#[derive(Quantizable)]` on every shape of type, on generic types, of layers, and beside names
//! that the user defines.

#![allow(dead_code, reason = "what is skipped is never read")]

mod common;

use std::any::type_name;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use common::toy::{Plain, Toy, assert_walks};
use common::*;

const LSTM: fn() -> Toy = || Toy::of(LayerKind::LSTM);

/// No module tree.
struct Foreign;

/// An opaque field.
fn opaque<T>(path: &str) -> String {
    format!("{path} ? {}", type_name::<T>())
}

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
    let layers = "first: Linear, type: LSTM";
    assert_walks("named", &mut named(), layers, &["hidden_size ? derive::common::toy::Plain"]);
    let mut tuple = Tuple(Toy::new(), Plain(0), LSTM());
    assert_walks("tuple", &mut tuple, "0: Linear, 2: LSTM", &[&opaque::<Plain>("1")]);
    assert_walks("newtype", &mut Newtype(Toy::new()), "0: Linear", &[]);
    assert_walks("unit", &mut Unit, "", &[]);
    assert_walks("no fields", &mut NoFields {}, "", &[]);
    assert_walks("a layer as root", &mut Toy::new(), ": Linear", &[]);
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
    let named_layers = "shape.first: Linear, shape.type: LSTM";
    let [plain, at_1, hidden_size] = ["shape", "shape.1", "shape.hidden_size"].map(opaque::<Plain>);
    let cases: [(Shape, &str, &[&str]); 9] = [
        (Shape::Unit, "", &[]),
        (Shape::Empty(), "", &[]),
        // A newtype is no segment, and is reported where it stands.
        (Shape::Newtype(named()), named_layers, &[&hidden_size]),
        (Shape::NewtypeOpaque(Plain(1)), "", &[&plain]),
        (Shape::NewtypeRenamed(Toy::new()), "shape.inner: Linear", &[]),
        (Shape::NewtypeSkipped(Toy::new()), "", &[]),
        (Shape::Pair(Toy::new(), Plain(1)), "shape.0: Linear", &[&at_1]),
        // Skipping changes no index.
        (Shape::PairSkipped(Toy::new(), LSTM()), "shape.1: LSTM", &[]),
        (
            Shape::Named { query: Toy::new(), output: LSTM() },
            "shape.query: Linear, shape.output.dense: LSTM",
            &[],
        ),
    ];
    for (case, (shape, layers, others)) in cases.into_iter().enumerate() {
        let mut holder = Holder { shape, never: None };
        assert_walks(&format!("case {case}"), &mut holder, layers, others);
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

#[test]
fn containers() {
    type Eight = (Toy, (), (), (), (), (), (), Toy);
    let mut model = model!(Containers {
        none: Option<Toy> = None,
        some: Option<Toy> = Some(Toy::new()),
        nested: Option<Vec<Option<Toy>>> = Some(vec![None, Some(Toy::new())]),
        list: Vec<Toy> = vec![Toy::new(), LSTM()],
        array: [Toy; 2] = [Toy::new(), LSTM()],
        one: (Toy,) = (Toy::new(),),
        eight: Eight = (Toy::new(), (), (), (), (), (), (), LSTM()),
        boxed: Box<Toy> = Box::new(Toy::new()),
        block: Box<dyn Block> = Box::new(named()),
        blocks: Vec<Box<dyn Block + Send>> = vec![Box::new(named())],
        slice: Box<[Toy]> = Box::new([Toy::new()]),
        arc: Arc<Toy> = Arc::new(Toy::new()),
        tree_map: BTreeMap<u32, Toy> = [(10, LSTM()), (9, Toy::new())].into(),
        hash_map: HashMap<String, Toy> = [("b".into(), LSTM()), ("a".into(), Toy::new())].into(),
        unit: () = (),
        phantom: PhantomData<Foreign> = PhantomData,
    });
    assert_walks(
        "containers",
        &mut model,
        "some: Linear, nested.1: Linear, list.0: Linear, list.1: LSTM, array.0: Linear, \
         array.1: LSTM, one.0: Linear, eight.0: Linear, eight.7: LSTM, boxed: Linear, \
         block.first: Linear, block.type: LSTM, blocks.0.first: Linear, blocks.0.type: LSTM, \
         slice.0: Linear, arc: Linear, tree_map.9: Linear, tree_map.10: LSTM, \
         hash_map.a: Linear, hash_map.b: LSTM",
        &[
            "block.hidden_size ? derive::common::toy::Plain",
            "blocks.0.hidden_size ? derive::common::toy::Plain",
        ],
    );
    assert_eq!(model.block.width(), 4, "the trait object is still of its type");
}

/// A field that cannot be visited is reported as a whole, by its full type.
#[test]
fn opaque_fields_have_their_full_type_names() {
    let linear = candle_nn::Linear::new(zeros(&[2, 2]), None);
    let mut model = model!(Opaque {
        float: candle_nn::Linear = linear.clone(),
        option: Option<candle_nn::Linear> = Some(linear),
        hidden: Box<dyn Hidden> = Box::new(Toy::new()),
        shared_hidden: Arc<dyn Hidden> = Arc::new(Toy::new()),
        borrowed: &'static Toy = Box::leak(Box::new(Toy::new())),
        function: fn(&Toy) -> bool = Toy::is_quantized,
        nested: Vec<Option<(Toy, Plain)>> = vec![],
    });
    let this = module_path!();
    assert_walks(
        "opaque",
        &mut model,
        "",
        &[
            "float ? candle_nn::linear::Linear",
            "option ? core::option::Option<candle_nn::linear::Linear>",
            &format!("hidden ? alloc::boxed::Box<dyn {this}::Hidden>"),
            &format!("shared_hidden ? alloc::sync::Arc<dyn {this}::Hidden>"),
            &format!("borrowed ? &{this}::common::toy::Toy"),
            &opaque::<for<'a> fn(&'a Toy) -> bool>("function"),
            &format!(
                "nested ? alloc::vec::Vec<core::option::Option<({this}::common::toy::Toy, {this}::common::toy::Plain)>>"
            ),
        ],
    );
}

/// Blocks in candle's style: spans beside layers, and names that are not Rust identifiers.
mod blocks {
    use super::*;

    #[derive(Clone)]
    pub struct Span(pub u64);

    #[derive(Quantizable, Clone)]
    pub struct Dense {
        pub inner: Toy,
        pub size: usize,
        pub span: Span,
    }

    #[derive(Quantizable, Clone)]
    pub struct Block {
        #[quantizable(rename = "attention.self")]
        pub attention: Dense,
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
        pub layers: Vec<Block>,
        pub pooler: Option<Dense>,
    }
}

#[test]
fn a_nested_model() {
    use blocks::{Block, Dense, FeedForward, Model, Span};
    let dense = || Dense { inner: Toy::new(), size: 12, span: Span(1) };
    let feed_forward = FeedForward { intermediate: Toy::new(), down: None, activation: f32::tanh };
    let block = Block { attention: dense(), feed_forward, span: Span(1) };
    let mut model = Model { layers: vec![block], pooler: Some(dense()) };
    let layers = "encoder.layer.0.attention.self.inner: Linear, \
        encoder.layer.0.intermediate: Linear, pooler.inner: Linear";
    let spans = ["encoder.layer.0.attention.self.span", "pooler.span"].map(opaque::<Span>);
    assert_walks("nested", &mut model, layers, &spans.each_ref().map(String::as_str));
    let float = model.clone();
    assert_eq!(quantize(&mut model).swapped().count(), 3);
    assert!(model.layers[0].attention.inner.is_quantized());
    assert!(!float.layers[0].attention.inner.is_quantized());
}

/// All forms of generics, including opaque fields.
#[derive(Quantizable)]
struct Generic<'a, T, U, const N: usize>
where
    U: Debug,
{
    blocks: [T; N],
    pair: (T, Option<Box<T>>),
    mixed: Vec<(T, Foreign)>,
    label: &'a Plain,
    #[quantizable(skip)]
    note: U,
    kind: PhantomData<U>,
    sizes: [Plain; N],
}

macro_rules! list {
    ($item:ty) => { Vec<$item> };
}

macro_rules! table {
    () => {
        [Plain; 2]
    };
}

/// The type a macro makes of `T` is visited, and has to be a module tree.
#[derive(Quantizable)]
struct BehindMacros<T> {
    items: list!(T),
    nested: Option<list!((T, T))>,
    table: table!(),
}

#[test]
fn a_macro_does_not_hide_a_parameter() {
    let mut model = BehindMacros {
        items: vec![Toy::new()],
        nested: Some(vec![(LSTM(), Toy::new())]),
        table: [Plain(0); 2],
    };
    let layers = "items.0: Linear, nested.0.0: LSTM, nested.0.1: Linear";
    assert_walks("behind macros", &mut model, layers, &[&opaque::<[Plain; 2]>("table")]);
}

#[test]
fn generics() {
    let mut model = Generic {
        blocks: [Newtype(Toy::new()), Newtype(LSTM())],
        pair: (Newtype(Toy::new()), None),
        mixed: vec![(Newtype(Toy::new()), Foreign)],
        label: &Plain(1),
        note: 1.5f32, // no module tree, and need not be one
        kind: PhantomData::<f32>,
        sizes: [Plain(1), Plain(2)],
    };
    let layers = "blocks.0.0: Linear, blocks.1.0: LSTM, pair.0.0: Linear";
    let mixed = opaque::<Vec<(Newtype, Foreign)>>("mixed");
    let others = [&*mixed, &opaque::<&Plain>("label"), &opaque::<[Plain; 2]>("sizes")];
    assert_walks("generic", &mut model, layers, &others);
}

trait Config {
    type Head;
    type Body;
}

struct Small;

impl Config for Small {
    type Head = Toy;
    type Body = Vec<Toy>;
}

/// The parameter itself is not a module tree, its projection is.
#[derive(Quantizable)]
struct Projected<C: Config> {
    head: C::Head,
    body: Option<<C as Config>::Body>,
}

/// `()` is a missing part.
#[derive(Quantizable)]
struct WithDefault<H = ()> {
    trunk: Toy,
    head: H,
}

/// The where clause holds the bounds that fields need beside `Quantizable`.
#[derive(Quantizable)]
struct GenericShared<T>
where
    T: Clone + 'static,
{
    left: Arc<T>,
    right: Arc<T>,
}

#[derive(Quantizable)]
struct Unsized<T: ?Sized> {
    first: Toy,
    rest: T,
}

#[derive(Quantizable)]
struct Tree {
    value: Toy,
    children: Vec<Self>,
}

#[test]
fn generics_at_the_edges() {
    let mut projected = Projected::<Small> { head: Toy::new(), body: Some(vec![LSTM()]) };
    assert_walks("projected types", &mut projected, "head: Linear, body.0: LSTM", &[]);
    let mut default: WithDefault = WithDefault { trunk: Toy::new(), head: () };
    assert_walks("default parameter", &mut default, "trunk: Linear", &[]);
    let shared = Arc::new(Toy::new());
    let mut shared = GenericShared { left: Arc::clone(&shared), right: shared };
    assert_walks("generic Arc", &mut shared, "left: Linear", &["right = left"]);
    let mut unsize: Box<Unsized<[Toy]>> =
        Box::new(Unsized { first: Toy::new(), rest: [LSTM(), LSTM()] });
    assert_walks("unsized", &mut unsize, "first: Linear, rest.0: LSTM, rest.1: LSTM", &[]);
    let leaf = || Tree { value: LSTM(), children: vec![] };
    let mut tree = Tree { value: Toy::new(), children: vec![leaf(), leaf()] };
    let layers = "value: Linear, children.0.value: LSTM, children.1.value: LSTM";
    assert_walks("recursive", &mut tree, layers, &[]);
}

/// Names of fields, parameters and items that an expansion might use itself.
mod hygiene {
    use super::*;

    type Result = ();
    struct Ok;
    #[allow(non_upper_case_globals)]
    const walk: usize = 3;
    #[allow(non_upper_case_globals)]
    const field_0: usize = 3;
    mod core {}
    mod candle_dynquant {}

    #[derive(Quantizable)]
    pub struct Fields {
        pub walk: Toy,
        pub visit: Toy,
        pub field_0: Toy,
    }

    #[derive(Quantizable)]
    pub enum Variants {
        Ok(Toy),
        Err { walk: Toy, field_0: Plain },
    }

    /// A field that has methods of the probe's names itself.
    pub struct Visits(pub usize);

    impl Visits {
        pub fn visit(&self) {}
        pub fn visit_here(&self) {}
    }

    #[derive(Quantizable)]
    pub struct HoldsVisits {
        pub visits: Visits,
    }
}

#[test]
fn names_do_not_meet_the_users() {
    use hygiene::{Fields, HoldsVisits, Variants, Visits};
    let mut fields = Fields { walk: Toy::new(), visit: Toy::new(), field_0: LSTM() };
    let layers = "walk: Linear, visit: Linear, field_0: LSTM";
    assert_walks("fields", &mut fields, layers, &[]);
    assert_walks("newtype", &mut Variants::Ok(Toy::new()), ": Linear", &[]);
    let mut variant = Variants::Err { walk: Toy::new(), field_0: Plain(1) };
    assert_walks("variant", &mut variant, "walk: Linear", &[&opaque::<Plain>("field_0")]);
    let mut methods = HoldsVisits { visits: Visits(1) };
    assert_walks("own methods", &mut methods, "", &[&opaque::<Visits>("visits")]);
}

/// The crate under another name, such as a user's re-export.
mod renamed_crate {
    pub mod deep {
        pub use candle_dynquant as quant;
    }

    #[derive(candle_dynquant::Quantizable)]
    #[quantizable(crate = "crate::renamed_crate::deep::quant", strict)]
    pub struct Model {
        pub layer: super::Toy,
    }
}

#[test]
fn the_crate_can_be_found_elsewhere() {
    let layer = Toy::new();
    assert_walks("crate = ..", &mut renamed_crate::Model { layer }, "layer: Linear", &[]);
}

/// A layer that chooses between two layers, and a layer with a parameter.
mod leaves {
    use super::*;
    use candle_dynquant::{Result, WeightInfo};

    #[derive(Quantizable)]
    #[quantizable(layer)]
    pub enum Either {
        A(Toy),
        B { toy: Toy, size: usize },
    }

    #[derive(Quantizable)]
    #[quantizable(layer)]
    pub struct Wrapped<T>(pub T);

    impl Layer for Either {
        fn kind(&self) -> LayerKind {
            LayerKind::custom("Either")
        }
        fn weight_infos(&self) -> Vec<WeightInfo> {
            let (Self::A(toy) | Self::B { toy, .. }) = self;
            toy.weight_infos()
        }
        fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
            Ok(match self {
                Self::A(toy) => Self::A(toy.quantize(qconfig)?),
                Self::B { toy, size } => Self::B { toy: toy.quantize(qconfig)?, size: *size },
            })
        }
    }

    /// The derive has the bounds of this impl for `T`.
    impl<T: Layer> Layer for Wrapped<T> {
        fn kind(&self) -> LayerKind {
            LayerKind::custom("Wrapped")
        }
        fn weight_infos(&self) -> Vec<WeightInfo> {
            self.0.weight_infos()
        }
        fn quantize(&self, qconfig: &QConfig) -> Result<Self> {
            Ok(Self(self.0.quantize(qconfig)?))
        }
    }
}

#[test]
fn leaves_show_themselves_alone() {
    use leaves::{Either, Wrapped};
    let b = Either::B { toy: Toy::new(), size: 1 };
    assert_walks("enum", &mut Either::A(Toy::new()), ": Custom(Either)", &[]);
    assert_walks("generic", &mut vec![Wrapped(Toy::new())], "0: Custom(Wrapped)", &[]);
    assert_walks("in a list", &mut vec![b], "0: Custom(Either)", &[]);
}
