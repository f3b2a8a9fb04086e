//! GGUF files as candle writes them, and malformed files.

use std::fs::File;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor, gguf_file};

use crate::kit::*;

fn write(path: &Path, architecture: &str, tensors: &[(&str, QTensor)]) -> Result<()> {
    let words = Value::Array(vec![Value::String("a".into()), Value::String("bc".into())]);
    let metadata = [
        ("general.architecture", Value::String(architecture.into())),
        ("tokenizer.ggml.tokens", words),
        ("tokenizer.ggml.scores", Value::Array(vec![Value::F32(1.), Value::F32(2.)])),
        ("llama.attention.head_count", Value::U32(4)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.rope.freq_base", Value::F32(10_000.)),
        // A value of any other type is skipped, whatever its name.
        ("general.name", Value::String("another".into())),
        ("a.u8", Value::U8(1)),
        ("a.i8", Value::I8(1)),
        ("a.bool", Value::Bool(true)),
        ("a.u16", Value::U16(1)),
        ("a.i16", Value::I16(1)),
        ("a.i32", Value::I32(1)),
        ("a.u64", Value::U64(1)),
        ("a.i64", Value::I64(1)),
        ("a.f64", Value::F64(1.)),
    ];
    let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
    write_with(path, &metadata, &tensors)
}

fn write_with(path: &Path, metadata: &[(&str, Value)], tensors: &[(&str, &QTensor)]) -> Result<()> {
    let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, value)).collect();
    Ok(gguf_file::write(&mut File::create(path)?, &metadata, tensors)?)
}

/// Blocks of every type of gguf 0.19, by `assets/reference/gguf_tables.py`; in a copy a type has a
/// number that nobody knows.
#[test]
fn every_type_has_the_floats_of_gguf_or_is_refused_by_name() -> Result<()> {
    let (_dir, [path, out]) = paths(["model.gguf", "out.safetensors"]);
    let mut bytes = fs::read("assets/reference/decoders/gguf_types.gguf")?;
    let name = bytes.windows(12).position(|own| own == b"TQ1_0.weight");
    let kind = name.context("its name")? + 12 + 4 + 2 * 8;
    bytes[kind..kind + 4].copy_from_slice(&99u32.to_le_bytes());
    fs::write(&path, bytes)?;
    let checkpoint = Checkpoint::open(&path)?;
    let (mut read, mut refused) = (0, 0);
    for tensor in checkpoint.tensors() {
        let Some(name) = tensor.name.strip_suffix(".weight") else { continue };
        let same = checkpoint.floats(&tensor.name);
        if let Ok(expected) = checkpoint.floats(&format!("{name}.floats")) {
            assert!(same? == expected, "{name}");
            read += 1;
            continue;
        }
        let kind = if name == "TQ1_0" { "type 99" } else { name };
        assert_eq!(tensor.dtype, kind);
        let expected =
            format!("{:?}: expected a type of GGUF that is read, got {kind}", tensor.name);
        fault(same).has(&expected);
        refused += 1;
    }
    assert_eq!((read, refused), (14, 12));
    assert!(checkpoint::dequantize(&checkpoint, &out, |_| {}).is_err());
    Ok(())
}

