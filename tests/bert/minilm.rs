//! all-MiniLM-L6-v2 through the example's BERT against PyTorch: float, and quantized three ways.
//!
//! Needs the model, 91 MB:
//!
//!     scripts/fetch_minilm.sh DIR
//!     DYNQUANT_MINILM=DIR cargo test --release --test bert minilm
//!
//! Without the variable the tests print a note and pass. `assets/reference/minilm.py` computes the
//! expected values.

use anyhow::ensure;
use candle_dynquant_support::bert::measure::{cosines, sqnr_db};
use candle_dynquant_support::bert::{Batch, Bert, Folder, texts};

use crate::kit::*;

const BATCH: usize = 16;
const ALONE: usize = 8;

/// The fixture, the model, and the fixture's sentences in tokens and batches of ours.
pub(super) struct Setup {
    reference: HashMap<String, Tensor>,
    /// The SQNR of PyTorch's quantized embeddings against its float embeddings, by fixture tensor.
    torch_db: HashMap<&'static str, f64>,
    pub(super) model: Bert,
    pad: u32,
    tokens: Vec<Vec<u32>>,
    pub(super) batches: Vec<Batch>,
}

impl Setup {
    /// Loads the model; prints how to get it and returns `None` if it is missing.
    pub(super) fn new() -> Result<Option<Self>> {
        let Some(dir) = model_folder("DYNQUANT_MINILM", "fetch_minilm.sh") else { return Ok(None) };
        let folder = Folder::read(&dir)?;
        let fixtures = repository().join("assets/reference");
        let texts = texts::read(&fixtures.join("minilm_sentences.txt"), &[], false)?;
        let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
        let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &strings, None)?;
        let pad = folder.config.pad_token_id;
        let path = fixtures.join("minilm.safetensors");
        Ok(Some(Self {
            torch_db: torch_db(&path)?,
            reference: candle_core::safetensors::load(&path, &Device::Cpu)?,
            model: folder.model,
            pad,
            batches: texts::batches(&tokens, BATCH, pad)?,
            tokens,
        }))
    }

    fn rows(&self, name: &str) -> Result<Vec<Vec<f32>>> {
        let tensor = self.reference.get(name).context("no such fixture")?;
        Ok(tensor.to_vec2()?)
    }

    /// Embeddings of all sentences, in batches.
    fn batched(&self, model: &Bert) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::new();
        for batch in &self.batches {
            rows.extend(model.forward(batch)?.to_vec2::<f32>()?);
        }
        Ok(rows)
    }

    fn quantized(&self, spec: &QConfigSpec) -> Result<Bert> {
        let mut model = self.model.clone();
        let report = quantize_dynamic(&mut model, spec)?;
        // Each of 6 layers has query, key, value, two outputs and an intermediate product; then the
        // pooler.
        assert_eq!(report.swapped().count(), 6 * 6 + 1);
        Ok(model)
    }
}

fn torch_db(path: &Path) -> Result<HashMap<&'static str, f64>> {
    let buffer = fs::read(path)?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&buffer)?;
    let metadata = header.metadata().as_ref().context("no metadata")?;
    ["torch_default", "torch_per_channel"]
        .into_iter()
        .map(|name| {
            let figures: serde_json::Value = serde_json::from_str(&metadata[name])?;
            Ok((name, figures["sqnr_db"].as_f64().context("no sqnr_db")?))
        })
        .collect()
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    // A NaN anywhere is as far as can be.
    pairs.fold(0., |most, (a, b)| {
        let difference = (a - b).abs();
        if difference.is_nan() { f32::INFINITY } else { difference.max(most) }
    })
}

