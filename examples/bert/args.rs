//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// A BERT in float and in int8, side by side: answers, accuracy, latency, bytes.
///
/// Without arguments it runs the classifier in assets/bert on the texts it never saw.
#[derive(Parser, Debug)]
#[command(name = "bert", version)]
pub struct Args {
    /// A Hugging Face folder: config.json, tokenizer.json, model.safetensors (or its index and shards)
    #[arg(long, value_name = "DIR", conflicts_with = "hub")]
    pub model_dir: Option<PathBuf>,

    /// A model on the Hugging Face Hub, say sentence-transformers/all-MiniLM-L6-v2
    #[arg(long, value_name = "ID")]
    pub hub: Option<String>,

    /// One text a line, or `label<TAB>text` [default: heldout.tsv of the model, else example sentences]
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,

    /// How to quantize: int8, default, per_channel, onnxruntime or float16
    #[arg(long, value_name = "NAME", default_value = "int8")]
    pub preset: String,

    /// Quantize the tables of words, positions and token types too
    #[arg(long)]
    pub embeddings: bool,

    /// Texts in a batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = positive)]
    pub batch: usize,

    /// Cut texts to this many tokens; without it a text that is too long is an error
    #[arg(long, value_name = "N", value_parser = positive)]
    pub seq_len: Option<usize>,

    /// Threads of this run [default: what the environment says, else all cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,

    /// Print what became of every layer
    #[arg(long)]
    pub report: bool,

    /// Print one JSON object instead of text; the report then goes to stderr
    #[arg(long)]
    pub json: bool,
}

impl Args {
    /// The folder named on the command line, or the one in this repository.
    pub fn local_dir(&self) -> PathBuf {
        let default = || repository().join("assets/bert");
        self.model_dir.clone().unwrap_or_else(default)
    }

    /// What to call the model.
    pub fn model_name(&self) -> String {
        match (&self.hub, &self.model_dir) {
            (Some(id), _) => id.clone(),
            (None, Some(dir)) => dir.display().to_string(),
            (None, None) => "assets/bert".to_owned(),
        }
    }
}

/// Where the example's own files are.
pub fn repository() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number >= 1 => Ok(number),
        _ => Err("expected a whole number, 1 or more".to_owned()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("expected a whole number from 1 to 1024".to_owned()),
    }
}