/// The parts that llama.cpp and gguf make of a large file: metadata is in the first.
#[test]
fn a_split_file_is_read_as_a_whole_from_its_first_part() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let path = |part: usize| dir.path().join(format!("m-{part:05}-of-00003.gguf"));
    let names = ["blk.0.attn_q.weight", "blk.0.attn_v.weight", "token_embd.weight"];
    let part = |number: u16, count: i32| -> Result<QTensor> {
        let mut metadata = vec![
            ("split.no", Value::U16(number)),
            ("split.count", Value::U16(3)),
            ("split.tensors.count", Value::I32(count)),
        ];
        if number == 0 {
            metadata.push(("general.architecture", Value::String("llama".into())));
            metadata.push(("llama.attention.head_count", Value::U32(4)));
        }
        let tensor = random(&[8, 32], GgmlDType::Q8_0)?;
        let number = usize::from(number);
        write_with(&path(number + 1), &metadata, &[(names[number], &tensor)])?;
        Ok(tensor)
    };
    let tensors = [part(0, 3)?, part(1, 3)?, part(2, 3)?];
    let [checkpoint, saved, float] = copies(dir.path(), &path(1))?;
    for checkpoint in [checkpoint, saved, float] {
        let v = checkpoint.floats("model.layers.0.self_attn.v_proj.weight")?;
        assert!(v == floats(&tensors[1])?);
        let table = checkpoint.floats("model.embed_tokens.weight")?;
        assert!(table == floats(&tensors[2])?);
        let q = checkpoint.floats("model.layers.0.self_attn.q_proj.weight")?;
        assert!(q[32..64] == floats(&tensors[0])?[32..64] && q.len() == 256);
    }
    let refused = |path: &Path, expected: &str| drop(fault(Checkpoint::open(path)).has(expected));
    refused(&path(2), "expected part 0 of a model");
    let renamed = dir.path().join("renamed.gguf");
    fs::copy(path(1), &renamed)?;
    refused(&renamed, "-00001-of-00003.gguf");
    part(2, 4)?;
    refused(&path(1), "expected 4, by key \"split.tensors.count\", got 3");
    fs::copy(path(2), path(3))?;
    refused(&path(1), "expected part 2 of a model");
    fs::remove_file(path(3))?;
    refused(&path(1), "m-00003-of-00003.gguf");
    let bytes = fs::read(path(1))?;
    fault(Checkpoint::from_bytes("a.gguf", bytes)).has("by key \"split.count\"");
    Ok(())
}

fn random(shape: &[usize], dtype: GgmlDType) -> Result<QTensor> {
    Ok(QTensor::quantize(&crate::kit::random(shape), dtype)?)
}

fn floats(tensor: &QTensor) -> Result<Vec<f32>> {
    Ok(values(&tensor.dequantize(&Device::Cpu)?))
}

#[test]
fn every_type_has_the_floats_that_candle_reads() -> Result<()> {
    use GgmlDType::*;
    let (_dir, [path]) = paths(["model.gguf"]);
    let types = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K];
    let names = types.map(|dtype| format!("blk.{}.ffn_up.weight", dtype as u32));
    let tensors =
        types.iter().zip(&names).map(|(dtype, name)| Ok((&**name, random(&[5, 512], *dtype)?)));
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    write(&path, "qwen2", &tensors)?;
    let checkpoint = Checkpoint::open(&path)?;
    for ((name, tensor), dtype) in tensors.iter().zip(types) {
        let layer_name = name.replace("blk", "model.layers").replace("ffn_up", "mlp.up_proj");
        assert!(checkpoint.floats(&layer_name)? == floats(tensor)?, "{dtype:?}");
        let infos = || {
            let all = checkpoint.tensors();
            all.filter(|info| info.name.starts_with(&layer_name))
        };
        let bytes: usize = infos().map(|info| info.bytes as usize).sum();
        assert_eq!(bytes, tensor.storage_size_in_bytes(), "{dtype:?}");
        let expected = match dtype {
            Q4_0 | Q4_1 => "I4".to_owned(),
            Q8_0 => "I8".to_owned(),
            other => format!("{other:?}"),
        };
        let shown: Vec<_> = infos().map(|info| info.dtype).collect();
        assert!(shown.contains(&expected), "{dtype:?}: {shown:?}");
        assert!(shown.iter().all(|shown| *shown == expected || shown == "F16"));
        let layer = nn::linear_no_bias(
            512,
            5,
            vb_of(&checkpoint).pp(layer_name.trim_end_matches(".weight")),
        )?;
        let groups = layer.projection().qweight().and_then(QWeight::groups);
        let expected = match dtype {
            Q4_0 | Q4_1 => Some(IntType::Int4),
            Q8_0 => Some(IntType::Int8),
            _ => None,
        };
        assert_eq!(groups.map(|groups| groups.dtype), expected, "{dtype:?}");
        assert!(groups.is_none_or(|groups| groups.group_size == Some(32)));
        assert!(values(layer.weight()) == floats(tensor)?, "{dtype:?}");
    }
    Ok(())
}

