//! A query, from the command line to the file with its result.

use std::io::{IsTerminal, stderr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result, bail};
use ballista_core::execution_plans::DistributedQueryExec;
use ballista_core::serde::protobuf::CancelJobParams;
use ballista_core::serde::protobuf::scheduler_grpc_client::SchedulerGrpcClient;
use ballista_core::utils::create_grpc_client_endpoint;
use datafusion::common::DataFusionError;
use datafusion::execution::context::SQLOptions;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{DataFrame, SessionContext};
use datafusion_proto::protobuf::LogicalPlanNode;
use dynquant_embed::program::print;
use futures::StreamExt;
use serde_json::json;

use crate::input::Input;
use crate::model::LoadedModel;
use crate::options::{RunOptions, SchedulerUrl};
use crate::output::Output;
use crate::{session, signal};

/// The number of runs of a query on a cluster that loses its results.
const ATTEMPTS: usize = 3;
/// The time between two lines of progress.
const TICK: Duration = Duration::from_millis(250);
/// The time that a scheduler may take to cancel an interrupted query.
const CANCELLING: Duration = Duration::from_secs(10);

/// Runs the query and writes its result, whole or not at all.
pub async fn run(options: &RunOptions) -> Result<()> {
    let interrupted = signal::interrupted().context("cannot listen for signals")?;
    let input = Input::open(&options.input)?;
    if input.holds(&options.output) {
        bail!(
            "--output {}: expected a file that is no part of --input {}",
            options.output.display(),
            options.input.display()
        );
    }
    Output::check(&options.output)?;
    let model = Arc::new(LoadedModel::open(&options.model)?);
    let context = match &options.scheduler {
        None => session::local(options.partitions),
        Some(scheduler) => session::remote(scheduler, options.partitions).await?,
    };
    session::register_functions(&context, &model, options.truncate);
    input.register(&context).await?;
    let query = plan(&context, &options.sql).await?;

    let start = Instant::now();
    let rows = compute(options, &query, std::pin::pin!(interrupted)).await?;
    report(options, &model, rows, start.elapsed())
}

async fn plan(context: &SessionContext, sql: &str) -> Result<DataFrame> {
    // Only this program writes files, and it writes them whole.
    let only_queries =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    let query = context.sql_with_options(sql, only_queries).await;
    query.context("--sql")
}

/// Runs the query until its result is written; repeats it if the cluster lost the result with an
/// executor before it was fetched.
async fn compute(
    options: &RunOptions,
    query: &DataFrame,
    mut interrupted: Pin<&mut impl Future<Output = &'static str>>,
) -> Result<usize> {
    let mut attempt = 1;
    loop {
        let plan = query.clone().create_physical_plan().await;
        let plan = plan.context("--sql")?;
        let written = tokio::select! {
            written = write(options, query, &plan) => written,
            signal = &mut interrupted => {
                cancel(options.scheduler.as_ref(), &plan).await;
                bail!("interrupted by {signal}, nothing is written");
            }
        };
        match written {
            Err(error) if attempt < ATTEMPTS && is_lost(&plan, &error) => {
                tracing::warn!("the result is lost, the query runs again: {error:#}");
                attempt += 1;
            }
            written => {
                return written.with_context(|| match &options.scheduler {
                    None => "the query".to_owned(),
                    Some(scheduler) => format!("the query on {scheduler}"),
                });
            }
        }
    }
}

async fn write(
    options: &RunOptions,
    query: &DataFrame,
    plan: &Arc<dyn ExecutionPlan>,
) -> Result<usize> {
    let mut batches = execute_stream(Arc::clone(plan), Arc::new(query.task_ctx()))?;
    let mut output = Output::create(&options.output, batches.schema())?;
    let mut ticks = tokio::time::interval(TICK);
    let start = Instant::now();
    let mut rows = 0;
    loop {
        tokio::select! {
            batch = batches.next() => match batch.transpose()? {
                Some(batch) => {
                    output.write(&batch)?;
                    rows += batch.num_rows();
                }
                None => break,
            },
            _ = ticks.tick() => progress(&format!("{rows} rows, {} s", start.elapsed().as_secs())),
        }
    }
    progress("");
    output.commit()?;
    Ok(rows)
}

fn on_cluster(plan: &Arc<dyn ExecutionPlan>) -> Option<&DistributedQueryExec<LogicalPlanNode>> {
    plan.downcast_ref()
}

/// Whether a cluster has computed the result, but it could not be fetched.
fn is_lost(plan: &Arc<dyn ExecutionPlan>, error: &Error) -> bool {
    // The metrics are set when the scheduler reports success, before anything is fetched.
    let metrics = on_cluster(plan).and_then(ExecutionPlan::metrics);
    let computed = metrics.is_some_and(|it| it.sum_by_name("job_execution_time_ms").is_some());
    // Errors of the output have other types.
    computed && error.is::<DataFusionError>()
}

/// Cancels the query on a scheduler. If that fails, the scheduler completes it in vain.
async fn cancel(scheduler: Option<&SchedulerUrl>, plan: &Arc<dyn ExecutionPlan>) {
    let job = on_cluster(plan).and_then(DistributedQueryExec::job_id);
    let (Some(SchedulerUrl { host, port }), Some(job)) = (scheduler, job) else {
        return;
    };
    let cancel = async {
        let endpoint = create_grpc_client_endpoint(format!("http://{host}:{port}"), None)?;
        let mut client = SchedulerGrpcClient::new(endpoint.connect().await?);
        let job_id = job.into();
        client.cancel_job(CancelJobParams { job_id }).await?;
        Ok::<_, Error>(())
    };
    let cancelled = tokio::time::timeout(CANCELLING, cancel).await;
    let late = || Error::msg(format!("no answer within {} s", CANCELLING.as_secs()));
    if let Err(error) = cancelled.unwrap_or_else(|_| Err(late())) {
        tracing::warn!("the scheduler goes on: {error:#}");
    }
}

/// Shows the progress on a terminal, in place of what was there.
fn progress(text: &str) {
    if stderr().is_terminal() {
        print::progress(format_args!("\r\x1b[K{text}"));
    }
}

fn report(options: &RunOptions, model: &LoadedModel, rows: usize, time: Duration) -> Result<()> {
    let (seconds, output) = (time.as_secs_f64(), options.output.display());
    let rate = rows as f64 / seconds;
    if options.json {
        print::data(json!({
            "rows": rows,
            "seconds": seconds,
            "rows_per_second": rate,
            "model": model.identity.to_string(),
            "output": output.to_string(),
        }))?;
    } else {
        let output = output.to_string();
        let output = print::on_one_line(&output);
        print::line(format_args!("{rows} rows in {seconds:.1} s, {rate:.0} rows/s: {output}"))?;
    }
    Ok(())
}
