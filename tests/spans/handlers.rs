//! A handler that logs in every callback.

use std::sync::{Arc, Mutex};

use eventhubs_checkpoint::processor::{Handler, HandlerError, PartitionContext, StopReason};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use tokio::sync::watch;

use crate::scoped::Instance;

/// Fails once at the body "fail". Keeps the last context, for calls from outside of the handler.
#[derive(Clone, Debug)]
pub struct Application(Arc<State>);

#[derive(Debug)]
struct State {
    instance: Instance,
    handled: watch::Sender<Vec<String>>,
    context: Mutex<Option<PartitionContext>>,
}

impl Application {
    pub fn new(instance: Instance) -> Self {
        Self(Arc::new(State { instance, handled: watch::Sender::default(), context: Mutex::default() }))
    }

    pub async fn wait_for(&self, body: &str, times: usize) {
        let mut handled = self.0.handled.subscribe();
        let is_reached = |all: &Vec<String>| all.iter().filter(|known| *known == body).count() >= times;
        handled.wait_for(is_reached).await.unwrap();
    }

    pub fn context(&self) -> PartitionContext {
        self.0.context.lock().unwrap().clone().expect("an event was handled")
    }
}

impl Handler<MemoryEvent> for Application {
    async fn started(&self, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.instance.log(context.partition_id().as_str(), "started");
        Ok(())
    }

    async fn handle(&self, events: Vec<MemoryEvent>, context: PartitionContext) -> Result<(), HandlerError> {
        self.0.instance.log(context.partition_id().as_str(), "handle");
        *self.0.context.lock().unwrap() = Some(context.clone());
        for event in &events {
            let is_first = !self.0.handled.borrow().contains(&event.text().unwrap().to_owned());
            self.0.handled.send_modify(|handled| handled.push(event.text().unwrap().to_owned()));
            if is_first && &*event.body == b"fail" {
                return Err("failed on request".into());
            }
            context.checkpoint(event);
        }
        tokio::task::yield_now().await;
        self.0.instance.log(context.partition_id().as_str(), "handle, after a wait");
        Ok(())
    }

    async fn stopped(&self, context: PartitionContext, _: StopReason) {
        self.0.instance.log(context.partition_id().as_str(), "stopped");
    }
}
