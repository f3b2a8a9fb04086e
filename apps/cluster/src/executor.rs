//! An executor of a cluster: computes parts of queries with its model, and keeps the results until
//! they are fetched.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ballista_core::registry::BallistaFunctionRegistry;
use ballista_executor::executor_process::{ExecutorProcessConfig, start_executor_process};
use datafusion::execution::SessionStateBuilder;
use futures::FutureExt;
use tokio::net::TcpStream;

use crate::function::TextFunction;
use crate::model::LoadedModel;
use crate::options::{ExecutorOptions, SchedulerUrl, advertised};
use crate::signal;

/// The interval of heartbeats, in seconds.
const HEARTBEAT_SECONDS: u64 = 1;
/// The longest wait for the scheduler to start.
const PATIENCE: Duration = Duration::from_secs(60);

/// Computes until SIGINT or SIGTERM, then finishes the parts that it has begun.
pub async fn run(options: &ExecutorOptions) -> Result<()> {
    let interrupted = signal::interrupted().context("cannot listen for signals")?;
    let mut interrupted = std::pin::pin!(interrupted);
    let external_host = advertised(options.host, options.advertise.as_ref())?;
    check_free(options.host, options.port, "--port")?;
    check_free(options.host, options.task_port, "--task-port")?;
    let model = Arc::new(LoadedModel::open(&options.model)?);
    tracing::info!(model = %model.identity, "model loaded");
    tokio::select! {
        waited = wait_for(&options.scheduler) => waited?,
        signal = &mut interrupted => bail!("interrupted by {signal} while waiting for {}", options.scheduler),
    }

    // The folder belongs to this process only, and is removed with it.
    let work_dir = options.work_dir.clone().unwrap_or_else(std::env::temp_dir);
    let work_dir = tempfile::Builder::new()
        .prefix("dynquant-executor-")
        .tempdir_in(&work_dir)
        .with_context(|| {
            format!("--work-dir {}: expected a folder that can be written to", work_dir.display())
        })?;
    let work_path = work_dir.path();
    let work_path = work_path.to_str().with_context(|| {
        format!("--work-dir: expected a path in UTF-8, got {}", work_path.display())
    })?;
    let cores = available_parallelism().map_or(1, usize::from);
    // Ballista's registry lacks the functions of lists.
    let functions = SessionStateBuilder::new().with_default_features().build();
    let mut functions = BallistaFunctionRegistry::from(&functions);
    for function in TextFunction::all(None, Some(&model)) {
        let name = function.name().to_owned();
        functions.scalar_functions.insert(name, function);
    }
    let config = ExecutorProcessConfig {
        bind_host: options.host.to_string(),
        external_host: Some(external_host),
        port: options.port,
        grpc_port: options.task_port,
        scheduler_host: options.scheduler.host.clone(),
        scheduler_port: options.scheduler.port,
        vcores: options.cores.unwrap_or(cores),
        work_dir: Some(work_path.to_owned()),
        executor_heartbeat_interval_seconds: HEARTBEAT_SECONDS,
        override_function_registry: Some(Arc::new(functions)),
        ..Default::default()
    };
    let ended = start_executor_process(Arc::new(config)).await;
    ended.context("the executor failed")?;
    // Ballista ends without an error in any case, also after a signal.
    match interrupted.now_or_never() {
        Some(signal) => {
            tracing::info!(signal, "ended: the parts that were begun are computed");
            Ok(())
        }
        None => bail!(
            "the executor ended without a signal: its scheduler, {}, has ended or taken it for lost (see the log)",
            options.scheduler
        ),
    }
}

/// Checks that a port is free: Ballista binds it only after registering with the scheduler.
fn check_free(host: Ipv4Addr, port: u16, option: &str) -> Result<()> {
    let listener = TcpListener::bind((host, port));
    listener.map(drop).with_context(|| {
        format!("--host, {option}: expected an address to listen on, got {host}:{port}")
    })
}

/// Waits for the scheduler, since the processes of a cluster may start in any order.
async fn wait_for(scheduler: &SchedulerUrl) -> Result<()> {
    let start = Instant::now();
    let place = (scheduler.host.as_str(), scheduler.port);
    loop {
        match TcpStream::connect(place).await {
            Ok(_) => return Ok(()),
            Err(error) if start.elapsed() > PATIENCE => {
                let seconds = PATIENCE.as_secs();
                return Err(error).with_context(|| {
                    format!(
                        "--scheduler {scheduler}: expected a scheduler within {seconds} s, got none"
                    )
                });
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}
