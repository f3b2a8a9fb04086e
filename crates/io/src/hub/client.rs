//! Requests to the hub.

use std::io::{Read, Write};

use anyhow::{Context, Result, bail, ensure};
use ring::digest::{self, SHA256};
use serde::Deserialize;
use serde::de::IgnoredAny;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::{Agent, Body};

use super::name::{Name, is_commit};
use super::settings::Settings;
use crate::output::NewFile;

const MAX_REDIRECTS: usize = 8;
/// The largest list of a model's files, in bytes.
const MAX_LIST: u64 = 16 << 20;
/// The number of bytes that are read at once.
const CHUNK: usize = 1 << 16;

pub struct Client<'a> {
    agent: Agent,
    settings: &'a Settings,
}

/// A commit with its files.
#[derive(Deserialize)]
pub struct Listing {
    #[serde(rename = "sha")]
    pub commit: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
}

impl Listing {
    pub fn has(&self, file: &str) -> bool {
        self.siblings.iter().any(|it| it.rfilename == file)
    }
}

/// A file to be downloaded.
pub struct Download {
    etag: String,
    /// The file's SHA-256, if the hub states it.
    sha256: Option<String>,
    pub bytes: Option<u64>,
    limit: u64,
    body: Body,
}

impl<'a> Client<'a> {
    pub fn new(settings: &'a Settings) -> Self {
        let patience = Some(settings.patience);
        let config = Agent::config_builder()
            .user_agent(concat!("candle-dynquant/", env!("CARGO_PKG_VERSION")))
            .http_status_as_error(false)
            // Redirections are followed here, since the first answer describes the file.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(patience)
            .timeout_connect(patience)
            .timeout_recv_response(patience)
            .timeout_per_read(patience);
        Self { agent: config.build().into(), settings }
    }

    /// The commit of a revision.
    pub fn list(&self, name: &Name) -> Result<Listing> {
        let Name { model, revision } = name;
        let revision = revision.replace('/', "%2F");
        let url = format!("{}/api/models/{model}/revision/{revision}", self.settings.endpoint);
        let (_, answer) = self.get(&url)?;
        let limited = answer.into_body().into_with_config().limit(MAX_LIST);
        let text = limited.read_to_vec().with_context(|| url.clone())?;
        let expected = || format!("{url}: expected the files of a commit in JSON");
        let listing: Listing = serde_json::from_slice(&text).with_context(expected)?;
        let commit = &listing.commit;
        ensure!(is_commit(commit), "{url}: expected the hash of a commit, got {commit:?}");
        Ok(listing)
    }

    /// Starts the download of a file of a commit, of at most `limit` bytes.
    pub fn download(&self, name: &Name, commit: &str, file: &str, limit: u64) -> Result<Download> {
        let url = format!("{}/{}/resolve/{commit}/{file}", self.settings.endpoint, name.model);
        let (headers, answer) = self.get(&url)?;
        let encoding = header(answer.headers(), "content-encoding").unwrap_or("identity");
        ensure!(encoding == "identity", "{url}: expected no content-encoding, got {encoding:?}");
        let linked = header(&headers, "x-linked-etag").map(unquoted);
        let etag = linked.or_else(|| header(answer.headers(), "etag").map(unquoted));
        let etag = etag.with_context(|| format!("{url}: expected the header `etag`, got none"))?;
        let is_etag = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(
            !etag.is_empty() && etag.chars().all(is_etag),
            "{url}: header \"etag\": expected letters and digits, got {etag:?}"
        );
        let length =
            header(&headers, "x-linked-size").or(header(answer.headers(), "content-length"));
        let bytes: Option<u64> = length.and_then(|it| it.parse().ok());
        let is_hash = |it: &&str| it.len() == 64 && it.chars().all(|c| c.is_ascii_hexdigit());
        let sha256 = linked.filter(is_hash).map(str::to_lowercase);
        ensure!(
            bytes.is_some() || sha256.is_some(),
            "{url}: expected its length or its SHA-256, which tell whether it is whole, got neither"
        );
        let length = bytes.unwrap_or_default();
        ensure!(length <= limit, "{url}: expected at most {limit} bytes, got {length}");
        Ok(Download { sha256, bytes, limit, etag: etag.to_owned(), body: answer.into_body() })
    }

