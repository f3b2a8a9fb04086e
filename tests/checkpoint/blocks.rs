//! Weights that are quantized block by block, without a model.

use crate::kit::*;

const COLUMNS: usize = 1 << 12;
/// The number of rows, a little more than a block of the converter, which has 2^22 elements.
const ROWS: usize = 1_030;

fn affine(kind: ObserverKind, qscheme: QScheme) -> QConfigSpec {
    let weight = ObserverConfig::new(kind, QDType::QUInt8, qscheme);
    let activation = DynamicConfig::new(Granularity::PerTensor, true);
    QConfigSpec::new().kind(LayerKind::Linear, QConfig::Int8 { weight, activation })
}

#[test]
fn one_scale_is_that_of_the_whole_weight() -> Result<()> {
    // The last row, of the second block, has the range.
    let last = (Tensor::ones((1, COLUMNS), DType::F32, &Device::Cpu)? * -9.)?;
    let rows = random(&[ROWS - 1, COLUMNS]);
    let head = |last: &Tensor| -> Result<Source> {
        let weight = Tensor::cat(&[&rows, last], 0)?.to_dtype(DType::BF16)?;
        Ok(Source::of([("head.weight", weight)])?)
    };
    let source = head(&last)?;
    for spec in [
        QConfigSpec::pytorch(),
        QConfigSpec::onnxruntime(),
        affine(ObserverKind::MinMax, QScheme::PerTensorAffine),
    ] {
        let mut model = nn::linear_no_bias(COLUMNS, ROWS, source.vb.pp("head"))?;
        source.quantize(&mut model, &spec)?;
        let written = source.beside("written");
        convert(&source.checkpoint, &spec, &written)?;
        assert!(fs::read(&source.out)? == fs::read(&written)?, "{spec}");
    }
    // An element at fault is named by its place in the weight.
    let source = head(&(last * f64::NAN)?)?;
    fault(source.convert(&QConfigSpec::pytorch(), &[])).has("[1029, 0]").has("head.weight");
    Ok(())
}

#[test]
fn sums_that_can_leave_i32_are_found_in_any_block() -> Result<()> {
    // Each input adds at most 255 * 255. A block is 126 of these rows; only the last row, in the
    // second block, has elements other than 0.
    let (rows, columns) = (127, 33_100);
    let zeros = |rows: usize| Tensor::zeros((rows, columns), DType::BF16, &Device::Cpu);
    let ones = Tensor::ones((1, columns), DType::BF16, &Device::Cpu)?;
    let source = Source::of([("head.weight", Tensor::cat(&[&zeros(rows - 1)?, &ones], 0)?)])?;
    let zeros = Source::of([("head.weight", zeros(rows)?)])?;
    for (observer, qscheme) in [
        (ObserverKind::PerChannelMinMax, QScheme::PerChannelAffine),
        (ObserverKind::MinMax, QScheme::PerTensorAffine),
    ] {
        let spec = affine(observer, qscheme);
        // The only layer fails; beside others it would be left.
        let expected = "head.weight: output channel 126 can overflow the i32 accumulator";
        fault(source.plan(&spec, &[])).has(expected).has("got 2152327500");
        // With the plan of a checkpoint with other values, the overflow is found during the write.
        let plan = zeros.plan(&spec, &[])?;
        let written = plan.write(&source.checkpoint, &source.out, |_| ());
        fault(written).has(expected);
        assert!(!source.out.exists(), "{qscheme:?}");
    }
    Ok(())
}
