//! Checkpoints that are quantized without a model equal a model's: tensors and
//! `config.json`.

use super::model::{quantized, specs, write_float};
use crate::kit::*;

/// A folder with the model of all layers.
fn folder() -> Result<Source> {
    let (dir, [float]) = paths(["float"]);
    fs::create_dir(&float)?;
    write_float(&float)?;
    fs::write(float.join("config.json"), r#"{"hidden_size": 24}"#)?;
    Ok(Source::new(dir, float)?)
}

/// The tensors and the config of the folder that `spec` gives, with a model and without; both must
/// be the same.
fn written(source: &Source, spec: &QConfigSpec, name: &str) -> Result<(Vec<u8>, Value)> {
    let converted = source.beside("converted");
    let plan = Plan::new(&source.checkpoint, spec, &[], &["table".to_owned()])?;
    plan.write(&source.checkpoint, &converted, |_| ())?;
    source.save(&quantized(&source.path, spec)?)?;
    let read = |file: &str| -> Result<Vec<u8>> {
        let (saved, converted) =
            (fs::read(source.out.join(file))?, fs::read(converted.join(file))?);
        assert!(saved == converted, "{name}: {file}");
        Ok(saved)
    };
    let tensors = read("model.safetensors")?;
    Ok((tensors, serde_json::from_slice(&read("config.json")?)?))
}

#[test]
fn folders_with_and_without_a_model_are_the_same() -> Result<()> {
    let source = folder()?;
    let histogram = QConfig::Int8 {
        weight: ObserverConfig::new(
            ObserverKind::Histogram { bins: 64 },
            QDType::QInt8,
            QScheme::PerTensorAffine,
        ),
        activation: DynamicConfig::new(Granularity::PerTensor, true),
    };
    let others = [
        ("without a layer", all_int8().exclude("narrow")),
        ("histograms", QConfigSpec::all_kinds(histogram)),
    ];
    for (name, spec) in specs().into_iter().chain(others) {
        let (_, config) = written(&source, &spec, name)?;
        assert_eq!(config["hidden_size"], 24, "{name}");
        let is_int8 = !name.contains("float16");
        assert_eq!(config.get("quantization_config").is_some(), is_int8, "{name}");
    }
    Ok(())
}

/// The groups of a config.
fn groups(config: &Value) -> impl Iterator<Item = &Value> {
    let groups = config["quantization_config"]["config_groups"].as_object();
    groups.into_iter().flat_map(|groups| groups.values())
}

/// Class, strategies of weights and activations, whether symmetric, and the dtype of zero points.
fn brief(group: &Value) -> Value {
    let (weights, activations) = (&group["weights"], &group["input_activations"]);
    json!([
        group["targets"],
        weights["strategy"],
        weights["symmetric"],
        weights["zp_dtype"],
        activations["strategy"]
    ])
}

#[test]
fn the_config_tells_which_layers_are_quantized_and_how() -> Result<()> {
    let source = folder()?;
    let int8 = || all_int8();
    let linear = json!([["Linear"], "channel", true, null, "token"]);
    let table = json!([["table"], "channel", false, "torch.float32", null]);
    let per_tensor = QConfig::pytorch();
    let cases = [
        (int8(), vec![linear.clone()], json!([])),
        (int8().embeddings(), vec![linear.clone(), table], json!([])),
        (int8().exclude("narrow"), vec![linear.clone()], json!(["narrow"])),
        (int8().name("narrow", QConfig::float16()), vec![linear], json!(["narrow"])),
        // Two treatments of Linears: each lists its layers.
        (
            int8().name("narrow", per_tensor),
            vec![
                json!([["narrow"], "tensor", true, null, "tensor"]),
                json!([["wide"], "channel", true, null, "token"]),
            ],
            json!([]),
        ),
    ];
    for (spec, expected, ignored) in cases {
        let (_, config) = written(&source, &spec, &spec.to_string())?;
        assert!(groups(&config).map(brief).eq(expected), "{spec}: {config}");
        assert_eq!(config["quantization_config"]["ignore"], ignored, "{spec}");
    }
    for (spec, format, bits) in [
        (QConfigSpec::int4(), "pack-quantized", 4),
        (QConfigSpec::int8_groups(), "int-quantized", 8),
        (QConfigSpec::int8(), "int-quantized", 8),
    ] {
        let (_, config) = written(&source, &spec.min_params(0), format)?;
        assert!(groups(&config).count() > 0);
        for group in groups(&config) {
            let got = (&group["format"], &group["weights"]["num_bits"]);
            assert_eq!(got, (&json!(format), &json!(bits)));
            assert_eq!(group["weights"]["symmetric"], true);
        }
    }
    // The float copy has no quantized weight.
    let float = source.beside("again");
    checkpoint::dequantize(&source.saved()?, &float, |_| ())?;
    let config = read_json(float.join("config.json"))?;
    assert_eq!(config, json!({"hidden_size": 24}));
    Ok(())
}

#[test]
fn the_config_names_modules_with_any_prefix_where_a_head_may_be_tied() -> Result<()> {
    let tensors: &[(&str, &[usize])] = &[
        ("model.embed_tokens.weight", &[32, 8]),
        ("model.layers.0.q_proj.weight", &[8, 8]),
        ("model.layers.1.q_proj.weight", &[8, 8]),
        ("model.layers.0.small.weight", &[2, 8]),
        ("pooler.dense.weight", &[8, 8]),
        ("classifier.weight", &[2, 8]),
    ];
    let spec = QConfigSpec::int8().min_params(20);
    let check = |config: &str, spec: &QConfigSpec, targets: Value, ignored: Value| -> Result<()> {
        let source = Source::folder(config, tensors)?;
        source.convert(spec, &[])?;
        let entry = &read_json(source.out.join("config.json"))?["quantization_config"];
        assert_eq!(entry["config_groups"]["group_0"]["targets"], targets);
        assert_eq!(entry["ignore"], ignored);
        Ok(())
    };
    let text = r#"{"text_config": {"vocab_size": 32}}"#;
    let (pooler, layers) = (r"re:^((.*\.)?pooler\.)?dense$", r"re:^(.*\.)?layers\.\d+\.q_proj$");
    let (left, small) = (r"re:^(.*\.)?layers\.1\.q_proj$", "model.layers.0.small");
    let targets = json!([pooler, layers]);
    check(text, &spec, targets.clone(), json!(["classifier", small]))?;
    let without = spec.clone().exclude("model.layers.1");
    check(text, &without, targets, json!(["classifier", small, left]))?;
    // A vision model, whose modules transformers renames.
    let spec = spec.min_params(0).exclude("classifier");
    check("{}", &spec, json!(["Linear"]), json!(["classifier"]))
}

#[test]
fn what_is_no_linear_stays_float_with_its_reason() -> Result<()> {
    let source = Source::folder(
        "{}",
        &[
            ("h.0.attn.c_proj.weight", &[8, 8]),
            ("h.0.mlp.c_proj.weight", &[16, 8]),
            ("h.0.mlp.c_proj.bias", &[8]),
            ("h.0.mlp.gate.weight", &[4, 8]),
            ("h.0.mlp.experts.0.up.weight", &[8, 8]),
            ("h.1.mlp.router.layer.weight", &[4, 8]),
            ("h.1.mlp.experts.up", &[4, 8, 8]),
            ("h.2.mlp.gate.weight", &[8, 8]),
            ("h.0.norm_1.weight", &[8, 8]),
            ("codebook.weight", &[8, 8]),
            ("embed_positions.weight", &[8, 8]),
            ("embed_out.weight", &[32, 8]),
            ("embedding_mapping.weight", &[8, 16]),
            ("embedding_mapping.bias", &[8]),
            ("embed_tokens.weight", &[32, 8]),
            ("user_emb.weight", &[32, 8]),
            ("pos.weight", &[32, 8]),
            ("linear_pos.weight", &[8, 8]),
            ("q.lora_A.default.weight", &[2, 8]),
        ],
    )?;
    let spec = all_int8();
    let plan = source.plan(&spec, &[])?;
    let cases = [
        ("h.0.attn.c_proj", "Custom(Conv1D)", "[in, out]"),
        ("h.0.mlp.c_proj", "Custom(Conv1D)", "[in, out]"),
        ("h.0.mlp.gate", "Custom(Router)", "router"),
        ("h.1.mlp.router.layer", "Custom(Router)", "router"),
        ("h.0.mlp.experts.0.up", "Custom(Expert)", "transformers 5"),
        ("h.0.norm_1", "Custom(Norm)", "norm"),
        ("codebook", "Custom(Codebook)", "codebook"),
        ("embed_positions", "Custom(Positions)", "positions"),
        ("embed_tokens", "Embedding", "off by default"),
        ("user_emb", "Embedding", "off by default"),
        ("pos", "Embedding", "off by default"),
        ("q.lora_A.default", "Custom(Adapter)", "merged"),
        ("linear_pos", "Linear", ""),
        // A gate without experts, as in a gated MLP; and projections of embeddings.
        ("h.2.mlp.gate", "Linear", ""),
        ("embed_out", "Linear", ""),
        ("embedding_mapping", "Linear", ""),
    ];
    assert_eq!(plan.layers().len(), cases.len());
    let layer = |plan: &Plan, name: &str| {
        let mut layers = plan.layers().iter();
        layers.find(|layer| layer.name == name).expect("a layer").clone()
    };
    for (name, kind, why) in cases {
        let layer = layer(&plan, name);
        assert_eq!(layer.kind.to_string(), kind, "{name}");
        let left = layer.qconfig.as_ref().err().map(|left| left.to_string()).unwrap_or_default();
        assert!(left.contains(why) && left.is_empty() == why.is_empty(), "{name}: {left}");
        assert_eq!(layer.qconfig.is_ok(), why.is_empty(), "{name}");
    }
    // Requested explicitly: experts by a rule, others by their kinds.
    let experts = spec.clone().regex("experts", QConfig::int8());
    let gate = ["h.0.mlp.gate.weight"];
    let plan = source.plan(&experts, &gate)?;
    for name in ["h.0.mlp.experts.0.up", "h.0.mlp.gate"] {
        assert!(layer(&plan, name).qconfig.is_ok(), "{name}");
    }
    source.convert(&experts, &gate)?;
    let entry = fs::read_to_string(source.out.join("config.json"))?;
    assert!(entry.contains("experts"), "{entry}");
    let norm = spec.name("h.0.norm_1", QConfig::int8());
    fault(source.plan(&norm, &[])).has("h.0.norm_1").has("Norm");
    Ok(())
}

#[test]
fn a_table_that_transformers_ties_stays_float_unless_it_is_named() -> Result<()> {
    let spec = all_int8().embeddings();
    let causal = r#"{"architectures": ["LlamaForCausalLM"]}"#;
    let untied = r#"{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false}"#;
    let headless = r#"{"architectures": ["LlamaModel"]}"#;
    let (table, head) = ("model.embed_tokens", "lm_head");
    let cases: [(&str, &[&str], bool); 6] = [
        (causal, &[table], true),
        (causal, &[table, head], false),
        (untied, &[table], false),
        (headless, &[table], false),
        ("{}", &["shared", table], true),
        ("{}", &[table], false),
    ];
    for (config, of_32, is_tied) in cases {
        let others: [(&str, &[usize]); 2] = [
            ("model.layers.0.up_proj.weight", &[32, 8]),
            ("model.position_embeddings.weight", &[16, 8]),
        ];
        let names: Vec<_> = of_32.iter().map(|name| format!("{name}.weight")).collect();
        let of_32 = names.iter().map(|name| (&**name, &[32, 8][..]));
        let source = Source::folder(config, &of_32.chain(others).collect::<Vec<_>>())?;
        let is_left = |plan: &Plan, name: &str| {
            let layer = plan.layers().iter().find(|layer| layer.name == name);
            layer.is_some_and(|layer| layer.qconfig.is_err())
        };
        let plan = source.plan(&spec, &[])?;
        assert_eq!(is_left(&plan, table), is_tied, "{config} {names:?}");
        assert!(!is_left(&plan, "model.position_embeddings"), "{config}");
        let plan = Plan::new(&source.checkpoint, &spec, &[], &[table.to_owned()])?;
        assert!(!is_left(&plan, table), "{config}");
    }
    Ok(())
}

#[test]
fn many_rows_without_columns_are_written_block_by_block() -> Result<()> {
    let empty = Tensor::zeros((200_000, 0), DType::F32, &Device::Cpu)?;
    let source = Source::of([("a.weight", empty)])?;
    source.convert(&QConfigSpec::preset("per_channel")?, &[])?;
    assert_eq!(source.saved()?.floats("a.weight_scale")?.len(), 200_000);
    Ok(())
}

#[test]
fn a_table_is_not_a_weight_of_a_product() -> Result<()> {
    let source = Source::of([("a.weight", Tensor::zeros((2, 2), DType::F32, &Device::Cpu)?)])?;
    let table = QConfigSpec::new().kind(LayerKind::Linear, QConfig::table());
    fault(source.convert(&table, &[])).has("a weight that is multiplied");
    Ok(())
}

#[test]
fn groups_of_huge_weights_keep_scales_that_halves_cannot_hold() -> Result<()> {
    let rows = [vec![1e30f32; 32], vec![1.; 32]].concat();
    let source = Source::of([("a.weight", Tensor::from_vec(rows, (2, 32), &Device::Cpu)?)])?;
    source.convert(&QConfigSpec::int4().min_params(0), &[])?;
    let got = source.saved()?.floats("a.weight")?;
    for (got, expected) in got.iter().zip(source.checkpoint.floats("a.weight")?) {
        assert!((got / expected - 1.).abs() < 0.1, "{got}, {expected}");
    }
    Ok(())
}

#[test]
fn a_tensor_of_several_layers_is_no_module_of_other_libraries() -> Result<()> {
    let name = "attn.in_proj_weight";
    // If layers are treated differently, the config names their modules.
    for qconfig in [QConfig::int8(), QConfig::pytorch(), QConfig::float16()] {
        let source = Source::folder("{}", &[(name, &[24, 8]), ("up.weight", &[8, 8])])?;
        source.convert(&all_int8().name(name, qconfig), &[name])?;
        let config = fs::read_to_string(source.out.join("config.json"))?;
        assert!(config.contains("config_groups") && !config.contains("in_proj"), "{config}");
    }
    Ok(())
}

#[test]
fn a_bias_of_another_length_tells_nothing_of_a_matrix() -> Result<()> {
    let source = Source::random([("embeddings.weight", &[10, 4]), ("embeddings.bias", &[3])])?;
    let plan = source.plan(&all_int8().embeddings(), &[])?;
    assert_eq!(plan.layers()[0].kind, LayerKind::Embedding);
    Ok(())
}

#[test]
fn values_beyond_a_half_are_counted_as_a_model_counts_them() -> Result<()> {
    let mut source = folder()?;
    let float = source.path.join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&float, &Device::Cpu)?;
    let wide = tensors["wide.weight"].clone();
    // The greatest half is not clamped.
    for (wide, is_counted) in [((&wide * 1e6)?, true), ((wide.zeros_like()? + 65_504.)?, false)] {
        tensors.insert("wide.weight".into(), wide);
        candle_core::safetensors::save(&tensors, &float)?;
        source.checkpoint = Checkpoint::open(&source.path)?;
        let (bytes, _) = written(&source, &QConfigSpec::float16(), "float16")?;
        // The record of the format, in the file's metadata.
        let header = String::from_utf8_lossy(&bytes[..4_000]);
        assert_eq!(header.contains("saturated"), is_counted);
    }
    Ok(())
}

