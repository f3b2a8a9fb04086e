//! The life of the server.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Error, Result, bail, ensure};
use candle_dynquant_decoder::sampling::Sampling;
use dynquant_embed::program::print;
use dynquant_embed::{Encoder, ImageEmbedder, ModelOptions, Preset};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::app::{self, App, Before, Embedder, Generator, ModelKind, Pictures, Served};
use crate::batcher;
use crate::connections::{self, Terms};
use crate::generate::{self, Grammars, PAGE, SharedLimits};
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::places::Places;
use crate::queue::Queue;
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

fn preset(options: &Options) -> Result<Option<Preset>> {
    let preset = options.preset.as_ref().map(|name| name.parse());
    preset.transpose().map_err(Error::msg).context("--preset")
}

fn open_encoder(options: &Options, path: Option<PathBuf>) -> Result<Encoder> {
    let model = ModelOptions {
        preset: preset(options)?,
        model: path,
        equalize: options.equalize.clone(),
        task: options.task.clone(),
    };
    let mut encoder = model.open()?;
    if let Some(limit) = options.max_tokens {
        check_max_tokens(limit, encoder.config.max_tokens)?;
        encoder.tokenizer.limit(limit).context("--max-tokens")?;
    }
    Ok(encoder)
}

fn check_max_tokens(limit: usize, most: usize) -> Result<()> {
    ensure!(
        limit <= most,
        "--max-tokens: expected at most {most}, which the model takes, got {limit}"
    );
    Ok(())
}

/// Reads the model and starts its thread.
fn start(
    options: &Options,
    limits: Limits,
    stopping: watch::Receiver<bool>,
) -> Result<(Arc<App>, JoinHandle<()>)> {
    let model = ModelOptions { model: options.model.clone(), ..ModelOptions::default() };
    let started = match model.path()? {
        Some(path) if generate::is_decoder(&path) && !Encoder::is_folder(&path) => {
            start_generator(options, &path, &limits)?
        }
        path => {
            let of_pictures = path.as_deref().filter(|it| ImageEmbedder::is_folder(it));
            let pictures = of_pictures.map(|path| open_pictures(options, path));
            match pictures.transpose()? {
                Some(model) if !model.takes_texts() => start_alone(options, model, &limits)?,
                pictures => start_embedder(options, path, pictures, &limits)?,
            }
        }
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
        metrics: started.metrics,
        stopping,
        created: app::now(),
    };
    Ok((Arc::new(app), started.thread))
}

/// A running model.
struct Started {
    name: String,
    /// The format of the weights.
    dtype: String,
    served: Served,
    metrics: Arc<Metrics>,
    thread: JoinHandle<()>,
}

fn warn_of_one_by_one(is_one_by_one: bool) {
    if is_one_by_one {
        tracing::warn!(
            "texts are computed one by one: in these weights the bits of an answer depend on its batch"
        );
    }
}

/// The prompt for requests that name none.
fn default_prompt(options: &Options, encoder: &Encoder) -> Result<String> {
    if let Some(prompt) = &options.default_prompt {
        return Ok(prompt.clone());
    }
    let prompt = match &options.default_prompt_name {
        Some(name) => encoder.prompts.named(name),
        None => Ok(encoder.prompts.default_prompt()),
    };
    let prompt = prompt.map(str::to_owned).map_err(Error::msg);
    prompt.context("--default-prompt-name")
}

/// The kinds of models in messages.
const TEXTS: &str = "a model of embeddings of texts";
const PICTURES: &str = "a model of pictures";
const DECODER: &str = "a decoder";

/// Refuses the options of other kinds of models.
fn check_options(options: &Options, got: &str) -> Result<()> {
    let is_prompted = options.default_prompt.is_some() || options.default_prompt_name.is_some();
    let is_limited = options.max_tokens.is_some() && got == PICTURES;
    for (option, is_given, expected) in [
        ("--draft-model", options.draft_model.is_some(), DECODER),
        ("--attention", options.attention.is_some(), DECODER),
        ("--default-prompt, --default-prompt-name", is_prompted, TEXTS),
        ("--equalize", options.equalize.is_some(), TEXTS),
        ("--task", options.task.is_some(), TEXTS),
        ("--max-tokens", is_limited, TEXTS),
    ] {
        ensure!(
            !is_given || got == expected,
            "{option}: expected {expected} in --model, got {got}"
        );
    }
    Ok(())
}

