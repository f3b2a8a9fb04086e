//! `model_wise`, `optype_wise` and `op_wise`: what Neural Compressor's YAML says of layers.

use super::TuningConfig;
use crate::document::{Map, Node, Value};
use crate::error::Result;
use crate::module::LayerKind;
use crate::observer::{ObserverConfig, ObserverKind};
use crate::qconfig::{DynamicConfig, Granularity, QConfig};
use crate::qparams::{QDType, QScheme};
use crate::quantize::QConfigSpec;
use crate::words::lookup;

/// Types of operations that Neural Compressor quantizes and this crate does not.
const FOREIGN: [&str; 4] = ["Attention", "Conv3d", "ConvTranspose2d", "ConvTranspose3d"];

/// Reads the three sections, of which the later ones win: the whole model, then types, then names.
pub(super) fn read(config: &mut TuningConfig, map: &Map<'_>) -> Result<()> {
    if let Some(node) = map.get("model_wise") {
        let all = Options::read(config, node)?;
        config.spec = match all.qconfig(&LayerKind::Linear) {
            Some(qconfig) => QConfigSpec::all_kinds(qconfig),
            // Only the information in types and names.
            None => QConfigSpec::new(),
        };
    }
    if let Some(types) = map.get("optype_wise") {
        for (key, node) in types.entries("a map from types of operations to what they become")? {
            let options = Options::read(config, node)?;
            if FOREIGN.contains(&key.text("a type of operation")?) {
                config.ignore_node(node, "such layers stay float");
                continue;
            }
            if let Some(kinds) = convolutions(key.text("a type of operation")?) {
                let qconfig = options.qconfig(&LayerKind::Conv1d);
                config.spec = config.spec.clone().presets_or_float(kinds, qconfig);
                continue;
            }
            let kind = key.word("a type of operation", kind_of)?;
            let qconfig = options.qconfig(&kind);
            config.spec = config.spec.clone().kind(kind, qconfig);
        }
    }
    if let Some(names) = map.get("op_wise") {
        for (key, node) in names.entries("a map from regexes to what the layers become")? {
            let options = Options::read(config, node)?;
            let regex = format!("^(?:{})$", key.text("a regex")?);
            let qconfig = options.qconfig(&LayerKind::Linear);
            config.spec = config.spec.clone().regex(regex, qconfig);
            config.spec.check().map_err(|e| key.fault(e.to_string()))?;
        }
    }
    Ok(())
}

/// The kinds of convolutions of a name, which a model need not have: many files name them.
fn convolutions(word: &str) -> Option<Vec<LayerKind>> {
    match word {
        "Conv" => Some(vec![LayerKind::Conv1d, LayerKind::Conv2d]),
        "Conv1d" => Some(vec![LayerKind::Conv1d]),
        "Conv2d" => Some(vec![LayerKind::Conv2d]),
        "ConvTranspose1d" => Some(vec![LayerKind::ConvTranspose1d]),
        _ => None,
    }
}

/// PyTorch's and ONNX's names of types.
fn kind_of(word: &str) -> Result<LayerKind> {
    let words = [
        ("Linear", LayerKind::Linear),
        ("MatMul", LayerKind::Linear),
        ("Gemm", LayerKind::Linear),
        ("LSTM", LayerKind::LSTM),
        ("GRU", LayerKind::GRU),
        ("RNN", LayerKind::RNN),
        ("LSTMCell", LayerKind::LSTMCell),
        ("GRUCell", LayerKind::GRUCell),
        ("RNNCell", LayerKind::RNNCell),
        ("Embedding", LayerKind::Embedding),
        ("EmbeddingBag", LayerKind::Embedding),
        ("Gather", LayerKind::Embedding),
    ];
    lookup("type of operation", word, words)
}

/// The options of some layers; of each list the first word counts.
struct Options {
    weight: Tensor,
    activation: Tensor,
}

/// The options of a weight or an activation.
#[derive(Default)]
struct Tensor {
    dtype: Option<DType>,
    symmetric: Option<bool>,
    per_channel: Option<bool>,
}

