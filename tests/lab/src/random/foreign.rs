//! An owner of another SDK: it claims under ETags, except for the first claim (like JavaScript's), keeps what it cannot
//! renew (like Python's), and writes checkpoints without conditions (as all do). It neither adopts nor preserves this
//! crate's keys.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::ErrorKind;
use eventhubs_checkpoint::blob::{BlobContainer, Condition, ETag, Metadata};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::FaultyContainer;

use crate::random::incarnation::{Done, UnderWay};
use crate::random::judge::Judge;

pub const NAME: &str = "peer";
pub const OWNERSHIP: &str = "ns.servicebus.windows.net/hub/group/ownership/0";
const CHECKPOINT: &str = "ns.servicebus.windows.net/hub/group/checkpoint/0";

/// It considers the leases of others expired sooner than this crate does.
const EXPIRY: Duration = Duration::from_secs(15);

/// The state that it assumes.
#[derive(Clone, Debug)]
pub struct Belief {
    pub etag: ETag,
    /// The event that it processed last; `None` until it has read the checkpoint.
    pub at: Option<i64>,
}

pub struct Foreign {
    pub id: usize,
    pub container: Arc<dyn BlobContainer>,
    pub faulty: FaultyContainer,
    pub belief: Option<Belief>,
    pub under_way: Option<UnderWay>,
}

pub struct Acting {
    pub judge: Judge,
    pub container: Arc<dyn BlobContainer>,
}

fn owned_by(owner: &str) -> Metadata {
    Metadata::from([("ownerid".to_owned(), owner.to_owned())])
}

impl Acting {
    pub async fn seek(self, steal: bool) -> Done {
        let listed = self.container.list(OWNERSHIP).await;
        let Ok(list) = listed else { return Done::Foreign(None) };
        let condition = match list.blobs.first() {
            None => Condition::Create,
            Some(blob) => {
                let free = blob.metadata.get("ownerid").is_none_or(|owner| owner.is_empty() || owner == NAME);
                if !(free || steal || blob.age() > EXPIRY) {
                    return Done::Foreign(None);
                }
                Condition::IfMatch(blob.etag.clone())
            }
        };
        let written = self.container.write(OWNERSHIP, &owned_by(NAME), &condition).await;
        if written.is_ok() {
            self.judge.lock().count("foreign claim");
        }
        Done::Foreign(written.ok().map(|written| Belief { etag: written.etag, at: None }))
    }

    pub async fn renew(self, belief: Belief) -> Done {
        match self.container.write(OWNERSHIP, &owned_by(NAME), &Condition::IfMatch(belief.etag.clone())).await {
            Ok(written) => Done::Foreign(Some(Belief { etag: written.etag, ..belief })),
            Err(error) if error.kind() == ErrorKind::Conflict => Done::Foreign(None),
            Err(_) => Done::Foreign(Some(belief)),
        }
    }

    pub async fn release(self, belief: Belief) -> Done {
        // The result is ignored.
        let _ = self.container.write(OWNERSHIP, &owned_by(""), &Condition::IfMatch(belief.etag)).await;
        Done::Foreign(None)
    }

    pub async fn start(self, belief: Belief) -> Done {
        let at = match self.container.get(CHECKPOINT).await {
            Ok(blob) => blob.metadata["sequencenumber"].parse().ok(),
            Err(error) if error.kind() == ErrorKind::NotFound => Some(-1),
            Err(_) => None,
        };
        Done::Foreign(Some(Belief { at, ..belief }))
    }

    pub async fn checkpoint(self, belief: Belief, at: i64) -> Done {
        let position = [("sequencenumber", at.to_string()), ("offset", at.to_string())];
        let metadata = position.map(|(key, value)| (key.to_owned(), value)).into();
        if self.container.overwrite(CHECKPOINT, &metadata).await.is_ok() {
            self.judge.lock().count("foreign checkpoint");
        }
        Done::Foreign(Some(belief))
    }
}
