//! The command line.

use std::path::PathBuf;

use clap::Parser;

/// A character-level language model in float and in int8, side by side: perplexity, text, speed, bytes.
///
/// Without arguments it runs the LSTM in assets/lstm on the chapters it never saw.
#[derive(Parser, Debug)]
#[command(name = "lstm", version)]
pub struct Args {
    /// A folder with config.json, vocab.json, lstm.safetensors or gru.safetensors, and heldout.txt
    #[arg(long, value_name = "DIR")]
    pub model_dir: Option<PathBuf>,

    /// Run the folder's GRU, not its LSTM
    #[arg(long)]
    pub gru: bool,

    /// The text to measure perplexity on [default: heldout.txt of the model]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,

    /// How to quantize: int8, default, per_channel, onnxruntime or float16
    #[arg(long, value_name = "NAME", default_value = "int8")]
    pub preset: String,

    /// How many parts of the text are read side by side, each with a state of its own
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = positive)]
    pub batch: usize,

    /// What generated text begins with
    #[arg(long, value_name = "TEXT", default_value = "In those days ")]
    pub prompt: String,

    /// Characters to generate
    #[arg(long, value_name = "N", default_value_t = 480, value_parser = positive)]
    pub length: usize,

    /// Seed of the generated text
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// 1 draws characters as often as the model expects them, less is safer, 0 takes the likeliest
    #[arg(long, value_name = "T", default_value_t = 0.5, value_parser = temperature)]
    pub temperature: f64,

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
    pub fn dir(&self) -> PathBuf {
        let default = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("assets/lstm");
        self.model_dir.clone().unwrap_or_else(default)
    }

    /// What to call the model.
    pub fn model_name(&self) -> String {
        match &self.model_dir {
            Some(dir) => dir.display().to_string(),
            None => "assets/lstm".to_owned(),
        }
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        // More than any text has, and products of it stay in a usize.
        Ok(number @ 1..=0x7fff_ffff) => Ok(number),
        _ => Err("expected a whole number from 1 to 2147483647".to_owned()),
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0. ..=100.).contains(&number) => Ok(number),
        _ => Err("expected a number from 0 to 100".to_owned()),
    }
}

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number @ 1..=1024) => Ok(number),
        _ => Err("expected a whole number from 1 to 1024".to_owned()),
    }
}
