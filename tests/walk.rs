//! Shared pointers, the order of a walk, and trees whose two walks disagree.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use candle_dynquant::Result;
use candle_dynquant::{Walk, WalkMut};
use common::toy::{Quantize, Seen, Toy, assert_walks};
use common::*;

#[derive(Quantizable)]
struct Tied {
    embedding: Arc<Toy>,
    blocks: Vec<Toy>,
    decoder: Arc<Toy>,
}

fn tied() -> Tied {
    let shared = Arc::new(Toy::new());
    Tied { embedding: Arc::clone(&shared), blocks: vec![Toy::new()], decoder: shared }
}

/// A pointer that holds a pointer.
#[derive(Quantizable, Clone)]
struct Outer {
    inner: Arc<Toy>,
}

#[test]
fn an_arc_is_visited_once() {
    let layers = "embedding: Linear, blocks.0: Linear";
    assert_walks("tied", &mut tied(), layers, &["decoder = embedding"]);
    let mut equal = Tied { decoder: Arc::new(Toy::new()), ..tied() };
    let layers = "embedding: Linear, blocks.0: Linear, decoder: Linear";
    assert_walks("equal values behind two pointers are two layers", &mut equal, layers, &[]);
}

#[test]
fn a_changed_arc_stays_shared_inside_and_as_it_was_outside() {
    let mut model = tied();
    let outside = Arc::clone(&model.embedding);
    WalkMut::over(&mut model, &mut Quantize(|_: &str| true)).expect("quantizes");
    assert!(model.embedding.is_quantized(), "the layer was changed");
    assert!(Arc::ptr_eq(&model.embedding, &model.decoder), "both places have the changed layer");
    assert!(!outside.is_quantized(), "a clone outside keeps the old layer");
}

#[test]
fn an_arc_under_which_nothing_changes_keeps_its_pointer() {
    let mut model = tied();
    let before = Arc::clone(&model.embedding);
    let only_blocks = |path: &str| path.starts_with("blocks");
    WalkMut::over(&mut model, &mut Quantize(only_blocks)).expect("quantizes");
    assert!(model.blocks[0].is_quantized(), "a layer beside was changed");
    assert!(Arc::ptr_eq(&model.embedding, &before), "embedding was replaced");
    assert!(Arc::ptr_eq(&model.decoder, &before), "decoder was replaced");
}

#[test]
fn arcs_within_arcs() {
    // Whichever pointer is visited first, the inner or the outer, all places agree afterwards.
    let inner = Arc::new(Toy::new());
    let outer = Arc::new(Outer { inner: Arc::clone(&inner) });
    let mut inner_first = (Arc::clone(&inner), Arc::clone(&outer), Arc::clone(&outer));
    WalkMut::over(&mut inner_first, &mut Quantize(|_: &str| true)).expect("quantizes");
    assert!(inner_first.0.is_quantized(), "inner first: inner");
    assert!(Arc::ptr_eq(&inner_first.0, &inner_first.1.inner), "inner first: within the outer");
    assert!(Arc::ptr_eq(&inner_first.1, &inner_first.2), "inner first: outer");

    let mut outer_first = (Arc::clone(&outer), Arc::clone(&inner));
    WalkMut::over(&mut outer_first, &mut Quantize(|_: &str| true)).expect("quantizes");
    assert!(Arc::ptr_eq(&outer_first.0.inner, &outer_first.1), "outer first");
    assert!(!inner.is_quantized(), "outside");
}

#[test]
fn maps_are_walked_in_the_order_of_their_keys() {
    let names: Vec<String> = (0..100).map(|i| format!("block{i:02}")).collect();
    for _ in 0..4 {
        let mut model: HashMap<String, Toy> =
            names.iter().rev().map(|n| (n.clone(), Toy::new())).collect();
        let expected: Vec<String> = names.iter().map(|n| format!("{n}: Linear")).collect();
        assert_walks("map", &mut model, &expected.join(", "), &[]);
    }
}

#[test]
fn an_error_says_where_and_changes_nothing() {
    let mut model = (Toy::new(), vec![Toy::new(), Toy::broken()]);
    let error = quantize_dynamic(&mut model, &all_int8()).expect_err("one is broken");
    assert!(error.to_string().starts_with("1.1: unsupported qconfig: expected nothing"), "{error}");
    assert!(!model.0.is_quantized(), "the layers before it were changed");
}

/// Walks that a mistaken hand-written impl makes.
#[derive(Clone, Copy, Debug)]
enum Mistake {
    OtherName,
    Missing,
    OtherType,
    Twice,
    Swapped,
}

struct HandWritten {
    mistake: Mistake,
    first: Toy,
    second: Toy,
    other: Other,
}

/// A layer of another type than [`Toy`].
#[derive(Quantizable, Clone)]
#[quantizable(layer)]
struct Other(Toy);

impl candle_dynquant::Layer for Other {
    fn kind(&self) -> LayerKind {
        LayerKind::Linear
    }
    fn weight_infos(&self) -> Vec<candle_dynquant::WeightInfo> {
        self.0.weight_infos()
    }
    fn quantize(&self, qconfig: &candle_dynquant::QConfig) -> Result<Self> {
        Ok(Self(self.0.quantize(qconfig)?))
    }
}

impl Quantizable for HandWritten {
    fn visit(&self, walk: &mut Walk<'_>) -> Result<()> {
        walk.child("first", &self.first)?;
        walk.child("second", &self.second)
    }

    fn visit_mut(&mut self, walk: &mut WalkMut<'_>) -> Result<()> {
        walk.child("first", &mut self.first)?;
        match self.mistake {
            Mistake::OtherName => walk.child("secnod", &mut self.second),
            Mistake::Missing => Ok(()),
            Mistake::OtherType => walk.child("second", &mut self.other),
            Mistake::Twice => {
                walk.child("second", &mut self.second)?;
                walk.child("second", &mut self.second)
            }
            // Two layers of one type differ in their content only.
            Mistake::Swapped => walk.child("first", &mut self.second),
        }
    }
}

#[test]
fn walks_that_disagree_are_an_error_and_change_nothing() {
    let not_reached = "visit_mut does not reach second";
    let another = "inconsistent walk: visit and visit_mut must reach the same layers, visit_mut \
        shows another layer here";
    let cases = [
        (Mistake::OtherName, not_reached.to_owned()),
        (Mistake::Missing, not_reached.to_owned()),
        (Mistake::OtherType, format!("second: {another}")),
        (Mistake::Twice, format!("second: {another}")),
        (Mistake::Swapped, "first: inconsistent walk".to_owned()),
    ];
    for (mistake, expected) in cases {
        let [first, second] = [Toy::new(), Toy::new()];
        let mut model = HandWritten { mistake, first, second, other: Other(Toy::new()) };
        let error = quantize_dynamic(&mut model, &all_int8()).expect_err("a mistake");
        assert!(error.kind() == ErrorKind::InvalidModel, "{mistake:?}: {error:?}");
        assert_parts(&error.to_string(), &[&expected]);
        let toys = [&model.first, &model.second, &model.other.0];
        assert!(!toys.iter().any(|toy| toy.is_quantized()), "{mistake:?}: the model was changed");
    }
}

#[test]
fn the_walk_that_looks_needs_no_mutable_model() {
    let model = tied();
    let mut seen = Seen::default();
    Walk::over(&model, &mut seen).expect("walks");
    assert_eq!(seen.lines.len(), 3, "{:?}", seen.lines);
}
