//! Equalization: exact in float, found by a probe, undone if it is not exact, and more accurate.

mod between;
#[path = "../common/kit.rs"]
mod kit;
mod saved;

use std::sync::Arc;

use candle_core::Result;
use candle_dynquant::Skipped;

use crate::kit::*;

const HIDDEN: usize = 32;

/// Gains from 2^-4 to 2^4, as in trained norms.
fn gain(len: usize) -> Tensor {
    let exponents = Tensor::rand(-4f32, 4., len, &Device::Cpu).unwrap();
    (exponents * std::f64::consts::LN_2).unwrap().exp().unwrap()
}

fn norm() -> nn::LayerNorm {
    nn::LayerNorm::new(gain(HIDDEN), random(&[HIDDEN]), 1e-5)
}

fn linear(out: usize, input: usize) -> nn::Linear {
    let weight = (random(&[out, input]) * (1. / (input as f64).sqrt())).unwrap();
    nn::Linear::new(weight, Some(random(&[out])))
}

/// A post-norm transformer without attention: every norm is read by linear layers and as a
/// residual.
#[derive(Quantizable, Clone)]
struct PostNorm {
    embed: nn::LayerNorm,
    blocks: Vec<Block>,
    pooler: nn::Linear,
}

#[derive(Quantizable, Clone)]
struct Block {
    query: nn::Linear,
    key: nn::Linear,
    attention_norm: nn::LayerNorm,
    up: Arc<nn::Linear>,
    down: nn::Linear,
    norm: nn::LayerNorm,
}

impl PostNorm {
    fn new() -> Self {
        let block = |_| Block {
            query: linear(HIDDEN, HIDDEN),
            key: linear(HIDDEN, HIDDEN),
            attention_norm: norm(),
            up: Arc::new(linear(2 * HIDDEN, HIDDEN)),
            down: linear(HIDDEN, 2 * HIDDEN),
            norm: norm(),
        };
        Self { embed: norm(), blocks: (0..2).map(block).collect(), pooler: linear(4, HIDDEN) }
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let mut hidden = self.embed.forward(xs)?;
        for block in &self.blocks {
            let [query, key] = nn::Linear::forward_each([&block.query, &block.key], &hidden)?;
            let attended = block.attention_norm.forward_add(&(query * key)?, &hidden)?;
            let inner = block.up.forward(&attended)?.relu()?;
            hidden = block.norm.forward_add(&block.down.forward(&inner)?, &attended)?;
        }
        Ok(hidden)
    }
}

/// The change of the output that a source was left for.
fn change(left: &Skipped) -> Option<f64> {
    left.reason.strip_prefix("would change the output by ")?.parse().ok()
}

/// The readers of a norm or of a layer, and the norms that read it as a residual.
fn readers(report: &EqualizeReport) -> Vec<(&str, Vec<&str>, Vec<&str>)> {
    fn all(paths: &[String]) -> Vec<&str> {
        paths.iter().map(String::as_str).collect()
    }
    let pairs = report.pairs.iter();
    pairs.map(|pair| (&*pair.source, all(&pair.layers), all(&pair.residuals))).collect()
}

