//! Every combination of weight, activation, layer, bias, rank and dtype: computed as the formulas
//! in plain f64 say, or refused with a known error.

#[path = "../common/kit.rs"]
mod kit;
mod layers;
mod model;

use std::collections::BTreeMap;

use candle_core::Result;
use layers::{
    BATCH, Built, HIDDEN, INPUTS, KINDS, STEPS, build, float_projections, floats, tensor,
};
use model::{Model, check_weight, expected, looked_up};

use crate::kit::*;

const SCHEMES: [QScheme; 5] = [
    QScheme::PerTensorSymmetric,
    QScheme::PerTensorAffine,
    QScheme::PerChannelSymmetric,
    QScheme::PerChannelAffine,
    QScheme::PerChannelAffineFloatQParams,
];

/// MinMax under another name, of either granularity.
fn custom() -> ObserverKind {
    ObserverKind::Custom(CustomObserver::new("Mine", |config| {
        let mut config = config.clone();
        config.kind = if config.qscheme.is_per_channel() {
            ObserverKind::PerChannelMinMax
        } else {
            ObserverKind::MinMax
        };
        config.build()
    }))
}

fn observers() -> [ObserverKind; 8] {
    let averaging_constant = 0.01;
    [
        ObserverKind::MinMax,
        ObserverKind::PerChannelMinMax,
        ObserverKind::MovingAverageMinMax { averaging_constant },
        ObserverKind::MovingAveragePerChannelMinMax { averaging_constant },
        ObserverKind::Histogram { bins: 2_048 },
        ObserverKind::OnnxRuntime,
        ObserverKind::Placeholder,
        custom(),
    ]
}

fn weights() -> Vec<ObserverConfig> {
    let mut all = Vec::new();
    for kind in observers() {
        for dtype in [QDType::QInt8, QDType::QUInt8] {
            for qscheme in SCHEMES {
                for (reduce_range, ch_axis) in [(false, 0), (true, 0), (false, 1)] {
                    for custom_range in [false, true] {
                        let mut config = ObserverConfig::new(kind.clone(), dtype, qscheme);
                        config.reduce_range = reduce_range;
                        config.ch_axis = ch_axis;
                        config.quant_range = custom_range.then_some(match dtype {
                            QDType::QInt8 => [-100, 90],
                            _ => [0, 200],
                        });
                        all.push(config);
                    }
                }
            }
        }
    }
    all
}

fn activations() -> Vec<DynamicConfig> {
    let mut all = Vec::new();
    for granularity in [Granularity::PerTensor, Granularity::PerRow] {
        for reduce_range in [false, true] {
            for arithmetic in [Arithmetic::PyTorch, Arithmetic::OnnxRuntime] {
                let mut config = DynamicConfig::new(granularity, reduce_range);
                config.arithmetic = arithmetic;
                all.push(config);
            }
        }
    }
    all
}

fn qconfigs() -> Vec<QConfig> {
    let mut all = [HalfType::Float16, HalfType::BFloat16].map(QConfig::Half).to_vec();
    for weight in weights() {
        let of = |activation| QConfig::Int8 { weight: weight.clone(), activation };
        all.extend(activations().into_iter().map(of));
        all.push(QConfig::Table(weight));
    }
    all
}

/// The reason why a combination is refused, in the words of the error up to `got`; `None` if it is
/// accepted. The first of several reasons counts.
fn refusal(qconfig: &QConfig) -> Option<&'static str> {
    use ObserverKind::*;
    const TABLE: &str = "int8 with dynamic activations, half precision or integers in groups, for a weight that is multiplied, got ";
    let config = match qconfig {
        QConfig::Int8 { weight, .. } => weight,
        QConfig::Table(_) => return Some(TABLE),
        _ => return None,
    };
    let float_qparams = config.qscheme == QScheme::PerChannelAffineFloatQParams;
    let symmetric_quint8 = config.qscheme.is_symmetric() && config.dtype == QDType::QUInt8;
    let granularity = match (&config.kind, config.qscheme.is_per_channel()) {
        (MinMax, true) => "a scheme per tensor for the MinMax observer, got per_channel_",
        (MovingAverageMinMax { .. }, true) => {
            "a scheme per tensor for the MovingAverageMinMax observer, got per_channel_"
        }
        (Histogram { .. }, true) => {
            "a scheme per tensor for the Histogram observer, got per_channel_"
        }
        (PerChannelMinMax, false) => {
            "a scheme per channel for the PerChannelMinMax observer, got per_tensor_"
        }
        (MovingAveragePerChannelMinMax { .. }, false) => {
            "a scheme per channel for the MovingAveragePerChannelMinMax observer, got per_tensor_"
        }
        _ => "",
    };
    let of_onnxruntime = config.kind == OnnxRuntime;
    let reasons = [
        (config.ch_axis != 0, "ch_axis 0, of the output channels, got ch_axis 1"),
        (config.kind == Placeholder, "an observer that chooses a scale, got PlaceholderObserver"),
        (!granularity.is_empty(), granularity),
        (
            of_onnxruntime && float_qparams,
            "integer zero points for the OnnxRuntime observer, got per_channel_affine_float_qparams",
        ),
        (
            of_onnxruntime && config.quant_range.is_some(),
            "no quant_range for the OnnxRuntime observer, got [",
        ),
        (
            symmetric_quint8 && config.reduce_range && !of_onnxruntime,
            "an affine scheme, qint8 or the full range, got symmetric quint8 with reduce_range",
        ),
        (
            float_qparams,
            "integer zero points, for a weight that is multiplied, got per_channel_affine_float_qparams",
        ),
    ];
    reasons.into_iter().find_map(|(holds, text)| holds.then_some(text))
}

