//! The environment variables of the hub, with the names that Hugging Face's programs read.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::input;
use anyhow::{Context, Result, bail};

const ENDPOINT: &str = "https://huggingface.co";
/// The timeout without `HF_HUB_DOWNLOAD_TIMEOUT`.
const SECONDS: u64 = 10;
const MOST_SECONDS: u64 = 24 * 60 * 60;
/// The most bytes of a file with a token.
const MAX_TOKEN: u64 = 1 << 16;

pub struct Settings {
    /// The address of the hub, without a trailing `/`.
    pub endpoint: String,
    /// The folder of all models.
    pub cache: PathBuf,
    pub token: Option<String>,
    /// Whether the network must not be used.
    pub offline: bool,
    /// The time that an answer, or a part of an answer, may take.
    pub patience: Duration,
}

impl Settings {
    /// # Errors
    /// When a variable is malformed, or the place of the cache is not set.
    pub fn of_environment() -> Result<Self> {
        let home = home()?;
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| ENDPOINT.to_owned());
        let seconds = match text("HF_HUB_DOWNLOAD_TIMEOUT")? {
            None => SECONDS,
            Some(text) => match text.parse() {
                Ok(seconds @ 1..=MOST_SECONDS) => seconds,
                _ => bail!(
                    "HF_HUB_DOWNLOAD_TIMEOUT: expected seconds, 1 to {MOST_SECONDS}, got {text:?}"
                ),
            },
        };
        let from_variable = text("HF_TOKEN")?;
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            cache: path("HF_HUB_CACHE").unwrap_or_else(|| home.join("hub")),
            token: match (from_variable, path("HF_TOKEN_PATH")) {
                (Some(token), _) => Some(token),
                (None, Some(file)) => token(&file).context("HF_TOKEN_PATH")?,
                (None, None) => token(&home.join("token"))?,
            },
            offline: text("HF_HUB_OFFLINE")?.is_some_and(|it| {
                let yes = ["1", "on", "yes", "true"];
                yes.contains(&it.to_lowercase().as_str())
            }),
            patience: Duration::from_secs(seconds),
        })
    }
}

/// The token in a file, if there is one.
fn token(file: &Path) -> Result<Option<String>> {
    if !file.exists() {
        return Ok(None);
    }
    let token = input::read_text(file, MAX_TOKEN)?.trim().to_owned();
    Ok(Some(token).filter(|token| !token.is_empty()))
}

/// The folder of Hugging Face's programs.
fn home() -> Result<PathBuf> {
    if let Some(home) = path("HF_HOME") {
        return Ok(home);
    }
    let caches = path("XDG_CACHE_HOME").or_else(|| Some(env::home_dir()?.join(".cache")));
    let caches = caches.context("the cache of models: expected HF_HOME or HOME to be set")?;
    Ok(caches.join("huggingface"))
}

fn path(name: &str) -> Option<PathBuf> {
    let value = env::var_os(name).filter(|it| !it.is_empty())?;
    let value = PathBuf::from(value);
    match value.strip_prefix("~") {
        Ok(rest) => Some(env::home_dir()?.join(rest)),
        Err(_) => Some(value),
    }
}

fn text(name: &str) -> Result<Option<String>> {
    let text = env::var_os(name).map(|it| it.into_string());
    let text = text.transpose();
    let text = text.map_err(|_| anyhow::anyhow!("{name}: expected a text in UTF-8"))?;
    Ok(text.map(|it| it.trim().to_owned()).filter(|it| !it.is_empty()))
}
