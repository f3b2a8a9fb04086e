//! Weights that are quantized block by block, without a model.

use std::collections::HashMap;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_dynquant::checkpoint::{self, Plan};
use candle_dynquant::observer::{ObserverConfig, ObserverKind};
use candle_dynquant::{
    Checkpoint, DynamicConfig, Granularity, LayerKind, QConfig, QConfigSpec, QDType, QScheme, nn,
    quantize_dynamic,
};

const COLUMNS: usize = 1 << 12;
/// The number of rows, a little more than a block of the converter, which has 2^22 elements.
const ROWS: usize = 1_030;

#[test]
fn one_scale_is_that_of_the_whole_weight() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let [float, saved, written] = ["float", "saved", "written"].map(|name| dir.path().join(name));
    let weight = Tensor::randn(0f32, 1., (ROWS - 1, COLUMNS), &Device::Cpu)?;
    // The last row, of the second block, has the range.
    let last = (Tensor::ones((1, COLUMNS), DType::F32, &Device::Cpu)? * -9.)?;
    let weight = Tensor::cat(&[&weight, &last], 0)?.to_dtype(DType::BF16)?;
    candle_core::safetensors::save(&HashMap::from([("head.weight", weight.clone())]), &float)?;
    let source = Checkpoint::open(&float)?;
    let affine =
        ObserverConfig::new(ObserverKind::MinMax, QDType::QUInt8, QScheme::PerTensorAffine);
    let qconfig = QConfig::Int8 {
        weight: affine,
        activation: DynamicConfig::new(Granularity::PerTensor, true),
    };
    for spec in [
        QConfigSpec::pytorch(),
        QConfigSpec::onnxruntime(),
        QConfigSpec::new().kind(LayerKind::Linear, qconfig),
    ] {
        let vb = source.var_builder(DType::F32, &Device::Cpu);
        let mut model = nn::linear_no_bias(COLUMNS, ROWS, vb.pp("head"))?;
        quantize_dynamic(&mut model, &spec)?;
        checkpoint::save(&model, &source, &saved)?;
        let plan = Plan::new(&source, &spec, &[], &[])?;
        checkpoint::quantize(&source, &plan, &written, |_| ())?;
        assert!(std::fs::read(&saved)? == std::fs::read(&written)?, "{spec}");
    }

    // An element at fault is named by its place in the weight.
    let last = (last * f64::NAN)?.to_dtype(DType::BF16)?;
    let weight = Tensor::cat(&[&weight.narrow(0, 0, ROWS - 1)?, &last], 0)?;
    candle_core::safetensors::save(&HashMap::from([("head.weight", weight)]), &float)?;
    let source = Checkpoint::open(&float)?;
    let plan = Plan::new(&source, &QConfigSpec::pytorch(), &[], &[])?;
    let error = checkpoint::quantize(&source, &plan, &written, |_| ()).unwrap_err();
    let error = error.to_string();
    let named = error.contains("[1029, 0]") && error.contains("head.weight");
    assert!(named, "{error}");
    Ok(())
}

#[test]
fn sums_that_can_leave_i32_are_found_in_any_block() -> Result<()> {
    // Each input adds at most 255 * 255. A block is 126 of these rows; only the last row, in the
    // second block, has elements other than 0.
    let (rows, columns) = (127, 33_100);
    let zeros = Tensor::zeros((rows - 1, columns), DType::BF16, &Device::Cpu)?;
    let ones = Tensor::ones((1, columns), DType::BF16, &Device::Cpu)?;
    let dir = tempfile::tempdir()?;
    let float = dir.path().join("float");
    let weight = Tensor::cat(&[&zeros, &ones], 0)?;
    candle_core::safetensors::save(&HashMap::from([("head.weight", weight)]), &float)?;
    let source = Checkpoint::open(&float)?;
    let (zeros, written) = (dir.path().join("zeros"), dir.path().join("written"));
    let weight = Tensor::zeros((rows, columns), DType::BF16, &Device::Cpu)?;
    candle_core::safetensors::save(&HashMap::from([("head.weight", weight)]), &zeros)?;
    let zeros = Checkpoint::open(&zeros)?;
    for (observer, qscheme) in [
        (ObserverKind::PerChannelMinMax, QScheme::PerChannelAffine),
        (ObserverKind::MinMax, QScheme::PerTensorAffine),
    ] {
        let affine = ObserverConfig::new(observer, QDType::QUInt8, qscheme);
        let qconfig = QConfig::Int8 {
            weight: affine,
            activation: DynamicConfig::new(Granularity::PerTensor, true),
        };
        let spec = QConfigSpec::new().kind(LayerKind::Linear, qconfig);
        // The only layer fails; beside others it would be left.
        let error = Plan::new(&source, &spec, &[], &[]).unwrap_err().to_string();
        let expected = "head.weight: output channel 126 can overflow the i32 accumulator";
        assert!(error.contains(expected), "{qscheme:?}: {error}");
        assert!(error.contains("got 2152327500"), "{qscheme:?}: {error}");
        // With the plan of a checkpoint with other values, the overflow is found during the write.
        let plan = Plan::new(&zeros, &spec, &[], &[])?;
        let error = checkpoint::quantize(&source, &plan, &written, |_| ()).unwrap_err();
        assert!(error.to_string().contains(expected), "{qscheme:?}: {error}");
        assert!(!written.exists(), "{qscheme:?}");
    }
    Ok(())
}
