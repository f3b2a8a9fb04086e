//! Generates text with a decoder: Llama, Mistral, SmolLM, Qwen2, Qwen3, Gemma 3 or Granite, from a
//! Hugging Face folder or a GGUF file, in float, int8 or 4 bits.
//!
//!     cargo run --release --example generate
//!     cargo run --release --example generate -- --prompt "And he said" --preset int4 --length 200
//!     cargo run --release --example generate -- --perplexity assets/lstm/heldout.txt
//!     cargo run --release --example generate -- --model model.gguf --chat "Why is the sky blue?"
//!     cargo run --release --example generate -- --model model.gguf --chat
//!     cargo run --release --example generate -- --profile
//!
//! Without `--model` it runs the small Llama in `assets/decoder`, which was trained on the King
//! James Bible. A float model is quantized here, by `--preset`; one that is stored in int8 or 4
//! bits (by `dynquant quantize`, as pack-quantized, GPTQ, AWQ or GGUF) runs as it is.
//!
//! The model is `crates/decoder/src/model.rs`; beside it `folder` and `gguf` read files and
//! `chat` renders chat templates, and `generation` writes texts. Here `writer` times a text, `reader`
//! measures perplexity, and `profile` times the stages of a step.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod figures;
mod profile;
mod reader;
mod writer;

use std::io::{BufRead, BufReader, IsTerminal, Read, stdin};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_dynquant::ops::Precision;
use candle_dynquant::{
    Equalization, GptqConfig, LayerKind, QConfigSpec, Report, equalize, gptq, quantize_dynamic,
};
use candle_dynquant_decoder::sampling::Sampling;
use candle_dynquant_decoder::{
    Chat, Decoder, DraftModel, Folder, GenerationConfig, Generator, Message, Texts,
    isolate_templates,
};
use candle_dynquant_io::{input, print};
use candle_dynquant_support::cli::{self, Arguments, Common, Progress, positive};
use candle_dynquant_support::weight_bytes;
use clap::Parser;
use mimalloc::MiMalloc;

use figures::Figures;
use reader::Perplexity;
use writer::Written;

/// Keeps the memory of large results for the next call; glibc's returns 32 MiB and more to the
/// system.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// The longest text that is read.
const MAX_TEXT: u64 = 64 << 20;

/// Generates text with a decoder, quantized as it is loaded.
///
/// Without arguments it runs the small Llama in assets/decoder.
#[derive(Parser, Debug)]
#[command(name = "generate", version, allow_negative_numbers = true)]
struct Args {
    /// A folder with config.json, tokenizer.json and weights, or a GGUF file
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,

    /// The tokenizer.json, if it is not in the folder or the GGUF file
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    /// The text to continue
    #[arg(long, value_name = "TEXT", default_value = "In those days")]
    prompt: String,

    /// A question, by the model's chat template, in place of a text to continue; without TEXT a chat of
    /// several turns, whose questions are the lines of stdin
    #[arg(long, value_name = "TEXT", num_args = 0..=1, conflicts_with = "prompt")]
    chat: Option<Option<String>>,

    /// The system message of the chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Tokens to generate at most
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = positive)]
    length: usize,

    /// Tokens that are guessed where the text repeats itself, at most, and checked in one step; the text
    /// is the same for every number
    #[arg(long, value_name = "N", default_value_t = 16)]
    drafts: usize,

    /// A folder or a GGUF file of a smaller model with the same tokens, which guesses them in place of
    /// those that followed before
    #[arg(long, value_name = "PATH")]
    draft_model: Option<PathBuf>,

    /// Seed of the sampling
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Sample as the folder's generation_config.json says, where no option says otherwise
    #[arg(long)]
    generation_config: bool,

    /// Sampling temperature; 0 takes the most likely token [default: 0.7]
    #[arg(long, value_name = "T", value_parser = number::<100>)]
    temperature: Option<f64>,

    /// Draw from the N most likely tokens; 0 from all [default: 0]
    #[arg(long, value_name = "N")]
    top_k: Option<usize>,

    /// Draw from the most likely tokens that have this probability together [default: 0.95]
    #[arg(long, value_name = "P", value_parser = number::<1>)]
    top_p: Option<f64>,

    /// Draw from tokens that have this share of the greatest probability [default: 0]
    #[arg(long, value_name = "P", value_parser = number::<1>)]
    min_p: Option<f64>,

    /// Divide scores of tokens that occurred by this number [default: 1]
    #[arg(long, value_name = "X", value_parser = penalty)]
    repetition_penalty: Option<f64>,

    /// Precision of attention and of its cache: float32, bfloat16 or int8
    #[arg(long, value_name = "NAME", default_value = "float32")]
    attention: Precision,

    /// Leave the model in float
    #[arg(long, conflicts_with_all = ["preset", "spec"])]
    float: bool,

    /// Before quantizing, move range from norms and up projections to the weights that read them,
    /// as measured on the first windows of this text, at most 4
    #[arg(long, value_name = "FILE", conflicts_with = "float")]
    equalize: Option<PathBuf>,

    /// Quantize weights in groups by GPTQ for the first windows of this text, at most 32
    #[arg(long, value_name = "FILE", conflicts_with = "float")]
    gptq: Option<PathBuf>,

    /// Also print where the time of a step goes, of the prompt's and of a token's
    #[arg(long)]
    profile: bool,

    /// Measure the perplexity of this text, in float and as quantized
    #[arg(long, value_name = "FILE")]
    perplexity: Option<PathBuf>,

    /// Tokens of a window of --perplexity, --equalize and --gptq; each window is read without
    /// earlier tokens
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    context: usize,

    #[command(flatten)]
    common: Common,
}

