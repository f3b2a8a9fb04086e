//! Sessions that plan queries: on this machine, or for a cluster.

use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use ballista::prelude::{SessionConfigExt, SessionContextExt};
use ballista_core::config::BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK;
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::function::{Declaration, TextFunction};
use crate::model::LoadedModel;
use crate::options::SchedulerUrl;

/// The number of rows computed at a time: some thousand tokens, and at most 4 MiB of embeddings of
/// a BERT, where a message between machines has 16.
const BATCH_ROWS: usize = 1024;
/// The number of parts of a query on a cluster: all executors have one until shortly before the
/// end, and little is lost with an executor.
const CLUSTER_PARTITIONS: usize = 64;

/// A session that runs queries on this machine.
pub fn local(partitions: Option<usize>) -> SessionContext {
    let cores = available_parallelism().map_or(1, usize::from);
    let config = SessionConfig::new()
        // The setting of a cluster, so that results have the same types.
        .set_bool("datafusion.execution.parquet.schema_force_view_types", false);
    SessionContext::new_with_config(settings(config, partitions.unwrap_or(cores)))
}

/// A session that runs queries on a cluster.
pub async fn remote(scheduler: &SchedulerUrl, partitions: Option<usize>) -> Result<SessionContext> {
    let config =
        SessionConfig::new_with_ballista().set_usize(BALLISTA_SCHEDULER_MAX_PARTITIONS_PER_TASK, 1);
    let state = SessionStateBuilder::new()
        .with_config(settings(config, partitions.unwrap_or(CLUSTER_PARTITIONS)))
        .with_default_features()
        .build();
    let context = SessionContext::remote_with_state(&scheduler.to_string(), state).await;
    context.with_context(|| format!("--scheduler {scheduler}"))
}

fn settings(config: SessionConfig, partitions: usize) -> SessionConfig {
    config
        .with_batch_size(BATCH_ROWS)
        .with_target_partitions(partitions)
        // A model takes far longer for a text than a disk: splitting small files pays off.
        .with_repartition_file_min_size(0)
}

/// Adds `embed` and `classify` of this model to the session.
pub fn register_functions(context: &SessionContext, model: &Arc<LoadedModel>, truncate: bool) {
    let planned = Declaration {
        model: model.identity.clone(),
        embedding_size: model.encoder.config.embedding_size,
        is_classifier: model.encoder.model.is_classifier(),
        truncate,
    };
    for function in TextFunction::all(Some(&planned), Some(model)) {
        context.register_udf(ScalarUDF::clone(&function));
    }
}
