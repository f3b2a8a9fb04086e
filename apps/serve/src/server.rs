//! The life of the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use candle_dynquant_decoder::Folder;
use candle_dynquant_decoder::sampling::Sampling;
use dynquant_embed::program::print;
use dynquant_embed::{Encoder, ImageEmbedder, ModelOptions, Preset};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::app::{self, App, Before, Embedder, Generator, ModelKind, Pictures, Served};
use crate::connections::{self, Terms};
use crate::generate::{self, Grammars, PAGE, SharedLimits};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::places::Places;
use crate::queue::{self, Queue, Text};
use crate::routes;

/// The time that refused requests have to read the refusal at shutdown.
const REFUSAL: Duration = Duration::from_secs(1);

/// Serves until SIGINT or SIGTERM, then until all accepted requests are answered.
pub fn run(options: &Options) -> Result<()> {
    let (bytes, of_body) = (options.bytes(), options.max_body_bytes);
    ensure!(
        bytes >= of_body,
        "--max-bytes: expected at least {of_body}, which --max-body-bytes allows a body, got {bytes}"
    );
    let limits = Limits::new(options);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .max_blocking_threads(limits.workers.count())
        .build()
        .context("cannot start the threads of the server")?;
    let (stop, stopping) = watch::channel(false);
    let (app, model) = start(options, limits, stopping)?;
    let served = runtime.block_on(serve(options, app, stop));
    // Connections that are still open have no accepted request.
    runtime.shutdown_background();
    // The last job's sender is dropped with the routes, so the model ends with its last job.
    if served.is_ok() && model.join().is_err() {
        bail!("the model's thread panicked");
    }
    served
}

fn start(
    options: &Options,
    limits: Limits,
    stopping: watch::Receiver<bool>,
) -> Result<(Arc<App>, JoinHandle<()>)> {
    let model = ModelOptions { model: options.model.clone(), ..ModelOptions::default() };
    let path = model.path()?;
    // A GGUF file, or a folder with the configuration of a decoder.
    let is_decoder = |path: &Path| path.is_file() || Folder::is_decoder(path);
    let is_decoder = |path: &&Path| is_decoder(path) && !Encoder::is_folder(path);
    let decoder = path.as_deref().filter(is_decoder);
    let metrics = Arc::new(Metrics::new(&limits, decoder.is_some()));
    let is_of_pictures = |path: &&Path| decoder.is_none() && ImageEmbedder::is_folder(path);
    let of_pictures = path.as_deref().filter(is_of_pictures);
    let start = Start { options, limits: &limits, metrics: Arc::clone(&metrics) };
    let pictures = of_pictures.map(|path| start.open_pictures(path)).transpose()?;
    let started = match (decoder, pictures) {
        (Some(path), _) => start.generator(path)?,
        (_, Some(model)) if !model.takes_texts() => start.only_pictures(model)?,
        (_, pictures) => start.embedder(path.clone(), pictures)?,
    };
    let names = match options.model_name.as_slice() {
        [] => vec![started.name],
        names => names.to_vec(),
    };
    let app = App {
        names,
        dtype: started.dtype,
        served: started.served,
        limits,
        transfer: Duration::from_secs(options.transfer_seconds as u64),
        max_batch_tokens: options.max_batch_tokens,
        auto_truncate: options.auto_truncate,
        metrics,
        stopping,
        created: app::now(),
    };
    Ok((Arc::new(app), started.thread))
}

struct Started {
    name: String,
    /// The format of the weights.
    dtype: String,
    served: Served,
    thread: JoinHandle<()>,
}

/// The kinds of models in messages.
const TEXTS: &str = "a model of embeddings of texts";
const PICTURES: &str = "a model of pictures";
const DECODER: &str = "a decoder";

fn warn_of_one_by_one(is_one_by_one: bool) {
    if is_one_by_one {
        tracing::warn!(
            "texts are computed one by one: in these weights the bits of an answer depend on its batch"
        );
    }
}

/// The start of a model.
struct Start<'a> {
    options: &'a Options,
    limits: &'a Limits,
    metrics: Arc<Metrics>,
}

