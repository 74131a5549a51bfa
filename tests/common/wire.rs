//! Records the requests of one owner and their responses, and changes them if a test requires it.

use std::fmt;
use std::sync::Mutex;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{Blob, BlobContainer, Condition, ETag, ListResult, Metadata, WriteResult};
use eventhubs_checkpoint::testing::faulty::BlobOperation;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::time::Instant;

use crate::intercepted::Intercept;

/// A request.
#[derive(Clone, Debug)]
pub struct Sent {
    pub operation: BlobOperation,
    pub name: String,
    pub condition: Option<Condition>,
    /// The written or read metadata.
    pub metadata: Metadata,
    /// The version that was created or read.
    pub etag: Option<ETag>,
    /// When it was sent. Counted, because clocks have too little resolution.
    pub began: usize,
    /// When its response arrived; `None` if it was given up.
    pub ended: Option<usize>,
    pub when: Instant,
}

impl Sent {
    /// Returns whether this one was sent only after the response to the other.
    pub fn is_after(&self, other: &Self) -> bool {
        other.ended.is_some_and(|ended| ended < self.began)
    }

    pub fn is_read_of(&self, part: &str) -> bool {
        self.operation == BlobOperation::Get && self.name.contains(part)
    }

    pub fn is_write_of(&self, part: &str) -> bool {
        self.operation == BlobOperation::Write && self.name.contains(part)
    }

    /// Returns the version under which it was written.
    pub fn under(&self) -> Option<&ETag> {
        match &self.condition {
            Some(Condition::IfMatch(etag)) => Some(etag),
            _ => None,
        }
    }
}

/// For example `match ownership/0`, `read checkpoint/0`, or `list verbatim ownership/` with verbatim names.
impl fmt::Display for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = match (self.operation, &self.condition) {
            (BlobOperation::List, _) => "list",
            (BlobOperation::Get, _) => "read",
            (_, Some(Condition::Create)) => "create",
            (_, Some(Condition::IfMatch(_))) => "match",
            _ => "overwrite",
        };
        let tree = if self.name.contains("$Default") { "verbatim " } else { "" };
        let (_, name) = self.name.split_once("efault/").unwrap_or(("", &self.name));
        write!(f, "{verb} {tree}{name}")
    }
}

/// Returns the requests as text.
pub fn shown(sent: &[Sent]) -> Vec<String> {
    sent.iter().map(ToString::to_string).collect()
}

/// An action after such a request, before its response is used.
struct Interruption {
    operation: BlobOperation,
    name_part: String,
    /// How many such requests are skipped before.
    skips: usize,
    what: BoxFuture<'static, ()>,
}

#[derive(Default)]
pub struct Wire {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    clock: usize,
    log: Vec<Sent>,
    interruptions: Vec<Interruption>,
    /// By parts of names, in seconds. The last match counts.
    ages: Vec<(String, i64)>,
    ahead: time::Duration,
}

impl Wire {
    /// Returns the requests since the last call.
    pub fn sent(&self) -> Vec<Sent> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    /// Does this after the next such request, before its response is used.
    pub fn after(&self, operation: BlobOperation, name_part: &str, what: impl Future<Output = ()> + Send + 'static) {
        self.after_nth(1, operation, name_part, what);
    }

    /// Does this after the `nth` such request from now on, counted from 1.
    pub fn after_nth(
        &self,
        nth: usize,
        operation: BlobOperation,
        name_part: &str,
        what: impl Future<Output = ()> + Send + 'static,
    ) {
        let (name_part, what) = (name_part.to_owned(), what.boxed());
        let interruption = Interruption { operation, name_part, skips: nth - 1, what };
        self.state.lock().unwrap().interruptions.push(interruption);
    }

    /// From now on reads and listings show such blobs with this age, as if the server's clock had that time.
    pub fn age(&self, name_part: &str, seconds: i64) {
        self.state.lock().unwrap().ages.push((name_part.to_owned(), seconds));
    }

