//! Connects to the storage and to the event hub.

use std::env;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use azure_identity::{DeveloperToolsCredential, ManagedIdentityCredential, WorkloadIdentityCredential};
use eventhubs_checkpoint::admin::describe::{GroupDescription, GroupState};
use eventhubs_checkpoint::admin::{HubRanges, Operator, OperatorBuilder, Reader};
use eventhubs_checkpoint::azure_core::credentials::TokenCredential;
use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::eventhubs::EventHubRedriver;
use eventhubs_checkpoint::store::{BlobNameCase, GroupStore, NameCase, StoreConfig};
use eventhubs_checkpoint::{ConsumerGroup, EventHubSource, OwnerId};
use tokio::time::timeout;

use crate::args::{Auth, CaseArg, Global};
use crate::exit::{Failure, Result, with_causes};
use crate::output::print_note;
use crate::profile::Profiles;

const HUB_VARIABLE: &str = "EVENTHUBS_CONNECTION_STRING";
const SEND_VARIABLE: &str = "EHCP_SEND_CONNECTION_STRING";
const STORAGE_VARIABLE: &str = "AZURE_STORAGE_CONNECTION_STRING";
/// How long a request to the event hub may take: a healthy one needs less than a second, a login with a slow tool more.
const HUB_TIMEOUT: Duration = Duration::from_secs(20);
const HUB_CONTEXT: &str = "the event hub (--no-hub leaves it out)";
/// The container of the README and of the examples.
const DEFAULT_CONTAINER: &str = "checkpoints";
const DEFAULT_SUFFIX: &str = "servicebus.windows.net";

/// What to connect to.
pub struct GroupConnection {
    pub global: Global,
    pub group: ConsumerGroup,
    pub container_name: String,
    storage: StorageConnection,
    hub_secret: Option<String>,
    /// Whether it has said that there are records in the other casing.
    has_noted_other_case: AtomicBool,
}

impl GroupConnection {
    /// Completes the settings from the environment, the connection strings and the profile.
    pub fn resolve(global: &Global) -> Result<Self> {
        let storage = StorageConnection::resolve(global)?;
        let settings = &storage.global.settings;
        let hub_secret = resolve_hub_secret(global)?;
        let name = settings.consumer_group.as_deref().unwrap_or(ConsumerGroup::DEFAULT_NAME);
        // A wrong name is no reason to call the other two missing.
        ConsumerGroup::new("namespace", "event-hub", name)?;
        // The connection string of a namespace names no event hub.
        let with_any_hub = hub_secret
            .as_ref()
            .map(|secret| ConsumerGroup::from_connection_string(&format!("{secret};EntityPath=any"), name))
            .transpose()
            .map_err(|error| Failure::usage(error.to_string()))?;
        let named_hub = hub_secret.as_ref().and_then(|secret| ConsumerGroup::from_connection_string(secret, name).ok());
        let missing = |what, option| Failure::usage(format!("no {what} given: pass {option}, or set {HUB_VARIABLE}"));
        let namespace = settings
            .namespace
            .as_deref()
            .map(full_namespace)
            .or_else(|| with_any_hub.map(|named| named.namespace().to_owned()))
            .ok_or_else(|| missing("namespace", "--namespace"))?;
        let event_hub = settings
            .event_hub
            .clone()
            .or_else(|| named_hub.map(|named| named.event_hub().to_owned()))
            .ok_or_else(|| match hub_secret {
                Some(_) => Failure::usage(
                    "the connection string of Event Hubs names no event hub: pass --event-hub, or add ;EntityPath=NAME \
                     to it",
                ),
                None => missing("event hub", "--event-hub"),
            })?;
        let group = ConsumerGroup::new(namespace, event_hub, name)?;
        Ok(Self::new(storage, group, hub_secret))
    }

