//! Layers that a user defines: with a `Layer` derived by `#[quantizable(layer = "Kind")]`, or by
//! closures around the layers that they hold.

mod common;

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use candle_core::{ModuleT, Result};
use candle_dynquant::inspect;
use common::*;

type TestResult = std::result::Result<(), Box<dyn std::error::Error>>;

#[derive(Quantizable, Clone)]
#[quantizable(layer = "Head")]
struct Head {
    #[quantizable(weight = "decoder")]
    projection: nn::Projection,
    #[quantizable(name)]
    name: Option<Arc<str>>,
    scale: f64,
}

#[derive(Quantizable)]
#[quantizable(layer = "GatedUnit")]
struct Gated<T>(
    #[quantizable(weight = "gate")] nn::Projection,
    #[quantizable(weight = "up")] nn::Projection,
    #[quantizable(name)] &'static str,
    PhantomData<fn(T)>,
    Option<T>,
);

macro_rules! layer_of {
    ($name:ident, $kind:literal, $field:ident: $Projection:ty) => {
        #[derive(Quantizable, Clone)]
        #[quantizable(layer = $kind)]
        struct $name {
            #[quantizable(weight)]
            $field: $Projection,
        }
    };
}
layer_of!(OfMacro, "OfMacro", inner: nn::Projection);

fn head(weight: Tensor) -> Head {
    Head { projection: nn::Projection::new(weight, None), name: Some("lm.head".into()), scale: 0.5 }
}

fn gated(gate: Tensor, up: Tensor) -> Gated<String> {
    let [gate, up] = [gate, up].map(|weight| nn::Projection::new(weight, None));
    Gated(gate, up, "ffn", PhantomData, Some("kept".into()))
}

fn rule(kind: &'static str) -> QConfigSpec {
    QConfigSpec::new().kind(LayerKind::custom(kind), QConfig::int8())
}

#[test]
fn a_derived_layer_says_what_its_projection_says() -> TestResult {
    let mut own = head(randn(&[3, 4]));
    assert_eq!(own.kind(), LayerKind::custom("Head"));
    assert_eq!(own.checkpoint_name(), Some("lm.head"));
    assert_eq!(own.weight_infos(), [own.projection.info("decoder")]);
    assert_eq!(own.stored()?.len(), 1);
    assert!(own.attach(None) && own.replay().is_some());
    assert!(own.lend("decoder").is_none(), "it is float");

    let int8 = own.quantize(&QConfig::int8())?;
    assert!(int8.weight_infos()[0].quantized && !own.weight_infos()[0].quantized);
    assert_eq!(int8.weights()?[0].dims(), [3, 4]);
    assert!(int8.lend("decoder").is_some() && int8.lend("weight").is_none());
    assert_eq!((int8.name, int8.scale), (own.name, own.scale));
    Ok(())
}

#[test]
fn a_layer_that_a_macro_declares_is_derived() -> TestResult {
    let mut model = vec![OfMacro { inner: nn::Projection::new(randn(&[3, 4]), None) }];
    let report = quantize_dynamic(&mut model, &rule("OfMacro"))?;
    assert_eq!(report.swapped().count(), 1);
    assert_eq!(model[0].weight_infos()[0].name, "weight");
    assert!(model[0].inner.qweight().is_some() && model[0].checkpoint_name().is_none());
    Ok(())
}

#[test]
fn a_derived_layer_of_several_weights_names_each() -> TestResult {
    let own = gated(randn(&[3, 4]), randn(&[5, 4]));
    assert_eq!(own.checkpoint_name(), Some("ffn"));
    assert_eq!(own.weight_infos(), [own.0.info("gate"), own.1.info("up")]);
    let int8 = own.quantize(&QConfig::int8())?;
    let shapes: Vec<_> = int8.weights()?.iter().map(|w| w.dims().to_vec()).collect();
    assert_eq!(shapes, [[3, 4], [5, 4]]);
    assert_eq!(int8.stored()?.len(), 2);
    assert!(int8.lend("gate").is_some() && int8.lend("up").is_some());
    assert_eq!(int8.4.as_deref(), Some("kept"));
    // Which of the products a report would be of is not known.
    assert!(int8.replay().is_none());

    let mut broken = vec![gated(randn(&[3, 4]), Tensor::full(f32::NAN, (5, 4), CPU)?)];
    assert_fails(quantize_dynamic(&mut broken, &rule("GatedUnit")), &["0.up"]);
    Ok(())
}

