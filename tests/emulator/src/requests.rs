//! Requests and responses: the client sends requests on one link, and receives the responses on another.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use fe2o3_amqp::{Receiver, Sendable, Sender};
use fe2o3_amqp_types::messaging::{AmqpValue, ApplicationProperties, Body, Message, Properties};
use fe2o3_amqp_types::primitives::{Symbol, Value};
use tokio::sync::mpsc;

use super::address::{MANAGEMENT, path};
use super::attach::Service;
use super::connection::{CbsLink, Connection, Expiry};
use super::management;
use super::message::{AnyMessage, Response, application_property};
use super::token_check::BadToken;
use crate::lock::lock;

/// The maximum number of responses that wait for the client's credit.
const PENDING_RESPONSES: usize = 64;

/// The links of a session that carry responses, by service and address.
#[derive(Clone, Debug, Default)]
pub(super) struct ReplyLinks(Arc<Mutex<HashMap<(Service, String), ResponseSender>>>);

type ResponseSender = mpsc::Sender<AnyMessage>;

impl ReplyLinks {
    /// Registers a link. The receiver yields its responses.
    pub(super) fn open(&self, service: Service, reply_to: String) -> mpsc::Receiver<AnyMessage> {
        let (sender, receiver) = mpsc::channel(PENDING_RESPONSES);
        lock(&self.0).insert((service, reply_to), sender);
        receiver
    }

    /// Returns the link with this address, or the only link of the service, because some clients name the address in
    /// only one of two places.
    fn find(&self, service: Service, reply_to: &str) -> Option<ResponseSender> {
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

/// Responds to the requests on this link until it ends or its authorization expires.
pub(super) async fn serve(
    connection: Arc<Connection>,
    mut link: Receiver,
    service: Service,
    replies: ReplyLinks,
    cbs: Option<CbsLink>,
    expiry: Expiry,
) {
    let reason = tokio::select! {
        biased;
        reason = expiry => Some(reason),
        () = respond_to_all(&connection, &mut link, service, &replies) => None,
    };
    // The close may hang if the client detaches the link at the same time.
    drop(cbs);
    // The link ends, whatever the result.
    let _ = match reason {
        Some(reason) => link.close_with_error(reason).await,
        None => link.close().await,
    };
}

async fn respond_to_all(connection: &Connection, link: &mut Receiver, service: Service, replies: &ReplyLinks) {
    while let Ok(delivery) = link.recv::<Body<Value>>().await {
        if link.accept(&delivery).await.is_err() {
            return;
        }
        let request = delivery.into_message();
        let response = match service {
            Service::Cbs => put_token(connection, &request),
            Service::Management => management::read(&connection.namespace, &request),
        };
        tracing::debug!(
            ?service,
            code = response.code,
            description = response.description,
            "event hub emulator: request completed"
        );
        let reply_to = request.properties.as_ref().and_then(|properties| properties.reply_to.as_deref());
        let Some(reply_link) = replies.find(service, reply_to.unwrap_or_default()) else {
            tracing::warn!(?service, reply_to, "event hub emulator: no link for the response");
            continue;
        };
        // An error means that the link has ended, so the client does not wait for the response.
        let _ = reply_link.send(message(&request, response)).await;
    }
}

/// Sends these responses until the link ends or its authorization expires.
pub(super) async fn reply(
    mut link: Sender,
    mut responses: mpsc::Receiver<AnyMessage>,
    cbs: Option<CbsLink>,
    mut expiry: Expiry,
) {
    let reason = loop {
        tokio::select! {
            reason = &mut expiry => break Some(reason),
            response = responses.recv() => {
                let Some(response) = response else { break None };
                let settled = Sendable::builder().message(response).settled(true).build();
                // Batchable, because that is the last field of a transfer: see `product`.
                if link.send_batchable(settled).await.is_err() {
                    break None;
                }
            }
            _ = link.on_detach() => break None,
        }
    };
    drop(cbs);
    // The link ends, whatever the result.
    let _ = match reason {
        Some(reason) => link.close_with_error(reason).await,
        None => link.close().await,
    };
}

fn put_token(connection: &Connection, request: &AnyMessage) -> Response {
    if application_property(request, "operation") != Some("put-token") {
        return Response::not_supported("Only the operation 'put-token' is supported.");
    }
    let Body::Value(AmqpValue(Value::String(token))) = &request.body else {
        return Response::not_supported("The body of the request is not a token.");
    };
    let namespace = &connection.namespace;
    let name = application_property(request, "name").unwrap_or_default();
    let verified = match namespace.tokens.check(token, namespace.clock.now()) {
        Ok(verified) => verified,
        Err(bad) => return Response::bad_token(bad),
    };
    let node = path(name);
    if verified.resource.is_some_and(|resource| !node.starts_with(&path(&resource))) {
        return Response::bad_token(BadToken::WrongResource);
    }
    // As the service does (microsoft/MCW-Cosmos-DB-Real-Time-Advanced-Analytics#25).
    if node.first().is_some_and(|hub| hub != MANAGEMENT && namespace.hub(hub).is_none()) {
        return Response::not_found(name);
    }
    connection.authorizations.grant(name, verified.expires_at);
    Response::accepted()
}

fn message(request: &AnyMessage, response: Response) -> AnyMessage {
    let mut properties = Properties::default();
    if let Some(requested) = &request.properties {
        properties.correlation_id = requested.message_id.clone().or_else(|| requested.correlation_id.clone());
    }
    // Clients read different spellings.
    let mut status = ApplicationProperties::builder()
        .insert("status-code", response.code)
        .insert("statusCode", response.code)
        .insert("status-description", response.description.as_str())
        .insert("statusDescription", response.description.as_str());
    if let Some(condition) = response.condition {
        status = status.insert("error-condition", Symbol::from(condition));
        status = status.insert("errorCondition", Symbol::from(condition));
    }
    Message::builder()
        .properties(properties)
        .application_properties(status.build())
        .body(Body::Value(AmqpValue(response.body)))
        .build()
}
