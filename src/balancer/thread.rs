//! The loop on a thread and a runtime of its own.

use std::thread;

use tokio::runtime;
use tokio::sync::oneshot;

use super::Balancer;
use crate::error::{Error, ErrorKind, Result};

const THREAD_NAME: &str = "partition-balancer";

impl Balancer {
    /// The same as [`run`](Self::run), on a thread and a runtime of its own, and through connections of its own: so
    /// that handlers that block their runtime cannot keep the loop from renewing what is held. When the future is
    /// dropped, or the runtime under it, the loop ends without releasing anything.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run); [`ErrorKind::Config`] if the system gives no thread or the backend no connections
    /// of their own.
    pub async fn run_on_dedicated_thread(mut self) -> Result<()> {
        self.ports.store = self.ports.store.with_new_connections()?;
        // Ends with this future: the loop ends soon after.
        let _permit = self.permit();
        let (report, ended) = oneshot::channel();
        // Dropped together with this future, which is what the thread waits for.
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
            // Nobody listens if the future was dropped.
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
    Error::config("cannot spawn the thread of the load-balancing loop; see `with_own_thread`").with_source(error)
}
