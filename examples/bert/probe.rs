//! Equalisation, quantizing by inputs, and inspection: what needs the model to run on a few texts
//! of its own.

use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant::Rounded;
use candle_dynquant::inspect;
use candle_dynquant::{
    Equalization, EqualizeReport, GptqConfig, QConfigSpec, Report, equalize, gptq,
};
use candle_dynquant_io::{output, print};
use candle_dynquant_support::bert::{Batch, Bert, Folder, texts};

/// Sentences of many kinds, none of which is among the texts that accuracy is measured on.
const SENTENCES: [&str; 16] = [
    "The library closes at six on weekdays, but the reading room stays open until nine.",
    "How do I reset the password of my account?",
    "Prices rose by 3.4 % in March, more than economists had expected.",
    "He tuned the old piano by ear.",
    "Water boils at a lower temperature in the mountains.",
    "Breaking: two trains collide near the border, dozens injured",
    "The function returns an error if the file does not exist or cannot be read.",
    "I can't believe how good this soup is!",
    "In 1969, three astronauts left for the moon.",
    "Please find attached the minutes of our last meeting; comments are welcome until Friday.",
    "Her grandmother's recipe calls for two eggs, a cup of flour and a pinch of salt.",
    "Which players scored in the second half?",
    "A new species of frog was found in the rain forest of Borneo.",
    "The contract may be terminated by either party with three months' notice.",
    "Cheap flights, hotels and rental cars: book now and save",
    "No one knew why the lights went out.",
];

/// Equalizes the norms of a float model.
pub fn equalized(model: &mut Bert, folder: &Folder, sentences: &[&str]) -> Result<EqualizeReport> {
    let batches = batches(folder, sentences, sentences.len().max(SENTENCES.len()))?;
    let batch = batches.first().context("no sentences")?;
    let equalization = if model.is_classifier() {
        Equalization::default()
    } else {
        // Embeddings are the mean over the tokens, with or without a pooler in the checkpoint.
        Equalization::default().unused("pooler.*")
    };
    Ok(equalize(model, &equalization, |model| {
        model.forward(batch)
    })?)
}

/// Quantizes a float model by its inputs on sentences, one at a time: padding is no input.
pub fn by_inputs(
    model: &mut Bert,
    folder: &Folder,
    spec: QConfigSpec,
    sentences: &[&str],
) -> Result<Report> {
    let batches = batches(folder, sentences, 1)?;
    let report = gptq(model, &GptqConfig::new(spec), |model| {
        batches
            .iter()
            .try_for_each(|batch| model.forward(batch).map(drop))
    })?;
    for Rounded { path, reason, .. } in &report.rounded {
        print::note(format_args!("{path} rounded: {reason}"));
    }
    Ok(report.quantized)
}

/// Sentences, or these where there are none, in batches.
fn batches(folder: &Folder, sentences: &[&str], size: usize) -> Result<Vec<Batch>> {
    let sentences = if sentences.is_empty() {
        &SENTENCES[..]
    } else {
        sentences
    };
    let (tokenizer, config) = (&folder.tokenizer, &folder.config);
    let limit = Some(config.max_position_embeddings);
    let tokens = texts::tokenize(tokenizer, config, sentences, limit)?;
    texts::batches(&tokens, size, config.pad_token_id)
}

/// Writes a page of what quantization did to a model, equalized or not, measured on a batch.
pub fn write_page(
    path: &Path,
    title: &str,
    [float, quantized]: [&mut Bert; 2],
    batch: &Batch,
) -> Result<()> {
    let inspection = inspect::inspect(float, quantized, |model| model.forward(batch))?;
    let page = inspection.page(title, &[])?;
    output::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}
