//! Tokens, and what ends with them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use azure_core::credentials::{AccessToken, TokenCredential, TokenRequestOptions};
use azure_messaging_eventhubs::{ConsumerClient, RetryOptions};
use eventhubs_emulator::EventHubEmulator;
use fe2o3_amqp::{Sender, Session};
use time::OffsetDateTime;

use super::amqp::{connect, put_token};
use super::hub;
use crate::hub_client::{
    assert_mentions, consumer, consumer_with, earliest, failure, next, numbered, open, producer, send, within,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the given token, as a credential of Microsoft Entra ID.
#[derive(Debug)]
struct Bearer(Mutex<(String, OffsetDateTime)>);

impl Bearer {
    fn new(hub: &EventHubEmulator, expires_at: OffsetDateTime) -> Arc<Self> {
        Arc::new(Self(Mutex::new((hub.entra_token(expires_at), expires_at))))
    }
}

#[async_trait::async_trait]
impl TokenCredential for Bearer {
    async fn get_token(&self, _: &[&str], _: Option<TokenRequestOptions<'_>>) -> azure_core::Result<AccessToken> {
        let (token, expires_at) = self.0.lock().unwrap().clone();
        Ok(AccessToken::new(token, expires_at))
    }
}

async fn consumer_of(hub: &EventHubEmulator, credential: Arc<dyn TokenCredential>) -> ConsumerClient {
    let opening = ConsumerClient::builder()
        .with_retry_options(RetryOptions { max_retries: 0, ..RetryOptions::default() })
        .with_custom_endpoint(hub.endpoint())
        .open("localhost", "hub".to_owned(), credential);
    within("opening a consumer", opening).await.unwrap()
}

#[tokio::test]
async fn only_links_of_an_expired_path_are_detached() {
    let hub = hub(2).await;
    let producer = producer(&hub).await;
    let consumer = consumer(&hub).await;
    let mut receivers = Vec::new();
    for id in ["0", "1"] {
        send(&producer, id, numbered(1)).await;
        receivers.push(open(&consumer, id, earliest()).await);
        assert_eq!(next(receivers.last().unwrap(), 1).await.len(), 1);
    }

    assert_eq!(hub.expire_authorizations("ConsumerGroups/$Default/Partitions/0"), 1);

    assert_mentions(&failure(&receivers[0]).await, &["UnauthorizedAccess", "'Listen' claim(s) are required"]);
    send(&producer, "1", numbered(1)).await;
    assert_eq!(next(&receivers[1], 1).await.len(), 1);
}

/// Each refused link has a session of its own: after a refusal, fe2o3-amqp 0.18 may confuse the links of a session.
#[tokio::test]
async fn attaches_are_rejected_until_the_next_token() {
    let hub = hub(1).await;
    let token = hub.entra_token(hub.now() + HOUR);
    let mut connection = connect(&hub).await;
    for _ in 0..2 {
        let mut refusing = Session::begin(&mut connection).await.unwrap();
        let refused = within("attaching", Sender::attach(&mut refusing, "link", "hub")).await.expect_err("no token");
        assert!(format!("{refused:?}").contains("'Send' claim(s) are required"), "{refused:?}");

        let mut session = Session::begin(&mut connection).await.unwrap();
        assert_eq!(put_token(&mut session, "amqps://localhost/hub", token.clone()).await, 202);
        let mut sender = within("attaching", Sender::attach(&mut session, "link", "hub")).await.unwrap();
        assert_eq!(hub.expire_authorizations("localhost/hub"), 1);
        let detached = within("the detach", sender.on_detach()).await;
        assert!(format!("{detached:?}").contains("UnauthorizedAccess"), "{detached:?}");
    }
}

#[tokio::test]
async fn a_token_for_an_unknown_hub_is_not_found() {
    let hub = hub(1).await;
    let token = hub.entra_token(hub.now() + HOUR);
    let mut connection = connect(&hub).await;
    let mut session = Session::begin(&mut connection).await.unwrap();
    assert_eq!(put_token(&mut session, "amqps://localhost/nohub", token.clone()).await, 404);
    assert_eq!(put_token(&mut session, "amqps://localhost/", token).await, 202, "the namespace");
    assert_eq!(put_token(&mut session, "amqps://localhost/hub", "forged".into()).await, 401);
}

#[tokio::test]
async fn a_bearer_token_is_accepted_until_its_expiry() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let started = hub.now();
    let consumer = consumer_of(&hub, Bearer::new(&hub, started + HOUR)).await;
    let receiver = open(&consumer, "0", earliest()).await;
    assert_eq!(next(&receiver, 1).await.len(), 1);
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();

    hub.advance_clock(HOUR);

    assert_mentions(&failure(&receiver).await, &["UnauthorizedAccess"]);
    let expired = consumer_of(&hub, Bearer::new(&hub, started + HOUR / 2)).await;
    assert_mentions(&failure(&open(&expired, "0", earliest()).await).await, &["ExpiredToken: The token is expired."]);
    let renewed = consumer_of(&hub, Bearer::new(&hub, started + 2 * HOUR)).await;
    assert_eq!(next(&open(&renewed, "0", earliest()).await, 1).await.len(), 1);
}

#[tokio::test]
async fn open_links_do_not_save_requests_with_an_old_key() {
    let hub = hub(1).await;
    let consumer = consumer(&hub).await;
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();

    hub.replace_key("RootManageSharedAccessKey", "another");

    let error = within("hub properties", consumer.get_eventhub_properties()).await.expect_err("the former key");
    assert_mentions(&error, &["401"]);
    let renewed = consumer_with(&hub, "$Default", &hub.connection_string()).await;
    within("hub properties", renewed.get_eventhub_properties()).await.unwrap();
}

#[tokio::test]
async fn the_check_of_requests_can_be_switched_off() {
    let builder = EventHubEmulator::builder("hub").with_management_token_check(false);
    let hub = builder.start("127.0.0.1:0").await.unwrap();
    let consumer = consumer(&hub).await;
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();
    hub.replace_key("RootManageSharedAccessKey", "another");
    within("hub properties", consumer.get_eventhub_properties()).await.unwrap();
}
