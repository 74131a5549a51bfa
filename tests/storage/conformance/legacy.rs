//! The same contract through a client of the old SDK, against the same Azurite. With a SAS; separate tests cover what
//! an account key does not do.

use std::sync::Arc;

use azure_storage::{CloudLocation, StorageCredentials};
use azure_storage_blobs::prelude::{ClientBuilder, ContainerClient};
use eventhubs_checkpoint::blob::legacy::{LegacyContainer, client_options};
use eventhubs_checkpoint::blob::{BlobContainer, Condition, Metadata};
use eventhubs_checkpoint::testing::Overwrite;
use eventhubs_checkpoint::{ErrorKind, conformance_tests};
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{SOON, assert_survives_deletion, assert_usable, delete_container, endpoint, existing_container, timed_out};
use crate::sas::{FUTURE, account_sas, fresh_name};
use crate::support::azurite::{ACCOUNT, ACCOUNT_KEY};

conformance_tests!(Arc::new(missing_container().await));

/// Returns a container that does not exist yet, and whose listings come in small pages.
async fn missing_container() -> LegacyContainer {
    let (endpoint, name) = (endpoint().await, fresh_name());
    let connect = move || client(endpoint, by_sas(), &name);
    LegacyContainer::builder(connect()).with_client_factory(connect).with_page_size(5).build().unwrap()
}

fn client(endpoint: &str, credentials: StorageCredentials, name: &str) -> ContainerClient {
    let location = CloudLocation::Custom { account: ACCOUNT.to_owned(), uri: endpoint.to_owned() };
    ClientBuilder::with_location(location, credentials).client_options(client_options()).container_client(name)
}

fn by_key() -> StorageCredentials {
    StorageCredentials::access_key(ACCOUNT, ACCOUNT_KEY)
}

fn by_sas() -> StorageCredentials {
    StorageCredentials::sas_token(account_sas("rcwdl", FUTURE)).unwrap()
}

async fn existing(credentials: StorageCredentials) -> LegacyContainer {
    LegacyContainer::new(client(endpoint().await, credentials, &existing_container().await)).unwrap()
}

#[tokio::test]
async fn a_deleted_container_is_detected_and_recreated() {
    let name = existing_container().await;
    let container = LegacyContainer::new(client(endpoint().await, by_key(), &name)).unwrap();
    assert_survives_deletion(&container, delete_container(&name)).await;
}

#[tokio::test]
async fn wrong_credentials_are_unauthorized_and_dated() {
    let narrow = StorageCredentials::sas_token(account_sas("rl", FUTURE)).unwrap();
    for credentials in [StorageCredentials::access_key(ACCOUNT, "d3Jvbmc="), narrow] {
        let container = existing(credentials).await;
        let error = container.overwrite("a", &Metadata::new()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthorized, "{error:?}");
        assert!(error.server_time().is_some(), "{error:?}");
    }
}

#[tokio::test]
async fn an_account_key_opens_a_container() {
    assert_usable(&existing(by_key()).await).await;
}

/// The SDK sorts the keys to sign by bytes, the service by the rules of a language.
#[tokio::test]
async fn wrongly_signed_metadata_is_rejected_by_its_keys() {
    let metadata = ["a1", "a_1"].map(|key| (key.to_owned(), "1".to_owned())).into();
    let error = existing(by_key()).await.write("a", &metadata, &Condition::Create).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Rejected);
    assert!(error.to_string().contains(r#"["a1", "a_1"] in a different order"#), "{error}");
}

#[tokio::test]
async fn an_unreachable_service_is_unavailable_soon() {
    let container = LegacyContainer::new(client("http://127.0.0.1:1", by_sas(), "leases")).unwrap();
    let started = Instant::now();
    let errors = [container.overwrite("a", &Metadata::new()).await.unwrap_err(), container.list("").await.unwrap_err()];
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("cannot connect to 127.0.0.1:1"), "{error}");
        assert!(!format!("{error:?}").contains("sig="), "{error:?}");
    }
}

#[tokio::test]
async fn a_silent_service_is_indeterminate_at_the_timeout() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = client(&format!("http://{}", silent.local_addr().unwrap()), by_key(), "leases");
    let error = timed_out(&LegacyContainer::new(client).unwrap()).await;
    assert_eq!(error.kind(), ErrorKind::Indeterminate);
    assert!(error.to_string().contains("200ms"), "{error}");
}