/// A number from 0 to `MAX`.
fn number<const MAX: u32>(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0. ..=f64::from(MAX)).contains(&number) => Ok(number),
        _ => Err(format!("expected a number from 0 to {MAX}")),
    }
}

/// A number above 0, to 100.
fn penalty(text: &str) -> Result<f64, String> {
    let number = number::<100>(text).ok().filter(|number| *number > 0.);
    number.ok_or("expected a number above 0, to 100".to_owned())
}

fn main() -> ExitCode {
    isolate_templates();
    cli::main::<Args>()
}

impl Arguments for Args {
    fn common(&self) -> &Common {
        &self.common
    }

    fn run(&self) -> Result<()> {
        let spec = self.spec()?;
        let (path, name) = cli::model(self.model.as_ref(), "assets/decoder");
        let folder = Folder::open(&path, self.tokenizer.as_deref())?;
        folder.notes.iter().for_each(print::note);
        let config = GenerationConfig {
            max_tokens: self.length,
            sampling: self.sampling(&folder)?,
            seed: self.seed,
            drafts: self.drafts,
            ..GenerationConfig::default()
        };
        let mut model = folder.load()?;
        let was_quantized = folder.checkpoint.is_quantized();
        let most = folder.config.max_position_embeddings;
        let reads = self.perplexity.is_some() || self.equalize.is_some() || self.gptq.is_some();
        ensure!(
            !reads || self.context <= most,
            "--context: expected at most {most}, the positions of the model, got {}",
            self.context
        );
        let float = match (was_quantized, &spec) {
            (false, Some(_)) => self.read(&model, &folder.texts)?,
            _ => None,
        };
        for (option, file) in [("--equalize", &self.equalize), ("--gptq", &self.gptq)] {
            ensure!(
                file.is_none() || !was_quantized,
                "{option}: expected a float model, got one that is quantized"
            );
        }
        let report = self.quantize(&mut model, &folder.texts, spec.filter(|_| !was_quantized))?;
        let quantized = self.read(&model, &folder.texts)?;

        let draft = self.draft(&folder).context("--draft-model")?;
        let mut generator = Generator::new(&model, &folder)?;
        if let Some(draft) = &draft {
            generator = generator.with_draft(draft);
        }
        if let Some(None) = self.chat {
            ensure!(
                !self.common.json && !self.profile,
                "--chat: expected a TEXT beside --json and --profile, got none"
            );
            return self.converse(&generator, &config);
        }
        let prompt = self.tokens(&folder.texts)?;
        if !self.common.json && self.chat.is_none() {
            print::part(&self.prompt)?;
        }
        let written = Written::write(generator.generate(&prompt, &config)?, |part| {
            if self.common.json {
                return Ok(());
            }
            Ok(print::part(part)?)
        })?;
        let length = written.tokens as usize;
        let profile = self.profile.then(|| profile::steps(&generator, &prompt, config, length));
        let precision = match (was_quantized, self.float) {
            (true, _) => "as stored".to_owned(),
            (false, true) => "float".to_owned(),
            (false, false) => self.common.name(),
        };
        let weight_bytes = weight_bytes(&model, |_| true)?;
        let figures = Figures {
            float,
            quantized,
            profile: profile.transpose()?,
            ..Figures::new(name, precision, weight_bytes, &written)?
        };
        if !self.common.json {
            print::line("\n")?;
        }
        match &report {
            Some(report) => self.common.print(report, &figures, || figures.text()),
            None if self.common.json => Ok(print::data(serde_json::to_string(&figures)?)?),
            None => Ok(print::line(figures.text())?),
        }
    }
}

/// The tokens of a file, two or more.
fn tokens_of(option: &str, path: &Path, texts: &Texts) -> Result<Vec<u32>> {
    let text = input::read_stream(path, MAX_TEXT);
    let tokens = texts.encode(&text.with_context(|| format!("{option} {}", path.display()))?)?;
    ensure!(
        tokens.len() > 1,
        "{option} {}: expected a text of 2 tokens or more, got {}",
        path.display(),
        tokens.len(),
    );
    Ok(tokens)
}

impl Args {
    /// The precision of the products, unless they stay in float.
    fn spec(&self) -> Result<Option<QConfigSpec>> {
        (!self.float).then(|| self.common.spec()).transpose()
    }

