//! Accepts the links of a session, and starts a task for each.

use std::sync::Arc;

use fe2o3_amqp::acceptor::error::AcceptorAttachError;
use fe2o3_amqp::acceptor::{
    LinkAcceptor, LinkEndpoint, ListenerSessionHandle, SupportedReceiverSettleModes, SupportedSenderSettleModes,
};
use fe2o3_amqp::link::{ReceiverAttachError, SenderAttachError};
use fe2o3_amqp_types::definitions::{AmqpError, Error, SenderSettleMode, SessionError};
use fe2o3_amqp_types::messaging::{Source, Target};
use fe2o3_amqp_types::performatives::Attach;
use futures::FutureExt;
use futures::future::pending;
use tokio::task::JoinSet;

use super::admit::{Task, admit};
use super::attach::{Service, node_address};
use super::connection::Connection;
use super::consume;
use super::geo::CAPABILITY;
use super::message::{MAX_MESSAGE_SIZE, error, product};
use super::publish;
use super::refused;
use super::requests::{self, ReplyLinks};

/// The maximum size of a message in bytes, with what the filter adds to it. The limit for clients is another one, and a
/// message above that is rejected, while the engine would detach its link.
const ENGINE_MESSAGE_SIZE: u64 = 64 * MAX_MESSAGE_SIZE;

type Acceptor = LinkAcceptor<fn(Source) -> Option<Source>, fn(Target) -> Option<Target>>;

pub(super) async fn serve_session(connection: Arc<Connection>, mut session: ListenerSessionHandle) {
    let mut links = JoinSet::new();
    let replies = ReplyLinks::default();
    loop {
        tokio::select! {
            attach = session.next_incoming_attach() => match attach {
                Some(attach) => serve_link(&connection, attach, &mut session, &replies, &mut links).await,
                None => break,
            },
            Some(_) = links.join_next() => {}
        }
    }
    let ended = session.on_end().await;
    tracing::debug!(?ended, "event hub emulator: session ended");
}

/// Accepts the link and starts its task. A rejected link is accepted too, because only then can it be closed with the
/// reason; to the client it [looks rejected](super::refused).
async fn serve_link(
    connection: &Arc<Connection>,
    attach: Attach,
    session: &mut ListenerSessionHandle,
    replies: &ReplyLinks,
    links: &mut JoinSet<()>,
) {
    connection.served.all_detached_ended().await;
    let address = node_address(&attach).to_owned();
    let task = admit(connection, &attach, replies);
    tracing::debug!(link = attach.name, address, refused = ?task.as_ref().err(), "event hub emulator: link attaching");
    let acceptor = acceptor(&task, connection.namespace.is_geo_replicated());
    let link = match acceptor.accept_incoming_attach(attach, session).await {
        Ok(link) => link,
        Err(failure) => {
            tracing::debug!(error = %failure, "event hub emulator: link not attached");
            if is_duplicate(&failure) {
                let reason = error(SessionError::HandleInUse, "Another link of the session has this name.");
                // The session ends, whatever the result.
                let _ = session.end_with_error(reason).await;
            }
            return;
        }
    };
    let expiry = match &task {
        // Anybody may put a token.
        Ok(Task::Requests { service: Service::Cbs, .. } | Task::Replies { cbs: Some(_), .. }) => pending().boxed(),
        _ => connection.expiry(address),
    };
    match (link, task) {
        (LinkEndpoint::Sender(link), Ok(Task::Replies { responses, cbs })) => {
            links.spawn(requests::reply(link, responses, cbs, expiry));
        }
        (LinkEndpoint::Receiver(link), Ok(Task::Requests { service, cbs })) => {
            links.spawn(requests::serve(connection.clone(), link, service, replies.clone(), cbs, expiry));
        }
        (LinkEndpoint::Receiver(link), Ok(Task::Publish { hub, partition })) => {
            let idle = connection.namespace.limits.idle;
            links.spawn(publish::serve(hub, link, partition, idle, expiry));
        }
        (LinkEndpoint::Sender(link), Ok(Task::Consume { request, registration, start, serving })) => {
            let idle = connection.namespace.limits.idle;
            links.spawn(consume::serve(link, request, registration, start, serving, idle, expiry));
        }
        (link, rejected) => {
            links.spawn(close(link, rejected.err().unwrap_or_else(wrong_role)));
        }
    }
}

fn acceptor(task: &Result<Task, Error>, is_geo_replicated: bool) -> Acceptor {
    let properties = if task.is_ok() { product() } else { refused::marked() };
    let mut builder = LinkAcceptor::builder()
        .supported_receiver_settle_modes(SupportedReceiverSettleModes::First)
        .max_message_size(ENGINE_MESSAGE_SIZE)
        .properties(properties);
    if matches!(task, Ok(Task::Consume { .. })) {
        // As the service answers to every receiver (vcabbage/amqp#43, Azure/azure-event-hubs-node#113).
        builder = builder
            .supported_sender_settle_modes(SupportedSenderSettleModes::Settled)
            .fallback_sender_settle_mode(SenderSettleMode::Settled);
    }
    if is_geo_replicated {
        builder = builder.add_offered_capabilities(CAPABILITY);
    }
    builder.build()
}

/// Returns whether the link has the name of another one. Only then there is no answer to its attach.
fn is_duplicate(failure: &AcceptorAttachError) -> bool {
    matches!(
        failure,
        AcceptorAttachError::LocalSender(SenderAttachError::DuplicatedLinkName)
            | AcceptorAttachError::LocalReceiver(ReceiverAttachError::DuplicatedLinkName)
    )
}

async fn close(link: LinkEndpoint, reason: Error) {
    tracing::debug!(?reason, "event hub emulator: link rejected");
    // The link ends, whatever the result.
    let _ = match link {
        LinkEndpoint::Sender(link) => link.close_with_error(reason).await,
        LinkEndpoint::Receiver(link) => link.close_with_error(reason).await,
    };
}

fn wrong_role() -> Error {
    error(AmqpError::NotAllowed, "The role of the link does not match its address.")
}