#[test]
fn tokens_are_those_of_the_reference() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let ids = setup.reference["input_ids"].to_vec2::<i64>()?;
    let masks = setup.reference["attention_mask"].to_vec2::<i64>()?;
    for (number, batch) in setup.batches.iter().enumerate() {
        let ours = batch.ids.to_vec2::<u32>()?;
        let our_mask = batch.mask.to_vec2::<f32>()?;
        for row in 0..ours.len() {
            let text = number * BATCH + row;
            let (ids, mask) = (&ids[text], &masks[text]);
            let length = ours[row].len();
            assert!(ours[row].iter().map(|id| i64::from(*id)).eq(ids[..length].iter().copied()));
            assert!(our_mask[row].iter().map(|m| *m as i64).eq(mask[..length].iter().copied()));
            assert!(ids[length..].iter().all(|id| *id == 0), "text {text} is longer there");
        }
    }
    Ok(())
}

#[test]
fn float_embeddings_are_those_of_the_reference() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let mut alone = Vec::new();
    for row in setup.tokens[..ALONE].chunks(1) {
        let batch = texts::pad_to(row, row[0].len(), setup.pad)?;
        alone.extend(setup.model.forward(&batch)?.to_vec2::<f32>()?);
    }
    for (name, ours) in [("float_alone", alone), ("float_batched", setup.batched(&setup.model)?)] {
        let difference = largest_difference(&setup.rows(name)?, &ours);
        println!("{name}: largest difference {difference:.2e}");
        assert!(difference <= 1e-4, "{name} differs by {difference:e}");
    }
    Ok(())
}

#[test]
fn int8_is_close_to_float() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let float = setup.batched(&setup.model)?;
    let int8 = setup.batched(&setup.quantized(&QConfigSpec::int8())?)?;
    let (db, (mean, min)) = (sqnr_db(&float, &int8), cosines(&float, &int8));
    println!("int8: {db:.2} dB, cosine {mean:.6}, min {min:.6}");
    assert!((23. ..f64::INFINITY).contains(&db), "SQNR {db} dB");
    assert!(mean >= 0.998, "mean cosine {mean}");
    Ok(())
}

/// PyTorch's presets lose as much accuracy as PyTorch: neither more nor, by mistake, less.
#[test]
fn torch_presets_are_as_close_as_in_torch() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let float = setup.batched(&setup.model)?;
    for (preset, name) in [("default", "torch_default"), ("per_channel", "torch_per_channel")] {
        let ours = setup.batched(&setup.quantized(&QConfigSpec::preset(preset)?)?)?;
        let (db, torch_db) = (sqnr_db(&float, &ours), setup.torch_db[name]);
        let to_torch = sqnr_db(&setup.rows(name)?, &ours);
        println!("{preset}: {db:.2} dB, torch {torch_db:.2} dB; against torch's {to_torch:.2} dB");
        assert!((db - torch_db).abs() <= 1.5, "{preset}: {db} dB, torch {torch_db} dB");
    }
    Ok(())
}

/// A text's answer does not depend on the texts beside it, to the last bit.
#[test]
fn int8_rows_do_not_depend_on_their_batch() -> Result<()> {
    let Some(setup) = Setup::new()? else { return Ok(()) };
    let model = setup.quantized(&QConfigSpec::int8())?;
    let embeddings = setup.batched(&model)?;
    for (number, batch) in setup.batches.iter().enumerate() {
        let hidden = model.hidden(batch)?;
        let length = batch.ids.dim(1)?;
        for row in 0..batch.ids.dim(0)? {
            let text = number * BATCH + row;
            let alone: Batch = texts::pad_to(&setup.tokens[text..=text], length, setup.pad)?;
            let same = bits(&model.hidden(&alone)?.i(0)?) == bits(&hidden.i(row)?);
            ensure!(same, "the hidden states of text {text} depend on its batch");
            let embedding = model.forward(&alone)?.i(0)?;
            let same = bits(&embedding) == to_bits(&embeddings[text]);
            ensure!(same, "the embedding of text {text} depends on its batch");
        }
    }
    Ok(())
}

fn to_bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|x| x.to_bits()).collect()
}