/// A tensor of experts is a matrix for each, with the numbers that candle reads.
#[test]
fn experts_are_matrices_with_the_floats_that_candle_reads() -> Result<()> {
    use GgmlDType::*;
    let (dir, [path]) = paths(["model.gguf"]);
    for dtype in [F32, BF16, Q4_0, Q4_1, Q8_0, Q4K, Q6K] {
        let tensor = random(&[3, 5, 512], dtype)?;
        let name = "blk.1.ffn_up_exps.weight";
        let all = floats(&tensor)?;
        write(&path, "qwen3moe", &[(name, tensor)])?;
        let name = |expert| format!("model.layers.1.mlp.experts.{expert}.up_proj");
        for checkpoint in copies(dir.path(), &path)? {
            let vb = vb_of(&checkpoint);
            for (expert, expected) in all.chunks_exact(5 * 512).enumerate() {
                let layer = nn::linear_no_bias(512, 5, vb.pp(name(expert)))?;
                assert!(values(layer.weight()) == expected, "{dtype:?} {expert}");
            }
            assert!(!checkpoint.tensors().any(|info| info.name.starts_with(&name(3))));
        }
    }
    // Neither three dimensions nor so many experts.
    for shape in [&[5, 32][..], &[4097, 1, 32], &[2, 2, 2, 32]] {
        write(&path, "olmoe", &[("blk.0.ffn_gate_exps.weight", random(shape, Q8_0)?)])?;
        fault(Checkpoint::open(&path)).has("blk.0.ffn_gate_exps.weight");
    }
    Ok(())
}

/// The file itself, its saved copy, and its float copy.
fn copies(dir: &Path, path: &Path) -> Result<[Checkpoint; 3]> {
    let [saved, float] = ["a.safetensors", "b.safetensors"].map(|name| dir.join(name));
    let checkpoint = Checkpoint::open(path)?;
    checkpoint::save(&(), &checkpoint, &saved)?;
    checkpoint::dequantize(&checkpoint, &float, |_| {})?;
    Ok([checkpoint, Checkpoint::open(&saved)?, Checkpoint::open(&float)?])
}

#[test]
fn weights_in_groups_without_inputs_are_refused() -> Result<()> {
    use GgmlDType::{Q4_0, Q4_1, Q8_0};
    let (_dir, [path]) = paths(["model.gguf"]);
    for dtype in [Q4_0, Q4_1, Q8_0] {
        let empty = Tensor::zeros((3, 0), DType::F32, &Device::Cpu)?;
        let empty = QTensor::quantize(&empty, dtype)?;
        write(&path, "qwen2", &[("a.weight", empty)])?;
        fault(Checkpoint::open(&path)).has("expected [3, groups of 0 inputs], got [3, 0]");
    }
    Ok(())
}

/// GGUF interleaves the halves of a head of llama's queries and keys.
fn interleaved(weight: &Tensor, heads: usize) -> Result<Tensor> {
    let (n, k) = weight.dims2()?;
    let halves = weight.reshape((heads, 2, n / heads / 2, k))?.transpose(1, 2)?;
    Ok(halves.contiguous()?.reshape((n, k))?)
}

