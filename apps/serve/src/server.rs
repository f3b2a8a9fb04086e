//! From the start of the server to its end.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use dynquant_encoder::Encoder;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::batcher;
use crate::connections::Connections;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::queue::Queue;
use crate::routes::{App, router};

/// Serves until SIGINT or SIGTERM, then until what was accepted is answered.
pub fn run(options: &Options) -> Result<()> {
    let encoder = open(options)?;
    tracing::info!(
        model = encoder.name,
        weights = encoder.dtype,
        classifier = encoder.model.is_classifier(),
        max_tokens = encoder.tokenizer.max_tokens(),
        "model loaded"
    );
    if encoder.model.is_one_by_one() {
        tracing::warn!(
            "texts are computed one by one: in these weights the bits of an answer depend on its batch"
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Tokenization uses them. More threads than cores would gain nothing.
        .max_blocking_threads(std::thread::available_parallelism().map_or(1, usize::from))
        .build()
        .context("cannot start the threads of the server")?;
    let (stop, stopping) = watch::channel(false);
    let (app, model) = start(options, encoder, stopping)?;
    let served = runtime.block_on(serve(options, app, stop));
    // The last job's sender went with the routes, so the model ends with its last job.
    if served.is_ok() && model.join().is_err() {
        bail!("the model's thread panicked");
    }
    runtime.shutdown_background();
    served
}

fn open(options: &Options) -> Result<Encoder> {
    let mut encoder = options.model.open()?;
    if let Some(limit) = options.max_tokens {
        let most = encoder.config.max_tokens;
        anyhow::ensure!(
            limit <= most,
            "--max-tokens: expected at most {most}, which the model takes, got {limit}"
        );
        encoder.tokenizer.limit(limit).context("--max-tokens")?;
    }
    Ok(encoder)
}

/// Starts the thread of the model.
fn start(
    options: &Options,
    encoder: Encoder,
    stopping: watch::Receiver<bool>,
) -> Result<(Arc<App>, JoinHandle<()>)> {
    let metrics = Arc::new(Metrics::new());
    let (queue, jobs) = Queue::new(options.queue, Arc::clone(&metrics));
    let names = match options.model_name.as_slice() {
        [] => vec![encoder.name],
        names => names.to_vec(),
    };
    let is_classifier = encoder.model.is_classifier();
    let (limit, of_model) = (options.max_batch_tokens, Arc::clone(&metrics));
    let model = batcher::start(encoder.model, jobs, limit, of_model)
        .context("cannot start the model's thread")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let app = App {
        names,
        config: encoder.config,
        is_classifier,
        dtype: encoder.dtype,
        tokenizer: Arc::new(encoder.tokenizer),
        limits: Limits::new(options),
        max_batch_tokens: options.max_batch_tokens,
        auto_truncate: options.auto_truncate,
        queue,
        metrics,
        stopping,
        created: now.map_or(0, |now| now.as_secs()),
    };
    Ok((Arc::new(app), model))
}

async fn serve(options: &Options, app: Arc<App>, stop: watch::Sender<bool>) -> Result<()> {
    // Before the address is stated: who reads it may signal at once.
    let signal = signal().context("cannot listen for signals")?;
    let place = (options.host.as_str(), options.port);
    let listener = TcpListener::bind(place).await;
    let listener = listener.with_context(|| {
        let (host, port) = place;
        format!("--host, --port: expected an address to listen on, got {host}:{port}")
    })?;
    let address = listener.local_addr().context("the address of the server")?;
    tracing::info!(%address, "listening");

    let mut stopping = app.stopping.clone();
    let connections = Connections {
        listener,
        silence: Duration::from_secs(options.silence_seconds as u64),
    };
    let server = axum::serve(connections, router(app)).with_graceful_shutdown(async move {
        let signal = signal.await;
        tracing::info!(
            signal,
            "shutting down: no new requests, accepted ones are answered"
        );
        stop.send_replace(true);
    });
    let limit = Duration::from_secs(options.shutdown_seconds as u64);
    let too_late = async {
        // The sender is dropped only after it has sent.
        let _ = stopping.wait_for(|stopping| *stopping).await;
        tokio::time::sleep(limit).await;
    };
    tokio::select! {
        served = server => served.context("the server failed")?,
        () = too_late => bail!(
            "--shutdown-seconds: expected accepted requests to be answered within {} s, got some that were not",
            limit.as_secs()
        ),
    }
    tracing::info!("all accepted requests are answered");
    Ok(())
}

/// Waits for SIGINT or SIGTERM; the handlers are there when this returns.
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
            // Without signals the server runs until it is ended.
            Err(_) => std::future::pending().await,
        }
    })
}