fn start_embedder(
    options: &Options,
    path: Option<PathBuf>,
    pictures: Option<ImageEmbedder>,
    limits: &Limits,
) -> Result<Started> {
    check_options(options, TEXTS)?;
    let encoder = open_encoder(options, path)?;
    let kind = ModelKind::new(&encoder);
    let default_prompt = default_prompt(options, &encoder)?;
    tracing::info!(
        model = encoder.name,
        weights = encoder.dtype,
        ?kind,
        max_tokens = encoder.tokenizer.max_tokens(),
        "model loaded"
    );
    warn_of_one_by_one(encoder.model.is_one_by_one());
    let metrics = Arc::new(Metrics::new(limits));
    let pictures = pictures.map(|model| start_pictures(options, model, limits, &metrics));
    let (queue, jobs) = Queue::new(limits.queue.clone());
    let served = Served::Embedder(Box::new(Embedder {
        kind,
        prompts: encoder.prompts,
        default_prompt: Before::new(&default_prompt, options.default_prompt_name.as_deref()),
        config: encoder.config,
        tokenizer: Arc::new(encoder.tokenizer),
        queue,
        pictures: pictures.transpose()?.map(|(pictures, _)| pictures),
    }));
    let limit = options.max_batch_tokens;
    let thread = batcher::start(encoder.model, jobs, limit, Arc::clone(&metrics));
    Ok(Started {
        name: encoder.name,
        dtype: encoder.dtype,
        served,
        metrics,
        thread: thread.context("cannot start the model's thread")?,
    })
}

/// Reads a model of pictures.
fn open_pictures(options: &Options, path: &Path) -> Result<ImageEmbedder> {
    let mut opening = dynquant_embed::Options::new();
    if let Some(preset) = preset(options)? {
        opening = opening.preset(preset);
    }
    let model = ImageEmbedder::open_with(path, opening).context("--model")?;
    tracing::info!(weights = model.dtype(), "model of pictures loaded");
    Ok(model)
}

/// Starts a model of pictures whose folder has none of texts.
fn start_alone(options: &Options, model: ImageEmbedder, limits: &Limits) -> Result<Started> {
    check_options(options, PICTURES)?;
    model.notes().iter().for_each(print::note);
    let (name, dtype) = (model.name().to_owned(), model.dtype().to_owned());
    let metrics = Arc::new(Metrics::new(limits));
    let (pictures, thread) = start_pictures(options, model, limits, &metrics)?;
    Ok(Started { name, dtype, served: Served::Pictures(pictures), metrics, thread })
}

/// Starts the thread of a model of pictures, which ends with its last job.
fn start_pictures(
    options: &Options,
    model: ImageEmbedder,
    limits: &Limits,
    metrics: &Arc<Metrics>,
) -> Result<(Pictures, JoinHandle<()>)> {
    let model = Arc::new(model);
    let (queue, jobs) = Queue::new(limits.queue.clone());
    let (limit, metrics) = (options.max_batch_tokens, Arc::clone(metrics));
    let thread = batcher::start(Arc::clone(&model), jobs, limit, metrics);
    let thread = thread.context("cannot start the thread of the model of pictures")?;
    Ok((Pictures { model, queue }, thread))
}

