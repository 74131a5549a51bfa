//! The program.

use std::process::Stdio;

use azure_messaging_eventhubs::ConsumerClient;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::hub_client::within;

#[tokio::test]
async fn several_event_hubs_share_address_and_settings() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_eventhubs-emulator"))
        .args(["--port", "0", "--name", "orders", "--partitions", "3", "--consumer-group", "tools"])
        .args(["--other-event-hub", "letters", "--other-event-hub", "audit"])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let line = within("the first line", lines.next_line()).await.unwrap().unwrap();
    let quoted: Vec<_> = line.split('\'').collect();
    let [_, endpoint, _, connection_string, _] = quoted[..] else { panic!("{line}") };
    for event_hub in ["orders", "letters", "audit"] {
        let consumer = ConsumerClient::builder()
            .with_custom_endpoint(endpoint.to_owned())
            .with_consumer_group("tools".to_owned())
            .open_with_connection_string(connection_string, Some(event_hub));
        let consumer = within("opening a consumer", consumer).await.unwrap();
        let properties = within("properties", consumer.get_eventhub_properties()).await.unwrap();
        assert_eq!((properties.name.as_str(), properties.partition_ids.len()), (event_hub, 3));
    }
}