#[test]
fn a_post_norm_model_is_folded_bit_for_bit() {
    let mut model = PostNorm::new();
    let float = model.clone();
    let xs = random(&[3, 5, HIDDEN]);
    let config = Equalization::default().unused("pooler");
    let report = equalize(&mut model, &config, |model| model.forward(&xs)).unwrap();
    let of_second = vec!["blocks.1.query", "blocks.1.key"];
    let expected = [
        ("embed", vec!["blocks.0.query", "blocks.0.key"], vec!["blocks.0.attention_norm"]),
        ("blocks.0.attention_norm", vec!["blocks.0.up"], vec!["blocks.0.norm"]),
        ("blocks.0.norm", of_second, vec!["blocks.1.attention_norm"]),
        ("blocks.1.attention_norm", vec!["blocks.1.up"], vec!["blocks.1.norm"]),
    ];
    assert_eq!(readers(&report), expected);
    assert!(report.left.is_empty(), "{report}");
    assert!(report.to_string().starts_with("4 of 4 pairs equalized\n  embed -> blocks.0.query"));
    // Holds on inputs that the probe did not see, and for an unchanged float model.
    for xs in [&xs, &random(&[7, HIDDEN])] {
        assert_eq!(bits(&model.forward(xs).unwrap()), bits(&float.forward(xs).unwrap()));
    }
    assert_ne!(bits(model.embed.weight()), bits(float.embed.weight()));

    // A second time gains nothing: all factors are 1, up to rounding.
    let again = equalize(&mut model, &config, |model| model.forward(&xs)).unwrap();
    assert_eq!(again.pairs, report.pairs);
    assert_eq!(bits(&model.forward(&xs).unwrap()), bits(&float.forward(&xs).unwrap()));
}

/// A norm with outliers in two channels, whose columns are small, as in a trained transformer.
#[test]
fn int8_is_more_accurate() {
    let at = |outlier: f32| {
        let values = (0..HIDDEN).map(|channel| if channel % 16 == 3 { outlier } else { 1. });
        Tensor::from_iter(values, &Device::Cpu).unwrap()
    };
    let weight = linear(HIDDEN, HIDDEN).weight().broadcast_mul(&at(1. / 40.)).unwrap();
    let mut equalized = Reads {
        norm: nn::LayerNorm::new_no_bias(at(40.), 1e-5),
        first: nn::Linear::new(weight, None),
        ..Reads::by(|model, xs| model.first.forward(&model.norm.forward(xs)?))
    };
    let float = equalized.clone();
    let mut plain = float.clone();
    let config = Equalization::default().unused("second|rms|last");
    let probe = random(&[2, HIDDEN]);
    equalize(&mut equalized, &config, |model| (model.reads)(model, &probe)).unwrap();
    let xs = random(&[100, HIDDEN]);
    let expected = (float.reads)(&float, &xs).unwrap();
    let [plain, equalized] = [&mut plain, &mut equalized].map(|model| {
        quantize_dynamic(model, &QConfigSpec::int8()).unwrap();
        decibels(&expected, &(model.reads)(model, &xs).unwrap()).unwrap()
    });
    assert!(equalized > plain + 6., "{plain} dB, equalized {equalized} dB");
}

#[test]
fn a_layer_that_the_probe_misses_leaves_the_norms_that_it_may_read() {
    let mut model = PostNorm::new();
    let float = model.clone();
    let xs = random(&[3, HIDDEN]);
    let config = Equalization::default();
    let report = equalize(&mut model, &config, |model| model.forward(&xs)).unwrap();
    assert!(report.pairs.is_empty() && report.left.len() == 4, "{report}");
    let reason = "the probe does not reach pooler";
    assert!(report.left.iter().all(|left| left.reason == reason));
    assert!(report.to_string().contains("embed left: the probe does not reach pooler"));
    assert_eq!(bits(model.embed.weight()), bits(float.embed.weight()));
}

/// A norm whose readers are chosen by `reads`.
#[derive(Quantizable, Clone)]
struct Reads {
    norm: nn::LayerNorm,
    first: nn::Linear,
    second: nn::Linear,
    rms: nn::RmsNorm,
    last: nn::LayerNorm,
    #[quantizable(skip)]
    reads: fn(&Reads, &Tensor) -> Result<Tensor>,
}

impl Reads {
    fn by(reads: fn(&Self, &Tensor) -> Result<Tensor>) -> Self {
        Self {
            norm: norm(),
            first: linear(HIDDEN, HIDDEN),
            second: linear(HIDDEN, HIDDEN),
            rms: nn::RmsNorm::new(gain(HIDDEN), 1e-6),
            last: norm(),
            reads,
        }
    }
}