#[derive(Clone, Copy)]
enum DType {
    Codes(QDType),
    Float16,
    BFloat16,
    Float,
}

impl Options {
    fn read(config: &mut TuningConfig, node: &Node) -> Result<Self> {
        let map = node.map("what layers become", "weight, activation")?;
        let mut tensor = |key| match map.get(key) {
            Some(node) => Tensor::read(config, node),
            None => Ok(Tensor::default()),
        };
        Ok(Self { weight: tensor("weight")?, activation: tensor("activation")? })
    }

    /// `None` keeps float. An activation is u8 or float, or bfloat16 as its weight is, and an
    /// embedding has none.
    fn qconfig(&self, kind: &LayerKind) -> Option<QConfig> {
        let embedding = *kind == LayerKind::Embedding;
        let weight = &self.weight;
        let dtype = match (weight.dtype, self.activation.dtype) {
            (Some(DType::Float), _) => return None,
            (Some(DType::Float16), _) => return Some(QConfig::float16()),
            (Some(DType::BFloat16), _) => {
                return (!embedding).then(QConfig::bfloat16);
            }
            _ if embedding => {
                return Some(QConfig::table().eps(QConfig::MIN_EPS));
            }
            (_, Some(DType::Float | DType::Float16 | DType::BFloat16)) => return None,
            (Some(DType::Codes(dtype)), _) => dtype,
            (None, _) => QDType::QInt8,
        };
        let symmetric = weight.symmetric.unwrap_or(dtype == QDType::QInt8);
        let per_channel = weight.per_channel.unwrap_or(true);
        let observer =
            if per_channel { ObserverKind::PerChannelMinMax } else { ObserverKind::MinMax };
        let qscheme = QScheme::integer(per_channel, symmetric);
        let granularity = match self.activation.per_channel {
            Some(false) => Granularity::PerTensor,
            _ => Granularity::PerRow,
        };
        let qconfig = QConfig::Int8 {
            weight: ObserverConfig::new(observer, dtype, qscheme),
            activation: DynamicConfig::new(granularity, false),
        };
        Some(qconfig.eps(QConfig::MIN_EPS))
    }
}

impl Tensor {
    fn read(config: &mut TuningConfig, node: &Node) -> Result<Self> {
        let keys = "dtype, scheme, granularity, algorithm, bit";
        let map = node.map("a tensor's options", keys)?;
        let dtypes = [
            ("int8", DType::Codes(QDType::QInt8)),
            ("uint8", DType::Codes(QDType::QUInt8)),
            ("fp32", DType::Float),
            ("bf16", DType::BFloat16),
            ("fp16", DType::Float16),
        ];
        let schemes = [("sym", true), ("asym", false), ("asym_float", false)];
        let granularities = [("per_channel", true), ("per_tensor", false)];
        let algorithms = [("minmax", ()), ("kl", ()), ("placeholder", ())];
        let read = Self {
            dtype: map.read("dtype", |n| first(n, |w| lookup("dtype", w, dtypes)))?,
            symmetric: map.read("scheme", |n| first(n, |w| lookup("scheme", w, schemes)))?,
            per_channel: map
                .read("granularity", |n| first(n, |w| lookup("granularity", w, granularities)))?,
        };
        map.read("algorithm", |n| first(n, |w| lookup("algorithm", w, algorithms)))?;
        config.ignore(&map, "algorithm", "a range is that of the values, minmax");
        config.ignore(&map, "bit", "codes have 8 bits");
        Ok(read)
    }
}

/// A word, or the first of a list of words, all of which must be known.
fn first<T>(node: &Node, read: impl Fn(&str) -> Result<T>) -> Result<T> {
    let word = |node: &Node| node.word("a word", &read);
    let Value::List(words) = &node.value else {
        return word(node);
    };
    let values: Vec<T> = words.iter().map(word).collect::<Result<_>>()?;
    let first = values.into_iter().next();
    first.ok_or_else(|| node.fault("expected one or several words, got none"))
}
