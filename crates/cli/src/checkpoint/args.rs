//! Arguments of the commands.

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_dynquant::checkpoint::TensorInfo;
use candle_dynquant::{LayerKind, QConfigSpec};

/// Arguments of `quantize`.
#[derive(clap::Args)]
#[command(after_long_help = RULES)]
pub struct QuantizeArgs {
    /// A safetensors file, an index of shards, or a folder with config.json.
    #[arg(value_name = "IN")]
    pub source: PathBuf,
    /// The file or folder that is written; an old one is replaced when the new one is complete.
    #[arg(short, long, value_name = "OUT", required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,
    /// A spec in YAML or JSON.
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    pub spec: Option<PathBuf>,
    #[arg(long, value_name = "NAME", default_value = "int8", help = QConfigSpec::PRESETS.join(", "))]
    pub preset: String,
    /// Quantizes embeddings too.
    #[arg(long)]
    pub embeddings: bool,
    /// Quantizes the experts of mixtures too: a matrix each, or one tensor of three dimensions.
    #[arg(long)]
    pub experts: bool,
    /// Keeps layers of fewer weight elements float; without it the preset or the spec decides.
    #[arg(long, value_name = "N")]
    pub min_params: Option<usize>,
    /// Keeps a layer float, or all layers below a name; also a head without a tensor, tied to an
    /// embedding.
    #[arg(long, value_name = "NAME")]
    pub exclude: Vec<String>,
    /// A matrix that is a Linear, by its module or its tensor, such as an embedding whose table is
    /// also the output projection; the full name of a tensor that holds several Linears, such as
    /// in_proj_weight or the three dimensions of experts.
    #[arg(long, value_name = "NAME")]
    pub linear: Vec<String>,
    /// A matrix that is an Embedding.
    #[arg(long, value_name = "NAME")]
    pub embedding: Vec<String>,
    /// A convolution over signals, or all below a name, "" for all: NAME.weight [out, in, kernel].
    #[arg(long, value_name = "NAME")]
    pub conv1d: Vec<String>,
    /// A convolution over images, likewise: NAME.weight [out, in, height, width].
    #[arg(long, value_name = "NAME")]
    pub conv2d: Vec<String>,
    /// A transposed convolution over signals, likewise: NAME.weight [in, out, kernel].
    #[arg(long, value_name = "NAME")]
    pub conv_transpose1d: Vec<String>,
    /// Prints each layer and what it becomes, and writes nothing.
    #[arg(long)]
    pub dry_run: bool,
}

impl QuantizeArgs {
    /// The kinds of tensors, by the names that the options give.
    pub fn kinds(&self, tensors: &BTreeMap<String, TensorInfo>) -> Vec<(LayerKind, String)> {
        let named = [
            (LayerKind::Linear, &self.linear),
            (LayerKind::Embedding, &self.embedding),
            (LayerKind::Conv1d, &self.conv1d),
            (LayerKind::Conv2d, &self.conv2d),
            (LayerKind::ConvTranspose1d, &self.conv_transpose1d),
        ];
        let each = named
            .into_iter()
            .flat_map(|(kind, names)| names.iter().map(move |name| (kind.clone(), name.clone())));
        let experts = tensors.iter().filter(|_| self.experts);
        let experts = experts.filter(|(name, tensor)| is_of_experts(name, &tensor.shape));
        let experts = experts.map(|(name, _)| (LayerKind::Linear, name.clone()));
        each.chain(experts).collect()
    }
}

/// Whether a tensor has the weights of an expert or of all experts of a layer, as transformers names
/// them.
fn is_of_experts(name: &str, shape: &[usize]) -> bool {
    let ends = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    match shape.len() {
        2 => name.contains(".experts.") && name.ends_with(".weight"),
        3 => {
            name.contains(".experts.")
                || ends(&["moe.input_linear.weight", "moe.output_linear.weight"])
        }
        _ => false,
    }
}

const RULES: &str = "\
Which tensors are weights of layers:
  NAME.weight of two dimensions is a Linear; it is an Embedding if it has no bias and the last part
  of NAME contains `embed`, ends with `_emb`, or is `emb`, `pos`, `wte`, `wpe`, `shared` or
  `relative_attention_bias`. A Conv1D, whose weight is [in, out], as GPT-2's, a router, an expert, a
  norm, a codebook and an adapter (`lora_A`) stay float. --linear and --embedding decide otherwise, and
  --experts, which transformers 5 does not read.
  NAME.weight_ih_l0 and NAME.weight_hh_l0 are an LSTM, a GRU or an RNN, by the rows of the latter,
  and without _l0 a cell.
  NAME.weight of three or four dimensions is a convolution if --conv1d, --conv2d or
  --conv-transpose1d says so, the longest NAME first: a file does not say which. Nor does it know
  groups: a preset leaves fewer than 32 input channels float, and so depthwise convolutions; keep
  others with groups by --exclude, since layers with groups refuse codes. Only this library's
  layers read a quantized convolution.
All other tensors are copied. --dry-run shows all layers, and at the end the matrices that stay float.

Rules of a spec match NAME. A weight takes about 100 MB of memory, whatever its size; one with a single scale is read twice.";

/// Arguments of `dequantize`.
#[derive(clap::Args)]
pub struct DequantizeArgs {
    /// A safetensors file, an index of shards, or a folder with config.json.
    #[arg(value_name = "IN")]
    pub source: PathBuf,
    /// The file or folder that is written; an old one is replaced when the new one is complete.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
}

/// Arguments of `inspect`.
#[derive(clap::Args)]
pub struct InspectArgs {
    /// A safetensors file, an index of shards, or a folder.
    #[arg(value_name = "FILE")]
    pub path: PathBuf,
    /// Prints one JSON object:
    /// `{tensors: [{name, dtype, shape, bytes, quantized, scales}], bytes}`.
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `diff`.
#[derive(clap::Args)]
pub struct DiffArgs {
    /// The checkpoint that serves as the reference.
    #[arg(value_name = "A")]
    pub expected: PathBuf,
    /// The checkpoint that is compared with the reference.
    #[arg(value_name = "B")]
    pub got: PathBuf,
}
