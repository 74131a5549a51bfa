//! A blob container on which everything that can go wrong goes wrong on demand.
//!
//! [`FaultyContainer`] stands before any other container. Faults are either told one by one ([`FaultyContainer::inject`]), or drawn with
//! given probabilities from a seed ([`FaultyContainer::set_plan`]). Without either, it does what the container behind it does.
//!
//! [`Platform`] adds what the real service does when nothing goes wrong, and emulators do not.
//!
//! # Guarantees
//!
//! - The same seed and the same calls in the same order meet the same faults. On a current-thread runtime with paused
//!   time a whole test repeats itself.
//! - All times are those of tokio's clock.
//! - What an error says of the outcome is so: after [`Unavailable`](crate::ErrorKind::Unavailable),
//!   [`Throttled`](crate::ErrorKind::Throttled) and [`Conflict`](crate::ErrorKind::Conflict) nothing was applied.
//!
//! # Non-guarantees
//!
//! Unlike other containers it does not bound its requests in time: [`Fault::Hang`] waits for the caller's deadline.

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
pub use self::platform::Platform;

use self::fault::Call;
use self::history::History;
use self::plan::Fate;
use crate::blob::{Blob, BlobContainer, Condition, ContainerCreation, ListResult, Metadata, ResponseInfo, WriteResult};
use crate::error::{Error, ErrorKind, Result};
use crate::lock::lock;

/// A name that no record has, read in order to learn the server's time.
const CLOCK: &str = "clock";

/// A container that fails on demand. Clones, and [`isolated`](BlobContainer::with_new_connections) ones, share the seed, the plan,
/// the script and the trace.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> eventhubs_checkpoint::Result<()> {
/// use std::sync::Arc;
/// use eventhubs_checkpoint::ErrorKind;
/// use eventhubs_checkpoint::blob::memory::MemoryContainer;
/// use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
/// use eventhubs_checkpoint::testing::faulty::{Fault, FaultKind, Faulty};
///
/// let faulty = Faulty::new(Arc::new(MemoryContainer::new()), 7);
/// faulty.next(Fault::ResponseLost);
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

/// A fault that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Injected {
    /// When the request was made, counted from when the [`FaultyContainer`] was.
    pub at: Duration,
    /// What the request was to do.
    pub operation: BlobOperation,
    /// The blob, or the prefix of a listing.
    pub name: String,
    /// What happened to it, with the time that was drawn.
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
    /// Stands before `inner`. The seed decides what a [`FaultPlan`] brings; `Debug` shows it, and a test that panics
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

    /// Lets this befall the next request that it can befall. Told several times, faults wait in line, each for a
    /// request of its own. They come before those of the plan.
    pub fn inject(&self, fault: Fault) {
        self.inject_on(Target::any(), fault);
    }

    /// Lets this befall the next such request.
    pub fn inject_on(&self, target: impl Into<Target>, fault: Fault) {
        self.shared.lock().script.push_back((target.into(), fault));
    }

    /// How many faults that were told have not happened yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.shared.lock().script.len()
    }

    /// Changes the probabilities from the next request on.
    pub fn set_plan(&self, plan: FaultPlan) {
        self.shared.lock().plan = plan;
    }

    /// All faults so far, in the order of the requests.
    #[must_use]
    pub fn trace(&self) -> Vec<Injected> {
        self.shared.lock().trace.clone()
    }

    /// How often each fault has happened.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<FaultKind, usize> {
        self.shared.lock().counts()
    }

    /// Takes a request as far as to the server. What it gives has to be done there, or on the way back.
    async fn send(&self, call: Call<'_>) -> Result<Option<Fault>> {
        let fate = self.shared.fate_of(call);
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
                let error = failure(ErrorKind::Conflict, &call, "the service answered 412, although nothing changed");
                error.with_server_time(self.server_time().await)
            }
            Some(Fault::Throttled { retry_after }) => {
                let error = failure(ErrorKind::Throttled { retry_after }, &call, "the service asks for fewer requests");
                error.with_server_time(self.server_time().await)
            }
            arriving => return Ok(arriving),
        };
        Err(failure)
    }

    /// What a refusal carries as its time.
    async fn server_time(&self) -> Option<OffsetDateTime> {
        match self.inner.get(CLOCK).await {
            Ok(blob) => Some(blob.response.server_time),
            Err(error) => error.server_time(),
        }
    }
}

