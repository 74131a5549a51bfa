//! One container on one backend, the owners that work on it, and direct access to its blobs.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::admin::{Operator, OperatorBuilder};
use eventhubs_checkpoint::blob::azure::AzureContainer;
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{Blob, BlobContainer, ETag, Metadata, ResponseInfo};
use eventhubs_checkpoint::internal::listed;
use eventhubs_checkpoint::internal::relation::Relation;
use eventhubs_checkpoint::store::protocol::{
    AdoptOutcome, Adoption, CheckpointOutcome, Claim, ClaimOutcome, Lease, ReleaseOutcome,
};
use eventhubs_checkpoint::store::{BlobNameCase, GroupStore, GroupStoreBuilder, NameCase, StoreConfig};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, FaultyContainer, Target};
use eventhubs_checkpoint::{ConsumerGroup, ErrorKind, LeaseScope, OwnerId, Position, Result};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::intercepted::Intercepted;
use crate::sas::{FUTURE, SAS_VERSION, account_sas, fresh_name};
use crate::support::azurite;
use crate::wire::{Sent, Wire, shown};

/// The common prefix of all names.
pub const LOWER: &str = "ns.servicebus.windows.net/hub/$default/";

/// The same prefix with verbatim names.
pub const VERBATIM: &str = "ns.servicebus.windows.net/hub/$Default/";

pub const EXPIRY: i64 = 60;

const AZURITE_TIMEOUT: Duration = Duration::from_secs(29);

pub fn group() -> ConsumerGroup {
    ConsumerGroup::new("ns.servicebus.windows.net", "hub", "$Default").unwrap()
}

fn prefix(case: NameCase) -> &'static str {
    match case {
        NameCase::Lower => LOWER,
        NameCase::Verbatim => VERBATIM,
    }
}

pub fn ownership(partition: u32) -> String {
    format!("{LOWER}ownership/{partition}")
}

pub fn checkpoint(partition: u32) -> String {
    format!("{LOWER}checkpoint/{partition}")
}

pub fn at(sequence_number: i64) -> Position {
    Position::new(sequence_number, (sequence_number * 10).to_string())
}

