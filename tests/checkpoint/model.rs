//! A model with a layer of each kind, loaded by one function from any checkpoint.

use crate::kit::*;

pub const WORDS: usize = 50;
const HIDDEN: usize = 24;

#[derive(Quantizable, Clone)]
pub struct Model {
    table: nn::Embedding,
    lstm: nn::LSTM,
    gru: nn::GRU,
    rnn: nn::RNN,
    cell: nn::LSTMCell,
    wide: nn::Linear,
    norm: candle_nn::LayerNorm,
    narrow: nn::Linear,
}

impl Model {
    pub fn load(vb: VarBuilder<'_>) -> Result<Self> {
        let deep = nn::RecurrentConfig { num_layers: 2, bidirectional: true, ..Default::default() };
        let projected = nn::RecurrentConfig { proj_size: 10, ..Default::default() };
        let tanh = nn::Nonlinearity::Tanh;
        Ok(Self {
            table: nn::embedding(WORDS, HIDDEN, vb.pp("table"))?,
            lstm: nn::LSTM::new(HIDDEN, HIDDEN, projected, vb.pp("lstm"))?,
            gru: nn::GRU::new(10, 9, deep, vb.pp("gru"))?,
            rnn: nn::RNN::new(18, 7, tanh, Default::default(), vb.pp("rnn"))?,
            cell: nn::LSTMCell::new(7, 12, true, vb.pp("cell"))?,
            wide: nn::linear(12, 67, vb.pp("wide"))?,
            norm: candle_nn::layer_norm(67, 1e-5, vb.pp("norm"))?,
            narrow: nn::linear_no_bias(67, 5, vb.pp("narrow"))?,
        })
    }

    /// The bits of an answer.
    pub fn bits(&self) -> Result<Vec<u32>> {
        let words: Vec<u32> = (0..12).map(|i| i * 37 % WORDS as u32).collect();
        let xs = self.table.forward(&Tensor::from_vec(words, (4, 3), &Device::Cpu)?)?;
        let (xs, _) = self.lstm.forward(&xs, None)?;
        let (xs, _) = self.gru.forward(&xs, None)?;
        let (xs, _) = self.rnn.forward(&xs, None)?;
        let state = self.cell.forward(&xs.get(3)?, None)?;
        let xs = self.norm.forward(&self.wide.forward(&state.h)?)?;
        Ok(bits(&self.narrow.forward(&xs)?))
    }

    pub fn open(path: &Path) -> Result<Self> {
        Self::load(open(path)?)
    }
}

/// Writes a float checkpoint of the model, the same each time.
pub fn write_float(dir: &Path) -> Result<PathBuf> {
    let vars = VarMap::new();
    Model::load(VarBuilder::from_varmap(&vars, DType::F32, &Device::Cpu))?;
    let mut seed = 1u64;
    let mut names: Vec<_> = vars.data().lock().expect("no panic").keys().cloned().collect();
    names.sort();
    for name in names {
        let var = vars.data().lock().expect("no panic")[&name].clone();
        let value = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 40) as f32 / (1u64 << 24) as f32 - 0.45
        };
        let count = var.elem_count();
        let values: Vec<f32> = std::iter::repeat_with(value).take(count).collect();
        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
    }
    let path = dir.join("model.safetensors");
    vars.save(&path)?;
    Ok(path)
}

/// All specs that a checkpoint is to survive.
pub fn specs() -> Vec<(&'static str, QConfigSpec)> {
    let groups = |group_size, scheme, per_row| {
        let mut groups = GroupConfig::INT4;
        (groups.group_size, groups.scheme, groups.per_row) = (group_size, scheme, per_row);
        QConfigSpec::all_kinds(QConfig::Groups(groups))
    };
    let onnx = |weight_type, per_channel, weight_symmetric| {
        QConfigSpec::all_kinds(QConfig::onnxruntime(OnnxRuntimeOptions {
            weight_type,
            per_channel,
            reduce_range: false,
            weight_symmetric,
        }))
    };
    let with_table = |spec: QConfigSpec, qconfig| spec.kind(LayerKind::Embedding, qconfig);
    let (int4, affine) = (QConfigSpec::int4().min_params(0), GroupScheme::Affine);
    let float16 = QConfigSpec::all_kinds(QConfig::float16());
    vec![
        ("int8", all_int8()),
        ("int8 with embeddings", all_int8().embeddings()),
        ("default", QConfigSpec::pytorch().embeddings()),
        ("int4", int4.clone()),
        ("int4 with a table", with_table(int4, QConfig::int4())),
        ("int4 affine", groups(Some(64), affine, false)),
        ("int4 per channel", groups(None, affine, false)),
        ("int4, activations per row", groups(Some(32), GroupScheme::Symmetric, true)),
        ("int8 in groups", QConfigSpec::int8_groups().min_params(0)),
        ("float16", QConfigSpec::float16()),
        ("bfloat16", QConfigSpec::bfloat16()),
        ("onnx", onnx(QDType::QInt8, false, None)),
        ("onnx quint8", onnx(QDType::QUInt8, true, None)),
        ("onnx affine", onnx(QDType::QInt8, false, Some(false))),
        ("onnx symmetric quint8", onnx(QDType::QUInt8, false, Some(true))),
        ("all float16", with_table(float16, QConfig::float16())),
        ("all bfloat16", with_table(QConfigSpec::bfloat16(), QConfig::bfloat16())),
    ]
}

pub fn source() -> Result<Source> {
    let dir = tempfile::tempdir()?;
    let path = write_float(dir.path())?;
    Ok(Source::new(dir, path)?)
}

pub fn quantized(float: &Path, spec: &QConfigSpec) -> Result<Model> {
    let mut model = Model::open(float)?;
    quantize_dynamic(&mut model, spec)?;
    Ok(model)
}

/// A float checkpoint, and that of its quantized model.
pub fn saved(spec: &QConfigSpec) -> Result<Source> {
    let source = source()?;
    source.save(&quantized(&source.path, spec)?)?;
    Ok(source)
}