    fn new(storage: StorageConnection, group: ConsumerGroup, hub_secret: Option<String>) -> Self {
        Self {
            global: storage.global.clone(),
            group,
            container_name: storage.container_name.clone(),
            storage,
            hub_secret,
            has_noted_other_case: AtomicBool::new(false),
        }
    }

    /// Returns a connection to a group that was found in the container, whose names are written exactly as these.
    pub fn of_listed(global: &Global, group: ConsumerGroup) -> Result<Self> {
        let mut storage = StorageConnection::resolve(global)?;
        let is_lower =
            [group.namespace(), group.event_hub(), group.name()].iter().all(|name| *name == name.to_lowercase());
        storage.global.settings.blob_name_case = Some(if is_lower { CaseArg::Lower } else { CaseArg::Verbatim });
        Ok(Self::new(storage, group, resolve_hub_secret(global)?))
    }

    /// Connects an operator of the group.
    pub async fn connect_operator(&self) -> Result<Operator> {
        let operator = self.operator_builder()?.connect().await?;
        if let Some(other) = operator.other_case_with_records() {
            self.note_other_case(other);
        }
        Ok(operator)
    }

    /// Connects a reader of the group, which may have live owners in both casings of its blob names if the command line
    /// says which one to read.
    pub async fn connect_reader(&self) -> Result<Reader> {
        Ok(self.operator_builder()?.connect_reader().await?)
    }

    /// Connects an operator of another group, in another container of the account, or under names in the other
    /// blob-name casing.
    pub async fn connect_operator_of(
        &self,
        group: &ConsumerGroup,
        container: &str,
        case: NameCase,
    ) -> Result<Operator> {
        let builder = self.storage.operator_builder(group, container)?;
        Ok(builder.with_config(self.store_config_for(case)).connect().await?)
    }

    /// Connects a reader of the same group under names in this blob-name casing.
    #[cfg(feature = "tui")]
    pub async fn connect_reader_of(&self, case: NameCase) -> Result<Reader> {
        let builder = self.storage.operator_builder(&self.group, &self.container_name)?;
        Ok(builder.with_config(self.store_config_for(case)).connect_reader().await?)
    }

    fn store_config_for(&self, case: NameCase) -> StoreConfig {
        self.storage.store_config().with_blob_name_case(case.into())
    }

    /// Describes the group by its records and, unless the command line forbids it, by the event hub. Fails if there is
    /// no record of the group.
    pub async fn describe_group(&self) -> Result<GroupDescription> {
        let records = self.connect_reader().await?.read().await?;
        let ranges = match self.connect_hub().await? {
            Some(source) => Some(self.read_ranges(&source).await?),
            None => None,
        };
        self.require_records(records.describe(ranges.as_ref()))
    }

    /// Describes the group by its records alone. Fails if there is none.
    pub async fn describe_records(&self) -> Result<GroupDescription> {
        self.require_records(self.connect_reader().await?.read().await?.describe(None))
    }

    /// Fails if there is no record of the group.
    pub fn require_records(&self, described: GroupDescription) -> Result<GroupDescription> {
        if described.group.other_name_case {
            self.note_other_case(described.group.blob_name_case.other());
        }
        if described.group.state != GroupState::Absent {
            return Ok(described);
        }
        Err(Failure::failed(format!(
            "container {:?} has no records of {}: `ehcp list` shows the groups that it has",
            self.container_name, self.group
        )))
    }

    /// Says once that there are also records in the other casing, unless the command line names the casing to use.
    fn note_other_case(&self, other: NameCase) {
        if self.global.settings.blob_name_case.unwrap_or_default() == CaseArg::Auto
            && !self.has_noted_other_case.swap(true, Ordering::Relaxed)
        {
            print_note(format_args!(
                "note: the group also has records under {other} names: see --blob-name-case {other}"
            ));
        }
    }

    /// Opens another container of the account.
    pub fn open_container(&self, name: &str) -> Result<AzureContainer> {
        self.storage.open_container(name)
    }

