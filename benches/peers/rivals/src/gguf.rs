//! GGUF files of a Llama's float weights, from a Hugging Face folder.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::{Context, Result};
use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::safetensors::{BufferedSafetensors, Load};
use candle_core::{DType, Device, Tensor};
use serde_json::Value as Json;

/// The parts of names in Hugging Face and in GGUF.
const NAMES: [(&str, &str); 13] = [
    ("model.layers.", "blk."),
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

const SIZES: [(&str, &str); 7] = [
    ("block_count", "num_hidden_layers"),
    ("context_length", "max_position_embeddings"),
    ("embedding_length", "hidden_size"),
    ("feed_forward_length", "intermediate_size"),
    ("attention.head_count", "num_attention_heads"),
    ("attention.head_count_kv", "num_key_value_heads"),
    ("vocab_size", "vocab_size"),
];

const NUMBERS: [(&str, &str); 2] =
    [("attention.layer_norm_rms_epsilon", "rms_norm_eps"), ("rope.freq_base", "rope_theta")];

/// A model in float.
pub struct Float {
    config: Json,
    weights: BufferedSafetensors,
}

impl Float {
    pub fn read(folder: &Path) -> Result<Self> {
        let config = std::fs::read_to_string(folder.join("config.json"))?;
        let weights = std::fs::read(folder.join("model.safetensors"))?;
        Ok(Self {
            config: serde_json::from_str(&config)?,
            weights: BufferedSafetensors::new(weights)?,
        })
    }

    /// Writes matrices in a format; the output projection has 6 or 8 bits, as llama.cpp's.
    pub fn write(&self, dtype: GgmlDType, path: &Path) -> Result<()> {
        let tensors = self.weights.tensors();
        let head = if self.config["tie_word_embeddings"] == true {
            "token_embd.weight"
        } else {
            "output.weight"
        };
        let quantized = tensors.iter().map(|(name, view)| {
            let tensor = self.rotated(name, view.load(&Device::Cpu)?.to_dtype(DType::F32)?)?;
            let name = NAMES.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
            let six = tensor.dims().last().is_some_and(|size| size % 256 == 0);
            let dtype = match tensor.rank() {
                1 => GgmlDType::F32,
                _ if name != head || dtype == GgmlDType::Q8_0 => dtype,
                _ if six => GgmlDType::Q6K,
                _ => GgmlDType::Q8_0,
            };
            Ok((name, QTensor::quantize(&tensor, dtype)?))
        });
        let quantized: Vec<_> = quantized.collect::<Result<_>>()?;
        let tensors: Vec<_> = quantized.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        let metadata = self.metadata()?;
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (&**key, value)).collect();
        let mut file = BufWriter::new(File::create(path)?);
        gguf_file::write(&mut file, &metadata, &tensors)?;
        Ok(file.into_inner()?.sync_all()?)
    }

    fn number(&self, key: &str) -> Result<f64> {
        // transformers 5 writes the base of rotary embeddings in a nested object.
        let nested = &self.config["rope_parameters"][key];
        let number = self.config[key].as_f64().or_else(|| nested.as_f64());
        number.with_context(|| format!("config.json: key {key:?}: expected a number"))
    }

    fn metadata(&self) -> Result<Vec<(String, Value)>> {
        let text = |text: &str| Value::String(text.to_owned());
        let head = self.number("hidden_size")? / self.number("num_attention_heads")?;
        let mut all = vec![
            ("general.architecture".to_owned(), text("llama")),
            ("tokenizer.ggml.model".to_owned(), text("none")),
            ("llama.rope.dimension_count".to_owned(), Value::U32(head as u32)),
        ];
        for (to, from) in SIZES {
            all.push((format!("llama.{to}"), Value::U32(self.number(from)? as u32)));
        }
        for (to, from) in NUMBERS {
            all.push((format!("llama.{to}"), Value::F32(self.number(from)? as f32)));
        }
        Ok(all)
    }

    /// Queries and keys in the order of GGUF: the two inputs that an angle turns are neighbours.
    fn rotated(&self, name: &str, tensor: Tensor) -> Result<Tensor> {
        let heads = match name.rsplit('.').nth(1) {
            Some("q_proj") => "num_attention_heads",
            Some("k_proj") => "num_key_value_heads",
            _ => return Ok(tensor),
        };
        let (heads, (out, inputs)) = (self.number(heads)? as usize, tensor.dims2()?);
        let halves = tensor.reshape((heads, 2, out / heads / 2, inputs))?;
        Ok(halves.transpose(1, 2)?.reshape((out, inputs))?)
    }
}
