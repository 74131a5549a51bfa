//! Connections and their sessions: accepts them, and starts a task for every link.
//!
//! The tasks form a tree: the stand-in owns the connections, a connection its sessions, a session its links. Who ends,
//! ends all below.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fe2o3_amqp::acceptor::{
    ConnectionAcceptor, LinkAcceptor, LinkEndpoint, ListenerSessionHandle, SaslAnonymousMechanism, SessionAcceptor,
    SupportedReceiverSettleModes,
};
use fe2o3_amqp_types::definitions::{AmqpError, Error, Role};
use fe2o3_amqp_types::performatives::Attach;
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::attach::{Purpose, purpose};
use super::connection::Connection;
use super::consume;
use super::delayed::delayed;
use super::frames::MAX_FRAME_SIZE;
use super::late_frames::Over;
use super::message::{MAX_MESSAGE_SIZE, error, product};
use super::namespace::Namespace;
use super::publish;
use super::requests::{self, ReplyLinks};
use super::served::Served;
use crate::lock::lock;

/// The service's own idle time-out, in milliseconds.
const IDLE_TIME_OUT: u32 = 240_000;
/// The greatest channel number, one less than the service's 5000 sessions of a connection.
const MAX_CHANNEL: u16 = 4999;
/// How many transfers may be under way in a session, and the greatest handle of its links.
const SESSION_WINDOW: u32 = 5000;
const MAX_HANDLE: u32 = 255;
/// How long to wait before accepting again after the system refused, for instance for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The tasks of the open connections. Dropping the last reference cuts them.
#[derive(Debug, Default)]
pub(super) struct Connections(Mutex<JoinSet<()>>);

impl Connections {
    /// Those that are open.
    fn open(&self) -> MutexGuard<'_, JoinSet<()>> {
        let mut connections = lock(&self.0);
        while connections.try_join_next().is_some() {}
        connections
    }

    /// Cuts all that are open, and tells how many they were.
    pub(super) fn cut(&self) -> usize {
        let mut open = self.open();
        open.abort_all();
        open.len()
    }
}

/// Serves whoever connects, until aborted.
pub(super) async fn listen(
    namespace: Arc<Namespace>,
    connections: Arc<Connections>,
    listener: TcpListener,
    delay: Duration,
) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                connections.open().spawn(serve(namespace.clone(), socket, delay));
            }
            Err(error) => {
                tracing::warn!(%error, "event hub stand-in cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(namespace: Arc<Namespace>, socket: TcpStream, delay: Duration) {
    // Without it the system holds small answers back.
    let _ = socket.set_nodelay(true);
    let served = Arc::new(Served::default());
    let (stream, way) = delayed(socket, delay, Over::new(Arc::clone(&served)));
    let mut way_task = JoinSet::new();
    way_task.spawn(way);
    serve_connection(Connection::new(namespace, served), stream).await;
    // The last bytes, a close among them, are still on their way.
    way_task.join_next().await;
}

async fn serve_connection(connection: Connection, stream: DuplexStream) {
    let acceptor = ConnectionAcceptor::builder()
        .container_id("event-hub-stand-in")
        .max_frame_size(MAX_FRAME_SIZE)
        .channel_max(MAX_CHANNEL)
        .idle_time_out(IDLE_TIME_OUT)
        .properties(product())
        .sasl_acceptor(SaslAnonymousMechanism::new())
        .build();
    let mut handle = match acceptor.accept(stream).await {
        Ok(handle) => handle,
        Err(error) => {
            tracing::debug!(%error, "event hub stand-in: connection not opened");
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
    tracing::debug!(?closed, "event hub stand-in: connection closed");
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
    tracing::debug!(?ended, "event hub stand-in: session ended");
}

/// Accepts the link, as even one that is refused must be before it can be closed with the reason, and starts its task.
async fn serve_link(
    connection: &Arc<Connection>,
    attach: Attach,
    session: &mut ListenerSessionHandle,
    replies: &ReplyLinks,
    links: &mut JoinSet<()>,
) {
    let purpose = purpose(&connection.namespace, &attach, connection.is_authorized());
    tracing::debug!(link = attach.name, ?purpose, "event hub stand-in: link attaches");
    let acceptor = LinkAcceptor::builder()
        .supported_receiver_settle_modes(SupportedReceiverSettleModes::First)
        .max_message_size(max_message_size(&attach.role))
        .properties(product())
        .build();
    connection.served.all_detached_ended().await;
    // Before the client knows of the link, and can detach it.
    let serving = matches!(purpose, Ok(Purpose::Consume(_))).then(|| connection.served.begin(&attach.name));
    let link = match acceptor.accept_incoming_attach(attach, session).await {
        Ok(link) => link,
        Err(error) => {
            tracing::debug!(%error, "event hub stand-in: link not attached");
            return;
        }
    };
    match (link, purpose) {
        (LinkEndpoint::Receiver(link), Ok(Purpose::Requests(service))) => {
            links.spawn(requests::answer(connection.clone(), link, service, replies.clone()));
        }
        (LinkEndpoint::Sender(link), Ok(Purpose::Replies { service, reply_to })) => {
            let answers = replies.open(service, reply_to);
            links.spawn(requests::reply(link, answers));
        }
        (LinkEndpoint::Receiver(link), Ok(Purpose::Publish(hub, partition))) => {
            links.spawn(publish::serve(hub, link, partition));
        }
        (LinkEndpoint::Sender(link), Ok(Purpose::Consume(wanted))) => {
            links.spawn(consume::serve(link, wanted, serving));
        }
        (link, refused) => {
            links.spawn(close(link, refused.err().unwrap_or_else(wrong_way)));
        }
    }
}

fn max_message_size(role: &Role) -> u64 {
    match role {
        Role::Sender => MAX_MESSAGE_SIZE,
        // With its annotations an event may be a bit greater than it was when it came.
        Role::Receiver => 2 * MAX_MESSAGE_SIZE,
    }
}

async fn close(link: LinkEndpoint, reason: Error) {
    tracing::debug!(?reason, "event hub stand-in: link refused");
    // Whatever becomes of it, the link is over.
    let _ = match link {
        LinkEndpoint::Sender(link) => link.close_with_error(reason).await,
        LinkEndpoint::Receiver(link) => link.close_with_error(reason).await,
    };
}

fn wrong_way() -> Error {
    error(AmqpError::NotAllowed, "The link's role does not fit its address.")
}
