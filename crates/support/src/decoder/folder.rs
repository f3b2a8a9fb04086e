//! A decoder's files, read and checked together: a Hugging Face folder, or a GGUF file.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use candle_core::{DType, Device};
use candle_dynquant::Checkpoint;
use serde::Deserialize;
use tokenizers::Tokenizer;

use super::chat::Template;
use super::config::{Config, Family};
use super::gguf::Metadata;
use super::model::Decoder;
use crate::checkpoint::check_folder;
use crate::{json, tokenizer};

/// Everything that generating texts needs.
pub struct Folder {
    pub path: PathBuf,
    pub config: Config,
    pub texts: Texts,
    pub checkpoint: Checkpoint,
    /// The keys and values that are not used, in words.
    pub notes: Vec<String>,
}

/// Texts to tokens, and tokens to texts.
pub struct Texts {
    pub tokenizer: Tokenizer,
    pub template: Option<Template>,
}

impl Folder {
    /// Whether a folder's `config.json` is a decoder's. One that cannot be read is not.
    pub fn is_decoder(dir: &Path) -> bool {
        #[derive(Deserialize)]
        struct Kind {
            #[serde(rename = "model_type")]
            _family: Family,
        }
        json::read::<Kind>(&dir.join("config.json"), "a configuration").is_ok()
    }

    /// Opens a folder with `config.json`, `tokenizer.json` and weights, or a GGUF file. The
    /// tokenizer may be another one's.
    pub fn open(path: &Path, tokenizer: Option<&Path>) -> Result<Self> {
        if path.is_dir() {
            check_folder(path, "config.json, tokenizer.json and weights")?;
        }
        let checkpoint = Checkpoint::open(path)?;
        let (mut notes, mut begin) = (Vec::new(), None);
        let (config, tokenizer, template) = if path.is_dir() {
            let config = Config::read(&path.join("config.json"))?;
            let beside = path.join("tokenizer.json");
            let tokenizer = tokenizer::read(tokenizer.unwrap_or(&beside))?;
            (config, tokenizer, Template::source(path)?)
        } else {
            let metadata;
            (metadata, notes) = Metadata::read(&checkpoint, path.display().to_string())?;
            begin = metadata.begin()?;
            let own = || metadata.tokenizer();
            let tokenizer = tokenizer.map_or_else(own, tokenizer::read)?;
            (metadata.config()?, tokenizer, metadata.chat_template()?)
        };
        tokenizer::check(path, &tokenizer, config.vocab_size)?;
        let named = |id: Option<u32>| id.and_then(|id| tokenizer.id_to_token(id));
        let bos = named(config.bos_token_id).unwrap_or_default();
        let eos = named(config.eos_token_id.as_slice().first().copied()).unwrap_or_default();
        let template = template.map(|source| {
            let mut template = Template::new(&source, bos, eos)?;
            template.begin = named(begin);
            anyhow::Ok(template)
        });
        Ok(Self {
            path: path.to_owned(),
            checkpoint,
            notes,
            texts: Texts {
                template: template
                    .transpose()
                    .with_context(|| path.display().to_string())?,
                tokenizer,
            },
            config,
        })
    }

    /// The model: of a quantized checkpoint, as quantized.
    pub fn load(&self) -> Result<Decoder> {
        let vb = self.checkpoint.var_builder(DType::F32, &Device::Cpu);
        Decoder::load(&self.config, vb)
    }
}

impl Texts {
    /// The tokens of a text as it is, such as a chat template writes it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, false)
    }

    /// The tokens of a prompt, after the one that every text begins with, if there is such a one.
    pub fn prompt(&self, text: &str) -> Result<Vec<u32>> {
        self.tokens(text, true)
    }

    fn tokens(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.tokenizer.encode(text, special);
        let encoding = encoding.map_err(|e| anyhow::anyhow!("tokenizer: {e}"))?;
        Ok(encoding.get_ids().to_vec())
    }
}