    /// The answer after all redirections, and the headers of the first answer.
    fn get(&self, url: &str) -> Result<(HeaderMap, Response<Body>)> {
        let mut at = url.to_owned();
        let mut first = None;
        for _ in 0..=MAX_REDIRECTS {
            let host = origin(&at)?;
            let mut request = self.agent.get(&at);
            if let Some(token) = &self.settings.token
                && host == origin(&self.settings.endpoint)?
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let answer = request.call().with_context(|| at.clone())?;
            let status = answer.status();
            let first = first.get_or_insert_with(|| answer.headers().clone());
            if status == StatusCode::OK {
                return Ok((first.clone(), answer));
            }
            ensure!(status.is_redirection(), "{at}: {}", refusal(status, self.settings));
            let to = header(answer.headers(), "location");
            let to =
                to.with_context(|| format!("{at}: expected the header `location`, got none"))?;
            at = if to.starts_with('/') { format!("{host}{to}") } else { to.to_owned() };
        }
        bail!("{url}: expected at most {MAX_REDIRECTS} redirections, got more")
    }
}

/// The meaning of a status in the answer to a request.
fn refusal(status: StatusCode, settings: &Settings) -> String {
    let token = match settings.token {
        Some(_) => "the token is sent",
        None => "HF_TOKEN may hold a token",
    };
    match status {
        StatusCode::UNAUTHORIZED => {
            format!("got {status}: there is no such model, or it is not public; {token}")
        }
        StatusCode::FORBIDDEN => {
            format!("got {status}: its owner asks for consent, on the model's page; {token}")
        }
        StatusCode::NOT_FOUND => format!("got {status}: there is no such model, revision or file"),
        _ => format!("expected an answer with status 200, got {status}"),
    }
}

impl Download {
    /// The name of a file's blob. Only a hash of the contents may name one blob for several files:
    /// other servers send equal headers for files of the same length and time.
    pub fn blob(&self, file: &str) -> String {
        match &self.sha256 {
            Some(hash) => hash.clone(),
            None => format!("{}-{}", self.etag, &blake3::hash(file.as_bytes()).to_hex()[..16]),
        }
    }

    /// Writes the whole file, and reports the number of bytes written after each part.
    ///
    /// # Errors
    /// When the download ends early, differs from the length or hash of the hub, or is not the JSON
    /// that it should be.
    pub fn write(
        self,
        to: &mut NewFile,
        is_json: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<()> {
        let mut text = Vec::new();
        let mut reader = self.body.into_reader();
        let mut hash = digest::Context::new(&SHA256);
        let mut chunk = vec![0; CHUNK];
        let mut got = 0;
        loop {
            let count = reader.read(&mut chunk).context("the connection")?;
            if count == 0 {
                break;
            }
            got += count as u64;
            let most = self.bytes.unwrap_or(self.limit);
            ensure!(got <= most, "expected {most} bytes, got more");
            hash.update(&chunk[..count]);
            if is_json {
                text.extend_from_slice(&chunk[..count]);
            }
            to.write_all(&chunk[..count]).context("the cache")?;
            progress(got);
        }
        if let Some(bytes) = self.bytes {
            ensure!(got == bytes, "expected {bytes} bytes, got {got}");
        }
        if let Some(expected) = self.sha256 {
            let got: Vec<String> =
                (hash.finish().as_ref().iter()).map(|byte| format!("{byte:02x}")).collect();
            let got = got.concat();
            ensure!(got == expected, "expected the SHA-256 {expected}, got {got}");
        }
        if is_json {
            serde_json::from_slice::<IgnoredAny>(&text).context("expected JSON")?;
        }
        Ok(())
    }
}

fn header<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

fn unquoted(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

/// The scheme and the host of an address, for which a token is valid.
fn origin(url: &str) -> Result<String> {
    let uri = url.parse::<Uri>().unwrap_or_default();
    match (uri.scheme_str(), uri.authority()) {
        (Some(scheme @ ("http" | "https")), Some(host)) => Ok(format!("{scheme}://{host}")),
        _ => bail!("{url:?}: expected an address that begins with https:// or http://"),
    }
}
