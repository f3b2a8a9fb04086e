//! A bounded number of places.

use std::sync::Arc;

use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A bounded number of places. Its metric is the number taken.
#[derive(Clone, Debug)]
pub struct Places {
    free: Arc<Semaphore>,
    /// The number of places, free or taken.
    pub total: usize,
}

/// Places that are taken until this is dropped.
///
/// A permit moves with the work that takes the room, also to another thread, so that it outlives a
/// client that hangs up.
pub type Permit = OwnedSemaphorePermit;

impl Places {
    pub fn new(total: usize) -> Self {
        let total = total.min(Semaphore::MAX_PERMITS);
        let free = Arc::new(Semaphore::new(total));
        Self { free, total }
    }

    pub fn free(&self) -> usize {
        self.free.available_permits()
    }

    pub fn take(&self, count: usize) -> Option<Permit> {
        let count = u32::try_from(count).ok()?;
        Arc::clone(&self.free).try_acquire_many_owned(count).ok()
    }

    /// Takes a place as soon as one is free, in the order of the calls.
    pub async fn wait(&self) -> Option<Permit> {
        // The semaphore is never closed.
        Arc::clone(&self.free).acquire_owned().await.ok()
    }

    pub async fn all_free(&self) {
        let all = u32::try_from(self.total).unwrap_or(u32::MAX);
        let _ = self.free.acquire_many(all).await;
    }
}

impl EncodeMetric for Places {
    fn encode(&self, encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let taken = self.total.saturating_sub(self.free());
        ConstGauge::new(taken as i64).encode(encoder)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}