    fn operator_builder(&self) -> Result<OperatorBuilder> {
        let builder = self.storage.operator_builder(&self.group, &self.container_name)?;
        Ok(builder.with_config(self.storage.store_config()))
    }

    /// Connects as an instance of the group does, which verifies the storage. It claims nothing.
    pub async fn connect_store(&self, owner: &str) -> Result<GroupStore> {
        let container = self.open_container(&self.container_name)?;
        let builder = GroupStore::builder(container, self.group.clone(), OwnerId::new(owner)?);
        Ok(builder.with_config(self.storage.store_config()).connect().await?)
    }

    /// Connects to the event hub, unless the command line forbids it.
    pub async fn connect_hub(&self) -> Result<Option<EventHubSource>> {
        if self.global.no_hub {
            return Ok(None);
        }
        let read_group = match &self.global.settings.read_group {
            Some(name) => ConsumerGroup::new(self.group.namespace(), self.group.event_hub(), name.as_str())?,
            None => self.group.clone(),
        };
        self.connect_source(&read_group).await.map(Some)
    }

    /// Connects to the event hub, to read it through this consumer group.
    pub async fn connect_source(&self, group: &ConsumerGroup) -> Result<EventHubSource> {
        let source = match &self.hub_secret {
            Some(secret) => EventHubSource::from_connection_string(group, secret.as_str()),
            None => EventHubSource::from_credential(group, self.storage.new_credential()?),
        };
        let limit = self.hub_timeout();
        match timeout(limit, source.connect()).await {
            Ok(Ok(source)) => Ok(source),
            Ok(Err(error)) => Err(Failure::from(error).context(HUB_CONTEXT)),
            Err(_) => Err(Failure::failed(format!("no connection within {limit:?}")).context(HUB_CONTEXT)),
        }
    }

    /// Returns how dead letters are sent back to other event hubs.
    pub fn send_connection(&self, option: Option<&str>) -> Result<SendConnection> {
        let secret = resolve_secret("--send-connection-string", option, SEND_VARIABLE)?;
        let Some(secret) = secret.as_ref().or(self.hub_secret.as_ref()).map(|secret| without_event_hub(secret)) else {
            let credential = self.storage.new_credential()?;
            let redriver = EventHubRedriver::from_credential(self.group.namespace(), credential);
            return Ok(SendConnection { redriver, is_same_namespace: true });
        };
        let named = ConsumerGroup::from_connection_string(&format!("{secret};EntityPath=any"), self.group.name())
            .map_err(|error| Failure::usage(format!("the connection string to send with: {error}")))?;
        Ok(SendConnection {
            redriver: EventHubRedriver::from_connection_string(secret),
            is_same_namespace: named.namespace().eq_ignore_ascii_case(self.group.namespace()),
        })
    }

    /// Reads the partitions of the event hub, and the events that they have.
    pub async fn read_ranges(&self, source: &EventHubSource) -> Result<HubRanges> {
        self.within_timeout(HubRanges::read(source)).await?.map_err(|error| Failure::from(error).context(HUB_CONTEXT))
    }

    /// Waits for a response of the event hub, up to the timeout.
    pub async fn within_timeout<T>(&self, request: impl Future<Output = T>) -> Result<T> {
        let limit = self.hub_timeout();
        timeout(limit, request)
            .await
            .map_err(|_| Failure::failed(format!("no response within {limit:?}")).context(HUB_CONTEXT))
    }

    fn hub_timeout(&self) -> Duration {
        self.global.timeout.unwrap_or(HUB_TIMEOUT)
    }

    /// Connects to the event hub, which the command needs.
    pub async fn require_hub(&self) -> Result<EventHubSource> {
        self.connect_hub().await?.ok_or_else(|| Failure::usage("this needs the event hub: remove --no-hub"))
    }
}

