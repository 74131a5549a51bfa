//! Blocks the runtime of an application: none of its tasks runs. The load-balancing loop has a thread of its own, so it
//! goes on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;

use super::freeze::Gate;

/// Runs the future, but does not poll it while the gate is closed.
pub(super) async fn only_while_open<T>(gate: Gate, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut waiting: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = None;
    poll_fn(|context| {
        if gate.is_closed() && waiting.is_none() {
            let gate = gate.clone();
            waiting = Some(Box::pin(async move { gate.pass().await }));
        }
        if let Some(opening) = &mut waiting {
            if opening.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            waiting = None;
        }
        future.as_mut().poll(context)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_blocked_future_goes_on_when_the_gate_opens() {
        let (gate, began) = (Gate::default(), Instant::now());
        gate.freeze(true);
        let working = tokio::spawn(only_while_open(gate.clone(), sleep(Duration::from_secs(1))));
        sleep(Duration::from_secs(60)).await;
        assert!(!working.is_finished());
        gate.freeze(false);
        working.await.unwrap();
        assert_eq!(began.elapsed(), Duration::from_secs(60));
    }
}