#[test]
fn a_derived_layer_lends_saves_and_is_measured() -> TestResult {
    let table = randn(&[32, 64]);
    let dir = tempfile::tempdir()?;
    let [float, int8] =
        ["float", "int8"].map(|name| dir.path().join(name).with_extension("safetensors"));
    let up = randn(&[8, 64]);
    let tensors = [("lm.head.decoder", &table), ("ffn.gate", &table), ("ffn.up", &up)];
    let tensors = tensors.map(|(name, tensor)| (name, tensor.copy().expect("a copy")));
    candle_core::safetensors::save(&HashMap::from(tensors.clone()), &float)?;

    let [(_, lm_head), (_, gate), (_, up)] = tensors;
    let mut original = (head(lm_head), gated(gate, up));
    let mut model =
        (original.0.clone(), gated(original.1.0.weight().clone(), original.1.1.weight().clone()));
    let both = rule("Head").kind(LayerKind::custom("GatedUnit"), QConfig::int8());
    let report = quantize_dynamic(&mut model, &both)?;
    assert!(report.layers.iter().all(|layer| matches!(layer.outcome, Outcome::Swapped { .. })));

    let xs = randn(&[5, 64]);
    let run = |model: &(Head, Gated<String>)| -> candle_core::Result<Tensor> {
        model.1.0.forward(&xs)?;
        model.0.projection.forward(&xs)
    };
    let inspection = inspect::inspect(&mut original, &mut model, run)?;
    assert!(inspection.layers[0].output.is_some_and(|output| output.sqnr_db() > 30.));
    assert!(inspection.layers[1].output.is_none());
    assert_eq!(inspection.layers[1].weights.len(), 2);

    checkpoint::save(&model, &Checkpoint::open(&float)?, &int8)?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, CPU);
    let load = |shape: (usize, usize), name| -> candle_core::Result<_> {
        Ok(nn::Projection::new(vb.get(shape, name)?, None))
    };
    let loaded = load((32, 64), "lm.head.decoder")?;
    let others = [load((32, 64), "ffn.gate")?, load((8, 64), "ffn.up")?];
    assert!(loaded.qweight().is_some() && others.iter().all(|own| own.qweight().is_some()));
    assert_same(&loaded.forward(&xs)?, &model.0.projection.forward(&xs)?, "saved");

    let mut tied = (nn::Embedding::new(table.clone(), 64), head(table));
    let spec = rule("Head").embeddings();
    let report = quantize_dynamic(&mut tied, &spec)?;
    assert_eq!(report.layers[0].outcome, Outcome::Shared { with: "1".into() });
    assert_same(tied.0.embeddings(), tied.1.projection.weight(), "lent");
    Ok(())
}

fn conv(seed: u64) -> Result<nn::Conv1d> {
    let weight = (tensor(&[32, 32, 5], seed)? * 0.1)?;
    let config = candle_nn::Conv1dConfig { padding: 2, ..Default::default() };
    Ok(nn::Conv1d::new(weight, None, config))
}

/// Two convolutions around a scale that is no layer.
fn block(seed: u64) -> Result<nn::Func<'static>> {
    let (first, second, scale) = (conv(seed)?, conv(seed + 1)?, 0.5);
    Ok(nn::Func::holding((first, second), move |(first, second), xs| {
        (xs.apply(first)?.relu()?.apply(second)? * scale)? + xs
    }))
}

fn assert_swapped<M: Quantizable>(model: &mut M, paths: &[&str]) {
    let report = quantize(model);
    assert!(report.hidden.is_empty(), "{report}");
    assert_eq!(swapped(&report), paths);
}

#[test]
fn layers_that_a_closure_is_given_are_quantized() -> TestResult {
    let xs = tensor(&[2, 32, 9], 9)?;
    let mut model = vec![block(1)?, block(3)?];
    let before = model.clone();
    let run = |model: &[nn::Func<'static>]| {
        let ys = model.iter().try_fold(xs.clone(), |xs, layer| xs.apply(layer));
        values(&ys.expect("an output"))
    };
    let float = run(&model);
    assert_swapped(&mut model, &["0.0", "0.1", "1.0", "1.1"]);
    // A copy has layers of its own.
    assert_eq!(run(&before), float);
    let int8 = run(&model);
    assert_ne!(int8, float);
    let mut by_hand = xs.clone();
    for seed in [1, 3] {
        let mut layers = (conv(seed)?, conv(seed + 1)?);
        assert_swapped(&mut layers, &["0", "1"]);
        let ys = by_hand.apply(&layers.0)?.relu()?.apply(&layers.1)?;
        by_hand = ((ys * 0.5)? + by_hand)?;
    }
    assert_eq!(int8, values(&by_hand));
    Ok(())
}

#[test]
fn closures_in_closures_are_walked_too() -> TestResult {
    let (layers, head) = (vec![block(1)?], Some(conv(5)?));
    let mut model = nn::FuncT::holding((layers, head), |(layers, head), xs, train| {
        assert!(!train);
        let mut layers = layers.iter();
        let xs = layers.try_fold(xs.clone(), |xs, layer| xs.apply(layer))?;
        match head {
            Some(head) => xs.apply(head),
            None => Ok(xs),
        }
    });
    let xs = tensor(&[1, 32, 5], 9)?;
    let float = values(&model.forward_t(&xs, false)?);
    assert_swapped(&mut model, &["0.0.0", "0.0.1", "1"]);
    assert_ne!(values(&model.forward_t(&xs, false)?), float);
    assert_eq!(format!("{model:?} {:?}", block(1)?), "func func");
    Ok(())
}

#[test]
fn a_closure_that_captures_is_named_in_the_report() -> TestResult {
    let captured = conv(1)?;
    let mut model =
        (nn::func(move |xs| xs.apply(&captured)), nn::func_t(|xs, _| Ok(xs.clone())), conv(2)?);
    let report = quantize(&mut model);
    assert_eq!(hidden(&report), ["0"]);
    let advice = report.hidden[0].advice.as_deref().unwrap_or_default();
    assert_parts(advice, &["the closure in layers::"]);
    let xs = tensor(&[1, 32, 5], 9)?;
    let ys = model.1.forward_t(&model.0.forward(&xs)?, true)?;
    assert_eq!(ys.dims(), xs.dims());
    Ok(())
}
