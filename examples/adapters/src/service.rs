//! For programs built of `tower` services: each batch is a request, and layers limit the time, the rate and the number
//! of requests at once.
//!
//! The checkpoint follows when the service has responded. After an error the partition restarts from its checkpoint: at
//! least once, nothing is lost.

use std::sync::Arc;
use std::time::Duration;

use azure_messaging_eventhubs::models::ReceivedEventData;
use eventhubs_checkpoint::PartitionId;
use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext, Processor};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

use crate::worker::{Failure, Worker};

/// A request: the events of one partition, in order.
#[derive(Clone, Debug)]
pub struct Batch {
    pub partition: PartitionId,
    pub events: Arc<Vec<ReceivedEventData>>,
}

/// Calls a service with each batch. Clones of the service share its limits, so that all partitions together keep them.
pub struct BatchService<S>(pub S);

impl<S> Handler<ReceivedEventData> for BatchService<S>
where
    S: Service<Batch, Error = BoxError, Future: Send> + Clone + Send + Sync + 'static,
{
    async fn handle(&self, events: Vec<ReceivedEventData>, context: PartitionContext) -> Result<(), HandlerError> {
        let partition = context.partition_id().clone();
        let events = Arc::new(events);
        let batch = Batch { partition, events: Arc::clone(&events) };
        // Waits until the limits admit another request.
        let response = self.0.clone().oneshot(batch);
        match context.run_until_stopping(response).await {
            Some(response) => drop(response?),
            None => return Err("the partition stopped before the service had responded".into()),
        }
        events.iter().for_each(|event| context.checkpoint(event));
        Ok(())
    }
}

/// A service that writes the events, and that hangs or fails now and then.
pub async fn run(worker: &Worker) -> Result<(), Failure> {
    let (source, store) = worker.connect().await?;
    let inner = {
        let worker = worker.clone();
        service_fn(move |batch: Batch| {
            let worker = worker.clone();
            async move {
                let numbers: Vec<_> = batch.events.iter().filter_map(ReceivedEventData::sequence_number).collect();
                if worker.is_first_time(("hang", &batch.partition)) {
                    std::future::pending::<()>().await;
                }
                if worker.is_first_time(("failure", &batch.partition)) {
                    return Err("the database is down".into());
                }
                worker.write_results(&batch.partition, numbers)?;
                Ok::<_, BoxError>(())
            }
        })
    };
    // The buffer makes clones of the rate limit possible.
    let service = ServiceBuilder::new()
        .buffer(16)
        .concurrency_limit(2)
        .rate_limit(500, Duration::from_secs(1))
        .timeout(Duration::from_secs(1))
        .service(inner);
    Processor::builder(source, store, BatchService(service))
        .with_config(worker.config())
        .run(worker.asked_to_end())
        .await?;
    Ok(())
}
