//! The Event Hubs emulator, and its AMQP readers: the official client and processor, and `EventHubSource`.

#[path = "../common/captured.rs"]
mod captured;
#[path = "../common/entra.rs"]
mod entra;
#[path = "../common/hub_client/mod.rs"]
mod hub_client;

mod closes;
mod connections;
mod dead_letters;
mod event_processor;
mod key_credential;
mod operations;
mod owner_levels;
mod reading;
mod redrive;
mod relay;
mod source;
mod tokens;
mod undecodable;
