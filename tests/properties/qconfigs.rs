//! Random `QConfig`s: presets and every combination of options.

use candle_dynquant::observer::{ObserverConfig, ObserverKind};
use candle_dynquant::{
    Arithmetic, DynamicConfig, Granularity, HalfType, OnnxRuntimeOptions, QConfig, QDType, QScheme,
};
use proptest::prelude::*;

/// Any supported configuration of weights and activations.
pub fn qconfig() -> impl Strategy<Value = QConfig> {
    let dynamic = (activation(), weight());
    let custom = prop_oneof![
        14 => dynamic.prop_map(|(activation, weight)| QConfig::Int8 { weight, activation }),
        1 => weight().prop_map(QConfig::Table),
        1 => Just(QConfig::Half(HalfType::Float16)),
        1 => Just(QConfig::Half(HalfType::BFloat16)),
    ];
    prop_oneof![preset(), onnxruntime(), custom]
}

fn preset() -> impl Strategy<Value = QConfig> {
    let presets = [
        QConfig::pytorch(),
        QConfig::per_channel(),
        QConfig::int8(),
        QConfig::float16(),
        QConfig::bfloat16(),
    ];
    proptest::sample::select(presets.to_vec())
}

fn onnxruntime() -> impl Strategy<Value = QConfig> {
    let weight_type = prop_oneof![Just(QDType::QInt8), Just(QDType::QUInt8)];
    (weight_type, any::<[bool; 2]>(), any::<Option<bool>>()).prop_map(
        |(weight_type, [per_channel, reduce_range], weight_symmetric)| {
            QConfig::onnxruntime(OnnxRuntimeOptions {
                weight_type,
                per_channel,
                reduce_range,
                weight_symmetric,
            })
        },
    )
}

fn activation() -> impl Strategy<Value = DynamicConfig> {
    let granularity = prop_oneof![Just(Granularity::PerTensor), Just(Granularity::PerRow)];
    let arithmetic = prop_oneof![Just(Arithmetic::PyTorch), Just(Arithmetic::OnnxRuntime)];
    (granularity, any::<bool>(), arithmetic).prop_map(|(granularity, reduce_range, arithmetic)| {
        let mut activation = DynamicConfig::new(granularity, reduce_range);
        activation.arithmetic = arithmetic;
        activation
    })
}

fn weight() -> impl Strategy<Value = ObserverConfig> {
    let averaging_constant = 0.01;
    let per_tensor = vec![
        ObserverKind::MinMax,
        ObserverKind::MovingAverageMinMax { averaging_constant },
        ObserverKind::Histogram { bins: 1 },
        ObserverKind::Histogram { bins: 37 },
        ObserverKind::OnnxRuntime,
    ];
    let per_channel = vec![
        ObserverKind::PerChannelMinMax,
        ObserverKind::MovingAveragePerChannelMinMax { averaging_constant },
        ObserverKind::OnnxRuntime,
    ];
    let affine = vec![QScheme::PerTensorAffine, QScheme::PerTensorSymmetric];
    let channels = vec![QScheme::PerChannelAffine, QScheme::PerChannelSymmetric];
    let all =
        |a: &[ObserverKind], b: &[ObserverKind]| [a, b, &[ObserverKind::Placeholder]].concat();
    let kinds = all(&per_tensor, &per_channel);
    let schemes = [&affine[..], &channels, &[QScheme::PerChannelAffineFloatQParams]].concat();
    use proptest::sample::select;
    let kind = prop_oneof![
        4 => (select(per_tensor), select(affine)),
        4 => (select(per_channel), select(channels)),
        1 => (select(kinds), select(schemes)),
    ];
    let dtype = prop_oneof![Just(QDType::QInt8), Just(QDType::QUInt8)];
    let quant_range = prop_oneof![
        3 => Just(None),
        1 => Just(Some([-5, 90])),
        1 => Just(Some([3, 70])),
        1 => [-300..300i32, -300..300i32].prop_map(Some),
    ];
    let eps = prop_oneof![4 => Just(f32::EPSILON), 1 => select(vec![0., 1e-30, 0.5, f32::MIN_POSITIVE, f32::NAN])];
    let ch_axis = prop_oneof![9 => Just(0), 1 => -3..4isize];
    (kind, dtype, any::<bool>(), quant_range, eps, ch_axis).prop_map(
        |((kind, qscheme), dtype, reduce_range, quant_range, eps, ch_axis)| {
            let mut config = ObserverConfig::new(kind, dtype, qscheme);
            (config.reduce_range, config.quant_range) = (reduce_range, quant_range);
            (config.eps, config.ch_axis) = (eps, ch_axis);
            config
        },
    )
}