impl Start<'_> {
    /// Refuses the options of other kinds of models.
    fn check_options(&self, got: &str) -> Result<()> {
        let is_prompted =
            self.options.default_prompt.is_some() || self.options.default_prompt_name.is_some();
        let is_limited = self.options.max_tokens.is_some() && got == PICTURES;
        for (option, is_given, expected) in [
            ("--draft-model", self.options.draft_model.is_some(), DECODER),
            ("--attention", self.options.attention.is_some(), DECODER),
            ("--default-prompt, --default-prompt-name", is_prompted, TEXTS),
            ("--equalize", self.options.equalize.is_some(), TEXTS),
            ("--task", self.options.task.is_some(), TEXTS),
            ("--max-tokens", is_limited, TEXTS),
        ] {
            ensure!(
                !is_given || got == expected,
                "{option}: expected {expected} in --model, got {got}"
            );
        }
        Ok(())
    }

    /// Checks `--max-tokens`, of which a model takes `most`.
    fn max_tokens(&self, most: usize) -> Result<Option<usize>> {
        let limit = self.options.max_tokens;
        let got = limit.unwrap_or(0);
        ensure!(
            got <= most,
            "--max-tokens: expected at most {most}, which the model takes, got {got}"
        );
        Ok(limit)
    }

    fn preset(&self) -> Result<Option<Preset>> {
        let preset = self.options.preset.as_ref().map(|name| name.parse());
        preset.transpose().map_err(Error::msg).context("--preset")
    }

    fn open_encoder(&self, path: Option<PathBuf>) -> Result<Encoder> {
        let model = ModelOptions {
            preset: self.preset()?,
            model: path,
            equalize: self.options.equalize.clone(),
            task: self.options.task.clone(),
        };
        let mut encoder = model.open()?;
        if let Some(limit) = self.max_tokens(encoder.config.max_tokens)? {
            encoder.tokenizer.limit(limit).context("--max-tokens")?;
        }
        Ok(encoder)
    }

    /// The prompt for requests that name none.
    fn default_prompt(&self, encoder: &Encoder) -> Result<Before> {
        let name = self.options.default_prompt_name.as_deref();
        let prompt = match (&self.options.default_prompt, name) {
            (Some(prompt), _) => Ok(prompt.as_str()),
            (None, Some(name)) => encoder.prompts.named(name),
            (None, None) => Ok(encoder.prompts.default_prompt()),
        };
        let prompt = prompt.map_err(Error::msg).context("--default-prompt-name")?;
        Ok(Before::new(prompt, name))
    }

    fn embedder(&self, path: Option<PathBuf>, pictures: Option<ImageEmbedder>) -> Result<Started> {
        self.check_options(TEXTS)?;
        let encoder = self.open_encoder(path)?;
        let kind = ModelKind::new(&encoder);
        let default_prompt = self.default_prompt(&encoder)?;
        tracing::info!(
            model = encoder.name,
            weights = encoder.dtype,
            ?kind,
            max_tokens = encoder.tokenizer.max_tokens(),
            "model loaded"
        );
        warn_of_one_by_one(encoder.model.is_one_by_one());
        let pictures = pictures.map(|model| self.pictures(model));
        let (places, limit) = (self.limits.queue.clone(), self.options.max_batch_tokens);
        let (metrics, answer) = (Arc::clone(&self.metrics), Text::answers_of(encoder.model));
        let started = queue::start(places, limit, metrics, |it: &Text| it.tokens.len(), answer);
        let (queue, thread) = started.context("cannot start the model's thread")?;
        let served = Served::Embedder(Box::new(Embedder {
            kind,
            prompts: encoder.prompts,
            default_prompt,
            config: encoder.config,
            tokenizer: Arc::new(encoder.tokenizer),
            queue,
            pictures: pictures.transpose()?.map(|(pictures, _)| pictures),
        }));
        Ok(Started { name: encoder.name, dtype: encoder.dtype, served, thread })
    }

    fn open_pictures(&self, path: &Path) -> Result<ImageEmbedder> {
        let mut opening = dynquant_embed::Options::new();
        if let Some(preset) = self.preset()? {
            opening = opening.preset(preset);
        }
        let model = ImageEmbedder::open_with(path, opening).context("--model")?;
        tracing::info!(weights = model.dtype(), "model of pictures loaded");
        Ok(model)
    }

    /// Starts a model of pictures whose folder has none of texts.
    fn only_pictures(&self, model: ImageEmbedder) -> Result<Started> {
        self.check_options(PICTURES)?;
        model.notes().iter().for_each(print::note);
        let (name, dtype) = (model.name().to_owned(), model.dtype().to_owned());
        let (pictures, thread) = self.pictures(model)?;
        Ok(Started { name, dtype, served: Served::Pictures(pictures), thread })
    }

    /// Starts the thread of a model of pictures, which ends with its last job.
    fn pictures(&self, model: ImageEmbedder) -> Result<(Pictures, JoinHandle<()>)> {
        let model = Arc::new(model);
        let (places, limit) = (self.limits.queue.clone(), self.options.max_batch_tokens);
        let (tokens, metrics) = (model.tokens(), Arc::clone(&self.metrics));
        let answers = Arc::clone(&model);
        let answer = move |pictures: &[&Vec<f32>]| answers.answer(pictures);
        let started = queue::start(places, limit, metrics, move |_| tokens, answer);
        let (queue, thread) =
            started.context("cannot start the thread of the model of pictures")?;
        Ok((Pictures { model, queue }, thread))
    }

    fn generator(&self, path: &Path) -> Result<Started> {
        self.check_options(DECODER)?;
        let (draft, preset) = (self.options.draft_model.as_deref(), self.options.preset.as_deref());
        let opened = generate::Opened::open(path, draft, preset, self.options.attention);
        let opened = opened.context("--model")?;
        let (config, model) = (opened.config, opened.model);
        let (most, of_model) = (opened.most_tokens, config.max_position_embeddings);
        if most < of_model {
            tracing::warn!(
                "attention in int8 takes {most} tokens, fewer than the model's {of_model}"
            );
        }
        let (pages, context) = self.cache_places(model.page_bytes, most)?;
        let shares = !self.options.no_prefix_cache && model.has_pages;
        tracing::info!(
            model = opened.name,
            weights = opened.dtype,
            attention = opened.attention,
            max_tokens = context,
            cache_tokens = pages.total.saturating_mul(PAGE),
            prefix_cache = shares,
            "model loaded"
        );
        warn_of_one_by_one(model.one_by_one);
        let (queue, jobs) = Queue::new(self.limits.queue.clone());
        let limits = SharedLimits {
            prefill: self.options.prefill_tokens,
            sequences: self.options.max_sequences,
            pages,
            shares,
            drafts: if model.one_by_one { 0 } else { self.options.drafts },
        };
        ensure!(
            !self.options.generation_config || opened.sampling.is_some(),
            "--generation-config: expected a folder with generation_config.json, got none"
        );
        let sampling = opened.sampling.filter(|_| self.options.generation_config);
        let texts = Arc::new(opened.texts);
        let grammars = Grammars::new(Arc::clone(&texts), config.vocab_size, opened.ends.clone());
        let thread = generate::start(model, opened.ends, jobs, limits, Arc::clone(&self.metrics));
        let served = Served::Generator(Generator {
            texts,
            // The defaults of OpenAI.
            sampling: sampling.unwrap_or(Sampling { temperature: 1., ..Sampling::default() }),
            context,
            vocabulary: config.vocab_size,
            grammars: Arc::new(grammars),
            queue,
        });
        let thread = thread.context("cannot start the model's thread")?;
        Ok(Started { name: opened.name, dtype: opened.dtype, served, thread })
    }

    /// The pages of all caches, and the most tokens of a text: `most` of the model.
    fn cache_places(&self, page: usize, most: usize) -> Result<(Places, usize)> {
        let limit = self.max_tokens(most)?;
        let bytes = self.options.cache_bytes;
        let pages = Places::new(bytes / page.max(1));
        ensure!(
            pages.total > 0,
            "--cache-bytes: expected at least {page}, which {PAGE} tokens of a text take, got {bytes}"
        );
        // A single text always fits.
        let room = pages.total.saturating_mul(PAGE);
        let context = limit.unwrap_or(most).min(room);
        ensure!(
            context > 1,
            "--max-tokens: expected 2 or more, a prompt and its answer, got {context}"
        );
        Ok((pages, context))
    }
}