#[test]
fn layers_are_known_by_the_names_and_shapes_of_their_tensors() -> Result<()> {
    let (dir, [path]) = paths(["a.safetensors"]);
    let matrix =
        |rows: usize, columns: usize| Tensor::ones((rows, columns), DType::F32, &Device::Cpu);
    // Each with its hidden size of 2, except for the last two.
    let kinds = [
        ("lstm", "_l0", 8, Some(LayerKind::LSTM)),
        ("gru", "_l0_reverse", 6, Some(LayerKind::GRU)),
        ("rnn", "_l12", 2, Some(LayerKind::RNN)),
        ("lstm_cell", "", 8, Some(LayerKind::LSTMCell)),
        ("gru_cell", "", 6, Some(LayerKind::GRUCell)),
        ("rnn_cell", "", 2, Some(LayerKind::RNNCell)),
        ("none", "_l0", 4, None),
        ("no_number", "_lx", 8, None),
    ];
    let mut tensors = HashMap::from([("head.weight".to_owned(), matrix(5, 7)?)]);
    for (name, suffix, rows, _) in &kinds {
        tensors.insert(format!("{name}.weight_ih{suffix}"), matrix(*rows, 3)?);
        tensors.insert(format!("{name}.weight_hh{suffix}"), matrix(*rows, 2)?);
    }
    candle_core::safetensors::save(&tensors, &path)?;
    let source = Source::new(dir, path)?;
    let spec = all_int8();
    let plan = source.plan(&spec, &[])?;
    let got = |name: &str| plan.layers().iter().find(|layer| layer.name == name);
    for (name, _, _, kind) in kinds {
        assert_eq!(got(name).map(|layer| layer.kind.clone()), kind, "{name}");
    }
    // The size of a layer is the sum of its weights: 8 x 3 and 8 x 2 of the LSTM.
    for (limit, quantized) in [(35, true), (36, false), (40, false), (41, false)] {
        let plan = source.plan(&spec.clone().min_params(limit), &[]);
        let head = plan.map(|plan| {
            let mut layers = plan.layers().iter();
            layers.any(|layer| layer.name == "head" && layer.qconfig.is_ok())
        });
        assert_eq!(head.unwrap_or(false), quantized, "{limit}");
    }
    let plan = source.plan(&spec.min_params(40), &[])?;
    let large = plan.layers().iter().filter(|layer| layer.qconfig.is_ok());
    let large: Vec<&str> = large.map(|layer| layer.name.as_str()).collect();
    assert_eq!(large, ["lstm", "lstm_cell"]);
    Ok(())
}