    /// From now on listings have a server time that is later by this much.
    pub fn set_ahead(&self, ahead: time::Duration) {
        self.state.lock().unwrap().ahead = ahead;
    }

    /// Checks that no request was sent before the response to an earlier request for the same blob.
    pub fn assert_serial(sent: &[Sent]) {
        for (index, earlier) in sent.iter().enumerate() {
            for later in sent[index + 1..].iter().filter(|later| later.name == earlier.name) {
                assert!(later.is_after(earlier), "at once: {earlier} and {later}");
            }
        }
    }

    fn begin(&self, operation: BlobOperation, name: &str) -> usize {
        let mut state = self.state.lock().unwrap();
        state.clock += 1;
        let began = state.clock;
        state.log.push(Sent {
            operation,
            name: name.to_owned(),
            condition: None,
            metadata: Metadata::new(),
            etag: None,
            began,
            ended: None,
            when: Instant::now(),
        });
        began
    }

    /// Does nothing if the log was taken meanwhile.
    fn change(&self, began: usize, change: impl FnOnce(&mut Sent)) {
        if let Some(sent) = self.state.lock().unwrap().log.iter_mut().find(|sent| sent.began == began) {
            change(sent);
        }
    }

    async fn end(&self, began: usize, operation: BlobOperation, name: &str) {
        let interruption = {
            let mut state = self.state.lock().unwrap();
            state.clock += 1;
            let ended = state.clock;
            if let Some(sent) = state.log.iter_mut().find(|sent| sent.began == began) {
                sent.ended = Some(ended);
            }
            let fits = |it: &Interruption| it.operation == operation && name.contains(&it.name_part);
            let index = state.interruptions.iter().position(fits);
            index.and_then(|index| match &mut state.interruptions[index].skips {
                0 => Some(state.interruptions.remove(index)),
                skips => {
                    *skips -= 1;
                    None
                }
            })
        };
        if let Some(interruption) = interruption {
            interruption.what.await;
        }
    }

    fn aged(&self, mut blob: Blob) -> Blob {
        let state = self.state.lock().unwrap();
        let age = state.ages.iter().rfind(|(part, _)| blob.name.contains(part));
        if let Some((_, seconds)) = age {
            blob.response.server_time = blob.last_modified + time::Duration::seconds(*seconds);
        }
        blob
    }
}

#[async_trait]
impl Intercept for Wire {
    async fn list(&self, inner: &dyn BlobContainer, prefix: &str) -> Result<ListResult> {
        let began = self.begin(BlobOperation::List, prefix);
        let list = inner.list(prefix).await;
        self.end(began, BlobOperation::List, prefix).await;
        let mut list = list?;
        list.response.server_time += self.state.lock().unwrap().ahead;
        list.blobs = list.blobs.into_iter().map(|blob| self.aged(blob)).collect();
        Ok(list)
    }

    async fn get(&self, inner: &dyn BlobContainer, name: &str) -> Result<Blob> {
        let began = self.begin(BlobOperation::Get, name);
        let blob = inner.get(name).await;
        if let Ok(blob) = &blob {
            let (metadata, etag) = (blob.metadata.clone(), blob.etag.clone());
            self.change(began, |sent| (sent.metadata, sent.etag) = (metadata, Some(etag)));
        }
        self.end(began, BlobOperation::Get, name).await;
        blob.map(|blob| self.aged(blob))
    }

    async fn write(
        &self,
        inner: &dyn BlobContainer,
        name: &str,
        metadata: &Metadata,
        condition: &Condition,
    ) -> Result<WriteResult> {
        let began = self.begin(BlobOperation::Write, name);
        let (content, under) = (metadata.clone(), condition.clone());
        self.change(began, |sent| (sent.metadata, sent.condition) = (content, Some(under)));
        let written = inner.write(name, metadata, condition).await;
        let etag = written.as_ref().ok().map(|written| written.etag.clone());
        self.change(began, |sent| sent.etag = etag);
        self.end(began, BlobOperation::Write, name).await;
        written
    }
}
