//! `#[derive(Quantizable)]` of generic types, of layers, and beside names that the user defines.

#![allow(dead_code, reason = "what is skipped is never read")]

mod common;

use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::Arc;

use candle_dynquant::{LayerKind, Quantizable};
use common::toy::{Plain, Toy, assert_walks};

const LSTM: fn() -> Toy = || Toy::of(LayerKind::LSTM);

#[derive(Quantizable)]
struct Newtype(Toy);

/// No module tree.
struct Foreign;

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
    assert_walks(
        "behind macros",
        &mut model,
        &["items.0: Linear", "nested.0.0: LSTM", "nested.0.1: Linear"],
        &["table ? [derive_generics::common::toy::Plain; 2]"],
    );
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
    let mixed = std::any::type_name::<Vec<(Newtype, Foreign)>>();
    assert_walks(
        "generic",
        &mut model,
        &["blocks.0.0: Linear", "blocks.1.0: LSTM", "pair.0.0: Linear"],
        &[
            &format!("mixed ? {mixed}"),
            "label ? &derive_generics::common::toy::Plain",
            "sizes ? [derive_generics::common::toy::Plain; 2]",
        ],
    );
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
    assert_walks(
        "projected types",
        &mut Projected::<Small> { head: Toy::new(), body: Some(vec![LSTM()]) },
        &["head: Linear", "body.0: LSTM"],
        &[],
    );
    let mut default: WithDefault = WithDefault { trunk: Toy::new(), head: () };
    assert_walks("default parameter", &mut default, &["trunk: Linear"], &[]);
    let shared = Arc::new(Toy::new());
    assert_walks(
        "generic Arc",
        &mut GenericShared { left: Arc::clone(&shared), right: shared },
        &["left: Linear"],
        &["right = left"],
    );
    let mut unsize: Box<Unsized<[Toy]>> =
        Box::new(Unsized { first: Toy::new(), rest: [LSTM(), LSTM()] });
    assert_walks("unsized", &mut unsize, &["first: Linear", "rest.0: LSTM", "rest.1: LSTM"], &[]);
    let leaf = || Tree { value: LSTM(), children: vec![] };
    assert_walks(
        "recursive",
        &mut Tree { value: Toy::new(), children: vec![leaf(), leaf()] },
        &["value: Linear", "children.0.value: LSTM", "children.1.value: LSTM"],
        &[],
    );
}

/// Names of fields, parameters and items that an expansion might use itself.
mod hygiene {
    use super::*;

    #[allow(dead_code)]
    type Result = ();
    #[allow(dead_code)]
    struct Ok;
    #[allow(dead_code, non_upper_case_globals)]
    const walk: usize = 3;
    #[allow(dead_code, non_upper_case_globals)]
    const field_0: usize = 3;
    #[allow(dead_code)]
    mod core {}
    #[allow(dead_code)]
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

    #[allow(dead_code)]
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
    assert_walks(
        "fields",
        &mut Fields { walk: Toy::new(), visit: Toy::new(), field_0: LSTM() },
        &["walk: Linear", "visit: Linear", "field_0: LSTM"],
        &[],
    );
    assert_walks("newtype", &mut Variants::Ok(Toy::new()), &[": Linear"], &[]);
    assert_walks(
        "variant",
        &mut Variants::Err { walk: Toy::new(), field_0: Plain(1) },
        &["walk: Linear"],
        &["field_0 ? derive_generics::common::toy::Plain"],
    );
    assert_walks(
        "own methods",
        &mut HoldsVisits { visits: Visits(1) },
        &[],
        &[&format!("visits ? {}", std::any::type_name::<Visits>())],
    );
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
    assert_walks("crate = ..", &mut renamed_crate::Model { layer }, &["layer: Linear"], &[]);
}

/// A layer that chooses between two layers, and a layer with a parameter.
mod leaves {
    use super::*;
    use candle_dynquant::{Layer, QConfig, Result, WeightInfo};

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
    assert_walks("enum", &mut Either::A(Toy::new()), &[": Custom(Either)"], &[]);
    assert_walks("generic", &mut vec![Wrapped(Toy::new())], &["0: Custom(Wrapped)"], &[]);
    assert_walks("in a list", &mut vec![b], &["0: Custom(Either)"], &[]);
}
