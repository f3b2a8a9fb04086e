//! Recurrent layers whose weights come from layers that are quantized otherwise.

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_dynquant::nn::{self, RecurrentConfig};
use candle_dynquant::{Checkpoint, QConfig, QConfigSpec, checkpoint, quantize_dynamic};
use candle_nn::VarBuilder;

const INPUT: usize = 5;
const HIDDEN: usize = 8;

fn lstm(vb: VarBuilder<'_>) -> Result<nn::LSTM> {
    let config = RecurrentConfig { bidirectional: true, ..Default::default() };
    Ok(nn::LSTM::new(INPUT, HIDDEN, config, vb)?)
}

/// Numbers within +-1, the same in every run: the bound below holds for these.
fn values(shape: &[usize], seed: &mut u64) -> Result<Tensor> {
    let value = || {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (*seed >> 40) as f32 / (1u64 << 23) as f32 - 1.
    };
    let count = shape.iter().product();
    let values: Vec<f32> = std::iter::repeat_with(value).take(count).collect();
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?)
}

#[test]
fn each_direction_may_be_quantized_otherwise() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, out] = ["float", "out"].map(|name| dir.path().join(name));
    let (mut tensors, mut seed) = (HashMap::new(), 1);
    let shapes: [(&str, &[usize]); 4] = [
        ("weight_ih", &[4 * HIDDEN, INPUT]),
        ("weight_hh", &[4 * HIDDEN, HIDDEN]),
        ("bias_ih", &[4 * HIDDEN]),
        ("bias_hh", &[4 * HIDDEN]),
    ];
    for (name, shape) in shapes {
        for end in ["l0", "l0_reverse"] {
            let tensor = (values(shape, &mut seed)? * 0.6)?;
            for layer in ["a", "b"] {
                tensors.insert(format!("{layer}.{name}_{end}"), tensor.copy()?);
            }
        }
    }
    candle_core::safetensors::save(&tensors, &float)?;
    let source = Checkpoint::open(&float)?;
    let vb = source.var_builder(DType::F32, &Device::Cpu);
    let mut both =
        HashMap::from([("a".to_owned(), lstm(vb.pp("a"))?), ("b".to_owned(), lstm(vb.pp("b"))?)]);
    let spec = QConfigSpec::int8().min_params(0);
    quantize_dynamic(&mut both, &spec.name("b", QConfig::float16()))?;
    checkpoint::save(&both, &source, &out)?;

    let vb = Checkpoint::open(&out)?.var_builder(DType::F32, &Device::Cpu);
    let xs = (values(&[7, 2, INPUT], &mut seed)? * 2.)?;
    let half = |ys: &Tensor, direction: usize| -> Result<Vec<f32>> {
        let half = ys.narrow(2, direction * HIDDEN, HIDDEN)?;
        Ok(half.flatten_all()?.to_vec1()?)
    };
    let [a, b] = ["a", "b"].map(|name| both[name].forward(&xs, None));
    let ((a, _), (b, _)) = (a?, b?);
    let directions = vb.clone().rename_f(|name| {
        let direction = if name.contains("_reverse") { "b" } else { "a" };
        name.replace("mixed", direction)
    });
    let (ys, _) = lstm(directions.pp("mixed"))?.forward(&xs, None)?;
    assert_eq!(half(&ys, 0)?, half(&a, 0)?);
    assert_eq!(half(&ys, 1)?, half(&b, 1)?);

    // The input and the state of one direction also mix.
    let products = vb.rename_f(|name| {
        let product = if name.contains("_hh_") { "b" } else { "a" };
        name.replace("mixed", product)
    });
    let (ys, _) = lstm(products.pp("mixed"))?.forward(&xs, None)?;
    for (name, alone) in [("int8", a), ("float16", b)] {
        let error = (&ys - alone)?.abs()?.max_all()?.to_scalar::<f32>()?;
        assert!((1e-7..0.02).contains(&error), "{name}: {error}");
    }
    Ok(())
}
