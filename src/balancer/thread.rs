//! The loop on a dedicated thread.

use std::thread;

use tokio::runtime;
use tokio::sync::oneshot;

use super::Balancer;
use crate::clock::is_paused;
use crate::error::{Error, ErrorKind, Result};
use crate::store::GroupStore;

const THREAD_NAME: &str = "partition-balancer";

impl Balancer {
    /// Like [`run`](Self::run), on a dedicated thread with its own runtime and its own connections, so that handlers
    /// that block their runtime cannot prevent the loop from renewing leases. If this future or its runtime is dropped,
    /// the loop ends without releasing anything.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run). [`ErrorKind::Config`] if the system cannot spawn a thread, or the backend cannot
    /// open new connections: use [`run`](Self::run).
    pub async fn run_on_dedicated_thread(self) -> Result<()> {
        let store = self.ports.store.with_new_connections()?;
        self.run_on_thread_with(store).await
    }

    /// Runs the loop on a dedicated thread, where handlers that block their runtime do not delay it. Runs it on this
    /// runtime if that is not possible: a paused clock applies to one runtime only, and a backend may have no connections
    /// for another one.
    pub(crate) async fn run_beside_handlers(self) -> Result<()> {
        if is_paused() {
            return self.run().await;
        }
        match self.ports.store.with_new_connections() {
            Ok(store) => self.run_on_thread_with(store).await,
            Err(error) => {
                self.ports.store.telemetry().loop_not_on_thread(&error);
                self.run().await
            }
        }
    }

    async fn run_on_thread_with(mut self, store: GroupStore) -> Result<()> {
        self.ports.store = store;
        // Ends with this future; the loop ends soon after.
        let _permit = self.permit();
        let (report, ended) = oneshot::channel();
        // Dropped with this future. The thread waits for that.
        let (_alive, abandoned) = oneshot::channel::<()>();
        let work = move || {
            let runtime = match runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(report.send(Err(no_thread(error)))),
            };
            let ended = runtime.block_on(async {
                tokio::select! {
                    ended = self.run() => Some(ended),
                    _ = abandoned => None,
                }
            });
            // The receiver is gone if the future was dropped.
            let _ = ended.map(|ended| report.send(ended));
            runtime.shutdown_background();
        };
        thread::Builder::new().name(THREAD_NAME.into()).spawn(work).map_err(no_thread)?;
        ended.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "internal error: the thread of the load-balancing loop panicked"))
        })
    }
}

fn no_thread(error: std::io::Error) -> Error {
    Error::config("cannot spawn the thread of the load-balancing loop").with_source(error)
}