#[test]
fn a_decoder_has_the_names_and_rows_of_safetensors() -> Result<()> {
    let (dir, [path]) = paths(["model.gguf"]);
    let modules = [
        ("token_embd", "model.embed_tokens", [20, 64], 0),
        ("output_norm", "model.norm", [1, 64], 0),
        ("blk.0.attn_q", "model.layers.0.self_attn.q_proj", [64, 64], 4),
        ("blk.0.attn_k", "model.layers.0.self_attn.k_proj", [32, 64], 2),
        ("blk.0.attn_v", "model.layers.0.self_attn.v_proj", [32, 64], 0),
        ("blk.0.attn_norm", "model.layers.0.input_layernorm", [1, 64], 0),
        ("rope_freqs", "rope_freqs", [1, 8], 0),
        // Biases.
        ("blk.0.attn_q", "model.layers.0.self_attn.q_proj", [64, 1], 4),
        ("blk.0.attn_k", "model.layers.0.self_attn.k_proj", [32, 1], 2),
        ("blk.0.attn_v", "model.layers.0.self_attn.v_proj", [32, 1], 0),
    ];
    for dtype in [GgmlDType::F32, GgmlDType::F16, GgmlDType::Q4_0, GgmlDType::Q8_0, GgmlDType::Q4_1]
    {
        let (mut tensors, mut expected) = (Vec::new(), HashMap::new());
        for (from, to, [n, k], heads) in modules {
            let (last, is_vector) = (["weight", "bias"][usize::from(k == 1)], n == 1 || k == 1);
            let dtype = if is_vector { GgmlDType::F32 } else { dtype };
            let weight = random(&[n, k], dtype)?.dequantize(&Device::Cpu)?;
            let there = if heads > 0 { interleaved(&weight, heads)? } else { weight.clone() };
            let there = if is_vector { there.flatten_all()? } else { there };
            let tensor = QTensor::quantize(&there, dtype)?;
            // Quantizing once more changes nothing here.
            assert!(floats(&tensor)? == values(&there), "{dtype:?}");
            tensors.push((format!("{from}.{last}"), tensor));
            expected.insert(format!("{to}.{last}"), values(&weight));
        }
        let tensors: Vec<_> = tensors.iter().map(|(name, tensor)| (&**name, tensor)).collect();
        let metadata = [
            ("general.architecture", Value::String("llama".into())),
            ("llama.attention.head_count", Value::U32(4)),
            ("llama.attention.head_count_kv", Value::U64(2)),
        ];
        write_with(&path, &metadata, &tensors)?;
        let [checkpoint, saved, float] = copies(dir.path(), &path)?;
        for checkpoint in [&checkpoint, &saved, &float] {
            for (name, expected) in &expected {
                assert!(checkpoint.floats(name)? == *expected, "{dtype:?} {name}");
            }
        }
        // The activations of a layer, and of the layer that a saved copy loads.
        let load = |checkpoint: &Checkpoint| {
            nn::linear_no_bias(64, 64, vb_of(checkpoint).pp("model.layers.0.self_attn.q_proj"))
        };
        let q = load(&checkpoint)?;
        let xs = crate::kit::random(&[3, 64]);
        assert_eq!(values(&load(&saved)?.forward(&xs)?), values(&q.forward(&xs)?));
        let table = nn::embedding(20, 64, vb_of(&checkpoint).pp("model.embed_tokens"))?;
        let rows = table.forward(&Tensor::new(&[3u32], &Device::Cpu)?)?;
        let rows = values(&rows);
        assert_eq!(rows, expected["model.embed_tokens.weight"][192..256], "{dtype:?}");
    }
    Ok(())
}