/// How dead letters are sent back.
pub struct SendConnection {
    pub redriver: EventHubRedriver,
    /// Whether they are sent to the namespace that they are read from.
    pub is_same_namespace: bool,
}

/// The storage account, and how to log in.
pub struct StorageConnection {
    global: Global,
    pub container_name: String,
    secret: Option<String>,
    account: Option<String>,
}

impl StorageConnection {
    pub fn resolve(global: &Global) -> Result<Self> {
        let settings = global.settings.clone().or(Profiles::read()?.select(global.profile.as_deref())?);
        let container_name = settings.container.clone().unwrap_or_else(|| DEFAULT_CONTAINER.to_owned());
        let connection_string = global.storage_connection_string.as_deref();
        let secret = resolve_secret("--storage-connection-string", connection_string, STORAGE_VARIABLE)?;
        let account = settings.account.clone();
        if let (Some(secret), Some(account)) = (&secret, &account)
            && global.given.iter().any(|option| option == "--account")
            && global.given.iter().all(|option| option != "--storage-connection-string")
            && !is_for_account(secret, account)
        {
            return Err(Failure::usage(format!(
                "{STORAGE_VARIABLE} is for another account than --account {account}: unset it, or leave --account out"
            )));
        }
        if secret.is_none() && account.is_none() {
            return Err(Failure::usage(format!("no storage account given: pass --account, or set {STORAGE_VARIABLE}")));
        }
        Ok(Self { global: Global { settings, ..global.clone() }, container_name, secret, account })
    }

    /// Opens a container of the account.
    pub fn open_container(&self, name: &str) -> Result<AzureContainer> {
        let access = match (&self.secret, &self.account) {
            (Some(secret), _) => Access::connection_string(secret.as_str(), name),
            (None, Some(account)) => Access::token(format!("{}/{name}", account_url(account)), self.new_credential()?),
            (None, None) => return Err(Failure::usage("no storage account given: pass --account")),
        };
        Ok(AzureContainer::builder(access).build()?)
    }

    fn operator_builder(&self, group: &ConsumerGroup, container: &str) -> Result<OperatorBuilder> {
        Ok(Operator::builder(self.open_container(container)?, group.clone()))
    }

    /// Returns the settings of the command line and of the profile.
    fn store_config(&self) -> StoreConfig {
        let mut config = StoreConfig::default();
        if let Some(foreign) = self.global.settings.foreign_lease_duration {
            config.foreign_lease_duration = foreign;
        }
        config.request_timeout = self.global.timeout;
        config.with_blob_name_case(self.global.settings.blob_name_case.unwrap_or_default().into())
    }

    /// Connects a reader of a group whose names are written exactly as these.
    pub async fn connect_exact_reader(&self, group: &ConsumerGroup) -> Result<Reader> {
        let builder = self.operator_builder(group, &self.container_name)?;
        let config = self.store_config().with_blob_name_case(BlobNameCase::Verbatim);
        Ok(builder.with_config(config).connect_reader().await?)
    }

    fn new_credential(&self) -> Result<Arc<dyn TokenCredential>> {
        let mut auth = self.global.settings.auth.unwrap_or_default();
        if auth == Auth::Auto && env::var_os("AZURE_FEDERATED_TOKEN_FILE").is_some() {
            auth = Auth::WorkloadIdentity;
        }
        let credential = match auth {
            Auth::WorkloadIdentity => {
                WorkloadIdentityCredential::new(None).map(|credential| credential as Arc<dyn TokenCredential>)
            }
            Auth::ManagedIdentity => {
                ManagedIdentityCredential::new(None).map(|credential| credential as Arc<dyn TokenCredential>)
            }
            Auth::Auto | Auth::DeveloperTools => {
                DeveloperToolsCredential::new(None).map(|credential| credential as Arc<dyn TokenCredential>)
            }
        };
        credential.map_err(|error| Failure::failed(format!("no credential of Entra ID: {}", with_causes(&error))))
    }
}

