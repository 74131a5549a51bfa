//! A client that is nothing but AMQP.

use eventhubs_emulator::EventHubEmulator;
use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::session::SessionHandle;
use fe2o3_amqp::{Connection, Receiver, Sender};
use fe2o3_amqp_types::messaging::{AmqpValue, ApplicationProperties, Body, Message, Properties};
use fe2o3_amqp_types::primitives::{SimpleValue, Value};

use crate::hub_client::within;

pub async fn connect(hub: &EventHubEmulator) -> ConnectionHandle<()> {
    let endpoint = hub.endpoint();
    let builder = Connection::builder().container_id("client").sasl_profile(SaslProfile::Anonymous);
    let opening = builder.open(endpoint.as_str());
    within("opening a connection", opening).await.unwrap()
}

/// Puts the token for this path over links of its own. Returns the status of the response.
pub async fn put_token(session: &mut SessionHandle<()>, path: &str, token: String) -> i32 {
    let mut sender = within("attaching", Sender::attach(session, "requests", "$cbs")).await.unwrap();
    let mut receiver = within("attaching", Receiver::attach(session, "responses", "$cbs")).await.unwrap();
    let properties = ApplicationProperties::builder()
        .insert("operation", "put-token")
        .insert("type", "jwt")
        .insert("name", path)
        .build();
    let message = Message::builder()
        .properties(Properties::builder().message_id(1_u64).build())
        .application_properties(properties)
        .body(Body::<Value>::Value(AmqpValue(Value::String(token))))
        .build();
    within("sending", sender.send(message)).await.unwrap();
    let response = within("the response", receiver.recv::<Body<Value>>()).await.unwrap();
    receiver.accept(&response).await.unwrap();
    within("closing", sender.close()).await.unwrap();
    within("closing", receiver.close()).await.unwrap();
    match response.message().application_properties.as_ref().unwrap().get("status-code") {
        Some(SimpleValue::Int(status)) => *status,
        other => panic!("no status: {other:?}"),
    }
}
