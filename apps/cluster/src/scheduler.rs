//! The scheduler of a cluster, which plans queries and passes their parts to executors. It needs no
//! model.

use std::sync::Arc;

use anyhow::{Context, Result};
use ballista_core::utils::default_session_builder;
use ballista_scheduler::cluster::BallistaCluster;
use ballista_scheduler::config::SchedulerConfig;
use ballista_scheduler::scheduler_process::{create_scheduler, start_grpc_service_with_listener};
use datafusion::common::Result as PlanResult;
use datafusion::execution::{FunctionRegistry, SessionState};
use datafusion::prelude::SessionConfig;
use datafusion_proto::protobuf::{LogicalPlanNode, PhysicalPlanNode};
use tokio::net::TcpListener;

use crate::function::TextFunction;
use crate::options::{SchedulerOptions, advertised};
use crate::signal;

/// The time for which results are kept for their client, in seconds.
const RESULTS_SECONDS: u64 = 3600;

/// Serves until SIGINT or SIGTERM.
pub async fn run(options: &SchedulerOptions) -> Result<()> {
    // The handlers come before the address is printed: its reader may signal at once.
    let interrupted = signal::interrupted().context("cannot listen for signals")?;
    let external_host = advertised(options.host, options.advertise.as_ref())?;
    let place = (options.host, options.port);
    let listener = TcpListener::bind(place).await;
    let listener = listener.with_context(|| {
        let (host, port) = place;
        format!("--host, --port: expected an address to listen on, got {host}:{port}")
    })?;
    let address = listener.local_addr().context("the address of the scheduler")?;

    let timeout = options.executor_timeout as u64;
    let config = SchedulerConfig {
        external_host,
        bind_host: options.host.to_string(),
        bind_port: address.port(),
        executor_timeout_seconds: timeout,
        expire_dead_executor_interval_seconds: 1,
        // The time for an executor to return, or another to come, before queries fail.
        no_executors_grace_period_seconds: 3 * timeout,
        finished_job_data_clean_up_interval_seconds: RESULTS_SECONDS,
        finished_job_state_clean_up_interval_seconds: RESULTS_SECONDS,
        override_session_builder: Some(Arc::new(session)),
        ..Default::default()
    };
    config.validate().context("the scheduler")?;
    let cluster = BallistaCluster::new_from_config(&config).await;
    let cluster = cluster.context("the scheduler")?;
    let scheduler =
        create_scheduler::<LogicalPlanNode, PhysicalPlanNode>(cluster, Arc::new(config));
    let scheduler = scheduler.await.context("the scheduler")?;
    tracing::info!(%address, "listening");
    tokio::select! {
        served = start_grpc_service_with_listener(listener, scheduler) => served.context("the scheduler failed"),
        signal = interrupted => {
            tracing::info!(signal, "ended: queries that were running fail");
            Ok(())
        }
    }
}

/// A Ballista session that can plan this program's functions.
fn session(config: SessionConfig) -> PlanResult<SessionState> {
    let mut state = default_session_builder(config)?;
    for function in TextFunction::all(None, None) {
        state.register_udf(function)?;
    }
    Ok(state)
}
