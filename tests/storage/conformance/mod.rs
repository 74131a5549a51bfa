//! The contract of blob containers on every backend, and the ways to open an Azure container, against Azurite.

use std::sync::Arc;
use std::time::Duration;

use eventhubs_checkpoint::blob::azure::{Access, AzureContainer};
use eventhubs_checkpoint::blob::memory::MemoryContainer;
use eventhubs_checkpoint::blob::{BlobContainer, Condition, ContainerCreation, Metadata};
use eventhubs_checkpoint::internal::blob::limit_request;
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::testing::conformance::Container;
use eventhubs_checkpoint::testing::faulty::{FaultyContainer, Platform};
use eventhubs_checkpoint::{Error, ErrorKind, conformance_tests};
use tokio::net::TcpListener;
use tokio::time::Instant;

use crate::sas::{FUTURE, SAS_VERSION, account_sas, fresh_name, signed};
use crate::support::azurite::{self, ACCOUNT, ACCOUNT_KEY, Azurite};

/// Less than the retries that both clients make by default, even on a busy machine.
const SOON: Duration = Duration::from_secs(30);

mod memory {
    use super::*;

    conformance_tests!(Arc::new(MemoryContainer::missing()));
}

/// Without faults the decorator has no effect.
mod faulty {
    use super::*;

    conformance_tests!(Arc::new(FaultyContainer::new(Arc::new(MemoryContainer::missing()), 0)));
}

/// With all behavior of the service that emulators do not have.
mod platform {
    use super::*;

    conformance_tests!(Arc::new(Platform::new(Arc::new(MemoryContainer::missing()), 7)));
}

mod azure {
    use super::*;

    conformance_tests!(missing_container().await);
}

#[cfg(feature = "legacy-sdk")]
mod legacy;

/// A container in Azurite that does not exist yet, and whose listings come in small pages.
async fn missing_container() -> Container {
    let access = Access::connection_string(running_azurite().await.connection_string(), fresh_name());
    Arc::new(AzureContainer::builder(access).with_page_size(5).build().unwrap())
}

/// Creates an empty container in Azurite and returns its name.
async fn existing_container() -> String {
    let name = fresh_name();
    let connection_string = running_azurite().await.connection_string();
    AzureContainer::from_connection_string(connection_string, &name).unwrap().create_container().await.unwrap();
    name
}

async fn running_azurite() -> &'static Azurite {
    azurite::shared().await.unwrap()
}

async fn endpoint() -> &'static str {
    running_azurite().await.endpoint()
}

/// Uses a container for everything except its creation.
async fn assert_usable(container: &dyn BlobContainer) {
    let metadata = Metadata::from([("ownerid".to_owned(), "me".to_owned())]);
    let name = "ns/hub/$Default/ownership/0";
    let created = container.write(name, &metadata, &Condition::Create).await.unwrap();
    let updated = container.write(name, &metadata, &Condition::IfMatch(created.etag)).await.unwrap();
    assert_eq!(container.get(name).await.unwrap().etag, updated.etag);
    assert_eq!(container.list("ns/").await.unwrap().blobs[0].metadata, metadata);
    container.delete(name, &updated.etag).await.unwrap();
}

async fn refusal(container: &AzureContainer) -> Error {
    container.overwrite("a", &Metadata::new()).await.unwrap_err()
}

/// Returns the error of a write that its caller drops soon.
async fn timed_out(container: &dyn BlobContainer) -> Error {
    let metadata = Metadata::new();
    let write = container.write("a", &metadata, &Condition::Create);
    limit_request(Duration::from_millis(200), "write", write).await.unwrap_err()
}

#[tokio::test]
async fn each_blob_has_the_response_of_its_own_page() {
    let container = missing_container().await;
    container.create_container().await.unwrap();
    for index in 0..12 {
        container.write(&index.to_string(), &Metadata::new(), &Condition::Create).await.unwrap();
    }
    let mut arrivals: Vec<Instant> =
        container.list("").await.unwrap().blobs.iter().map(|blob| blob.response.received_at).collect();
    arrivals.sort();
    arrivals.dedup();
    assert_eq!(arrivals.len(), 3);
}

