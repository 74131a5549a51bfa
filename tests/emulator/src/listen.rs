//! Accepts connections, and starts a task for each session.
//!
//! The tasks form a tree: the emulator owns the connections, a connection its sessions, a session its links. If a task
//! ends, all tasks below it end.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use fe2o3_amqp::acceptor::{ConnectionAcceptor, SaslAnonymousMechanism, SessionAcceptor};
use tokio::io::DuplexStream;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::alias::Alias;
use super::connection::Connection;
use super::delayed::delayed;
use super::filter::{ENGINE_FRAME_SIZE, Filter};
use super::geo::CAPABILITY;
use super::message::product;
use super::namespace::Namespace;
use super::served::Served;
use super::sessions::serve_session;
use crate::lock::lock;

/// The idle timeout of the service, in milliseconds.
const IDLE_TIME_OUT: u32 = 240_000;
/// The maximum number of transfers in transit per session, and the maximum handle of its links.
const SESSION_WINDOW: u32 = 5000;
const MAX_HANDLE: u32 = 255;
/// The pause after the system rejected an accept, for example because there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
        builder = builder.add_offered_capabilities(CAPABILITY);
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
