//! A blob container that injects faults on demand.
//!
//! [`FaultyContainer`] wraps any other container. Faults are injected individually ([`FaultyContainer::inject`]), or
//! drawn from a seed with given probabilities ([`FaultyContainer::set_plan`]). Without either, it behaves like the
//! wrapped container.
//!
//! [`Platform`] adds behavior of the real service that is not a fault and that emulators lack.
//!
//! # Guarantees
//!
//! - The same seed and the same calls in the same order produce the same faults. On a current-thread runtime with
//!   paused time a test is deterministic.
//! - All times come from tokio's clock.
//! - The kind of an error is true: after [`Unavailable`](crate::ErrorKind::Unavailable),
//!   [`Throttled`](crate::ErrorKind::Throttled), [`Conflict`](crate::ErrorKind::Conflict) and
//!   [`Unauthorized`](crate::ErrorKind::Unauthorized) nothing was applied.
//!
//! [`Fault::Hang`] lasts until the caller drops the request.

mod fault;
mod history;
mod plan;
pub mod platform;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use rand::SeedableRng;
use rand::rngs::StdRng;
use time::OffsetDateTime;
use tokio::time::{Instant, sleep};

pub use self::fault::{BlobOperation, Fault, FaultKind, Target};
pub use self::plan::FaultPlan;
pub use self::platform::{Latency, Platform};

use self::fault::Call;
use self::history::History;
use self::plan::Fate;
use crate::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use crate::error::{Error, ErrorKind, Result};
use crate::testing::Overwrite;
use crate::util::lock;

/// A name that no record has. It is read to get the server's time.
const CLOCK: &str = "clock";

/// A container that fails on demand. Clones, and containers that
/// [`with_new_connections`](BlobContainer::with_new_connections) returned, share the seed, the plan, the script and the
/// trace.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> eventhubs_checkpoint::Result<()> {
/// use std::sync::Arc;
/// use eventhubs_checkpoint::ErrorKind;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
/// use eventhubs_checkpoint::testing::faulty::{Fault, FaultKind, FaultyContainer};
///
/// let faulty = FaultyContainer::new(Arc::new(MemoryContainer::new()), 7);
/// faulty.inject(Fault::ResponseLost);
/// let error = faulty.write("a", &Metadata::new(), &Condition::Create).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Indeterminate);
/// assert!(faulty.get("a").await.is_ok());
/// assert_eq!(faulty.counts()[&FaultKind::ResponseLost], 1);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct FaultyContainer {
    inner: Arc<dyn BlobContainer>,
    shared: Arc<Shared>,
}

/// An injected fault.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Injected {
    /// The time of the request, relative to the creation of the [`FaultyContainer`].
    pub at: Duration,
    /// The operation of the request.
    pub operation: BlobOperation,
    /// The blob, or the prefix of a listing.
    pub name: String,
    /// The fault, with the drawn duration.
    pub fault: Fault,
}

struct Shared {
    seed: u64,
    started: Instant,
    state: Mutex<State>,
}

struct State {
    rng: StdRng,
    plan: FaultPlan,
    script: VecDeque<(Target, Fault)>,
    history: History,
    trace: Vec<Injected>,
}

impl FaultyContainer {
    /// Wraps `inner`. The seed decides which faults a [`FaultPlan`] draws. `Debug` shows the seed, and a panicking test
    /// prints it.
    #[must_use]
    pub fn new(inner: Arc<dyn BlobContainer>, seed: u64) -> Self {
        let state = State {
            rng: StdRng::seed_from_u64(seed),
            plan: FaultPlan::default(),
            script: VecDeque::new(),
            history: History::default(),
            trace: Vec::new(),
        };
        Self { inner, shared: Arc::new(Shared { seed, started: Instant::now(), state: Mutex::new(state) }) }
    }

    /// Injects this fault into the next request that it can affect. Several injected faults are queued, each for one
    /// request. They take precedence over the faults of the plan.
    pub fn inject(&self, fault: Fault) {
        self.inject_on(Target::any(), fault);
    }

    /// Injects this fault into the next request that matches the target and that it can affect.
    pub fn inject_on(&self, target: impl Into<Target>, fault: Fault) {
        self.shared.lock().script.push_back((target.into(), fault));
    }

    /// Returns the number of injected faults that have not happened yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.shared.lock().script.len()
    }

    /// Sets the probabilities for all later requests.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.shared.lock().plan = plan;
    }

    /// Returns all faults that happened, in the order of the requests.
    #[must_use]
    pub fn trace(&self) -> Vec<Injected> {
        self.shared.lock().trace.clone()
    }

    /// Returns how often each fault has happened.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<FaultKind, usize> {
        self.shared.lock().counts()
    }

    /// Sends a request up to the server. Returns the fault, if any, that the caller must apply at the server or to the
    /// response.
    async fn send(&self, call: Call<'_>) -> Result<Option<Fault>> {
        let fate = self.shared.draw_fate(call);
        for latency in fate.latencies {
            if let Fault::Latency(time) = latency {
                sleep(time).await;
            }
        }
        let failure = match fate.fault {
            Some(Fault::Hang) => std::future::pending().await,
            Some(Fault::Unreachable) => failure(ErrorKind::Unavailable, &call, "the server cannot be reached"),
            Some(Fault::RequestLost) => failure(ErrorKind::Indeterminate, &call, "the request was lost"),
            Some(Fault::Conflict) => {
                let error = failure(ErrorKind::Conflict, &call, "the service responded 412, although nothing changed");
                error.with_server_time(server_time(&*self.inner).await)
            }
            Some(Fault::Throttled { retry_after }) => {
                let error = failure(ErrorKind::Throttled { retry_after }, &call, "the service limits the request rate");
                error.with_server_time(server_time(&*self.inner).await)
            }
            Some(Fault::Unauthorized) => {
                let error = failure(ErrorKind::Unauthorized, &call, "the credentials do not permit the request");
                error.with_server_time(server_time(&*self.inner).await)
            }
            arriving => return Ok(arriving),
        };
        Err(failure)
    }
}

