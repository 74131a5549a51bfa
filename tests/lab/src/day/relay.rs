//! A relay between the clients and the emulator that acknowledges bytes at once.
//!
//! The clients leave Nagle's algorithm on: after a small packet they wait for its acknowledgment, which Linux delays by
//! up to 40 ms of real time. On the paused clock that would be seconds.

use std::io;

use rustix::net::sockopt::set_tcp_quickack;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The size of one read, in bytes.
const CHUNK: usize = 64 * 1024;

/// A running relay. It ends when it is dropped.
pub(super) struct Relay {
    port: u16,
    _listening: JoinSet<()>,
}

impl Relay {
    /// Starts a relay to this port.
    pub(super) async fn start(to: u16) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let mut listening = JoinSet::new();
        listening.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                connections.spawn(async move { drop(relay(client, to).await) });
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
async fn relay(client: TcpStream, to: u16) -> io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, mut to_client) = client.into_split();
    let (mut from_server, to_server) = server.into_split();
    tokio::select! {
        passed = pass(from_client, to_server) => passed,
        passed = copy(&mut from_server, &mut to_client) => passed.map(drop),
    }
}

async fn pass(mut from_client: OwnedReadHalf, mut to_server: OwnedWriteHalf) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        // The system forgets this after some packets.
        set_tcp_quickack(from_client.as_ref(), true)?;
        let length = from_client.read(&mut buffer).await?;
        if length == 0 {
            return Ok(());
        }
        to_server.write_all(&buffer[..length]).await?;
    }
}
