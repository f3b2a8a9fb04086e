//! The loss by attention with factors of fewer bits, by itself and beside `int8()`.
//!
//! With `--nocapture` the tests print the figures of docs/presets.md, with `DYNQUANT_LONG=1` for
//! all held-out texts of `assets/bert`; MiniLM is read as in `tests/bert/minilm.rs`.

use std::path::PathBuf;

use anyhow::Result;
use candle_dynquant::ops::Precision;
use candle_dynquant::{Checkpoint, LayerKind, QConfigSpec, checkpoint, quantize_dynamic};
use candle_dynquant_support::bert::measure::{class, sqnr_db};
use candle_dynquant_support::bert::{Batch, Bert, Folder, texts};

use super::minilm::Setup;

const PRECISIONS: [Precision; 3] = [Precision::Float32, Precision::BFloat16, Precision::Int8];

/// One text in so many is taken, unless the test runs long: the kernels of a debug build are slow.
const STEP: usize = 8;

type Answers = Vec<Vec<f32>>;

/// Answers of the float model and of `int8()`, each with attention in every one of `PRECISIONS`.
fn answers(float: &Bert, batches: &[Batch]) -> Result<[[Answers; 3]; 2]> {
    let mut int8 = float.clone();
    quantize_dynamic(&mut int8, &QConfigSpec::int8())?;
    let mut answers = [const { [const { Vec::new() }; 3] }; 2];
    for (model, of_model) in [float, &int8].into_iter().zip(&mut answers) {
        for (attention, rows) in PRECISIONS.into_iter().zip(of_model) {
            let mut model = model.clone();
            if attention != Precision::Float32 {
                let spec = QConfigSpec::new().kind(LayerKind::Attention, attention);
                quantize_dynamic(&mut model, &spec)?;
            }
            for batch in batches {
                rows.extend(model.forward(batch)?.to_vec2::<f32>()?);
            }
        }
    }
    Ok(answers)
}

/// SQNR in dB against the float model with attention in f32.
fn decibels(answers: &[[Answers; 3]; 2]) -> [[f64; 3]; 2] {
    let exact = &answers[0][0];
    answers
        .each_ref()
        .map(|of_model| of_model.each_ref().map(|rows| sqnr_db(exact, rows)))
}

/// SQNR of two noises that do not depend on each other.
fn sum_of_noise(a: f64, b: f64) -> f64 {
    let noise = |db: f64| 10f64.powf(-db / 10.);
    -10. * (noise(a) + noise(b)).log10()
}

fn print(name: &str, [float, int8]: [[impl std::fmt::Display; 3]; 2]) {
    for (attention, (float, int8)) in PRECISIONS.iter().zip(float.iter().zip(&int8)) {
        println!("{name}, attention {attention:?}: {float:.2} float, {int8:.2} int8()");
    }
}

#[test]
fn minilm_loses_little_by_attention_in_8_bits() -> Result<()> {
    let Some(setup) = Setup::new()? else {
        return Ok(());
    };
    let db = decibels(&answers(&setup.model, &setup.batches)?);
    print("SQNR of MiniLM", db);
    let [[_, _, alone], [int8, _, both]] = db;
    assert!(
        (43. ..f64::INFINITY).contains(&alone),
        "by itself {alone} dB"
    );
    assert!(both >= int8 - 0.2, "int8() {int8} dB, with it {both} dB");
    Ok(())
}

/// A folder keeps the precision of attention, also where nothing else is quantized.
#[test]
fn a_saved_folder_answers_as_before() -> Result<()> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/bert");
    let folder = Folder::read(&dir)?;
    let texts = ["a game of chess", "a paint program for children, and more"];
    let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &texts, None)?;
    let batches = texts::batches(&tokens, 2, folder.config.pad_token_id)?;
    let answer = |model: &Bert| -> Result<Answers> { Ok(model.forward(&batches[0])?.to_vec2()?) };
    let out = tempfile::tempdir()?;
    for (i, spec) in [
        QConfigSpec::int8().attention(),
        QConfigSpec::bfloat16().attention(),
        QConfigSpec::new().attention(),
    ]
    .into_iter()
    .enumerate()
    {
        let mut model = folder.model.clone();
        let report = quantize_dynamic(&mut model, &spec)?;
        let layers = report.swapped().filter(|l| l.kind == LayerKind::Attention);
        assert_eq!(layers.count(), 4, "{report}");
        let out = out.path().join(i.to_string());
        checkpoint::save(&model, &Checkpoint::open(&dir)?, &out)?;
        let again = Folder::read(&out)?;
        assert!(again.is_quantized, "{spec}");
        assert_eq!(answer(&again.model)?, answer(&model)?, "{spec}");
        assert_ne!(answer(&model)?, answer(&folder.model)?, "{spec}");
    }
    Ok(())
}

#[test]
fn the_embedded_bert_loses_little_by_attention_in_8_bits() -> Result<()> {
    let dir = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/bert");
    let folder = Folder::read(&dir)?;
    let texts = texts::read(&dir.join("heldout.tsv"), &folder.config.labels, true)?;
    let step = std::env::var_os("DYNQUANT_LONG").map_or(STEP, |_| 1);
    let texts: Vec<_> = texts.into_iter().step_by(step).collect();
    let strings: Vec<&str> = texts.iter().map(|t| t.text.as_str()).collect();
    let tokens = texts::tokenize(&folder.tokenizer, &folder.config, &strings, None)?;
    let batches = texts::batches(&tokens, 32, folder.config.pad_token_id)?;
    let answers = answers(&folder.model, &batches)?;
    let db = decibels(&answers);
    print("SQNR of assets/bert", db);
    let [[_, _, alone], [int8, _, both]] = db;
    assert!(
        (55. ..f64::INFINITY).contains(&alone),
        "by itself {alone} dB"
    );
    let sum = sum_of_noise(int8, alone);
    assert!(
        both >= sum - 0.2,
        "int8() {int8} dB, with it {both} dB, as sum {sum} dB"
    );
    let accuracy = answers.each_ref().map(|of_model| {
        of_model.each_ref().map(|rows| {
            let pairs = texts.iter().zip(rows);
            let right = pairs.filter(|(text, row)| Some(class(row).0) == text.label);
            100. * right.count() as f64 / texts.len() as f64
        })
    });
    print("accuracy of assets/bert in %", accuracy);
    for [in_f32, _, in_int8] in accuracy {
        assert!(in_int8 >= in_f32 - 0.3, "{in_f32} % in f32, {in_int8} %");
    }
    Ok(())
}