#[test]
fn every_combination_is_computed_as_documented_or_refused() -> Result<()> {
    let (mut computed, mut messages) = (0, BTreeMap::<String, usize>::new());
    let mut failures = Vec::new();
    let xs = tensor(&[STEPS, BATCH, INPUTS], 5)?;
    for (kind, gates) in KINDS {
        for bias in [true, false] {
            let float = build(kind, gates, bias)?;
            let projections = float_projections(gates, bias)?;
            for qconfig in qconfigs() {
                let case = format!("{kind} {gates} bias {bias}: {qconfig:?}");
                let refused = refusal(&qconfig);
                let layer = match (float.quantize(&qconfig), refused) {
                    (Ok(layer), None) => layer,
                    (Err(error), Some(text)) => {
                        let error = error.to_string();
                        if !error.contains(&format!("unsupported qconfig: expected {text}")) {
                            failures.push(format!("{case}: expected {text:?}, got {error}"));
                        }
                        *messages.entry(text.to_owned()).or_default() += 1;
                        continue;
                    }
                    (Ok(_), Some(text)) => {
                        failures.push(format!("{case}: not refused: {text}"));
                        continue;
                    }
                    (Err(error), None) => {
                        failures.push(format!("{case}: refused: {error}"));
                        continue;
                    }
                };
                computed += 1;
                let mut models = Vec::new();
                for projection in &projections {
                    let weight_values = floats(projection.weight())?;
                    let quantized = projection.quantize(&qconfig).expect("as the layer");
                    let qweight = quantized.qweight().expect("a quantized weight");
                    check_weight(qweight, &weight_values, &qconfig, &case);
                    models.push(Model::new(&quantized, &qconfig)?);
                }
                let models = models.try_into().unwrap_or_else(|_| unreachable!("two"));
                // Each dtype in turn: its values are exact, and the result is rounded to it.
                let roundings = [1e-5, 1e-5, 2e-3, 2e-2];
                let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
                let (dtype, rounding) = (dtypes[computed % 4], roundings[computed % 4]);
                // A state that is rounded to its dtype between the calls of a cell is another.
                let dtype = if kind.ends_with("Cell") { DType::F32 } else { dtype };
                let xs = xs.to_dtype(dtype)?;
                let (expected, slack) = expected(kind, gates, &models, &floats(&xs)?);
                let got = layer.run(&xs)?;
                assert_eq!(got.dtype(), dtype, "{case}");
                let worst = (floats(&got)?.iter().zip(&expected))
                    .map(|(got, expected)| {
                        (got - expected).abs() - rounding * (1. + expected.abs()) - slack
                    })
                    .fold(f64::NEG_INFINITY, f64::max);
                if worst.is_nan() || worst > 0. {
                    failures.push(format!("{case} {dtype:?}: {worst:e} too far, slack {slack:e}"));
                }
            }
        }
    }
    let some: Vec<_> = failures.iter().take(12).collect();
    assert!(failures.is_empty(), "{} failures, such as {some:#?}", failures.len());
    // All classes of refusal occur.
    assert_eq!(messages.len(), 12, "{messages:?}");
    assert!(computed > 8_000, "{computed}");
    Ok(())
}

#[test]
fn any_rank_gives_the_rows_of_the_same_product() -> Result<()> {
    for qconfig in qconfigs() {
        if refusal(&qconfig).is_some() {
            continue;
        }
        let Built::Linear(float) = build("Linear", "", true)? else { unreachable!("a Linear") };
        let layer = float.quantize(&qconfig).expect("quantizes");
        let one = tensor(&[INPUTS], 6)?;
        let expected = floats(&layer.forward(&one)?)?;
        for shape in [&[1, INPUTS][..], &[1, 1, INPUTS], &[1, 1, 1, INPUTS]] {
            let got = floats(&layer.forward(&one.reshape(shape)?)?)?;
            assert_eq!(got, expected, "{qconfig:?} {shape:?}");
        }
    }
    Ok(())
}