/// Lets a request arrive when its sender has given it up.
fn apply_later(call: &Call<'_>, delay: Duration, apply: impl Future<Output = Result<()>> + Send + 'static) -> Error {
    let (operation, name) = (call.operation, call.name.to_owned());
    tokio::spawn(async move {
        sleep(delay).await;
        let refusal = apply.await.err();
        tracing::debug!(%operation, name, refusal = refusal.map(tracing::field::display), "late request arrived");
    });
    failure(ErrorKind::Indeterminate, call, "the request is late")
}

/// Loses the answer, if that is what was to happen to it.
fn answered<T>(call: &Call<'_>, fault: Option<&Fault>, outcome: Result<T>) -> Result<T> {
    match fault {
        Some(Fault::ResponseLost) => Err(failure(ErrorKind::Indeterminate, call, "the answer was lost")),
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
        state.history.remember(prefix, &current);
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
        let call = Call::new(BlobOperation::Write, name).under(condition);
        let fault = self.send(call).await?;
        match &fault {
            Some(Fault::AppliedLate(delay)) => {
                let (inner, condition) = (self.inner.clone(), condition.clone());
                let (name, metadata) = (name.to_owned(), metadata.clone());
                let apply = async move { inner.write(&name, &metadata, &condition).await.map(drop) };
                return Err(apply_later(&call, *delay, apply));
            }
            Some(Fault::ConcurrentWrite(by)) => {
                self.inner.write(name, by, &Condition::Unconditional).await.map(drop)?
            }
            _ => {}
        }
        answered(&call, fault.as_ref(), self.inner.write(name, metadata, condition).await)
    }

    async fn delete(&self, name: &str, condition: &Condition) -> Result<ResponseInfo> {
        let call = Call::new(BlobOperation::Delete, name).under(condition);
        let fault = self.send(call).await?;
        if let Some(Fault::AppliedLate(delay)) = fault {
            let (inner, name, condition) = (self.inner.clone(), name.to_owned(), condition.clone());
            let apply = async move { inner.delete(&name, &condition).await.map(drop) };
            return Err(apply_later(&call, delay, apply));
        }
        answered(&call, fault.as_ref(), self.inner.delete(name, condition).await)
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        let call = Call::new(BlobOperation::CreateContainer, "");
        let fault = self.send(call).await?;
        answered(&call, fault.as_ref(), self.inner.create_container().await)
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(Self { inner: self.inner.with_new_connections()?, shared: Arc::clone(&self.shared) }))
    }
}

impl fmt::Debug for FaultyContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.lock();
        f.debug_struct("Faulty")
            .field("seed", &self.shared.seed)
            .field("plan", &state.plan)
            .field("waiting", &state.script)
            .field("counts", &state.counts())
            .field("inner", &self.inner)
            .finish_non_exhaustive()
    }
}

impl Shared {
    /// The state is whole after every statement, so a panic elsewhere while it was locked does no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Decides what happens to a request, and writes it down.
    fn fate_of(&self, call: Call<'_>) -> Fate {
        let at = Instant::now().saturating_duration_since(self.started);
        let mut state = self.lock();
        let was_listed_before = call.operation == BlobOperation::List && state.history.knows(call.name);
        let fate = state.fate_of(&Call { was_listed_before, ..call });
        for fault in fate.latencies.iter().chain(&fate.fault) {
            tracing::debug!(operation = %call.operation, name = call.name, ?fault, "fault injected");
            let (operation, name) = (call.operation, call.name.to_owned());
            state.trace.push(Injected { at, operation, name, fault: fault.clone() });
        }
        fate
    }
}

impl State {
    /// The plan is drawn from in any case, so that what it brings later does not depend on the script.
    fn fate_of(&mut self, call: &Call<'_>) -> Fate {
        let drawn = self.plan.draw(call, &mut self.rng);
        let told = self.script.iter().position(|(target, fault)| target.matches(call) && fault.can_befall(call));
        match told.and_then(|index| self.script.remove(index)) {
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