fn equalized(reads: fn(&Reads, &Tensor) -> Result<Tensor>) -> (EqualizeReport, bool) {
    equalized_by(&Equalization::default().unused("second|rms|last"), reads)
}

/// The report, and whether the model computes the same as before, bit for bit.
fn equalized_by(
    config: &Equalization,
    reads: fn(&Reads, &Tensor) -> Result<Tensor>,
) -> (EqualizeReport, bool) {
    let mut model = Reads::by(reads);
    let float = model.clone();
    let xs = random(&[5, HIDDEN]);
    let report = equalize(&mut model, config, |model| reads(model, &xs)).unwrap();
    let other = random(&[9, HIDDEN]);
    let same = bits(&reads(&model, &other).unwrap()) == bits(&reads(&float, &other).unwrap());
    (report, same)
}

#[test]
fn pre_norms_fold_and_rms_norms_too() {
    let (report, same) = equalized(|model, xs| {
        let ys = (xs + model.first.forward(&model.norm.forward(xs)?)?)?;
        &ys + model.second.forward(&model.rms.forward(&ys)?)?
    });
    assert_eq!(
        readers(&report),
        [("norm", vec!["first"], vec![]), ("rms", vec!["second"], vec![])]
    );
    assert!(same);

    // In one pass with the preceding sum.
    let (report, same) = equalized(|model, xs| {
        let ys = model.first.forward(&model.norm.forward(xs)?)?;
        let (normal, ys) = model.rms.forward_add(&ys, xs)?;
        ys + model.second.forward(&normal)?
    });
    assert_eq!(
        readers(&report),
        [("norm", vec!["first"], vec![]), ("rms", vec!["second"], vec![])]
    );
    assert!(same);
}

#[test]
fn what_cannot_be_folded_is_left_and_undone() {
    // A residual outside of a norm is seen by the output alone.
    let (report, same) = equalized(|model, xs| {
        let hidden = model.norm.forward(xs)?;
        let ys = (&hidden + model.first.forward(&hidden)?)?;
        &ys + model.second.forward(&model.rms.forward(&ys)?)?
    });
    assert_eq!(readers(&report), [("rms", vec!["second"], vec![])]);
    assert!(change(&report.left[0]).is_some_and(|by| by > 1e-3));
    assert!(same);

    // A layer that reads two norms.
    let (report, same) = equalized(|model, xs| {
        let ys = model.first.forward(&model.norm.forward(xs)?)?;
        model.first.forward(&model.rms.forward(&ys)?)
    });
    let reason = "first reads other tensors too";
    assert!(report.pairs.is_empty() && same);
    assert!(report.left.len() == 2 && report.left.iter().all(|left| left.reason == reason));

    // Two layers with one weight.
    let mut tied = Reads::by(|_, xs| Ok(xs.clone()));
    tied.second = nn::Linear::new(tied.first.weight().clone(), None);
    let config = Equalization::default().unused("second|rms|last");
    let xs = random(&[1, HIDDEN]);
    let reason = |model: &mut Reads| {
        let report =
            equalize(model, &config, |model| model.first.forward(&model.norm.forward(&xs)?));
        report.unwrap().left[0].reason.clone()
    };
    assert_eq!(reason(&mut tied), "first shares its weight");
    // A quantized layer.
    tied.first = linear(HIDDEN, HIDDEN);
    quantize_dynamic(&mut tied.first, &QConfigSpec::int8()).unwrap();
    let expected =
        "read by first, which is not a float Linear, or Conv1d or Conv2d of the norm's channels";
    assert_eq!(reason(&mut tied), expected);
}

