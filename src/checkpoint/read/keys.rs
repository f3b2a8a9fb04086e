//! The keys of an entry `quantization_config`, by the library that writes it: compressed-tensors
//! 0.20, transformers 5.24, GPTQModel 7.7, AutoAWQ 0.2, AutoRound 0.16 and those before them.
//! Nested keys are joined by dots.

use candle_dynquant_io::keys::Table;
use candle_dynquant_io::keys::Treatment::{self, Harmless, Only, Used};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::words::brief;

/// Keys for the kind of a weight, its order, and whether it is quantized.
const TENSORS: Treatment = Harmless("the tensors tell it");
const MAKING: Treatment = Harmless("says how the codes were chosen, and by which program");
const RUNNING: Treatment = Harmless("says how other libraries run them");
const FLOAT: Treatment = Harmless("without effect on activations that are float");
const OFF: Treatment = Only(&["null", "false", "{}", "[]"]);
const INTEGERS: Treatment = Only(&["\"int\"", "\"int_sym\"", "\"int_asym\""]);
const SHARED: Treatment = Only(&["\"tensor\"", "\"channel\"", "\"group\""]);

pub const COMPRESSED_TENSORS: Table = Table(&[
    (&["sparsity_config.format"], Only(&["\"dense\""])),
    (&["sparsity_config.*"], MAKING),
    (&["kv_cache_scheme", "transform_config", "moe_*"], OFF),
    (&["*.output_activations", "*.block_structure"], OFF),
    (&["*.weights.type"], INTEGERS),
    (&["*.weights.dynamic"], OFF),
    (&["*.weights.strategy"], SHARED),
    (&["*.weights.num_bits"], Only(&["4", "8"])),
    (&["*.weights.group_size"], TENSORS),
    (&["*.group_size"], Only(&["-1"])),
    (&["*.dynamic"], Only(&["true", "false"])),
    (&["*.num_bits", "*.type", "*.strategy"], Used),
    (&["quant_method", "format", "*.format", "*.targets"], Used),
    (&["*.symmetric", "*.actorder", "*.scale_dtype"], TENSORS),
    (&["*.zp_dtype", "ignore", "quantization_status"], TENSORS),
    (&["*.observer", "*.observer_kwargs", "version"], MAKING),
    (&["global_compression_ratio"], MAKING),
    (&["run_compressed", "dequantize", "use_*"], RUNNING),
]);

/// The keys beside `qweight`, of GPTQ, AWQ and AutoRound, which writes its keys into entries of the
/// others, too.
pub const QWEIGHT: Table = Table(&[
    (&["quant_method", "bits", "w_bit", "sym", "dynamic"], Used),
    (&["group_size", "q_group_size", "extra_config"], Used),
    (&["checkpoint_format", "format", "version"], Used),
    (&["packing_format", "backend"], Used),
    (&["method"], Only(&["\"gptq\"", "\"awq\""])),
    (&["pack_dtype"], Only(&["\"int32\""])),
    (&["is_marlin_format", "activation", "adapter"], OFF),
    (&["*rotation*", "spinquant_config", "super_*"], OFF),
    (&["static_*dtype"], OFF),
    (&["act_bits"], Only(&["16", "32"])),
    (&["data_type"], INTEGERS),
    (&["act_group_aware", "hyb_act"], MAKING),
    (&["act_*", "static_*granularity"], FLOAT),
    (&["desc_act", "static_groups", "zero_point"], TENSORS),
    (&["lm_head", "modules_*", "*block*"], TENSORS),
    (&["ignored_layers", "scale_dtype"], TENSORS),
    (&["true_sequential", "damp_*", "mse", "seqlen"], MAKING),
    (&["dataset", "tokenizer", "pad_token_id", "seed"], MAKING),
    (&["batch_size", "nsamples", "iters", "*lr", "amp"], MAKING),
    (&["momentum", "low_*", "gradient_*", "enable_*"], MAKING),
    (&["supported_types", "regex_config", "device*"], MAKING),
    (&["v2*", "fail_safe", "mock_*", "meta", "model_*"], MAKING),
    (&["provider", "*_version"], MAKING),
    (&["max_input_length", "use_*", "*exllama*"], RUNNING),
    (&["do_fuse", "fuse_*", "parallel_packing"], RUNNING),
]);

pub const BITSANDBYTES: Table = Table(&[
    (&["quant_method", "llm_int8_threshold"], Used),
    (&["load_in_4bit"], Used),
    (&["_load_in_4bit"], OFF),
    (&["load_in_8bit", "_load_in_8bit"], TENSORS),
    (&["llm_int8_*", "bnb_4bit_*"], RUNNING),
]);

pub const QUANTO: Table = Table(&[
    (&["quant_method", "weights", "activations"], Used),
    (&["modules_to_not_convert"], TENSORS),
]);

/// The metadata of a file describes each tensor.
pub const TORCHAO: Table = Table(&[
    (&["quant_method", "quant_type*"], TENSORS),
    (&["modules_*", "include_*", "untie_*"], TENSORS),
]);

/// Checks the keys of an entry.
///
/// # Errors
/// When a key is in no row, or has a value that its row refuses.
pub fn check(table: &Table, entry: &Value) -> Result<()> {
    let mut entries = Vec::new();
    if let Value::Object(map) = entry {
        flatten(table, "", map, &mut entries);
    }
    let checked = table.check(entries.iter().map(|(key, value)| (&**key, value.clone())));
    let (key, expected, got) = match checked.as_deref() {
        Ok([]) => return Ok(()),
        Ok([key, ..]) => (*key, "a key that is known", "another"),
        Err(refused) => (&*refused.key, &*refused.expected, &*refused.got),
    };
    Err(Error::unsupported(
        "key of quantization_config",
        format!("{:?}: {expected}", brief(key, 200)),
        got,
    ))
}

/// The values that are not null, of objects without a row the values within.
fn flatten(table: &Table, start: &str, map: &Map<String, Value>, to: &mut Vec<(String, String)>) {
    for (key, value) in map {
        let key = format!("{start}{key}");
        match value {
            Value::Null => {}
            Value::Object(map) if table.treatment(&key).is_none() => {
                flatten(table, &format!("{key}."), map, to);
            }
            value => to.push((key, value.to_string())),
        }
    }
}