pub fn metadata(pairs: &[(&str, &str)]) -> Metadata {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// A checkpoint as another SDK writes it.
pub fn position(sequence_number: i64) -> Metadata {
    metadata(&[("sequencenumber", &sequence_number.to_string()), ("offset", "x")])
}

/// An ownership of another instance of this crate.
pub fn owned_by(owner: &str) -> Metadata {
    metadata(&[
        ("ownerid", owner),
        ("ehcincarnation", "20260101T000000Z-00000001"),
        ("ehcepoch", "1"),
        ("ehcleaseduration", "60"),
    ])
}

/// Ownership records, or none, that do not name this incarnation of `a`; each with its owner.
pub fn not_owned_by_a() -> [(Option<Metadata>, &'static str); 5] {
    let later =
        metadata(&[("ownerid", "a"), ("ehcincarnation", "29990101T000000Z-00000000"), ("ehcleaseduration", "60")]);
    [
        (Some(owned_by("b")), "b"),
        (Some(metadata(&[("ownerid", "")])), "no owner"),
        (Some(metadata(&[("ownerid", "a")])), "a"),
        (Some(later), "a"),
        (None, "no owner"),
    ]
}

pub enum Backend {
    /// In paused time.
    Memory,
    /// With the name of the container.
    Azurite(String),
}

pub struct Bench {
    pub container: Arc<dyn BlobContainer>,
    pub backend: Backend,
    /// Of the names of the group's blobs.
    pub case: NameCase,
    /// How often a race is repeated.
    pub rounds: u32,
}

impl Bench {
    pub fn in_memory() -> Self {
        let container = Arc::new(MemoryContainer::new());
        Self { container, backend: Backend::Memory, case: NameCase::Lower, rounds: 10 }
    }

    pub async fn in_azurite() -> Self {
        Self::in_azurite_with(NameCase::Lower).await
    }

    /// Returns a group whose blobs have names in this casing.
    pub async fn in_azurite_with(case: NameCase) -> Self {
        let name = fresh_name();
        let connection_string = azurite::shared().await.unwrap().connection_string();
        let container = AzureContainer::from_connection_string(connection_string, &name).unwrap();
        container.create_container().await.unwrap();
        Self { container: Arc::new(container), backend: Backend::Azurite(name), case, rounds: 6 }
    }

    /// Returns the name of a partition's ownership.
    pub fn ownership(&self, partition: u32) -> String {
        format!("{}ownership/{partition}", prefix(self.case))
    }

    /// Returns the name of a partition's checkpoint.
    pub fn checkpoint(&self, partition: u32) -> String {
        format!("{}checkpoint/{partition}", prefix(self.case))
    }

    /// Returns whether time is paused. Otherwise how long something takes also depends on the machine.
    pub fn is_paused(&self) -> bool {
        matches!(self.backend, Backend::Memory)
    }

    pub async fn owner(&self, name: &str) -> Owner {
        let config = self.config();
        self.owner_with(
            name,
            match self.case {
                NameCase::Lower => config,
                NameCase::Verbatim => config.with_blob_name_case(BlobNameCase::Verbatim),
            },
        )
        .await
    }

    /// The default settings. Azurite gets nearly half a lease duration for each request, for machines on which
    /// compilers and other tests leave it little time.
    fn config(&self) -> StoreConfig {
        match self.backend {
            Backend::Memory => StoreConfig::default(),
            Backend::Azurite(_) => StoreConfig::default().with_request_timeout(AZURITE_TIMEOUT),
        }
    }

    pub async fn owner_with(&self, name: &str, config: StoreConfig) -> Owner {
        self.try_owner(name, |builder| builder.with_config(config), |_| {}).await.unwrap()
    }

    /// Returns another incarnation of the same owner, which began later.
    pub async fn later(&self, name: &str) -> Owner {
        let later = |wire: &Wire| wire.set_ahead(time::Duration::seconds(10));
        self.try_owner(name, |builder| builder, later).await.unwrap()
    }

    pub async fn try_owner(
        &self,
        name: &str,
        settings: impl FnOnce(GroupStoreBuilder) -> GroupStoreBuilder,
        prepare: impl FnOnce(&Wire),
    ) -> Result<Owner> {
        let owner = OwnerId::new(name)?;
        let connect = |link| settings(GroupStore::builder(link, group(), owner).with_config(self.config())).connect();
        self.connected(name, prepare, connect).await
    }

    /// Returns an operator. The name is part of no record: it seeds the faults.
    pub async fn operator(
        &self,
        name: &str,
        settings: impl FnOnce(OperatorBuilder) -> OperatorBuilder,
    ) -> Owner<Operator> {
        let connect = |link| settings(Operator::builder(link, group()).with_config(self.config())).connect();
        self.connected(name, |_| {}, connect).await.unwrap()
    }

    async fn connected<S, F: Future<Output = Result<S>>>(
        &self,
        name: &str,
        prepare: impl FnOnce(&Wire),
        connect: impl FnOnce(Arc<Intercepted<Wire>>) -> F,
    ) -> Result<Owner<S>> {
        let seed = name.bytes().map(u64::from).sum();
        let faulty = FaultyContainer::new(self.container.clone(), seed);
        let link = Arc::new(Intercepted { inner: Arc::new(faulty.clone()), interceptor: Wire::default() });
        prepare(&link.interceptor);
        let store = connect(link.clone()).await?;
        link.interceptor.sent();
        let (container, scope) = (self.container.clone(), LeaseScope::default());
        Ok(Owner { store, faulty, link, container, cooperative: false, scope })
    }

    /// Writes a blob directly.
    pub async fn put(&self, name: &str, metadata: &Metadata) -> ETag {
        self.container.overwrite(name, metadata).await.unwrap().etag
    }

    /// The same with keys whose case is kept on the way to the server, which no port of this crate does. In memory this
    /// is not possible: there they are lower-cased by the write, as Azure lower-cases them for comparisons.
    pub async fn put_as_given(&self, name: &str, pairs: &[(&str, &str)]) {
        let Backend::Azurite(container) = &self.backend else {
            self.put(name, &metadata(pairs)).await;
            return;
        };
        let endpoint = azurite::shared().await.unwrap().endpoint();
        let (host, account) = endpoint.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let (name, sas) = (name.replace('/', "%2F").replace('$', "%24"), account_sas("rcwdl", FUTURE));
        let keys: Vec<_> = pairs.iter().map(|(key, value)| format!("x-ms-meta-{key}: {value}\r\n")).collect();
        let keys = keys.concat();
        let request = format!(
            "PUT /{account}/{container}/{name}?{sas} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-length: 0\r\nx-ms-version: {SAS_VERSION}\r\nx-ms-blob-type: BlockBlob\r\n{keys}\r\n"
        );
        let mut server = TcpStream::connect(host).await.unwrap();
        server.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        server.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 201"), "{response}");
    }

    pub async fn delete(&self, name: &str) {
        self.container.remove(name).await.unwrap();
    }

    pub async fn blob(&self, name: &str) -> Option<Blob> {
        match self.container.get(name).await {
            Ok(blob) => Some(blob),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// Returns the metadata of a blob that must exist.
    pub async fn read(&self, name: &str) -> Metadata {
        self.blob(name).await.unwrap_or_else(|| panic!("{name} does not exist")).metadata
    }

    /// Returns the owner in a partition's blob. Empty if it was released.
    pub async fn owner_of(&self, partition: u32) -> String {
        self.read(&self.ownership(partition)).await["ownerid"].to_owned()
    }

    /// Returns the position of a checkpoint.
    pub async fn position_of(&self, partition: u32) -> i64 {
        self.read(&self.checkpoint(partition)).await["sequencenumber"].parse().unwrap()
    }
}

/// A store, or an operator, and everything between it and the container.
#[derive(Clone)]
pub struct Owner<S = GroupStore> {
    pub store: S,
    pub faulty: FaultyContainer,
    link: Arc<Intercepted<Wire>>,
    container: Arc<dyn BlobContainer>,
    /// What its claims write: whether it hands over on request, and what keeps its leases alive.
    pub cooperative: bool,
    pub scope: LeaseScope,
}

impl<S> Owner<S> {
    pub fn wire(&self) -> &Wire {
        &self.link.interceptor
    }

    /// Returns the requests since the last call.
    pub fn sent(&self) -> Vec<Sent> {
        self.wire().sent()
    }

    /// Returns the same as text.
    pub fn requests(&self) -> Vec<String> {
        shown(&self.sent())
    }

    /// Injects a fault into the next write to such a blob.
    pub fn next_write(&self, name_part: &str, fault: Fault) {
        self.faulty.inject_on(Target::from(BlobOperation::Write).named(name_part), fault);
    }

    /// Lets the next read of such a blob fail.
    pub fn next_read_fails(&self, name_part: &str) {
        self.faulty.inject_on(Target::from(BlobOperation::Get).named(name_part), Fault::RequestLost);
    }

    /// From now on no such request reaches the storage.
    pub fn cut_off(&self, target: Target) {
        self.faulty.set_plan(FaultPlan::default().with_on(1.0, target, Fault::Unreachable));
    }

    /// From now on there are no faults.
    pub fn restored(&self) {
        self.faulty.set_plan(FaultPlan::default());
    }

    /// From now on some requests take slightly longer, so that races differ.
    pub fn add_jitter(&self) {
        self.faulty.set_plan(FaultPlan::default().with(0.7, Fault::Latency(Duration::from_millis(3))));
    }
}

impl Owner {
    /// Returns whether a lease counts from one of these moments. Its age is of a moment between two that are read
    /// around it.
    pub fn counts_from(&self, lease: &Lease, moments: RangeInclusive<Instant>) -> bool {
        let (before, age) = (Instant::now(), self.store.lease_age(lease));
        before - age <= *moments.end() && Instant::now() - age >= *moments.start()
    }

    pub async fn claim(&self, partition: u32) -> ClaimOutcome {
        self.make(Claim::unowned(partition.into())).await
    }

    pub async fn make(&self, claim: Claim) -> ClaimOutcome {
        self.store.claim(&claim.with_cooperative(self.cooperative).with_lease_scope(self.scope)).await
    }

    fn ownership(&self, partition: u32) -> String {
        format!("{}ownership/{partition}", prefix(self.store.name_case()))
    }

    /// Returns a claim over the record in this version.
    pub async fn over(&self, partition: u32, etag: &ETag) -> Claim {
        let name = self.ownership(partition);
        let found = self.container.get(&name).await.unwrap_or_else(|_| {
            let (now, response) =
                (self.store.server_time(), ResponseInfo::new(self.store.server_time(), Instant::now()));
            Blob::new(name, metadata(&[("ownerid", ""), ("ehcepoch", "0")]), etag.clone(), now, response)
        });
        let mut seen = listed::ownership(partition.into(), &found, self.store.lease_clock_now());
        seen.etag = etag.clone();
        Claim::over(&seen)
    }

    pub async fn claim_over(&self, partition: u32, etag: &ETag) -> ClaimOutcome {
        self.make(self.over(partition, etag).await).await
    }

    pub async fn win(&self, partition: u32) -> Lease {
        self.claim(partition).await.lease()
    }

    /// Claims a partition over its current record.
    pub async fn take(&self, partition: u32) -> Lease {
        let found = self.container.get(&self.ownership(partition)).await.unwrap();
        self.claim_over(partition, &found.etag).await.lease()
    }

    /// Returns how the record of a partition, which must exist, relates to this owner.
    pub async fn relation(&self, partition: u32) -> Relation {
        let seen = self.store.read_ownership(&partition.into()).await.unwrap().unwrap();
        eventhubs_checkpoint::internal::relation::of_record(&seen.record, self.store.identity())
    }

    pub async fn renew(&self, lease: &Lease) -> ClaimOutcome {
        self.store.renew_all(vec![lease.clone()]).await.remove(0).1
    }

    pub async fn release(&self, lease: &Lease) -> ReleaseOutcome {
        self.store.release_all(vec![lease.clone()]).await.remove(0).1
    }

    pub async fn adopt(&self, partition: u32, start: Option<i64>) -> AdoptOutcome {
        self.try_adopt(partition, start).await.unwrap()
    }

    /// Adopts in the ownership of the current record.
    pub async fn try_adopt(&self, partition: u32, start: Option<i64>) -> Result<AdoptOutcome> {
        let found = self.container.get(&self.ownership(partition)).await.ok();
        let listed = |found: Blob| listed::ownership(partition.into(), &found, self.store.lease_clock_now());
        let epoch = found.and_then(|found| listed(found).record.epoch);
        self.store.adopt(&partition.into(), epoch.unwrap_or_default(), start.map(at).as_ref()).await
    }

    /// Adopts a partition that starts at the first event, and discards the earlier requests.
    pub async fn adopted(&self, partition: u32) -> Adoption {
        let adoption = self.adopt(partition, Some(-1)).await.adoption();
        self.sent();
        adoption
    }

    /// Claims and adopts a partition that never had an owner, and discards the earlier requests.
    pub async fn run(&self, partition: u32) -> (Lease, Adoption) {
        (self.win(partition).await, self.adopted(partition).await)
    }

    pub async fn checkpoint(&self, adoption: &mut Adoption, sequence_number: i64) -> CheckpointOutcome {
        self.store.checkpoint(adoption, &at(sequence_number)).await.unwrap()
    }

    /// Takes a partition over and checkpoints there.
    pub async fn take_over(&self, partition: u32, sequence_number: i64) {
        self.take(partition).await;
        let mut adoption = self.adopted(partition).await;
        assert_eq!(self.checkpoint(&mut adoption, sequence_number).await.describe(), "written");
    }
}

/// Describes an outcome in a few words.
pub trait Describe {
    fn describe(&self) -> String;
}

fn name(owner: Option<&OwnerId>) -> &str {
    owner.map_or("no owner", OwnerId::as_str)
}

impl Describe for ClaimOutcome {
    fn describe(&self) -> String {
        match self {
            Self::Won(_) => "won".to_owned(),
            Self::Lost { by } => format!("lost to {}", name(by.as_ref())),
            Self::Replaced { by } => format!("replaced by {by}"),
            Self::Indeterminate(error) => format!("indeterminate: {:?}", error.kind()),
            other => panic!("{other:?}"),
        }
    }
}

impl Describe for ReleaseOutcome {
    fn describe(&self) -> String {
        match self {
            Self::Released => "released".to_owned(),
            Self::Lost { by } => format!("lost to {}", name(by.as_ref())),
            Self::Indeterminate(error) => format!("indeterminate: {:?}", error.kind()),
            other => panic!("{other:?}"),
        }
    }
}

impl Describe for AdoptOutcome {
    fn describe(&self) -> String {
        match self {
            Self::Adopted(_) => "adopted".to_owned(),
            Self::Lost { by } => format!("lost to {}", name(by.as_ref())),
            other => panic!("{other:?}"),
        }
    }
}

impl Describe for CheckpointOutcome {
    fn describe(&self) -> String {
        match self {
            Self::Written => "written".to_owned(),
            Self::Superseded => "superseded".to_owned(),
            Self::Fenced { by } => format!("fenced by {}", name(by.as_ref())),
            other => panic!("{other:?}"),
        }
    }
}

pub trait Win {
    fn lease(self) -> Lease;
}

impl Win for ClaimOutcome {
    fn lease(self) -> Lease {
        match self {
            Self::Won(lease) => lease,
            other => panic!("not won: {other:?}"),
        }
    }
}

pub trait Adopted {
    fn adoption(self) -> Adoption;
}

impl Adopted for AdoptOutcome {
    fn adoption(self) -> Adoption {
        match self {
            Self::Adopted(adoption) => adoption,
            other => panic!("not adopted: {other:?}"),
        }
    }
}