/// A norm before convolutions, as a Conformer's.
#[test]
fn convolutions_of_a_norms_channels_are_folded() {
    #[derive(Quantizable, Clone)]
    struct Conformer(nn::LayerNorm, nn::Conv1d, nn::Conv2d);
    for groups in 1..=2 {
        let mut config = nn::Conv1dConfig::default();
        (config.padding, config.groups) = (1, groups);
        let signal = nn::Conv1d::new(random(&[8, HIDDEN / groups, 3]), None, config);
        let image = nn::Conv2d::new(random(&[8, HIDDEN, 1, 1]), None, Default::default());
        let mut model = Conformer(norm(), signal, image);
        let (float, xs) = (model.clone(), random(&[2, 5, HIDDEN]));
        let forward = |Conformer(norm, signal, image): &Conformer| {
            let ys = norm.forward(&xs)?.transpose(1, 2)?;
            signal.forward(&ys)? + image.forward(&ys.unsqueeze(2)?)?.squeeze(2)?
        };
        let report = equalize(&mut model, &Equalization::default(), forward).unwrap();
        let text = ["0 -> 1, 2", "0 left: read by 1, which is not a float Linear"][groups - 1];
        assert!(report.to_string().contains(text), "{report}");
        assert_eq!(bits(&forward(&model).unwrap()), bits(&forward(&float).unwrap()));
    }
}

#[test]
fn pairs_can_be_named() {
    // After a copy, only names identify a reader.
    let reads: fn(&Reads, &Tensor) -> Result<Tensor> = |model, xs| {
        let copy = model.norm.forward(xs)?.copy()?;
        model.first.forward(&copy)
    };
    let found = equalized(reads);
    assert!(found.0.pairs.is_empty() && found.0.left.is_empty() && found.1);
    let config = Equalization::default().unused("second|rms|last");
    let (report, same) = equalized_by(&config.clone().pair("n(or)m", "(first|$1)"), reads);
    assert_eq!(readers(&report), [("norm", vec!["first"], vec![])]);
    assert!(same);
    // Only named readers.
    let both: fn(&Reads, &Tensor) -> Result<Tensor> = |model, xs| {
        let ys = model.first.forward(&model.norm.forward(xs)?)?;
        model.second.forward(&model.rms.forward(&ys)?)
    };
    let last = Equalization::default().unused("last");
    let (report, _) = equalized_by(&last.pair("rms", "second"), both);
    assert_eq!(readers(&report), [("rms", vec!["second"], vec![])]);
    assert!(report.left.is_empty());
    // A wrong name is undone.
    let (report, same) = equalized_by(&config.clone().pair("norm", "second"), reads);
    assert!(report.pairs.is_empty() && same);
    assert!(change(&report.left[0]).is_some());
}

#[test]
fn mistakes_are_errors_and_change_nothing() {
    let mut model = PostNorm::new();
    let before = bits(model.embed.weight());
    let xs = random(&[3, HIDDEN]);
    let mut fails = |config: Equalization, probe: &dyn Fn(&PostNorm) -> Result<Tensor>| {
        let report = equalize(&mut model, &config, probe);
        assert_eq!(bits(model.embed.weight()), before);
        fault(report)
    };
    let default = Equalization::default;
    let forward = |model: &PostNorm| model.forward(&xs);
    for (config, expected) in [
        (default().alpha(1.5), "invalid alpha: expected a number from 0 to 1, got 1.5"),
        (default().alpha(f64::NAN), "invalid alpha"),
        (default().pair("blocks", "x"), "regex \"blocks\" matches no layer"),
        (default().pair("embed", "x"), "regex \"x\" matches no layer"),
        (default().pair("(", "x"), "malformed regex \"(\""),
        (default().unused("["), "malformed regex \"[\""),
        (default().unused(r"(\w{1000}){1000}"), "malformed regex"),
        (default().unused("nothing"), "regex \"nothing\" matches no layer"),
    ] {
        fails(config, &forward).has(expected);
    }
    fails(default(), &|_| candle_core::bail!("no data")).has("no data");
    fails(default(), &|_| Tensor::new(&[1f32, f32::NAN], &Device::Cpu))
        .has("expected finite numbers, got a NaN");
    fails(default(), &|_| Tensor::zeros(0, DType::F32, &Device::Cpu)).has("got none");
}

