//! Groups that share partitions in different ways.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use eventhubs_checkpoint::Result;
use eventhubs_checkpoint::blob::{
    Blob, BlobContainer, Condition, ContainerCreation, ETag, ListResult, Metadata, ResponseInfo, WriteResult,
};
use eventhubs_checkpoint::cost::BilledRequests;
use eventhubs_checkpoint::store::BillingType;

use crate::billing::Bill;
use crate::sim::{CrateProcessor, Foreign, Host, InstanceFactory, InstanceFuture, InstanceKind, LeaseGrab, Role, Sdk};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    Balanced,
    Greedy,
    /// The profile for a fast failover.
    FastFailover,
    Sdk(Sdk),
    LeaseGrab,
}

impl Group {
    pub const ALL: [Self; 10] = [
        Self::Balanced,
        Self::Greedy,
        Self::FastFailover,
        Self::Sdk(Sdk::DotNet),
        Self::Sdk(Sdk::Java),
        Self::Sdk(Sdk::JavaScript),
        Self::Sdk(Sdk::Python),
        Self::Sdk(Sdk::Go),
        Self::Sdk(Sdk::Rust),
        Self::LeaseGrab,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Balanced => "**this crate**, `Balanced`",
            Self::Greedy => "**this crate**, `Greedy`",
            Self::FastFailover => "**this crate**, `fast_failover`",
            Self::Sdk(Sdk::DotNet) => "like .NET",
            Self::Sdk(Sdk::Java) => "like Java",
            Self::Sdk(Sdk::JavaScript) => "like JavaScript",
            Self::Sdk(Sdk::Python) => "like Python",
            Self::Sdk(Sdk::Go) => "like Go",
            Self::Sdk(Sdk::Rust) => "like Rust",
            Self::LeaseGrab => "lease grab",
        }
    }

    /// Returns the implementation for one run, because the members of some groups share state.
    fn kind(self) -> Arc<dyn InstanceKind> {
        match self {
            Self::Balanced | Self::Greedy | Self::FastFailover => Arc::new(CrateProcessor),
            Self::Sdk(sdk) => Arc::new(Foreign::like(sdk)),
            Self::LeaseGrab => Arc::new(LeaseGrab::default()),
        }
    }
}

/// All members of a group, with counted requests.
pub struct Members {
    kind: Arc<dyn InstanceKind>,
    bill: Bill,
}

impl Members {
    pub fn of(group: Group) -> Self {
        Self { kind: group.kind(), bill: Bill::default() }
    }

    /// Returns the requests without checkpoint writes, whose frequency is up to the application.
    pub fn requests(&self) -> BilledRequests {
        self.bill.requests()
    }
}

impl InstanceFactory for Members {
    fn kind_of(&self, _: Role) -> Arc<dyn InstanceKind> {
        Arc::new(Counted { kind: Arc::clone(&self.kind), bill: self.bill.clone() })
    }
}

struct Counted {
    kind: Arc<dyn InstanceKind>,
    bill: Bill,
}

impl InstanceKind for Counted {
    fn is_crate_processor(&self) -> bool {
        self.kind.is_crate_processor()
    }

    fn live(&self, mut host: Host) -> InstanceFuture {
        let foreign = !self.kind.is_crate_processor();
        host.container = Arc::new(Counting { inner: host.container, foreign, bill: self.bill.clone() });
        self.kind.live(host)
    }
}

#[derive(Clone)]
struct Counting {
    inner: Arc<dyn BlobContainer>,
    /// Whether the instance is one of another SDK, which writes a checkpoint whatever the blob holds. The simulation
    /// needs a read for that.
    foreign: bool,
    bill: Bill,
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl BlobContainer for Counting {
    async fn list(&self, prefix: &str) -> Result<ListResult> {
        self.bill.add(BillingType::List);
        self.inner.list(prefix).await
    }

    async fn get(&self, name: &str) -> Result<Blob> {
        if !(self.foreign && name.contains("/checkpoint/")) {
            self.bill.add(BillingType::Other);
        }
        self.inner.get(name).await
    }

    async fn write(&self, name: &str, metadata: &Metadata, condition: &Condition) -> Result<WriteResult> {
        if !name.contains("/checkpoint/") {
            self.bill.add(condition.into());
        }
        self.inner.write(name, metadata, condition).await
    }

    async fn delete(&self, name: &str, etag: &ETag) -> Result<ResponseInfo> {
        self.bill.add(BillingType::Free);
        self.inner.delete(name, etag).await
    }

    async fn create_container(&self) -> Result<ContainerCreation> {
        self.inner.create_container().await
    }

    fn with_new_connections(&self) -> Result<Arc<dyn BlobContainer>> {
        Ok(Arc::new(self.clone()))
    }
}