/// The contract lets a backend reject them; this one does not.
#[tokio::test]
async fn names_with_dots_and_slashes_arrive_in_azurite() {
    let container = missing_container().await;
    container.create_container().await.unwrap();
    for name in ["a/../b", "a/./b", "ends/", "ends/..", "../begins", "/begins", "...", "dot."] {
        container.write(name, &Metadata::new(), &Condition::Create).await.unwrap();
        assert_eq!(container.get(name).await.unwrap().name, name);
    }
    assert_eq!(container.list("").await.unwrap().blobs.len(), 8);
}

/// More than Azure returns per page. Too slow for an emulator, which shows the same with small pages.
#[tokio::test]
async fn a_memory_listing_may_have_more_than_5000_blobs() {
    let container = MemoryContainer::new();
    for index in 0..5003 {
        container.write(&format!("p/{index:04}"), &Metadata::new(), &Condition::Create).await.unwrap();
    }
    let blobs = container.list("p/").await.unwrap().blobs;
    assert_eq!(blobs.len(), 5003);
    assert!(blobs.is_sorted_by(|left, right| left.name < right.name));
}

/// Uses a container, has it deleted by another client, and creates it again.
async fn assert_survives_deletion(container: &dyn BlobContainer, delete: impl Future<Output = ()>) {
    let metadata = Metadata::from([("ownerid".to_owned(), "me".to_owned())]);
    let written = container.write("a", &metadata, &Condition::Create).await.unwrap();
    let condition = Condition::IfMatch(written.etag.clone());
    delete.await;
    let errors = [
        container.list("").await.unwrap_err(),
        container.get("a").await.unwrap_err(),
        container.write("a", &metadata, &condition).await.unwrap_err(),
        container.write("a", &metadata, &Condition::Create).await.unwrap_err(),
        container.delete("a", &written.etag).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::ContainerNotFound, "{error}");
        assert!(error.server_time().is_some(), "{error}");
    }
    assert_eq!(container.create_container().await.unwrap(), ContainerCreation::Created);
    assert!(container.list("").await.unwrap().blobs.is_empty());
    assert!(container.write("a", &metadata, &condition).await.is_err());
    container.write("a", &metadata, &Condition::Create).await.unwrap();
}

#[tokio::test]
async fn a_deleted_memory_container_is_recreated() {
    let container = MemoryContainer::new();
    assert_survives_deletion(&container, async { container.delete_container() }).await;
}

/// Deletes a container with another client.
async fn delete_container(name: &str) {
    let url = format!("{}/{name}?restype=container&{}", endpoint().await, account_sas("rcwdl", FUTURE));
    let response = reqwest::Client::new().delete(url).header("x-ms-version", SAS_VERSION).send().await.unwrap();
    assert_eq!(response.status(), 202);
}

/// Azurite deletes at once. Azure takes half a minute, in which the name cannot be used again.
#[tokio::test]
async fn a_deleted_azurite_container_is_recreated() {
    let name = existing_container().await;
    let text = running_azurite().await.connection_string();
    let container = AzureContainer::from_connection_string(text, &name).unwrap();
    assert_survives_deletion(&container, delete_container(&name)).await;
}

#[tokio::test]
async fn a_connection_string_opens_a_container() {
    let text = running_azurite().await.connection_string();
    let container = AzureContainer::from_connection_string(text, existing_container().await).unwrap();
    assert_usable(&container).await;
}

#[tokio::test]
async fn an_account_key_opens_a_container() {
    let name = existing_container().await;
    let container = AzureContainer::from_account_key(endpoint().await, ACCOUNT, ACCOUNT_KEY, name).unwrap();
    assert_usable(&container).await;
}