/// The quantized form of a table of `[n, k]`, or the error.
#[test]
fn embeddings_are_computed_as_documented_or_refused() -> Result<()> {
    let (n, k) = (9, 6);
    let table = tensor(&[n, k], 7)?;
    let exact = floats(&table)?;
    let indexes = Tensor::new(&[[3u32, 0], [8, 3]], &Device::Cpu)?;
    let float = nn::Embedding::new(table, k);
    let (mut computed, mut refused) = (0, 0);
    for qconfig in qconfigs() {
        let case = format!("{qconfig:?}");
        let multiplies = matches!(qconfig, QConfig::Int8 { .. });
        let Ok(layer) = float.quantize(&qconfig).map_err(|error| {
            // A table has no activations.
            let hint = error.to_string().contains("QConfig::table()");
            assert!(hint || !multiplies, "{case}: {error}");
        }) else {
            refused += 1;
            continue;
        };
        assert!(!multiplies, "{case}");
        computed += 1;
        let got = floats(&layer.forward(&indexes)?)?;
        for (i, got) in got.iter().enumerate() {
            let (row, column) = ([3, 0, 8, 3][i / k], i % k);
            let row_values = &exact[row * k..][..k];
            let (expected, slack) = match &qconfig {
                QConfig::Half(HalfType::Float16) => {
                    (row_values[column], row_values[column].abs() / 2_048.)
                }
                QConfig::Half(_) => (row_values[column], row_values[column].abs() / 256.),
                QConfig::Table(config) => looked_up(row_values, &exact, column, config),
                _ => unreachable!("another weight"),
            };
            let error = (got - expected).abs();
            assert!(error <= slack + 1e-6, "{case}: {got} for {expected}");
        }
    }
    assert!(computed > 50 && refused > 500, "{computed} {refused}");
    Ok(())
}

fn per_row(weight: ObserverConfig) -> QConfig {
    let activation = DynamicConfig::default();
    QConfig::Int8 { weight, activation }
}

/// Each argument changes some result: none is ignored.
#[test]
fn no_argument_is_ignored() -> Result<()> {
    let weight = tensor(&[HIDDEN, INPUTS], 1)?;
    let zeros = weight.zeros_like()?;
    let int8 = |kind, qscheme| ObserverConfig::new(kind, QDType::QInt8, qscheme);
    let min_max = int8(ObserverKind::MinMax, QScheme::PerTensorSymmetric);
    let histogram = |bins| int8(ObserverKind::Histogram { bins }, QScheme::PerTensorAffine);
    let changed = |change: &dyn Fn(&mut ObserverConfig)| {
        let mut config = min_max.clone();
        change(&mut config);
        config
    };
    // The argument, two configurations that differ in it, and the weight.
    let pairs = [
        ("dtype", min_max.clone(), changed(&|c| c.dtype = QDType::QUInt8), &weight),
        ("qscheme", min_max.clone(), changed(&|c| c.qscheme = QScheme::PerTensorAffine), &weight),
        ("reduce_range", min_max.clone(), changed(&|c| c.reduce_range = true), &weight),
        ("quant_range", min_max.clone(), changed(&|c| c.quant_range = Some([-9, 9])), &weight),
        ("eps", min_max.clone(), changed(&|c| c.eps = 0.5), &zeros),
        ("bins", histogram(2_048), histogram(3), &weight),
        ("observer", min_max.clone(), changed(&|c| c.kind = ObserverKind::OnnxRuntime), &weight),
    ];
    for (argument, one, other, weight) in pairs {
        let facts = |config: ObserverConfig| {
            let qweight = QWeight::from_float(weight, None, &per_row(config)).expect(argument);
            (qweight.codes(), qweight.scales(), qweight.zero_points())
        };
        assert_ne!(facts(one), facts(other), "{argument}");
    }
    // A weight is observed once, where the average is the first value; over several values it
    // shows.
    let observed = |averaging_constant| -> candle_dynquant::Result<_> {
        let kind = ObserverKind::MovingAverageMinMax { averaging_constant };
        let mut observer = int8(kind, QScheme::PerTensorAffine).build()?;
        observer.observe(&weight)?;
        observer.observe(&(&weight * 2.)?)?;
        observer.calculate_qparams()
    };
    assert_ne!(observed(0.01).expect("averages"), observed(0.5).expect("averages"));
    // An axis of channels is 0, or an error.
    let mut axis = int8(ObserverKind::PerChannelMinMax, QScheme::PerChannelSymmetric);
    axis.ch_axis = 1;
    assert!(QWeight::from_float(&weight, None, &per_row(axis)).is_err());

    let xs = tensor(&[BATCH, INPUTS], 5)?;
    let float = nn::Projection::new(weight.clone(), None);
    let outputs = activations().into_iter().map(|activation| {
        let weight = int8(ObserverKind::PerChannelMinMax, QScheme::PerChannelSymmetric);
        let qconfig = QConfig::Int8 { weight, activation };
        let output = float.quantize(&qconfig).expect("quantizes").forward(&xs);
        floats(&output.expect("an output")).expect("floats")
    });
    // Granularity and range; whose arithmetic shows at ties only, which the fixtures have.
    let outputs: Vec<_> = outputs.collect();
    for (i, j) in [(0, 2), (0, 4), (2, 6), (4, 6)] {
        assert_ne!(outputs[i], outputs[j], "{i} {j}");
    }
    Ok(())
}
