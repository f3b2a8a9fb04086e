//! A search in files: the ten passages nearest to a query by meaning and by words.
//!
//!     scripts/fetch_minilm.sh target/minilm
//!     cargo run --release --manifest-path apps/Cargo.toml --target-dir target \
//!         -p dynquant-embed --features program --example search -- \
//!         --model target/minilm "how many cores does a container use" docs/*.md
//!
//! Every run reads and embeds all files; a program with many queries would keep the vectors.

mod passages;
mod ranking;

use std::collections::BTreeMap;
use std::io::{IsTerminal, stderr};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::input;
use clap::Parser;
use dynquant_embed::program::{self, print};
use dynquant_embed::{Embedder, Input, ModelOptions, normalized};
use passages::Passage;
use serde::Serialize;

/// The largest file that is read, in bytes.
const MAX_FILE: u64 = 64 << 20;
/// The number of passages shown, and for each the lines and characters.
const SHOWN: usize = 10;
const LINES: usize = 4;
const WIDTH: usize = 120;

/// Show the passages of files that are nearest to a query, by meaning and by words
#[derive(Parser)]
struct Arguments {
    /// The query
    query: String,

    /// Files of text, Markdown or source code, in UTF-8
    #[arg(required = true)]
    files: Vec<PathBuf>,

    #[command(flatten)]
    model: ModelOptions,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A passage with its scores.
#[derive(Serialize)]
struct Hit<'a> {
    #[serde(flatten)]
    passage: &'a Passage,
    /// The score that orders hits: see [`ranking::both`].
    score: f64,
    cosine: f64,
    bm25: f64,
}

fn main() -> ExitCode {
    program::main(run)
}

fn run(arguments: &Arguments) -> Result<()> {
    let query = &arguments.query;
    ensure!(!query.trim().is_empty(), "the query: it has no words");
    // All files are read before the model, which takes longer; a file named twice is read once.
    let mut texts = BTreeMap::new();
    for path in &arguments.files {
        let name = path.display().to_string();
        let text = input::read_text(path, MAX_FILE).with_context(|| name.clone())?;
        texts.insert(name, text);
    }
    let embedder = arguments.model.embedder()?;
    let mut passages = Vec::new();
    for (file, text) in &texts {
        let cut = passages::cut(embedder.encoder(), file, text);
        passages.append(&mut cut.with_context(|| file.clone())?);
    }
    let hits = nearest(&embedder, query, &passages)?;
    if arguments.json {
        let count = passages.len();
        let answer = serde_json::json!({ "query": query, "passages": count, "results": hits });
        return Ok(print::data(answer)?);
    }
    for (rank, hit) in (1..).zip(&hits) {
        show(rank, hit)?;
    }
    print::note(format_args!("{} of {} passages", hits.len(), passages.len()));
    Ok(())
}

fn show(rank: usize, hit: &Hit<'_>) -> Result<()> {
    let Hit { passage: at, score, cosine, bm25 } = hit;
    let place = format!("{}:{}-{}", at.file, at.first_line, at.last_line);
    let place = print::on_one_line(&place);
    print::line(format_args!(
        "{rank:>2}. {place}  {score:.2} (cosine {cosine:.3}, BM25 {bm25:.2})"
    ))?;
    for line in at.text.lines().take(LINES) {
        let line: String = line.chars().take(WIDTH).collect();
        print::line(format_args!("      {line}"))?;
    }
    Ok(())
}

/// The nearest passages, the best first.
fn nearest<'a>(embedder: &Embedder, query: &str, passages: &'a [Passage]) -> Result<Vec<Hit<'a>>> {
    let encoder = embedder.encoder();
    // An embedder would cut a long query.
    let whole = format!("{}{query}", encoder.prompts.query());
    let fits = encoder.tokenizer.encode(Input::Text(&whole), None);
    fits.context("the query")?;
    let question = normalized(embedder.embed_queries(&[query])?.concat());
    let texts: Vec<&str> = passages.iter().map(|it| it.text.as_str()).collect();
    let (shows, mut cosines) = (stderr().is_terminal(), Vec::new());
    for part in texts.chunks(256) {
        if shows {
            let (done, all) = (cosines.len(), texts.len());
            print::progress(format_args!("\rembedded: {done} of {all} passages\x1b[K"));
        }
        for vector in embedder.embed_documents(part)? {
            let products = question.iter().zip(normalized(vector)).map(|(a, b)| a * b);
            cosines.push(f64::from(products.sum::<f32>()));
        }
    }
    if shows {
        print::progress("\r\x1b[K");
    }
    let is_finite = cosines.iter().all(|cosine| cosine.is_finite());
    ensure!(is_finite, "--model: its vectors are not finite");
    let bm25 = ranking::bm25(query, &texts);
    let order = ranking::both(&cosines, &bm25).into_iter().take(SHOWN);
    let hit = |(index, score): (usize, f64)| Hit {
        passage: &passages[index],
        score,
        cosine: cosines[index],
        bm25: bm25[index],
    };
    Ok(order.map(hit).collect())
}

#[cfg(test)]
mod tests;
