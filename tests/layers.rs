//! Layers that a user defines, with a `Layer` derived by `#[quantizable(layer = "Kind")]`.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;

use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::{
    Checkpoint, Layer, LayerKind, Outcome, QConfig, QConfigSpec, Quantizable, checkpoint, inspect,
    nn, quantize_dynamic,
};

type TestResult = Result<(), Box<dyn std::error::Error>>;

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

fn random(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1., shape, &Device::Cpu).expect("a tensor")
}

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
    let mut own = head(random(&[3, 4]));
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
    let mut model = vec![OfMacro { inner: nn::Projection::new(random(&[3, 4]), None) }];
    let report = quantize_dynamic(&mut model, &rule("OfMacro"))?;
    assert_eq!(report.swapped().count(), 1);
    assert_eq!(model[0].weight_infos()[0].name, "weight");
    assert!(model[0].inner.qweight().is_some() && model[0].checkpoint_name().is_none());
    Ok(())
}

#[test]
fn a_derived_layer_of_several_weights_names_each() -> TestResult {
    let own = gated(random(&[3, 4]), random(&[5, 4]));
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

    let mut broken = vec![gated(random(&[3, 4]), Tensor::full(f32::NAN, (5, 4), &Device::Cpu)?)];
    let error = quantize_dynamic(&mut broken, &rule("GatedUnit")).expect_err("a NaN");
    assert!(error.to_string().contains("0.up"), "{error}");
    Ok(())
}

#[test]
fn a_derived_layer_lends_saves_and_is_measured() -> TestResult {
    let table = random(&[32, 64]);
    let dir = tempfile::tempdir()?;
    let [float, int8] =
        ["float", "int8"].map(|name| dir.path().join(name).with_extension("safetensors"));
    let tensors =
        [("lm.head.decoder", &table), ("ffn.gate", &table), ("ffn.up", &random(&[8, 64]))];
    let tensors = tensors.map(|(name, tensor)| (name, tensor.copy().expect("a copy")));
    candle_core::safetensors::save(&HashMap::from(tensors.clone()), &float)?;

    let [(_, lm_head), (_, gate), (_, up)] = tensors;
    let mut original = (head(lm_head), gated(gate, up));
    let mut model =
        (original.0.clone(), gated(original.1.0.weight().clone(), original.1.1.weight().clone()));
    let report = quantize_dynamic(
        &mut model,
        &rule("Head").kind(LayerKind::custom("GatedUnit"), QConfig::int8()),
    )?;
    assert!(report.layers.iter().all(|layer| matches!(layer.outcome, Outcome::Swapped { .. })));

    let xs = random(&[5, 64]);
    let run = |model: &(Head, Gated<String>)| -> candle_core::Result<Tensor> {
        model.1.0.forward(&xs)?;
        model.0.projection.forward(&xs)
    };
    let inspection = inspect::inspect(&mut original, &mut model, run)?;
    assert!(inspection.layers[0].output.is_some_and(|output| output.sqnr_db() > 30.));
    assert!(inspection.layers[1].output.is_none());
    assert_eq!(inspection.layers[1].weights.len(), 2);

    checkpoint::save(&model, &Checkpoint::open(&float)?, &int8)?;
    let vb = Checkpoint::open(&int8)?.var_builder(DType::F32, &Device::Cpu);
    let load = |shape: (usize, usize), name| -> candle_core::Result<_> {
        Ok(nn::Projection::new(vb.get(shape, name)?, None))
    };
    let loaded = load((32, 64), "lm.head.decoder")?;
    let others = [load((32, 64), "ffn.gate")?, load((8, 64), "ffn.up")?];
    assert!(loaded.qweight().is_some() && others.iter().all(|own| own.qweight().is_some()));
    let [saved, own] = [&loaded, &model.0.projection].map(|own| own.forward(&xs));
    assert_eq!(saved?.to_vec2::<f32>()?, own?.to_vec2::<f32>()?);

    let mut tied = (nn::Embedding::new(table.clone(), 64), head(table));
    let spec = rule("Head").embeddings();
    let report = quantize_dynamic(&mut tied, &spec)?;
    assert_eq!(report.layers[0].outcome, Outcome::Shared { with: "1".into() });
    Ok(())
}