fn start_generator(options: &Options, path: &Path, limits: &Limits) -> Result<Started> {
    check_options(options, DECODER)?;
    let (draft, preset) = (options.draft_model.as_deref(), options.preset.as_deref());
    let opened = generate::Opened::open(path, draft, preset, options.attention);
    let opened = opened.context("--model")?;
    let (config, page) = (opened.config, opened.model.page_bytes());
    let most = opened.most_tokens;
    if most < config.max_position_embeddings {
        let of_model = config.max_position_embeddings;
        tracing::warn!("attention in int8 takes {most} tokens, fewer than the model's {of_model}");
    }
    let (pages, context) = cache_places(options, page, most)?;
    let shares_prefixes = !options.no_prefix_cache && opened.model.has_pages();
    tracing::info!(
        model = opened.name,
        weights = opened.dtype,
        attention = opened.attention,
        max_tokens = context,
        cache_tokens = pages.total.saturating_mul(PAGE),
        prefix_cache = shares_prefixes,
        "model loaded"
    );
    warn_of_one_by_one(opened.model.is_one_by_one());
    let metrics = Arc::new(Metrics::of_generation(limits));
    let (queue, jobs) = Queue::new(limits.queue.clone());
    let limits = SharedLimits {
        prefill: options.prefill_tokens,
        sequences: options.max_sequences,
        pages,
        shares: shares_prefixes,
        drafts: if opened.model.is_one_by_one() { 0 } else { options.drafts },
    };
    ensure!(
        !options.generation_config || opened.sampling.is_some(),
        "--generation-config: expected a folder with generation_config.json, got none"
    );
    let sampling = opened.sampling.filter(|_| options.generation_config);
    let texts = Arc::new(opened.texts);
    let ends = opened.ends.clone();
    let grammars = Grammars::new(Arc::clone(&texts), config.vocab_size, ends);
    let thread_metrics = Arc::clone(&metrics);
    let thread = generate::start(opened.model, opened.ends, jobs, limits, thread_metrics);
    let served = Served::Generator(Generator {
        texts,
        // The defaults of OpenAI.
        sampling: sampling.unwrap_or(Sampling { temperature: 1., ..Sampling::default() }),
        context,
        vocabulary: config.vocab_size,
        grammars: Arc::new(grammars),
        queue,
    });
    Ok(Started {
        name: opened.name,
        dtype: opened.dtype,
        served,
        metrics,
        thread: thread.context("cannot start the model's thread")?,
    })
}

/// The pages of all caches, and the most tokens of a text: `most` of the model.
fn cache_places(options: &Options, page: usize, most: usize) -> Result<(Places, usize)> {
    if let Some(limit) = options.max_tokens {
        check_max_tokens(limit, most)?;
    }
    let bytes = options.cache_bytes;
    let pages = Places::new(bytes / page.max(1));
    ensure!(
        pages.total > 0,
        "--cache-bytes: expected at least {page}, which {PAGE} tokens of a text take, got {bytes}"
    );
    // A single text always fits.
    let room = pages.total.saturating_mul(PAGE);
    let context = options.max_tokens.unwrap_or(most).min(room);
    ensure!(
        context > 1,
        "--max-tokens: expected 2 or more, a prompt and its answer, got {context}"
    );
    Ok((pages, context))
}

async fn serve(options: &Options, app: Arc<App>, stop: watch::Sender<bool>) -> Result<()> {
    // The handlers come before the address is printed: its reader may signal at once.
    let signal = signal().context("cannot listen for signals")?;
    let place = (options.host.as_str(), options.port);
    let listener = TcpListener::bind(place).await;
    let listener = listener.with_context(|| {
        let (host, port) = place;
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

    let limit = Duration::from_secs(options.shutdown_seconds as u64);
    let end = Instant::now() + limit;
    // Idle connections end at once, others after their answer.
    let closed = tokio::spawn(open.shutdown());
    let answered = timeout_at(end, app.limits.requests.all_free()).await;
    if answered.is_err() {
        bail!(
            "--shutdown-seconds: expected accepted requests to be answered within {} s, got some that were not",
            limit.as_secs()
        );
    }
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
        std::future::poll_fn(|context| {
            use std::task::Poll;
            if interrupt.poll_recv(context).is_ready() {
                return Poll::Ready("SIGINT");
            }
            terminate.poll_recv(context).map(|_| "SIGTERM")
        })
        .await
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