#[test]
fn halves_and_f64_fold_exactly_too() {
    for dtype in [DType::BF16, DType::F16, DType::F64] {
        let convert = |tensor: &Tensor| tensor.to_dtype(dtype).unwrap();
        let first = linear(HIDDEN, HIDDEN);
        let mut model = Reads {
            norm: nn::LayerNorm::new(convert(&gain(HIDDEN)), convert(&random(&[HIDDEN])), 1e-5),
            first: nn::Linear::new(convert(first.weight()), None),
            last: nn::LayerNorm::new_no_bias(convert(&gain(HIDDEN)), 1e-5),
            ..Reads::by(|model, xs| {
                let hidden = model.norm.forward(xs)?;
                model.last.forward_add(&model.first.forward(&hidden)?, &hidden)
            })
        };
        let float = model.clone();
        let xs = convert(&random(&[4, HIDDEN]));
        let config = Equalization::default().unused("second|rms");
        let report = equalize(&mut model, &config, |model| (model.reads)(model, &xs)).unwrap();
        assert_eq!(report.pairs.len(), 1, "{dtype:?}: {report}");
        assert_eq!(report.pairs[0].residuals, ["last"]);
        let text = report.to_string();
        assert!(text.contains("norm -> first; residual of last"), "{text}");
        let [got, own] = [&model, &float].map(|model| bits(&(model.reads)(model, &xs).unwrap()));
        assert_eq!(got, own, "{dtype:?}");
    }
}

#[test]
fn a_residual_that_broadcasts_is_multiplied_by_its_factors() {
    let mut model = Reads::by(|model, xs| {
        let hidden = model.norm.forward(&xs.narrow(0, 0, 1)?)?;
        let rows = xs.broadcast_mul(&model.first.forward(&hidden)?)?;
        model.last.forward_add(&rows, &hidden)
    });
    // A weight that broadcasts, which candle's norm accepts.
    let scalar = Tensor::new(&[0.7f32], &Device::Cpu).unwrap();
    let scalar = nn::LayerNorm::new_no_bias(scalar, 1e-5);
    for last in [model.last.clone(), scalar] {
        model.last = last;
        let (float, reads) = (model.clone(), model.reads);
        // Shapes are equal in the probe, so that the residual is seen.
        let one = random(&[1, HIDDEN]);
        let config = Equalization::default().unused("second|rms");
        let report = equalize(&mut model, &config, |model| reads(model, &one)).unwrap();
        assert_eq!(readers(&report), [("norm", vec!["first"], vec!["last"])]);
        for xs in [one, random(&[5, HIDDEN])] {
            let [got, expected] = [&model, &float].map(|model| bits(&reads(model, &xs).unwrap()));
            assert_eq!(got, expected);
        }
        model = float;
    }
}

#[test]
fn an_output_that_cannot_be_compared_undoes_the_folding() {
    let mut model = PostNorm::new();
    let float = model.clone();
    let xs = random(&[3, HIDDEN]);
    let config = Equalization::default().unused("pooler");
    let not_finite = |at: usize| {
        let values = (0..3 * HIDDEN).map(|i| if i == at { f32::NAN } else { 0. });
        Tensor::from_iter(values, &Device::Cpu)?.reshape((3, HIDDEN))
    };
    for changed in [
        (&|ys: Tensor| ys + not_finite(0)?) as &dyn Fn(Tensor) -> Result<Tensor>,
        &|ys| ys + not_finite(3 * HIDDEN - 1)?,
        &|ys| ys.narrow(0, 0, 2),
        &|ys| Tensor::cat(&[&ys, &ys], 0),
    ] {
        let mut calls = 0;
        let report = equalize(&mut model, &config, |model| {
            calls += 1;
            let ys = model.forward(&xs)?;
            if calls > 1 { changed(ys) } else { Ok(ys) }
        });
        let report = report.unwrap();
        assert!(report.pairs.is_empty() && report.left.len() == 4, "{report}");
        let all = |left| change(left) == Some(f64::INFINITY);
        assert!(report.left.iter().all(all), "{report}");
        assert_eq!(bits(model.embed.weight()), bits(float.embed.weight()));
    }
}

