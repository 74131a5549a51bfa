//! Accepts connections and their sessions, and starts a task for each link.
//!
//! The tasks form a tree: the emulator owns the connections, a connection its sessions, a session its links. If a task
//! ends, all tasks below it end.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, ListenerSessionHandle, SaslAnonymousMechanism, SessionAcceptor,
    SupportedReceiverSettleModes, SupportedSenderSettleModes,
};
use fe2o3_amqp_types::definitions::{AmqpError, Error, SenderSettleMode};
use fe2o3_amqp_types::messaging::{Source, Target};
use fe2o3_amqp_types::performatives::Attach;
use futures::FutureExt;
use futures::future::pending;
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::admit::{Task, admit};
use super::alias::Alias;
use super::attach::{Service, node_address};
use super::connection::Connection;
use super::consume;
use super::delayed::delayed;
use super::filter::{ENGINE_FRAME_SIZE, Filter};
use super::message::{MAX_MESSAGE_SIZE, error, product};
use super::namespace::Namespace;
use super::publish;
use super::refused;
use super::requests::{self, ReplyLinks};
use super::served::Served;
use crate::lock::lock;

/// The idle timeout of the service, in milliseconds.
const IDLE_TIME_OUT: u32 = 240_000;
/// The maximum number of transfers in transit per session, and the maximum handle of its links.
const SESSION_WINDOW: u32 = 5000;
const MAX_HANDLE: u32 = 255;
/// The maximum size of a message in bytes, with what the filter adds to it. The limit for clients is another one, and a
/// message above that is rejected, while the engine would detach its link.
const ENGINE_MESSAGE_SIZE: u64 = 64 * MAX_MESSAGE_SIZE;
/// The pause after the system rejected an accept, for example because there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The capability of a geo-replicated namespace, as clients name it on their links.
const GEO_REPLICATION: &str = "com.microsoft:georeplication";

type Acceptor = LinkAcceptor<fn(Source) -> Option<Source>, fn(Target) -> Option<Target>>;

/// The tasks of the open connections. Dropping the last reference closes them.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<JoinSet<()>>);

impl Connections {
    /// Returns the open connections.
    fn open(&self) -> MutexGuard<'_, JoinSet<()>> {
        let mut connections = lock(&self.0);
        while connections.try_join_next().is_some() {}
        connections
    }

    /// Cuts all open connections, and returns their number.
    pub(super) fn cut(&self) -> usize {
        let mut open = self.open();
        open.abort_all();
        open.len()
    }
}

/// Serves all connections until aborted.
pub(super) async fn listen(alias: Arc<Alias>, connections: Arc<Connections>, listener: TcpListener, delay: Duration) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                connections.open().spawn(serve(alias.current(), socket, delay));
            }
            Err(error) => {
                tracing::warn!(%error, "event hub emulator: failed to accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(namespace: Arc<Namespace>, socket: TcpStream, delay: Duration) {
    // Without this the system delays small responses.
    let _ = socket.set_nodelay(true);
    let uses_sasl = uses_sasl(&socket).await;
    let served = Arc::new(Served::default());
    let (stream, path) = delayed(socket, delay, Filter::new(Arc::clone(&served)));
    let mut path_task = JoinSet::new();
    path_task.spawn(path);
    serve_connection(Connection::new(namespace, served), stream, uses_sasl).await;
    // The last bytes, including a close, are still in transit.
    path_task.join_next().await;
}

/// The JavaScript client with a shared access signature in its connection string uses no SASL. The service accepts that
/// (a live test of Azure/azure-sdk-for-js, `internal/auth`).
async fn uses_sasl(socket: &TcpStream) -> bool {
    const PLAIN: &[u8] = b"AMQP\x00\x01\x00\x00";
    let mut header = [0; PLAIN.len()];
    // An error shows again when the connection is served.
    let _ = socket.peek(&mut header).await;
    header != PLAIN
}

async fn serve_connection(connection: Connection, stream: DuplexStream, uses_sasl: bool) {
    let mut builder = ConnectionAcceptor::builder()
        .container_id("event-hub-emulator")
        .max_frame_size(ENGINE_FRAME_SIZE)
        // The channels are numbered from 0.
        .channel_max(connection.namespace.limits.max_sessions.saturating_sub(1))
        .idle_time_out(IDLE_TIME_OUT)
        .properties(product());
    if connection.namespace.is_geo_replicated() {
        builder = builder.add_offered_capabilities(GEO_REPLICATION);
    }
    let accepted = if uses_sasl {
        builder.sasl_acceptor(SaslAnonymousMechanism::new()).build().accept(stream).await
    } else {
        builder.build().accept(stream).await
    };
    let mut handle = match accepted {
        Ok(handle) => handle,
        Err(error) => {
            tracing::debug!(%error, "event hub emulator: connection not opened");
            return;
        }
    };
    let session_acceptor = SessionAcceptor::builder()
        .incoming_window(SESSION_WINDOW)
        .outgoing_window(SESSION_WINDOW)
        .handle_max(MAX_HANDLE)
        .properties(product())
        .build();
    let connection = Arc::new(connection);
    let mut sessions = JoinSet::new();
    while let Ok(session) = session_acceptor.accept(&mut handle).await {
        while sessions.try_join_next().is_some() {}
        sessions.spawn(serve_session(connection.clone(), session));
    }
    let closed = handle.on_close().await;
    tracing::debug!(?closed, "event hub emulator: connection closed");
}

async fn serve_session(connection: Arc<Connection>, mut session: ListenerSessionHandle) {
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
        Err(error) => {
            tracing::debug!(%error, "event hub emulator: link not attached");
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
        builder = builder.add_offered_capabilities(GEO_REPLICATION);
    }
    builder.build()
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