/// GGUF stores Gemma's norms with the 1 that its layers add.
#[test]
fn norms_of_gemma_are_those_of_safetensors() -> Result<()> {
    let (dir, [path]) = paths(["model.gguf"]);
    let names = [
        ("output_norm", "model.norm"),
        ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
        ("blk.0.attn_q_norm", "model.layers.0.self_attn.q_norm"),
        ("blk.0.post_attention_norm", "model.layers.0.post_attention_layernorm"),
        ("blk.0.ffn_norm", "model.layers.0.pre_feedforward_layernorm"),
        ("blk.0.post_ffw_norm", "model.layers.0.post_feedforward_layernorm"),
    ];
    let stored = |dtype| QTensor::quantize(&Tensor::new(&[1.5f32, 0.75], &Device::Cpu)?, dtype);
    let files = names.map(|(name, _)| format!("{name}.weight"));
    let all = files.iter().map(|name| &**name).chain(["blk.0.attn_q.weight"]);
    let tensors =
        all.map(|name| Ok((name, stored(GgmlDType::F32)?))).collect::<Result<Vec<_>>>()?;
    write(&path, "gemma3", &tensors)?;
    for checkpoint in copies(dir.path(), &path)? {
        for (_, name) in names {
            assert_eq!(checkpoint.floats(&format!("{name}.weight"))?, [0.5, -0.25]);
        }
        let q = checkpoint.floats("model.layers.0.self_attn.q_proj.weight")?;
        assert_eq!(q, [1.5, 0.75]);
    }
    write(&path, "gemma3", &[("output_norm.weight", stored(GgmlDType::F16)?)])?;
    fault(Checkpoint::open(&path)).has("expected a norm in f32, got F16");
    Ok(())
}

#[test]
fn names_are_those_of_the_architecture() -> Result<()> {
    let (_dir, [path]) = paths(["model.gguf"]);
    let of_bert = [
        ("token_embd.weight", "embeddings.word_embeddings.weight"),
        ("token_embd_norm.bias", "embeddings.LayerNorm.bias"),
        ("blk.1.attn_q.weight", "encoder.layer.1.attention.self.query.weight"),
        ("blk.1.layer_output_norm.weight", "encoder.layer.1.output.LayerNorm.weight"),
        ("blk.1.ssm.weight", "blk.1.ssm.weight"),
    ];
    let names = of_bert.map(|(name, _)| (name, name));
    for (architecture, names) in [("bert", of_bert), ("mamba", names)] {
        let tensors = of_bert.map(|(name, _)| Ok((name, random(&[2, 4], GgmlDType::F32)?)));
        let tensors = tensors.into_iter().collect::<Result<Vec<_>>>()?;
        write(&path, architecture, &tensors)?;
        let mut expected = names.map(|(_, name)| name);
        expected.sort_unstable();
        let checkpoint = Checkpoint::open(&path)?;
        let got: Vec<_> = checkpoint.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(got, expected, "{architecture}");
    }
    Ok(())
}