#[tokio::test]
async fn an_account_sas_opens_a_container_by_either_url() {
    let (name, sas, endpoint) = (existing_container().await, account_sas("rcwdl", FUTURE), endpoint().await);
    assert_usable(&AzureContainer::from_account_sas_url(format!("{endpoint}?{sas}"), &name).unwrap()).await;
    assert_usable(&AzureContainer::from_sas_url(format!("{endpoint}/{name}?{sas}")).unwrap()).await;
    let text = format!("SharedAccessSignature={sas};BlobEndpoint={endpoint}");
    assert_usable(&AzureContainer::from_connection_string(text, &name).unwrap()).await;
}

#[tokio::test]
async fn an_account_sas_can_create_the_container() {
    let url = format!("{}?{}", endpoint().await, account_sas("rcwdl", FUTURE));
    let container = AzureContainer::from_account_sas_url(url, fresh_name()).unwrap();
    container.create_container().await.unwrap();
    assert_usable(&container).await;
}

#[tokio::test]
async fn a_container_sas_opens_its_container() {
    let name = existing_container().await;
    let url = format!("{}/{name}?{}", endpoint().await, container_sas(&name, "rcwdl"));
    assert_usable(&AzureContainer::from_sas_url(url).unwrap()).await;
}

#[tokio::test]
async fn a_wrong_key_is_unauthorized_with_a_hint() {
    let name = existing_container().await;
    let container = AzureContainer::from_account_key(endpoint().await, ACCOUNT, "d3Jvbmc=", name).unwrap();
    let error = refusal(&container).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(error.to_string().contains("wrong key") && error.server_time().is_some(), "{error:?}");
    assert_eq!(container.get("a").await.unwrap_err().kind(), ErrorKind::Unauthorized);
    assert_eq!(container.list("a").await.unwrap_err().kind(), ErrorKind::Unauthorized);
}

#[tokio::test]
async fn a_narrow_sas_is_unauthorized_with_a_hint() {
    let name = existing_container().await;
    let url = format!("{}/{name}?{}", endpoint().await, account_sas("rl", FUTURE));
    let container = AzureContainer::from_sas_url(url).unwrap();
    assert!(container.list("").await.unwrap().blobs.is_empty());
    let error = refusal(&container).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized);
    assert!(error.to_string().contains("lacks permissions: it needs rcwdl"), "{error}");
}

#[tokio::test]
async fn an_expired_sas_is_unauthorized() {
    let name = existing_container().await;
    let url = format!("{}/{name}?{}", endpoint().await, account_sas("rcwdl", "2020-01-01T00:00:00Z"));
    let error = refusal(&AzureContainer::from_sas_url(url).unwrap()).await;
    assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error}");
}

#[tokio::test]
async fn an_unreachable_service_is_unavailable_soon() {
    let text = format!("AccountName={ACCOUNT};AccountKey={ACCOUNT_KEY};BlobEndpoint=http://127.0.0.1:1/{ACCOUNT}");
    let container = AzureContainer::from_connection_string(text, fresh_name()).unwrap();
    let started = Instant::now();
    let errors = [refusal(&container).await, container.list("").await.unwrap_err()];
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("cannot connect to 127.0.0.1:1"), "{error}");
    }
}

#[tokio::test]
async fn a_silent_service_is_indeterminate_at_the_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/{ACCOUNT}", silent.local_addr().unwrap());
    let access = Access::account_key(url, ACCOUNT, ACCOUNT_KEY, fresh_name());
    let container = AzureContainer::builder(access).build().unwrap();
    let error = timed_out(&container).await;
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(error.to_string().contains("200ms"), "{error}");
}

/// A shared access signature for one container.
///
/// Rules: <https://learn.microsoft.com/rest/api/storageservices/create-service-sas>.
fn container_sas(container: &str, permissions: &str) -> String {
    let resource = format!("/blob/{ACCOUNT}/{container}");
    let text = format!("{permissions}\n\n{FUTURE}\n{resource}\n\n\n\n{SAS_VERSION}\nc\n\n\n\n\n\n\n");
    signed(&text, &format!("sv={SAS_VERSION}&sr=c&sp={permissions}&se={FUTURE}"))
}
