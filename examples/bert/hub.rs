//! Downloads a model's files from the Hugging Face Hub with `curl`.

use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use candle_dynquant_io::child;
use candle_dynquant_io::output::NewFile;

use candle_dynquant_support::{checkpoint, repository};

/// The longest download, since a slow download takes hours; curl ends a stalled download after a
/// minute.
const LIMIT: Duration = Duration::from_secs(24 * 3600);
const INDEX: &str = "model.safetensors.index.json";

/// Downloads the model `id`, for example `owner/name`, to `target/hub/owner/name` and returns that
/// folder.
///
/// Files that are already there are not downloaded again. `HF_ENDPOINT` selects another server,
/// `HF_TOKEN` is sent to it.
pub fn fetch(id: &str) -> Result<PathBuf> {
    let is_word = |word: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !word.is_empty() && !word.starts_with('.') && word.chars().all(allowed)
    };
    ensure!(
        id.split('/').count() <= 2 && id.split('/').all(is_word),
        "--hub: expected the id of a model, for example owner/name, got {id:?}",
    );
    let folder = repository().join("target/hub").join(id);
    fs::create_dir_all(&folder)
        .with_context(|| format!("{}: expected a folder", folder.display()))?;
    get(&folder, id, "config.json")?;
    get(&folder, id, "tokenizer.json")?;
    if let Err(no_single_file) = get(&folder, id, "model.safetensors") {
        if get(&folder, id, INDEX).is_err() {
            return Err(no_single_file);
        }
        for shard in checkpoint::shards(&folder.join(INDEX))?.keys() {
            get(&folder, id, shard)?;
        }
    }
    Ok(folder)
}

/// Downloads one file, which appears only when it is complete.
fn get(folder: &Path, id: &str, file: &str) -> Result<()> {
    let path = folder.join(file);
    if path.exists() {
        return Ok(());
    }
    let writing = || format!("{}: expected a file to write", path.display());
    let mut new = NewFile::beside(&path).with_context(writing)?;
    let stdout = new.file_mut().try_clone().with_context(writing)?;
    let endpoint = std::env::var("HF_ENDPOINT");
    let endpoint = endpoint.as_deref().unwrap_or("https://huggingface.co");
    let progress = if std::io::stderr().is_terminal() { "--progress-bar" } else { "--silent" };
    let token = match std::env::var("HF_TOKEN") {
        Ok(token) => {
            let token = token.escape_default();
            format!("header = \"Authorization: Bearer {token}\"\n")
        }
        Err(_) => String::new(),
    };
    let mut curl = Command::new("curl");
    curl.args(["--fail", "--location", "--show-error", progress])
        .args(["--connect-timeout", "60"])
        .args(["--speed-limit", "1000", "--speed-time", "60"])
        // The token is passed by stdin: other users of the machine can see arguments.
        .args(["--config", "-"])
        .arg(format!("{endpoint}/{id}/resolve/main/{file}"))
        .stdout(stdout);
    let status = child::run(&mut curl, token.as_bytes(), LIMIT)
        .context(
            "--hub: expected the program `curl`; --model-dir reads files downloaded otherwise",
        )?
        .status;
    ensure!(
        status.success(),
        "--hub {id}: expected {file} on {endpoint}, got an error of curl ({status})"
    );
    new.put().with_context(writing)
}
