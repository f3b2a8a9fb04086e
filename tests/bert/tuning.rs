//! Tuning `assets/bert` and all-MiniLM-L6-v2 to an SQNR that int8 misses, and loading the saved
//! model.
//!
//! MiniLM needs `DYNQUANT_MINILM`, as in `tests/bert/minilm.rs`.

use candle_dynquant::tune::{LayerPrecision, Strategy};
use candle_dynquant_support::bert::measure::sqnr_db;
use candle_dynquant_support::bert::{Batch, Bert, Folder, texts};

use crate::kit::*;

/// The SQNR that the float model counts as.
const FLOAT_DB: f64 = 100.;

/// Few texts: the kernels of a debug build are slow.
const TEXTS: usize = 6;

fn answers(model: &Bert, batch: &Batch) -> Result<Vec<Vec<f32>>> {
    Ok(model.forward(batch)?.to_vec2::<f32>()?)
}

/// Both strategies meet a criterion, 4 dB above int8, that PyTorch's default and int8 miss.
fn check(dir: &Path, texts: &Path, labelled: bool) -> Result<()> {
    let folder = Folder::read(dir)?;
    let labels = if labelled { folder.config.labels.as_slice() } else { &[] };
    let texts = texts::read(texts, labels, labelled)?;
    let strings: Vec<&str> = texts.iter().take(TEXTS).map(|t| t.text.as_str()).collect();
    let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &strings, None)?;
    let batches = texts::batches(&tokens, TEXTS, folder.config.pad_token_id)?;
    let float = answers(&folder.model, &batches[0])?;
    let db = |model: &Bert| -> Result<f64> {
        Ok(sqnr_db(&float, &answers(model, &batches[0])?).min(FLOAT_DB))
    };
    let quantized = |spec| -> Result<f64> {
        let mut model = folder.model.clone();
        quantize_dynamic(&mut model, &spec)?;
        db(&model)
    };
    let (default, int8) = (quantized(QConfigSpec::pytorch())?, quantized(QConfigSpec::int8())?);
    let target = int8 + 4.;
    assert!(default < target, "{default} dB by default, {int8} dB per row");

    let mut evals = Vec::new();
    for strategy in [Strategy::Basic, Strategy::Sensitivity] {
        let mut model = folder.model.clone();
        let config = TuningConfig::default().strategy(strategy).absolute(FLOAT_DB - target);
        let outcome = tune(&mut model, &config, db)?;
        println!(
            "{strategy}: {default:.1} dB by default, {int8:.1} dB per row; {:.1} dB with {} after {} evaluations",
            db(&model)?,
            outcome.best().map(ToString::to_string).unwrap_or_default(),
            outcome.evals,
        );
        assert!(outcome.met && db(&model)? >= target, "{outcome}");
        let best = outcome.best().expect("a trial");
        assert_eq!(best.value, db(&model)?);
        assert!(outcome.trials.iter().all(|trial| !trial.passed || best.bytes <= trial.bytes));
        let int8 = best.layers.get(&LayerPrecision::Int8).map_or(0, Vec::len);
        assert!(int8 >= 1, "a mix: {best}");
        evals.push(outcome.evals);

        let saved = tempfile::tempdir()?;
        let out = saved.path().join("tuned");
        candle_dynquant::checkpoint::save(&model, &Checkpoint::open(dir)?, &out)?;
        assert_eq!(db(&Folder::read(&out)?.model)?, best.value);
    }
    let layers = folder_layers(&folder);
    assert!(evals[1] as f64 <= (layers as f64).log2() + 3., "{evals:?} of {layers} layers");
    assert!(4 * evals[1] <= evals[0], "{evals:?}");
    Ok(())
}

/// Linear layers of the model.
fn folder_layers(folder: &Folder) -> usize {
    6 * folder.config.num_hidden_layers + 1 + usize::from(folder.model.is_classifier())
}

#[test]
fn the_embedded_bert() -> Result<()> {
    let bert = repository().join("assets/bert");
    check(&bert, &bert.join("heldout.tsv"), true)
}

#[test]
fn minilm() -> Result<()> {
    let Some(dir) = model_folder("DYNQUANT_MINILM", "fetch_minilm.sh") else { return Ok(()) };
    check(&dir, &repository().join("assets/reference/minilm_sentences.txt"), false)
}