/// A file with one key and no tensors, or with other bytes after the count.
fn file(tensors: u64, key: &[u8], behind: &[&[u8]]) -> Vec<u8> {
    let keys = u64::from(!key.is_empty()).to_le_bytes();
    let head: [&[u8]; 4] = [b"GGUF", &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys];
    [&head.concat(), key, &behind.concat()].concat()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

#[test]
fn sizes_have_limits() -> Result<()> {
    let (_dir, [path]) = paths(["model.gguf"]);
    // Nested arrays, the innermost an empty array of 8-bit numbers.
    let nested = |depth: usize| {
        let array = [9u32.to_le_bytes().to_vec(), 1u64.to_le_bytes().to_vec()].concat();
        let innermost = [0u32.to_le_bytes().to_vec(), 0u64.to_le_bytes().to_vec()].concat();
        let kind = 9u32.to_le_bytes().to_vec();
        [text(b"a.nested"), kind, array.repeat(depth - 1), innermost].concat()
    };
    let named = |length| [text(&vec![b'a'; length]), vec![0, 0, 0, 0, 7]].concat();
    let alignment = |kind: u8, value: &[u8]| {
        [text(b"general.alignment"), vec![kind, 0, 0, 0], value.to_vec()].concat()
    };
    let of_rank = |rank: u32| {
        let sizes = 1u64.to_le_bytes().repeat(rank as usize);
        [text(b"a"), rank.to_le_bytes().to_vec(), sizes, vec![0; 4 + 8]].concat()
    };
    // No rows of Q8_0.
    let wide = |k: u64| {
        let sizes = [2u32.to_le_bytes().to_vec(), k.to_le_bytes().to_vec(), vec![0; 8]].concat();
        [text(b"a.weight"), sizes, vec![8, 0, 0, 0], vec![0; 8]].concat()
    };
    let tensor = |tensor: &[u8]| file(1, &[], &[tensor, &[0; 64]]);
    let key = |key: &[u8]| file(0, key, &[]);
    let of_64 = 64u32.to_le_bytes();
    for good in [
        tensor(&wide(1 << 56)),
        tensor(&of_rank(4)),
        key(&alignment(4, &of_64)),
        key(&named(1 << 16)),
        key(&nested(4)),
    ] {
        fs::write(&path, good)?;
        read(&path)?;
    }
    let ends = "expected what it says of its tensors, got the end of the file";
    let leaves_none = "expected an alignment that leaves tensors in 57 bytes, got 0";
    let of_u16 = "expected \"general.alignment\" of type 4, u32, got type 2";
    for (bytes, expected) in [
        (tensor(&wide(1 << 58)), "expected whole blocks of [0, 288230376151711744]"),
        (tensor(&of_rank(5)), "expected at most 4 sizes, got 5"),
        (file(1 << 20, &[], &[]), ends),
        (file((1 << 20) + 1, &[], &[]), "expected at most 1048576 tensors, got 1048577"),
        (key(&alignment(4, &[0; 4])), leaves_none),
        (key(&alignment(2, &of_64[..2])), of_u16),
        (key(&named((1 << 16) + 1)), "names of at most 65536 bytes, got 65537 bytes"),
        (key(&nested(5)), "arrays 4 deep, got type 9 at depth 4"),
    ] {
        fs::write(&path, bytes)?;
        fault(read(&path)).has(expected);
    }
    Ok(())
}

fn read(path: &Path) -> Result<(), candle_dynquant::Error> {
    let checkpoint = Checkpoint::open(path)?;
    let vb = vb_of(&checkpoint);
    for tensor in checkpoint.tensors() {
        if let Ok(read) = vb.get_unchecked_dtype(&tensor.name, DType::F32) {
            assert_eq!(read.dims(), tensor.shape);
        }
    }
    Ok(())
}

/// Truncated files and files with changed bytes are read or refused.
#[test]
fn files_that_lie_are_read_or_refused() -> Result<()> {
    let (_dir, [path]) = paths(["model.gguf"]);
    let tensors = [
        ("blk.0.attn_q.weight", random(&[8, 32], GgmlDType::Q4_0)?),
        ("blk.0.attn_k.weight", random(&[4, 32], GgmlDType::Q8_0)?),
        ("a.weight", random(&[2, 256], GgmlDType::Q4K)?),
    ];
    write(&path, "llama", &tensors)?;
    read(&path)?;
    let bytes = fs::read(&path)?;
    for length in (0..bytes.len()).step_by(3) {
        fs::write(&path, &bytes[..length])?;
        read(&path).expect_err("a file that is cut short");
    }
    // A tensor inside the bytes of another would be written for each mention.
    let name = bytes.windows(8).position(|own| own == b"a.weight");
    let offset = name.expect("its name") + 8 + 4 + 2 * 8 + 4;
    let mut twice = bytes.clone();
    twice[offset..offset + 8].fill(0);
    fs::write(&path, &twice)?;
    fault(read(&path)).has("bytes of its own");
    let end = bytes.len() - tensors.iter().map(|(_, t)| t.storage_size_in_bytes()).sum::<usize>();
    for at in 4..end {
        for byte in [0, 1, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            fs::write(&path, &changed)?;
            if let Err(error) = read(&path) {
                assert!(error.to_string().contains("model.gguf"), "{error}");
            }
        }
    }
    Ok(())
}
