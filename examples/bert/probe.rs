//! Equalization, quantizing by inputs, and inspection, which run the model on a few sentences.

use std::path::Path;

use anyhow::{Context, Result};
use candle_dynquant::inspect;
use candle_dynquant::{
    Equalization, EqualizeReport, GptqConfig, QConfigSpec, Report, Skipped, equalize, gptq,
};
use candle_dynquant_io::{output, print};
use candle_dynquant_support::bert::{Batch, Bert, Folder};

/// Sentences of many kinds, none of which is among the texts that measure accuracy.
const SENTENCES: &str = include_str!("../../assets/sentences.txt");

/// Equalizes the norms of a float model.
pub fn equalized(model: &mut Bert, folder: &Folder, sentences: &[&str]) -> Result<EqualizeReport> {
    let batches = batches(folder, sentences, usize::MAX)?;
    let batch = batches.first().context("no sentences")?;
    let equalization = if model.is_classifier() {
        Equalization::default()
    } else {
        // Embeddings are the mean over the tokens, with or without a pooler in the checkpoint.
        Equalization::default().unused("pooler.*")
    };
    Ok(equalize(model, &equalization, |model| model.forward(batch))?)
}

/// Quantizes a float model by its inputs on sentences, one at a time, so that no padding is
/// measured.
pub fn by_inputs(
    model: &mut Bert,
    folder: &Folder,
    spec: QConfigSpec,
    sentences: &[&str],
) -> Result<Report> {
    let batches = batches(folder, sentences, 1)?;
    let report = gptq(model, &GptqConfig::new(spec), |model| {
        batches.iter().try_for_each(|batch| model.forward(batch).map(drop))
    })?;
    for Skipped { path, reason, .. } in &report.rounded {
        print::note(format_args!("{path} rounded: {reason}"));
    }
    Ok(report.quantized)
}

/// The given sentences, or the default sentences, in batches.
fn batches(folder: &Folder, sentences: &[&str], size: usize) -> Result<Vec<Batch>> {
    let default: Vec<&str> = SENTENCES.lines().collect();
    let sentences = if sentences.is_empty() { &default[..] } else { sentences };
    folder.batches(sentences, Some(folder.config.max_position_embeddings), size)
}

/// Writes a page about the quantization of a model, equalized or not, measured on a batch.
pub fn write_page(
    path: &Path,
    title: &str,
    [float, quantized]: [&mut Bert; 2],
    batch: &Batch,
) -> Result<()> {
    let inspection = inspect::inspect(float, quantized, |model| model.forward(batch))?;
    output::write(path, inspection.page(title, &[]))
        .with_context(|| format!("cannot write {}", path.display()))
}