async fn serve(options: &Options, app: Arc<App>, stop: watch::Sender<bool>) -> Result<()> {
    // The handlers come before the address is printed: its reader may signal at once.
    let signal = signal().context("cannot listen for signals")?;
    let (host, port) = (options.host.as_str(), options.port);
    let listener = TcpListener::bind((host, port)).await.with_context(|| {
        format!("--host, --port: expected an address to listen on, got {host}:{port}")
    })?;
    let address = listener.local_addr().context("the address of the server")?;
    tracing::info!(%address, "listening");

    let places = &app.limits.connections;
    let router = routes::router(Arc::clone(&app));
    let idle = Duration::from_secs(options.idle_seconds as u64);
    let served = Terms::new(places.clone(), router, idle, app.transfer);
    let in_excess = Terms::in_excess(routes::refusal(places.total));
    let stopped = async {
        let signal = signal.await;
        tracing::info!(signal, "shutting down: no new requests, accepted ones are answered");
        stop.send_replace(true);
    };
    let open = connections::accept(listener, [served, in_excess], stopped).await;

    let seconds = options.shutdown_seconds;
    let end = Instant::now() + Duration::from_secs(seconds as u64);
    // Idle connections end at once, others after their answer.
    let closed = tokio::spawn(open.shutdown());
    let answered = timeout_at(end, app.limits.requests.all_free()).await;
    ensure!(
        answered.is_ok(),
        "--shutdown-seconds: expected accepted requests to be answered within {seconds} s, got some that were not"
    );
    // Refused clients get time to read the refusal; a connection without a request is not waited
    // for.
    let refused = Instant::now() + REFUSAL;
    let _ = timeout_at(end.min(refused), closed).await;
    tracing::info!("all accepted requests are answered");
    Ok(())
}

/// Waits for SIGINT or SIGTERM; the handlers are installed when this returns.
#[cfg(unix)]
fn signal() -> std::io::Result<impl Future<Output = &'static str>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => "SIGINT",
            _ = terminate.recv() => "SIGTERM",
        }
    })
}

/// Waits for ctrl-c.
#[cfg(not(unix))]
fn signal() -> std::io::Result<impl Future<Output = &'static str>> {
    Ok(async {
        match tokio::signal::ctrl_c().await {
            Ok(()) => "ctrl-c",
            // Without signals the server runs until it is killed.
            Err(_) => std::future::pending().await,
        }
    })
}
