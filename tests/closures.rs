//! Layers defined by closures, and the layers that they hold.

mod common;

use candle_core::{Module, ModuleT, Result, Tensor};
use candle_dynquant::{QConfigSpec, Quantizable, nn, quantize_dynamic};
use common::tensor;

type TestResult = std::result::Result<(), Box<dyn std::error::Error>>;

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

fn values(tensor: &Tensor) -> Result<Vec<f32>> {
    tensor.flatten_all()?.to_vec1()
}

fn swapped<M: Quantizable>(model: &mut M) -> candle_dynquant::Result<Vec<String>> {
    let report = quantize_dynamic(model, &QConfigSpec::int8())?;
    assert!(report.hidden.is_empty(), "{report}");
    Ok(report.swapped().map(|layer| layer.path.clone()).collect())
}

#[test]
fn layers_that_a_closure_is_given_are_quantized() -> TestResult {
    let xs = tensor(&[2, 32, 9], 9)?;
    let mut model = vec![block(1)?, block(3)?];
    let before = model.clone();
    let run = |model: &[nn::Func<'static>]| {
        let mut layers = model.iter();
        values(&layers.try_fold(xs.clone(), |xs, layer| xs.apply(layer))?)
    };
    let float = run(&model)?;
    assert_eq!(swapped(&mut model)?, ["0.0", "0.1", "1.0", "1.1"]);
    // A copy has layers of its own.
    assert_eq!(run(&before)?, float);
    let int8 = run(&model)?;
    assert_ne!(int8, float);
    let mut by_hand = xs.clone();
    for seed in [1, 3] {
        let mut layers = (conv(seed)?, conv(seed + 1)?);
        swapped(&mut layers)?;
        let ys = by_hand.apply(&layers.0)?.relu()?.apply(&layers.1)?;
        by_hand = ((ys * 0.5)? + by_hand)?;
    }
    assert_eq!(int8, values(&by_hand)?);
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
    let float = values(&model.forward_t(&xs, false)?)?;
    assert_eq!(swapped(&mut model)?, ["0.0.0", "0.0.1", "1"]);
    assert_ne!(values(&model.forward_t(&xs, false)?)?, float);
    assert_eq!(format!("{model:?} {:?}", block(1)?), "func func");
    Ok(())
}

#[test]
fn a_closure_that_captures_is_named_in_the_report() -> TestResult {
    let captured = conv(1)?;
    let mut model =
        (nn::func(move |xs| xs.apply(&captured)), nn::func_t(|xs, _| Ok(xs.clone())), conv(2)?);
    let report = quantize_dynamic(&mut model, &QConfigSpec::int8())?;
    let hidden: Vec<_> = report.hidden.iter().map(|one| &*one.path).collect();
    assert_eq!(hidden, ["0"]);
    let advice = report.hidden[0].advice.as_deref().unwrap_or_default();
    assert!(advice.contains("the closure in closures::"), "{advice}");
    let xs = tensor(&[1, 32, 5], 9)?;
    let ys = model.1.forward_t(&model.0.forward(&xs)?, true)?;
    assert_eq!(ys.dims(), xs.dims());
    Ok(())
}
