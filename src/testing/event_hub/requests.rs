//! Requests and their answers: a link on which the client asks, and one on which it is answered.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fe2o3_amqp::{Receiver, Sendable, Sender};
use fe2o3_amqp_types::messaging::{AmqpValue, ApplicationProperties, Body, Message, Properties};
use fe2o3_amqp_types::primitives::Value;
use tokio::sync::mpsc;

use super::attach::Service;
use super::connection::Connection;
use super::management;
use super::message::{Answer, AnyMessage, application_property};
use crate::clock::{SystemWallClock, WallClock};
use crate::lock::lock;

/// How many answers may wait for the client's credit.
const WAITING_ANSWERS: usize = 64;

/// The links of a session on which answers leave, by service and address.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyLinks(Arc<Mutex<HashMap<(Service, String), Answers>>>);

type Answers = mpsc::Sender<AnyMessage>;

impl ReplyLinks {
    /// Makes a link known. The answers for it come out of the receiver.
    pub(super) fn open(&self, service: Service, reply_to: String) -> mpsc::Receiver<AnyMessage> {
        let (sender, receiver) = mpsc::channel(WAITING_ANSWERS);
        lock(&self.0).insert((service, reply_to), sender);
        receiver
    }

    /// The link with this address, or the only one of the service: some clients name it in one place alone.
    fn find(&self, service: Service, reply_to: &str) -> Option<Answers> {
        let links = lock(&self.0);
        if let Some(link) = links.get(&(service, reply_to.to_owned())) {
            return Some(link.clone());
        }
        let mut of_service = links.iter().filter(|((of, _), link)| *of == service && !link.is_closed());
        match (of_service.next(), of_service.next()) {
            (Some((_, only)), None) => Some(only.clone()),
            _ => None,
        }
    }
}

/// Answers the requests that come on this link until it ends.
pub(super) async fn answer(connection: Arc<Connection>, mut link: Receiver, service: Service, replies: ReplyLinks) {
    while let Ok(delivery) = link.recv::<Body<Value>>().await {
        if link.accept(&delivery).await.is_err() {
            break;
        }
        let request = delivery.into_message();
        let answer = match service {
            Service::Cbs => put_token(&connection, &request),
            Service::Management => management::read(&connection.namespace, &request),
        };
        tracing::debug!(?service, code = answer.code, description = answer.description, "event hub stand-in answers");
        let reply_to = request.properties.as_ref().and_then(|properties| properties.reply_to.as_deref());
        let Some(reply_link) = replies.find(service, reply_to.unwrap_or_default()) else {
            tracing::warn!(?service, reply_to, "event hub stand-in: no link to answer on");
            continue;
        };
        // If it has just gone, nobody waits for the answer.
        let _ = reply_link.send(message(&request, answer)).await;
    }
    let _ = link.close().await;
}

/// Sends these answers until the link ends.
pub(super) async fn reply(mut link: Sender, mut answers: mpsc::Receiver<AnyMessage>) {
    loop {
        tokio::select! {
            answer = answers.recv() => {
                let Some(answer) = answer else { break };
                let settled = Sendable::builder().message(answer).settled(true).build();
                // Batchable, for that is the last field of a transfer: see `product`.
                if link.send_batchable(settled).await.is_err() {
                    break;
                }
            }
            _ = link.on_detach() => break,
        }
    }
    let _ = link.close().await;
}

fn put_token(connection: &Connection, request: &AnyMessage) -> Answer {
    if application_property(request, "operation") != Some("put-token") {
        return Answer::status(400, "Only the operation 'put-token' is known here.");
    }
    let Body::Value(AmqpValue(Value::String(token))) = &request.body else {
        return Answer::status(400, "The body of the request is no token.");
    };
    match connection.namespace.key.check(token, SystemWallClock.now()) {
        Ok(()) => {
            connection.authorize();
            Answer::status(202, "Accepted")
        }
        Err(bad) => Answer::status(401, bad.to_string()),
    }
}

fn message(request: &AnyMessage, answer: Answer) -> AnyMessage {
    let mut properties = Properties::default();
    if let Some(asked) = &request.properties {
        properties.correlation_id = asked.message_id.clone().or_else(|| asked.correlation_id.clone());
    }
    // The clients differ in which spelling they read.
    let status = ApplicationProperties::builder()
        .insert("status-code", answer.code)
        .insert("statusCode", answer.code)
        .insert("status-description", answer.description.as_str())
        .insert("statusDescription", answer.description.as_str())
        .build();
    Message::builder()
        .properties(properties)
        .application_properties(status)
        .body(Body::Value(AmqpValue(answer.body)))
        .build()
}
