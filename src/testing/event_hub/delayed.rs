//! The way between a socket and the AMQP engine, on which what the hub sends is delayed, and what comes too late is
//! kept back.

use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::frames::Frames;
use super::frames::MAX_FRAME_SIZE;
use super::late_frames::Over;
use crate::lock::lock;

/// How much lies between the engine and the way, in bytes, and how much is read at once.
const BUFFER: usize = 256 * 1024;
const CHUNK: usize = 64 * 1024;
/// How many chunks may be under way.
const UNDER_WAY: usize = 16;

/// Puts a way of this delay in front of the socket: the AMQP engine gets the stream, and the future must be run for as
/// long as bytes shall flow. It ends when the engine is done; dropping it cuts the connection, for both sides.
///
/// The cut is why even a connection without delay goes this way: the AMQP library runs its engine in tasks of its own,
/// which nobody can abort but which do end at the end of their stream.
pub(super) fn delayed(
    socket: TcpStream,
    delay: Duration,
    over: Over,
) -> (DuplexStream, impl Future<Output = ()> + Send) {
    let (engine, way) = duplex(BUFFER);
    let (from_client, to_client) = socket.into_split();
    let (from_engine, mut to_engine) = split(way);
    let way = async move {
        let over = Mutex::new(over);
        let inbound = async {
            take_in(from_client, &mut to_engine, &over).await;
            let _ = to_engine.shutdown().await;
            // The engine may still have something to say.
            pending::<()>().await;
        };
        tokio::select! {
            () = inbound => {}
            () = outbound(from_engine, to_client, delay, &over) => {}
        }
    };
    (engine, way)
}

async fn take_in(mut from_client: OwnedReadHalf, to_engine: &mut WriteHalf<DuplexStream>, over: &Mutex<Over>) {
    let mut frames = Frames::up_to(MAX_FRAME_SIZE as usize);
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
        let passed = frames.pass(&buffer[..length], |channel, said| lock(over).judge_client(channel, said));
        if to_engine.write_all(&passed).await.is_err() {
            return;
        }
    }
}

async fn outbound(from_engine: ReadHalf<DuplexStream>, to_client: OwnedWriteHalf, delay: Duration, over: &Mutex<Over>) {
    let (sender, receiver) = mpsc::channel(UNDER_WAY);
    tokio::join!(stamp(from_engine, sender, delay, over), deliver(receiver, to_client));
}

/// Notes when every chunk is due. Apart from the delivery, so that the delay costs no throughput.
async fn stamp(
    mut from_engine: ReadHalf<DuplexStream>,
    chunks: mpsc::Sender<(Instant, Vec<u8>)>,
    delay: Duration,
    over: &Mutex<Over>,
) {
    // The client says how long they may be, and the engine keeps to it.
    let mut frames = Frames::up_to(usize::MAX);
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = from_engine.read(&mut buffer).await {
        let due = Instant::now() + delay;
        let passed = frames.pass(&buffer[..length], |channel, said| lock(over).judge_engine(channel, said));
        if chunks.send((due, passed)).await.is_err() {
            return;
        }
    }
}

async fn deliver(mut chunks: mpsc::Receiver<(Instant, Vec<u8>)>, mut to_client: OwnedWriteHalf) {
    while let Some((due, chunk)) = chunks.recv().await {
        if due > Instant::now() {
            sleep_until(due).await;
        }
        if to_client.write_all(&chunk).await.is_err() {
            return;
        }
    }
    let _ = to_client.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.expect("connected"), accepted.expect("accepted").0)
    }

    #[tokio::test]
    async fn delays_what_the_engine_sends_and_nothing_else() {
        const DELAY: Duration = Duration::from_millis(500);
        let (mut client, accepted) = sockets().await;
        let (mut engine, way) = delayed(accepted, DELAY, Over::default());
        let way = tokio::spawn(way);
        let started = Instant::now();

        client.write_all(b"AMQP ask").await.expect("sent");
        let mut received = [0; 8];
        engine.read_exact(&mut received).await.expect("received");
        assert!(started.elapsed() < DELAY, "{:?}", started.elapsed());

        engine.write_all(b"AMQP yes").await.expect("sent");
        client.read_exact(&mut received).await.expect("received");
        assert!(started.elapsed() >= DELAY, "{:?}", started.elapsed());

        drop(engine);
        assert_eq!(client.read(&mut received).await.expect("the end"), 0);
        way.await.expect("the way ends with the engine");
    }

    #[tokio::test]
    async fn a_dropped_way_ends_both_sides() {
        let (mut client, accepted) = sockets().await;
        let (mut engine, way) = delayed(accepted, Duration::ZERO, Over::default());
        drop(way);
        assert_eq!(engine.read(&mut [0]).await.expect("the end"), 0);
        assert_eq!(client.read(&mut [0]).await.expect("the end"), 0);
    }
}