fn resolve_hub_secret(global: &Global) -> Result<Option<String>> {
    resolve_secret("--hub-connection-string", global.hub_connection_string.as_deref(), HUB_VARIABLE)
}

/// Reads a secret from a file that the command line names, or from the environment. A secret must not be on the command
/// line, where other users of the machine see it.
fn resolve_secret(option: &str, value: Option<&str>, variable: &str) -> Result<Option<String>> {
    if let Some(value) = value {
        let file = value.strip_prefix('@').ok_or_else(|| {
            Failure::usage(format!(
                "{option} must name a file, as @FILE: a secret on the command line is visible to all users"
            ))
        })?;
        return read_secret(file).map(Some);
    }
    match env::var(variable) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => value.strip_prefix('@').map_or_else(|| Ok(value.clone()), read_secret).map(Some),
        Err(_) => Ok(None),
    }
}

fn read_secret(file: &str) -> Result<String> {
    let text = fs::read_to_string(file).map_err(|error| Failure::usage(format!("cannot read {file}: {error}")))?;
    Ok(text.trim_start_matches('\u{feff}').trim().to_owned())
}

/// Removes the event hub from a connection string. Its key may be one of the namespace, which the service decides.
fn without_event_hub(secret: &str) -> String {
    let is_kept = |part: &&str| !part.trim_start().to_ascii_lowercase().starts_with("entitypath=");
    secret.split(';').filter(is_kept).collect::<Vec<_>>().join(";")
}

/// Returns whether a connection string is for this account, which is a name or a URL.
fn is_for_account(secret: &str, account: &str) -> bool {
    let name = match account.split_once("://").map(|(_, rest)| rest.trim_end_matches('/')) {
        Some(url) => url.rsplit_once('/').map_or_else(|| url.split('.').next().unwrap_or(url), |(_, path)| path),
        None => account,
    };
    secret.split(';').any(|part| {
        let part = part.trim_end_matches('/');
        part.contains(&format!("://{name}."))
            || part.ends_with(&format!("/{name}"))
            || part.split_once('=').is_some_and(|(key, value)| {
                key.trim().eq_ignore_ascii_case("AccountName") && value.trim().eq_ignore_ascii_case(name)
            })
    })
}

fn full_namespace(name: &str) -> String {
    if name.contains('.') || name == "localhost" { name.to_owned() } else { format!("{name}.{DEFAULT_SUFFIX}") }
}

fn account_url(account: &str) -> String {
    if account.contains("://") {
        return account.trim_end_matches('/').to_owned();
    }
    format!("https://{account}.blob.core.windows.net")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed() {
        assert_eq!(full_namespace("ns"), "ns.servicebus.windows.net");
        assert_eq!(full_namespace("ns.servicebus.chinacloudapi.cn"), "ns.servicebus.chinacloudapi.cn");
        assert_eq!(account_url("acc"), "https://acc.blob.core.windows.net");
        assert_eq!(account_url("http://127.0.0.1:10000/acc/"), "http://127.0.0.1:10000/acc");
    }

    #[test]
    fn the_event_hub_is_removed_and_nothing_else() {
        let secret = "Endpoint=sb://ns/;SharedAccessKey=a=;EntityPath=letters;UseDevelopmentEmulator=true";
        let expected = "Endpoint=sb://ns/;SharedAccessKey=a=;UseDevelopmentEmulator=true";
        assert_eq!(without_event_hub(secret), expected);
        assert_eq!(without_event_hub(expected), expected);
    }

    #[test]
    fn a_secret_on_the_command_line_is_refused() {
        let refused =
            resolve_secret("--hub-connection-string", Some("Endpoint=sb://x;SharedAccessKey=c2VjcmV0"), "UNSET");
        let shown = refused.unwrap_err().to_string();
        assert!(shown.contains("@FILE") && !shown.contains("c2VjcmV0"), "{shown}");
    }
}
