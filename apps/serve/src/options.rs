//! The command line.

use std::path::PathBuf;

use candle_dynquant::ops::Precision;
use clap::Parser;
use tracing::level_filters::LevelFilter;

/// Embeddings of texts and pictures, classification and generated texts over HTTP, in int8.
///
/// Answers as OpenAI's API (/v1/embeddings, /v1/chat/completions, /v1/completions, /v1/models) and
/// as text-embeddings-inference (/embed, /embed_sparse, /embed_all, /similarity, /rerank, /predict, /tokenize,
/// /decode, /info), with /health and /metrics. Without arguments it serves a small classifier that
/// is part of the program.
#[derive(Parser, Debug)]
#[command(name = "dynquant-serve", version)]
pub struct Options {
    /// A Hugging Face folder of an encoder, of texts or pictures, or of a decoder, float or quantized, or a
    /// GGUF file of a decoder; or a name on the hub such as sentence-transformers/all-MiniLM-L6-v2,
    /// OWNER/MODEL/FILE.gguf or NAME@REVISION, downloaded once [default: the model in the program]
    #[arg(long, alias = "model-dir", value_name = "MODEL")]
    pub model: Option<PathBuf>,

    #[arg(long, value_name = "NAME", help = dynquant_embed::Preset::help())]
    pub preset: Option<String>,

    /// Equalizes a float encoder before it is quantized, by the texts of this file, one per line: a
    /// few texts typical of its use
    #[arg(long, value_name = "FILE")]
    pub equalize: Option<PathBuf>,

    /// The task whose adapters are added to the weights of jina-embeddings-v3, and whose prompt stands
    /// before texts
    #[arg(long, value_name = "NAME")]
    pub task: Option<String>,

    /// Precision of a decoder's attention, and of its keys and values: float32, bfloat16 or int8
    /// [default: float32, or the folder's]
    #[arg(long, value_name = "NAME")]
    pub attention: Option<Precision>,

    /// A name that requests may give the model; may be repeated, answers state the first [default:
    /// the folder's name]
    #[arg(long, value_name = "NAME")]
    pub model_name: Vec<String>,

    /// Address to listen on
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    pub host: String,

    /// Port to listen on; 0 for any that is free
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub port: u16,

    /// Texts of a request
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = positive)]
    pub max_texts: usize,

    /// Tokens of a text, special ones included, or of a prompt with its answer [default: what the model takes]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_tokens: Option<usize>,

    /// Bytes of the body of a request
    #[arg(long, value_name = "N", default_value_t = 2 << 20, value_parser = positive)]
    pub max_body_bytes: usize,

    /// Bytes of bodies and answers at a time; requests beyond it are answered with status 429 [default: 16
    /// times --max-body-bytes]
    #[arg(long, value_name = "N", value_parser = positive)]
    pub max_bytes: Option<usize>,

    /// Connections at a time; more are answered with status 429, or closed
    #[arg(long, value_name = "N", default_value_t = 768, value_parser = positive)]
    pub max_connections: usize,

    /// Requests at a time; more are answered with status 429
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = positive)]
    pub max_requests: usize,

    /// Texts that wait or are computed; more are answered with status 429
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive)]
    pub queue: usize,

    /// Tokens that the model computes together; texts in excess wait for the next batch
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = positive)]
    pub max_batch_tokens: usize,

    /// Bytes of keys and values of the texts that are generated, and of ended ones as far as there is room;
    /// others wait until theirs fit
    #[arg(long, value_name = "N", default_value_t = 1 << 30)]
    pub cache_bytes: usize,

    /// Read every prompt from its beginning, also one that begins as an earlier text did
    #[arg(long)]
    pub no_prefix_cache: bool,

    /// Tokens that a step guesses where texts repeat themselves, of all texts, and checks; the texts are the
    /// same for every number
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub drafts: usize,

    /// A folder or a GGUF file of a smaller decoder with the same tokens, which guesses those of --drafts
    /// in place of where texts repeat themselves; its keys and values count in --cache-bytes
    #[arg(long, value_name = "MODEL")]
    pub draft_model: Option<PathBuf>,

    /// Texts that are generated at a time; others wait
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = positive)]
    pub max_sequences: usize,

    /// Draw tokens by the folder's generation_config.json, unless a request says otherwise
    #[arg(long)]
    pub generation_config: bool,

    /// Tokens of prompts that are read between two tokens of the texts that are generated
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = positive)]
    pub prefill_tokens: usize,

    /// The folder's prompt before each text to embed, unless a request names another [default:
    /// the folder's default_prompt_name]
    #[arg(long, value_name = "NAME", conflicts_with = "default_prompt")]
    pub default_prompt_name: Option<String>,

    /// A prompt before each text to embed, unless a request names one of the folder's
    #[arg(long, value_name = "TEXT")]
    pub default_prompt: Option<String>,

    /// Cut texts that are too long, unless a request says otherwise
    #[arg(long)]
    pub auto_truncate: bool,

    /// Seconds within which the head of a connection's next request must arrive, else it is closed
    #[arg(long, value_name = "N", default_value_t = 75, value_parser = positive)]
    pub idle_seconds: usize,

    /// Seconds that a body may take to arrive, and an answer to be read
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = positive)]
    pub transfer_seconds: usize,

    /// Seconds that accepted requests may take after SIGINT or SIGTERM
    #[arg(long, value_name = "N", default_value_t = 30, value_parser = positive)]
    pub shutdown_seconds: usize,

    /// Log JSON, one object per line
    #[arg(long)]
    pub log_json: bool,

    /// Least level to log: error, warn, info, debug (each request) or off
    #[arg(long, value_name = "LEVEL", default_value_t = LevelFilter::INFO)]
    pub log_level: LevelFilter,
}

impl Options {
    /// Bytes of bodies and answers at a time.
    pub fn bytes(&self) -> usize {
        let by_body = || self.max_body_bytes.saturating_mul(16);
        self.max_bytes.unwrap_or_else(by_body)
    }
}

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        // Sums of two such numbers do not overflow, and semaphores accept them.
        Ok(number @ 1..=0x1fff_ffff) => Ok(number),
        _ => Err("expected a whole number from 1 to 536870911".to_owned()),
    }
}
