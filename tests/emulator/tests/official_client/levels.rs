//! Owner levels (epochs) of receivers, with the default retries of the official client.

use azure_messaging_eventhubs::error::ErrorKind;
use azure_messaging_eventhubs::{ConsumerClient, EventHubsError, OpenReceiverOptions};
use eventhubs_emulator::EventHubEmulator;

use super::hub;
use crate::hub_client::{assert_mentions, earliest, failure, next, numbered, open, producer, send, until, within};

/// As great as the epoch of an ownership: milliseconds since 1970.
const EPOCH: i64 = 1_800_000_000_000;

/// Which receivers get events once the second one has attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Both,
    First,
    Second,
}

/// The client re-attaches a link that fails, unless it considers the failure final.
async fn retrying_consumer(hub: &EventHubEmulator) -> ConsumerClient {
    let connection_string = hub.connection_string();
    let opening = ConsumerClient::builder()
        .with_custom_endpoint(hub.endpoint())
        .open_with_connection_string(&connection_string, None);
    within("opening a consumer", opening).await.unwrap()
}

fn at(owner_level: Option<i64>) -> OpenReceiverOptions {
    OpenReceiverOptions { owner_level, ..earliest() }
}

fn assert_stolen(error: &EventHubsError, words: &[&str]) {
    assert!(matches!(error.kind, ErrorKind::ConsumerDisconnected(Some(_))), "{error:?}");
    assert_mentions(error, words);
}

async fn second_attaches(hub: &EventHubEmulator, levels: [Option<i64>; 2], reads: Reads) {
    let producer = producer(hub).await;
    send(&producer, "0", numbered(1)).await;
    let (first_client, second_client) = (retrying_consumer(hub).await, retrying_consumer(hub).await);
    let first = open(&first_client, "0", at(levels[0])).await;
    assert_eq!(next(&first, 1).await.len(), 1);
    let second = open(&second_client, "0", at(levels[1])).await;

    let [known, new] = levels.map(|level| level.map_or("nil".into(), |level| level.to_string()));
    match reads {
        Reads::Both => assert_eq!(next(&second, 1).await.len(), 1),
        Reads::First => {
            let refusal = match levels[1] {
                Some(_) => {
                    format!("with a higher epoch '{known}' already exists. Receiver 'nil' with epoch {new} cannot")
                }
                None => format!("is created with epoch of '{known}', and so non-epoch receiver is not allowed"),
            };
            assert_stolen(&failure(&second).await, &[&refusal]);
        }
        Reads::Second => {
            let (error, events) = tokio::join!(failure(&first), next(&second, 1));
            assert_eq!(events.len(), 1);
            assert_stolen(&error, &[&format!("higher epoch of '{new}' is created"), "is getting disconnected"]);
            assert_eq!(levels[0].is_some(), error.to_string().contains(&format!("with epoch '{known}'")), "{error}");
        }
    }

    let attached = match reads {
        Reads::Both => levels.to_vec(),
        Reads::First => vec![levels[0]],
        Reads::Second => vec![levels[1]],
    };
    assert_eq!(hub.owner_levels("$Default", "0"), Some(attached));
    send(&producer, "0", numbered(1)).await;
    for (receiver, is_first) in [(&first, true), (&second, false)] {
        if reads == Reads::Both || (reads == Reads::First) == is_first {
            assert_eq!(next(receiver, 1).await[0].sequence_number(), Some(1));
        }
    }
}

#[tokio::test]
async fn the_levels_decide_which_receivers_get_events() {
    for (first, second, reads) in [
        (None, None, Reads::Both),
        (None, Some(0), Reads::Second),
        (None, Some(EPOCH), Reads::Second),
        (Some(0), None, Reads::First),
        (Some(0), Some(0), Reads::Second),
        (Some(0), Some(1), Reads::Second),
        (Some(0), Some(EPOCH), Reads::Second),
        (Some(1), Some(0), Reads::First),
        (Some(EPOCH), None, Reads::First),
        (Some(EPOCH), Some(0), Reads::First),
        (Some(EPOCH), Some(EPOCH - 1), Reads::First),
        (Some(EPOCH), Some(EPOCH), Reads::Second),
        (Some(EPOCH), Some(EPOCH + 1), Reads::Second),
        (Some(i64::MAX - 1), Some(i64::MAX), Reads::Second),
        (Some(i64::MAX), Some(i64::MAX - 1), Reads::First),
    ] {
        println!("{second:?} after {first:?}: {reads:?}");
        second_attaches(&hub(1).await, [first, second], reads).await;
    }
}

#[tokio::test]
async fn the_client_re_attaches_a_link_at_its_level() {
    let hub = hub(1).await;
    let producer = producer(&hub).await;
    send(&producer, "0", numbered(1)).await;
    let client = retrying_consumer(&hub).await;
    let receiver = open(&client, "0", at(Some(EPOCH))).await;
    assert_eq!(next(&receiver, 1).await.len(), 1);

    let detach = |hub: &EventHubEmulator| assert_eq!(hub.detach_receivers("$Default", "0"), Some(1));
    let cut = |hub: &EventHubEmulator| assert!(hub.cut_connections() > 0);
    for disturb in [detach, cut] {
        disturb(&hub);
        // From its original start.
        assert_eq!(next(&receiver, 1).await[0].sequence_number(), Some(0));
        until("one receiver is attached", || hub.open_receivers("$Default", "0") == Some(1)).await;
        assert_eq!(hub.owner_levels("$Default", "0"), Some(vec![Some(EPOCH)]));
    }

    let lower_client = retrying_consumer(&hub).await;
    let lower = open(&lower_client, "0", at(Some(EPOCH - 1))).await;
    assert_stolen(&failure(&lower).await, &["already exists"]);
}

/// No level outlives its link.
#[tokio::test]
async fn a_lower_level_is_admitted_after_the_higher_one() {
    let hub = hub(1).await;
    send(&producer(&hub).await, "0", numbered(1)).await;
    let (first_client, second_client) = (retrying_consumer(&hub).await, retrying_consumer(&hub).await);
    let higher = open(&first_client, "0", at(Some(EPOCH))).await;
    assert_eq!(next(&higher, 1).await.len(), 1);
    let lower = open(&second_client, "0", at(Some(EPOCH - 1))).await;
    assert_stolen(&failure(&lower).await, &["already exists"]);
    let _ = within("closing the rejected receiver", lower.close()).await;

    within("closing the higher receiver", higher.close()).await.unwrap();
    until("the higher receiver is gone", || hub.open_receivers("$Default", "0") == Some(0)).await;

    let lower = open(&second_client, "0", at(Some(EPOCH - 1))).await;
    assert_eq!(next(&lower, 1).await.len(), 1);
}