    /// The sampling by the options, else by the model's author on request.
    fn sampling(&self, folder: &Folder) -> Result<Sampling> {
        let (temperature, top_p) = (0.7, 0.95);
        let plain = Sampling { temperature, top_p, ..Sampling::default() };
        let offered = folder.sampling.filter(|_| self.generation_config);
        ensure!(
            offered.is_some() || !self.generation_config,
            "--generation-config: expected a folder with generation_config.json, got none"
        );
        let base = offered.unwrap_or(plain);
        Ok(Sampling {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(base.repetition_penalty),
            ..base
        })
    }

    /// Quantizes the layers of a float model, and attention on request.
    fn quantize(
        &self,
        model: &mut Decoder,
        texts: &Texts,
        spec: Option<QConfigSpec>,
    ) -> Result<Option<Report>> {
        let Some(spec) = self.with_attention(spec) else {
            return Ok(None);
        };
        if let Some(path) = &self.equalize {
            let tokens = tokens_of("--equalize", path, texts)?;
            let config = Equalization::default().between_layers();
            equalize(model, &config, |model| self.scores(model, &tokens, 4))?;
        }
        let Some(path) = &self.gptq else {
            return Ok(Some(quantize_dynamic(model, &spec)?));
        };
        let tokens = tokens_of("--gptq", path, texts)?;
        let read = |model: &Decoder| self.scores(model, &tokens, 32);
        Ok(Some(gptq(model, &GptqConfig::new(spec), read)?.quantized))
    }

    /// The spec together with the precision of attention.
    fn with_attention(&self, spec: Option<QConfigSpec>) -> Option<QConfigSpec> {
        if self.attention == Precision::Float32 {
            return spec;
        }
        let spec = spec.unwrap_or_else(QConfigSpec::new);
        Some(spec.kind(LayerKind::Attention, self.attention))
    }

    /// The draft model, in the precision of the model in `of`.
    fn draft(&self, of: &Folder) -> Result<Option<DraftModel>> {
        let Some(path) = &self.draft_model else {
            return Ok(None);
        };
        let folder = Folder::open(path, self.tokenizer.as_deref())?;
        folder.notes.iter().for_each(print::note);
        let mut decoder = folder.load()?;
        let spec = self.spec()?;
        let spec = spec.filter(|_| !folder.checkpoint.is_quantized());
        if let Some(spec) = self.with_attention(spec) {
            quantize_dynamic(&mut decoder, &spec)?;
        }
        Ok(Some(DraftModel::new(decoder, &folder, of)?))
    }

    /// The scores of the next token after each of the first windows, at most `count`.
    fn scores(
        &self,
        model: &Decoder,
        tokens: &[u32],
        windows: usize,
    ) -> candle_core::Result<Tensor> {
        let windows = tokens.chunks(self.context).take(windows);
        let scores = windows.map(|window| {
            let window = Tensor::new(window, &Device::Cpu)?.unsqueeze(0)?;
            model.next(&window, &mut model.cache())
        });
        Tensor::cat(&scores.collect::<candle_core::Result<Vec<_>>>()?, 0)
    }

    /// The tokens that the model reads first.
    fn tokens(&self, texts: &Texts) -> Result<Vec<u32>> {
        let Some(Some(question)) = &self.chat else {
            return texts.prompt(&self.prompt);
        };
        let mut messages = self.system_message();
        messages.push(Message::new("user", question));
        texts.chat(&messages, true).context("--chat")
    }

    fn system_message(&self) -> Vec<Message> {
        let system = self.system.iter();
        system.map(|text| Message::new("system", text)).collect()
    }

    /// A chat whose questions are the lines of stdin.
    fn converse(&self, generator: &Generator<'_>, config: &GenerationConfig) -> Result<()> {
        let mut chat = Chat::new(generator);
        chat.messages = self.system_message();
        let mut input = BufReader::new(stdin().take(MAX_TEXT));
        loop {
            if stdin().is_terminal() {
                print::part("> ")?;
            }
            let mut line = String::new();
            if input.read_line(&mut line).context("stdin")? == 0 {
                return Ok(());
            }
            let start = Instant::now();
            let (mut first, mut tokens) = (None, 0);
            let mut reply = chat.say(line.trim_end(), config)?;
            for piece in &mut reply {
                let part = piece?.text;
                first.get_or_insert_with(|| start.elapsed());
                tokens += 1;
                print::part(&part)?;
            }
            let [prompt, cached] = reply.prompt_tokens();
            let (first, all) = (first.unwrap_or_default(), start.elapsed());
            let each = (all - first).as_secs_f64() * 1e3 / f64::from((tokens - 1).max(1));
            print::line(format!(
                "\n[{} tokens read, {cached} kept; first token after {:.0} ms; {tokens} written, {each:.1} ms each]",
                prompt - cached,
                first.as_secs_f64() * 1e3,
            ))?;
        }
    }

    fn read(&self, model: &Decoder, texts: &Texts) -> Result<Option<Perplexity>> {
        let Some(path) = &self.perplexity else {
            return Ok(None);
        };
        let tokens = tokens_of("--perplexity", path, texts)?;
        let mut progress = Progress::new("windows");
        let perplexity =
            Perplexity::measure(model, &tokens, self.context, |total| progress.tick(total))?;
        Ok(Some(perplexity))
    }
}
