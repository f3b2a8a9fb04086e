//! The examples of dynamic quantization in the documentation of PyTorch, ONNX Runtime and Neural
//! Compressor, quoted, and their equivalents here.

mod common;

use candle_dynquant::tune::{LayerPrecision, Stopped};
use candle_dynquant::{OnnxRuntimeOptions, QDType, Result, TuningConfig, tune};
use common::*;

#[derive(Quantizable, Clone)]
struct Tagger {
    lstm: nn::LSTM,
    encoder: nn::Linear,
    classifier: nn::Linear,
}

impl Tagger {
    fn new() -> Result<Self> {
        let linear = |rows, columns, seed| -> Result<_> {
            Ok(nn::Linear::new((tensor(&[rows, columns], seed)? * 0.1)?, None))
        };
        Ok(Self { lstm: lstm(16, 16)?, encoder: linear(16, 16, 7)?, classifier: linear(4, 16, 8)? })
    }

    fn forward(&self, xs: &Tensor) -> Result<Tensor> {
        let hidden = self.lstm.forward(xs, None)?.0;
        Ok(self.classifier.forward(&self.encoder.forward(&hidden)?.relu()?)?)
    }

    /// The share of steps with the same class as in the float model.
    fn agreement(&self, float: &Self, xs: &Tensor) -> Result<f64> {
        let classes = |model: &Self| -> Result<Vec<u32>> {
            Ok(model.forward(xs)?.argmax(2)?.flatten_all()?.to_vec1()?)
        };
        let (a, b) = (classes(self)?, classes(float)?);
        let same = a.iter().zip(&b).filter(|(a, b)| a == b).count();
        Ok(same as f64 / a.len() as f64)
    }
}

/// The YAML in its Markdown, with comments.
const NEURAL_COMPRESSOR: &str = r"
model:                                               # mandatory. used to specify model specific information.
  name: bert 
  framework: onnxrt_integerops                       # mandatory. possible values are tensorflow, mxnet, pytorch, pytorch_ipex, onnxrt_integerops and onnxrt_qlinearops.

quantization:
  approach: post_training_dynamic_quant              # optional. default value is post_training_static_quant
                                                     # possible value is post_training_static_quant, 
                                                     # post_training_dynamic_quant
                                                     # quant_aware_training                                 
  calibration:
    sampling_size: 8, 16, 32

tuning:
  accuracy_criterion:
    relative:  0.01                                  # optional. default value is relative, other value is absolute. this example allows relative accuracy loss: 1%.
  exit_policy:
    timeout: 0                                       # optional. tuning timeout (seconds). default value is 0 which means early stop. combine with max_trials field to decide when to exit.
  random_seed: 9527                                  # optional. random seed for deterministic tuning.
";

#[test]
fn every_route_leads_to_int8() -> Result<()> {
    let float = Tagger::new()?;
    let xs = tensor(&[2, 50, 16], 3)?;

    // torch.quantization.quantize_dynamic(model, {nn.LSTM, nn.Linear}, dtype=torch.qint8)
    let mut pytorch = float.clone();
    let set = QConfigSpec::of([LayerKind::LSTM, LayerKind::Linear], QConfig::pytorch());
    assert_eq!(quantize_dynamic(&mut pytorch, &set)?.swapped().count(), 3);

    // torch.quantization.quantize_dynamic(model): qconfig_spec=None, dtype=torch.qint8
    let mut default = float.clone();
    quantize_dynamic(&mut default, &QConfigSpec::pytorch())?;
    let bits =
        |model: &Tagger| -> Result<Vec<f32>> { Ok(model.forward(&xs)?.flatten_all()?.to_vec1()?) };
    assert_eq!(bits(&default)?, bits(&pytorch)?);

    // quantize_dynamic(model_input=.., model_output=.., weight_type=QuantType.QInt8)
    let mut onnxruntime = float.clone();
    let report = quantize_dynamic(&mut onnxruntime, &QConfigSpec::onnxruntime())?;
    assert_eq!(report.swapped().count(), 3);

    // .., weight_type=QuantType.QInt8, per_channel=True, nodes_to_exclude=["classifier"])
    let mut excluding = float.clone();
    let options =
        OnnxRuntimeOptions { weight_type: QDType::QInt8, per_channel: true, ..Default::default() };
    let spec = QConfigSpec::all_kinds(QConfig::onnxruntime(options)).exclude(["classifier"]);
    let report = quantize_dynamic(&mut excluding, &spec)?;
    let left: Vec<_> = report.left().map(|layer| &*layer.path).collect();
    assert_eq!(left, ["classifier"]);

    // Quantization("bert.yaml").fit()
    let config = TuningConfig::from_yaml(NEURAL_COMPRESSOR)?;
    let mut tuned = float.clone();
    let outcome = tune(&mut tuned, &config, |model: &Tagger| model.agreement(&float, &xs))?;
    assert!(outcome.met && outcome.stopped == Stopped::CriterionMet, "{outcome}");
    assert_eq!((outcome.baseline, outcome.target), (1., 0.99));
    let is_int8 = outcome.layers.iter().any(|layer| layer.precision == LayerPrecision::Int8);
    assert!(is_int8, "{outcome}");
    let lines = [3, 4, 12, 19].map(|line| format!("line {line}: "));
    // Names, calibration and the seed.
    let ignored = &outcome.ignored;
    let are_named = ignored.iter().zip(&lines).all(|(key, line)| key.starts_with(line));
    assert!(ignored.len() == 4 && are_named, "{ignored:?}");

    for (route, model) in [
        ("PyTorch", &pytorch),
        ("ONNX Runtime", &onnxruntime),
        ("ONNX Runtime, excluding", &excluding),
        ("Neural Compressor", &tuned),
    ] {
        let agreement = model.agreement(&float, &xs)?;
        assert!(agreement >= 0.9, "{route}: {agreement}");
    }
    Ok(())
}
