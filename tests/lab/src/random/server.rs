//! The container as each incarnation reaches it: its own line with its own faults, and one server for all lines, where
//! the judge sees what is accepted.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::FaultyContainer;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Mutex as AsyncMutex;
use tokio::task::yield_now;
use tokio::time::sleep;

use crate::random::foreign::OWNERSHIP;
use crate::random::incarnation::FreezeGate;
use crate::random::judge::{Intent, Judge};

tokio::task_local! {
    /// The purpose of a request, while its sender waits for the response.
    pub static INTENT: Intent;
}

/// The server: one request at a time, in the order of arrival.
#[derive(Clone)]
pub struct Server {
    container: MemoryContainer,
    turn: Arc<AsyncMutex<()>>,
    judge: Judge,
}

/// The writes that an incarnation has sent, with their purposes: when a write arrives late, its sender may be gone.
type Sent = Arc<Mutex<Vec<(String, Condition, Metadata, Intent)>>>;

/// An incarnation's end of the line.
#[derive(Debug)]
struct Line {
    faulty: FaultyContainer,
    sent: Sent,
}

/// The server's end of the line.
struct Arrival {
    server: Server,
    incarnation: usize,
    sent: Sent,
    freeze_gate: Arc<FreezeGate>,
    rng: Mutex<StdRng>,
}

impl Server {
    pub fn new(judge: Judge) -> Self {
        Self { container: MemoryContainer::new(), turn: Arc::default(), judge }
    }

    /// Returns a line for this incarnation, and its faults.
    pub fn line(
        &self,
        incarnation: usize,
        seed: u64,
        freeze_gate: Arc<FreezeGate>,
    ) -> (Arc<dyn BlobContainer>, FaultyContainer) {
        let sent = Sent::default();
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        let arrival = Arrival { server: self.clone(), incarnation, sent: sent.clone(), freeze_gate, rng };
        let faulty = FaultyContainer::new(Arc::new(arrival), seed);
        (Arc::new(Line { faulty: faulty.clone(), sent }), faulty)
    }

    /// Deletes the ownership, as an administrator may do.
    pub async fn delete_ownership(&self) {
        let _turn = self.turn.lock().await;
        if self.container.remove(OWNERSHIP).await.is_ok() {
            self.judge.lock().ownership_deleted();
        }
    }

    /// Serves a request to its end even if the sender does not wait for the response: a frozen sender delays no other.
    async fn serve<T: Send + 'static>(request: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
        tokio::spawn(request).await.unwrap()
    }

    async fn list(self, incarnation: usize, prefix: String) -> Result<ListResult> {
        let _turn = self.turn.lock().await;
        let listed = self.container.list(&prefix).await;
        self.judge.lock().note(incarnation, "lists");
        listed
    }

    async fn read(self, incarnation: usize, name: String) -> Result<Blob> {
        let _turn = self.turn.lock().await;
        let read = self.container.get(&name).await;
        let found = read.as_ref().map_or("nothing", |blob| blob.etag.as_str());
        self.judge.lock().note(incarnation, format_args!("reads {}: {found}", short(&name)));
        read
    }

    async fn write(self, write: Arrived) -> Result<WriteResult> {
        let _turn = self.turn.lock().await;
        let written = self.container.write(&write.name, &write.metadata, &write.condition).await;
        let mut judge = self.judge.lock();
        let late = if write.late { " (late)" } else { "" };
        let under = match &write.condition {
            Condition::IfMatch(etag) => format!("under {}", etag.as_str()),
            Condition::Create => "Create".to_owned(),
        };
        let outcome = written.as_ref().map_or("refused", |_| "accepted");
        judge.note(write.incarnation, format_args!("writes {} {under}: {outcome}{late}", short(&write.name)));
        match &written {
            Ok(written) if write.name.contains("/ownership/") => {
                judge.ownership_written(write.incarnation, &written.etag, &write.metadata);
            }
            Ok(written) => judge.checkpoint_written(write.incarnation, write.intent, &written.etag, &write.metadata),
            Err(_) => {}
        }
        if write.late {
            judge.count(if written.is_ok() { "late write accepted" } else { "late write rejected" });
        }
        written
    }
}

struct Arrived {
    incarnation: usize,
    name: String,
    metadata: Metadata,
    condition: Condition,
    intent: Option<Intent>,
    late: bool,
}

fn short(name: &str) -> &str {
    name.split('/').rev().nth(1).unwrap_or(name)
}

impl Arrival {
    /// The response takes time, too: what was read may be old when it arrives.
    async fn respond<T>(&self, outcome: Result<T>) -> Result<T> {
        let delay = {
            let mut rng = self.rng.lock().unwrap();
            rng.random_bool(0.4).then(|| Duration::from_millis(rng.random_range(0..1200)))
        };
        self.freeze_gate.answer_on_its_way();
        yield_now().await;
        sleep(delay.unwrap_or_default()).await;
        outcome
    }

    fn intent_of(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Option<Intent> {
        let sent = self.sent.lock().unwrap();
        let same = sent.iter().rev().find(|(n, c, m, _)| n == name && c == condition && m == metadata);
        same.map(|(_, _, _, intent)| *intent)
    }
}

impl std::fmt::Debug for Arrival {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrival").field("incarnation", &self.incarnation).finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for Arrival {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        let listed = Server::serve(self.server.clone().list(self.incarnation, prefix.to_owned())).await;
        self.respond(listed).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        let read = Server::serve(self.server.clone().read(self.incarnation, name.to_owned())).await;
        self.respond(read).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        let known = INTENT.try_with(|intent| *intent).ok();
        let arrived = Arrived {
            incarnation: self.incarnation,
            name: name.to_owned(),
            metadata: metadata.clone(),
            condition: condition.clone(),
            intent: known.or_else(|| self.intent_of(name, metadata, condition)),
            late: known.is_none(),
        };
        let written = Server::serve(self.server.clone().write(arrived)).await;
        self.respond(written).await
    }

    async fn delete(&self, _: &str, _: &ETag) -> Result<ResponseInfo> {
        unreachable!("nothing is deleted here")
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        unreachable!("the container exists")
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        unreachable!("there is one runtime")
    }
}

#[async_trait]
impl BlobContainer for Line {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.faulty.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        self.faulty.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        if let Ok(intent) = INTENT.try_with(|intent| *intent) {
            self.sent.lock().unwrap().push((name.to_owned(), condition.clone(), metadata.clone(), intent));
        }
        self.faulty.write(name, metadata, condition).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.faulty.delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.faulty.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        self.faulty.with_new_connections()
    }
}