#[test]
fn a_call_without_rows_changes_no_factor() {
    let reads: fn(&Reads, &Tensor) -> Result<Tensor> =
        |model, xs| model.first.forward(&model.norm.forward(xs)?);
    let float = Reads::by(reads);
    let equalized = |calls: &[Tensor]| {
        let mut model = float.clone();
        let config = Equalization::default().unused("second|rms|last");
        let last = |model: &Reads| {
            let outputs = calls.iter().map(|xs| reads(model, xs)).collect::<Result<Vec<_>>>()?;
            Ok(outputs.last().expect("a call").clone())
        };
        let report = equalize(&mut model, &config, last).unwrap();
        assert_eq!(report.pairs.len(), 1, "{report}");
        bits(model.norm.weight())
    };
    let xs = random(&[5, HIDDEN]);
    let none = xs.narrow(0, 0, 0).unwrap();
    assert_eq!(equalized(&[none, xs.clone()]), equalized(&[xs]));
}

/// `s = max|y|^alpha / max|W|^(1 - alpha)`, as powers of two whose geometric mean is about 1.
#[test]
fn factors_are_those_of_the_formula() {
    let reads: fn(&Reads, &Tensor) -> Result<Tensor> = |model, xs| {
        let ys = model.first.forward(&model.norm.forward(xs)?)?;
        model.second.forward(&model.rms.forward(&ys)?)
    };
    for alpha in [0.3f64, 0.5, 0.9] {
        let mut model = Reads::by(reads);
        let float = model.clone();
        let xs = random(&[6, HIDDEN]);
        let config = Equalization::default().alpha(alpha).unused("last");
        equalize(&mut model, &config, |model| reads(model, &xs)).unwrap();
        let columns = |matrix: &Tensor| -> Vec<f32> {
            matrix.abs().unwrap().max(0).unwrap().to_vec1().unwrap()
        };
        let outputs = columns(&float.norm.forward(&xs).unwrap());
        let exponents = outputs.iter().zip(columns(float.first.weight()));
        let exponents = exponents
            .map(|(y, w)| alpha * f64::from(*y).log2() - (1. - alpha) * f64::from(w).log2());
        let exponents: Vec<f64> = exponents.collect();
        let mean = exponents.iter().sum::<f64>() / HIDDEN as f64;
        let ratio = (float.norm.weight() / model.norm.weight()).unwrap();
        for (got, exponent) in ratio.to_vec1::<f32>().unwrap().into_iter().zip(exponents) {
            assert_eq!(got, (exponent - mean).round().exp2() as f32, "{alpha}");
        }
    }
}

#[test]
fn a_difference_is_told_in_units_of_the_output() {
    let mut changes = Vec::new();
    let mut model = PostNorm::new();
    let xs = random(&[3, HIDDEN]);
    for scale in [1e-4, 1., 1e4] {
        // A residual outside of a norm.
        let report =
            equalize(&mut model, &Equalization::default().unused("pooler|blocks.*"), |model| {
                let hidden = model.embed.forward(&xs)?;
                let ys = (&hidden + model.blocks[0].query.forward(&hidden)?)?;
                ys * scale
            });
        let report = report.unwrap();
        match &report.left[..] {
            [left] => changes.push(change(left).expect("a change of the output")),
            _ => panic!("{report}"),
        }
    }
    let alike = |by: &f64| (by / changes[0] - 1.).abs() < 0.1; // the message has two digits
    assert!(changes.iter().all(alike), "{changes:?}");
}
