//! A folder that compressed-tensors wrote: see assets/reference/int_quantized.py.

use std::path::Path;

use anyhow::Result;
use candle_core::{DType, Device, Module, Tensor};
use candle_dynquant::{Checkpoint, nn};

fn difference(a: &Tensor, b: &Tensor) -> Result<f32> {
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

#[test]
fn int8_linears_are_built_from_their_codes() -> Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/reference/int_quantized");
    let expected = folder.join("expected.safetensors");
    let expected = candle_core::safetensors::load(expected, &Device::Cpu)?;
    let checkpoint = Checkpoint::open(&folder)?;
    let vb = checkpoint.var_builder(DType::F32, &Device::Cpu);
    let up = nn::linear(24, 40, vb.pp("up"))?;
    let down = nn::linear_no_bias(40, 10, vb.pp("down"))?;
    let head = nn::linear(10, 3, vb.pp("head"))?;
    for (name, layer) in [("up", &up), ("down", &down)] {
        assert!(layer.projection().qweight().is_some(), "{name}");
        let weight = &expected[&format!("{name}.weight")];
        assert_eq!(difference(layer.weight(), weight)?, 0., "{name}");
        let float = candle_nn::linear_no_bias(weight.dim(1)?, weight.dim(0)?, vb.pp(name))?;
        assert_eq!(difference(float.weight(), weight)?, 0., "{name}");
    }
    assert!(
        down.projection()
            .qweight()
            .is_some_and(|w| w.zero_points().iter().any(|z| *z != 0))
    );
    assert!(head.projection().qweight().is_none());
    let ys = head.forward(&down.forward(&up.forward(&expected["input"])?.relu()?)?)?;
    // The activations' rounding: theirs have 8 bits for both signs.
    let error = difference(&ys, &expected["output"])?;
    let most = expected["output"].abs()?.max_all()?.to_scalar::<f32>()?;
    assert!(error < 0.02 * most, "{error} of {most}");
    Ok(())
}
