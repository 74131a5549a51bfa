//! The link from one instance to the event hub: forwards bytes as the network faults allow.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::chaos::Failure;
use crate::chaos::network_faults::{Condition, NetworkFaults, Treatment};

const BUFFER: usize = 32 * 1024;

/// A link that is open until it is dropped.
pub struct Link {
    port: u16,
    _tasks: JoinSet<()>,
}

impl Link {
    pub async fn open(network_faults: Arc<NetworkFaults>, hub: SocketAddr, instance: u32) -> Result<Self, Failure> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let mut tasks = JoinSet::new();
        tasks.spawn(listen(listener, network_faults, hub, instance));
        Ok(Self { port, _tasks: tasks })
    }

    /// Returns the hub's endpoint through this link.
    pub fn endpoint(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }
}

async fn listen(listener: TcpListener, network_faults: Arc<NetworkFaults>, hub: SocketAddr, instance: u32) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((connection, _)) = accepted else { continue };
                connections.spawn(connect(connection, network_faults.clone(), hub, instance));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn connect(client: TcpStream, network_faults: Arc<NetworkFaults>, hub: SocketAddr, instance: u32) {
    if network_faults.treatment(instance) == Treatment::Cut {
        return;
    }
    let Ok(hub) = TcpStream::connect(hub).await else { return };
    // Small frames must not wait for others.
    let _ = (client.set_nodelay(true), hub.set_nodelay(true));
    let ((from_client, to_client), (from_hub, to_hub)) = (client.into_split(), hub.into_split());
    tokio::select! {
        _ = pass(from_client, to_hub, &network_faults, instance) => {}
        _ = pass(from_hub, to_client, &network_faults, instance) => {}
        () = network_faults.strikes(instance, Condition::Cut) => {}
    }
}

/// Forwards bytes until one side ends. Bytes wait while nothing may pass.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    network_faults: &NetworkFaults,
    instance: u32,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        network_faults.spares(instance, Condition::Hang).await;
        to.write_all(&buffer[..length]).await?;
    }
}