/// Returns the time of an error response.
async fn server_time(inner: &dyn BlobContainer) -> Option<OffsetDateTime> {
    match inner.get(CLOCK).await {
        Ok(blob) => Some(blob.response.server_time),
        Err(error) => error.server_time(),
    }
}

/// Applies a request after its sender has abandoned it.
fn apply_later(call: &Call<'_>, delay: Duration, apply: impl Future<Output = Result<()>> + Send + 'static) -> Error {
    let (operation, name) = (call.operation, call.name.to_owned());
    tokio::spawn(async move {
        sleep(delay).await;
        let refusal = apply.await.err();
        tracing::debug!(%operation, name, refusal = refusal.map(tracing::field::display), "late request arrived");
    });
    failure(ErrorKind::Indeterminate, call, "the request is late")
}

/// Replaces the outcome by an error if the fault is a lost response.
fn apply_response_fault<T>(call: &Call<'_>, fault: Option<&Fault>, outcome: Result<T>) -> Result<T> {
    match fault {
        Some(Fault::ResponseLost) => Err(failure(ErrorKind::Indeterminate, call, "the response was lost")),
        _ => outcome,
    }
}

fn failure(kind: ErrorKind, call: &Call<'_>, what: &str) -> Error {
    Error::new(kind, format!("{} {:?}: {what} (injected)", call.operation, call.name))
}

#[async_trait]
impl BlobContainer for FaultyContainer {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let call = Call::new(BlobOperation::List, prefix);
        let fault = self.send(call).await?;
        let current = self.inner.list(prefix).await?;
        let mut state = self.shared.lock();
        let past = match fault {
            Some(Fault::StaleListing(by)) => Some(state.history.stale(prefix, by, &current)),
            _ => None,
        };
        state.history.record(prefix, &current);
        match fault {
            Some(Fault::TruncatedListing) => Err(failure(ErrorKind::Indeterminate, &call, "the listing ends early")),
            _ => Ok(past.unwrap_or(current)),
        }
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.send(Call::new(BlobOperation::Get, name)).await?;
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let call = Call::new(BlobOperation::Write, name);
        let fault = self.send(call).await?;
        match &fault {
            Some(Fault::AppliedLate(delay)) => {
                let (inner, condition) = (self.inner.clone(), condition.clone());
                let (name, metadata) = (name.to_owned(), metadata.clone());
                let apply = async move { inner.write(&name, &metadata, &condition).await.map(drop) };
                return Err(apply_later(&call, *delay, apply));
            }
            Some(Fault::ConcurrentWrite(by)) => {
                self.inner.overwrite(name, by).await.map(drop)?;
            }
            _ => {}
        }
        apply_response_fault(&call, fault.as_ref(), self.inner.write(name, metadata, condition).await)
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        let call = Call::new(BlobOperation::Delete, name);
        let fault = self.send(call).await?;
        if let Some(Fault::AppliedLate(delay)) = fault {
            let (inner, name, etag) = (self.inner.clone(), name.to_owned(), etag.clone());
            let apply = async move { inner.delete(&name, &etag).await.map(drop) };
            return Err(apply_later(&call, delay, apply));
        }
        apply_response_fault(&call, fault.as_ref(), self.inner.delete(name, etag).await)
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        let call = Call::new(BlobOperation::CreateContainer, "");
        let fault = self.send(call).await?;
        apply_response_fault(&call, fault.as_ref(), self.inner.create_container().await)
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self { inner: self.inner.with_new_connections()?, shared: Arc::clone(&self.shared) }))
    }
}

impl fmt::Debug for FaultyContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("FaultyContainer")
            .field("seed", &self.shared.seed)
            .field("plan", &state.plan)
            .field("pending", &state.script)
            .field("counts", &state.counts())
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// The state is consistent after every statement, so a panic of another thread that held the lock does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Decides the fate of a request, and records it.
    fn draw_fate(&self, call: Call<'_>) -> Fate {
        let at = Instant::now().saturating_duration_since(self.started);
        let mut state = self.lock();
        let was_listed_before = call.operation == BlobOperation::List && state.history.contains(call.name);
        let fate = state.draw_fate(&Call { was_listed_before, ..call });
        for fault in fate.latencies.iter().chain(&fate.fault) {
            tracing::debug!(operation = %call.operation, name = call.name, ?fault, "fault injected");
            let (operation, name) = (call.operation, call.name.to_owned());
            state.trace.push(Injected { at, operation, name, fault: fault.clone() });
        }
        fate
    }
}

impl State {
    /// Draws from the plan even if an injected fault applies, so that later draws do not depend on the script.
    fn draw_fate(&mut self, call: &Call<'_>) -> Fate {
        let drawn = self.plan.draw(call, &mut self.rng);
        let injected = self.script.iter().position(|(target, fault)| target.matches(call) && fault.applies_to(call));
        match injected.and_then(|index| self.script.remove(index)) {
            Some((_, latency @ Fault::Latency(_))) => Fate { latencies: vec![latency], fault: None },
            Some((_, fault)) => Fate { latencies: Vec::new(), fault: Some(fault) },
            None => drawn,
        }
    }

    fn counts(&self) -> BTreeMap<FaultKind, usize> {
        let mut counts = BTreeMap::new();
        for injected in &self.trace {
            *counts.entry(injected.fault.kind()).or_default() += 1;
        }
        counts
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("faults of seed {}: {:?}", self.seed, self.lock().counts());
        }
    }
}
