//! A relay between the clients and the emulator that acknowledges bytes at once.
//!
//! The clients leave Nagle's algorithm on: after a small packet they wait for its acknowledgment, which Linux delays by
//! up to 40 ms of real time. On the paused clock that would be seconds.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::net::sockopt::set_tcp_quickack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The size of one read, in bytes.
const CHUNK: usize = 64 * 1024;

/// What passes through a relay. Clones share it.
#[derive(Clone, Default)]
pub(super) struct Traffic(Arc<AtomicU64>);

impl Traffic {
    /// Returns how many times bytes have passed.
    pub(super) fn passes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A running relay. It ends when it is dropped.
pub(super) struct Relay {
    port: u16,
    _listening: JoinSet<()>,
}

impl Relay {
    /// Starts a relay to this port.
    pub(super) async fn start(to: u16, traffic: Traffic) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let traffic = traffic.clone();
                connections.spawn(async move { drop(relay(client, to, &traffic).await) });
            }
        });
        Ok(Self { port, _listening: listening })
    }

    /// Returns the address for a client's *custom endpoint* option.
    pub(super) fn endpoint(&self) -> String {
        format!("amqp://127.0.0.1:{}", self.port)
    }
}

/// Ends when either side closes its connection.
async fn relay(client: TcpStream, to: u16, traffic: &Traffic) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        passed = pass(from_client, to_server, traffic) => passed,
        passed = pass(from_server, to_client, traffic) => passed,
    }
}

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, traffic: &Traffic) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        // The system forgets this after some packets.
        set_tcp_quickack(from.as_ref(), true)?;
        let length = from.read(&mut buffer).await?;
        traffic.0.fetch_add(1, Ordering::Relaxed);
        if length == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..length]).await?;
    }
}
