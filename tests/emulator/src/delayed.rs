//! The path between a socket and the AMQP engine. It delays what the hub sends, and changes and drops frames: see
//! [`Filter`].

use std::future::pending;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::filter::Filter;
use super::frames::{Frames, MAX_FRAME_SIZE};
use crate::lock::lock;

/// The size of the buffer between the engine and the path, in bytes, and the size of one read.
const BUFFER: usize = 256 * 1024;
const CHUNK: usize = 64 * 1024;
/// The maximum number of chunks in transit.
const IN_TRANSIT: usize = 16;

/// Connects the socket to a path with this delay. The stream is for the AMQP engine. The future must run as long as
/// bytes are to be transferred; it ends when the engine ends. Dropping it closes the connection for both sides.
///
/// A connection without delay uses the path too, because it can be closed: the AMQP library runs its engine in its own
/// tasks, which cannot be aborted, but which end at the end of their stream.
pub(super) fn delayed(
    socket: TcpStream,
    delay: Duration,
    filter: Filter,
) -> (DuplexStream, impl Future<Output = ()> + Send) {
    let (engine, path) = duplex(BUFFER);
    let (from_client, to_client) = socket.into_split();
    let (from_engine, mut to_engine) = split(path);
    let path = async move {
        let filter = Mutex::new(filter);
        let inbound = async {
            take_in(from_client, &mut to_engine, &filter).await;
            let _ = to_engine.shutdown().await;
            // The engine may still send something.
            pending::<()>().await;
        };
        tokio::select! {
            () = inbound => {}
            () = outbound(from_engine, to_client, delay, &filter) => {}
        }
    };
    (engine, path)
}

async fn take_in(mut from_client: OwnedReadHalf, to_engine: &mut WriteHalf<DuplexStream>, filter: &Mutex<Filter>) {
    let mut frames = Frames::up_to(MAX_FRAME_SIZE as usize);
    let mut buffer = vec![0; CHUNK];
    let release = lock(filter).release();
    loop {
        let passed = tokio::select! {
            read = from_client.read(&mut buffer) => match read {
                Ok(length @ 1..) => frames.pass(&buffer[..length], |frame| lock(filter).judge_client(frame)),
                _ => return,
            },
            () = release.notified() => lock(filter).take_released(),
        };
        if to_engine.write_all(&passed).await.is_err() {
            return;
        }
    }
}

async fn outbound(
    from_engine: ReadHalf<DuplexStream>,
    to_client: OwnedWriteHalf,
    delay: Duration,
    filter: &Mutex<Filter>,
) {
    let (sender, receiver) = mpsc::channel(IN_TRANSIT);
    tokio::join!(stamp(from_engine, sender, delay, filter), deliver(receiver, to_client));
}

/// Records when each chunk is due. Separate from the delivery, so that the delay does not reduce the throughput.
async fn stamp(
    mut from_engine: ReadHalf<DuplexStream>,
    chunks: mpsc::Sender<(Instant, Vec<u8>)>,
    delay: Duration,
    filter: &Mutex<Filter>,
) {
    // The client specifies the maximum size, and the engine observes it.
    let mut frames = Frames::up_to(usize::MAX);
    let mut buffer = vec![0; CHUNK];
    while let Ok(length @ 1..) = from_engine.read(&mut buffer).await {
        let due = Instant::now() + delay;
        let passed = frames.pass(&buffer[..length], |frame| lock(filter).judge_engine(frame));
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
    use tokio::time::timeout;

    async fn sockets() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        (client.expect("connected"), accepted.expect("accepted").0)
    }

    #[tokio::test]
    async fn bytes_of_the_engine_are_delayed() {
        const DELAY: Duration = Duration::from_millis(200);
        let (mut client, accepted) = sockets().await;
        let (mut engine, path) = delayed(accepted, DELAY, Filter::default());
        let path = tokio::spawn(path);
        let (started, mut received) = (Instant::now(), [0; 8]);
        engine.write_all(b"AMQP yes").await.expect("sent");
        client.read_exact(&mut received).await.expect("received");
        assert!(started.elapsed() >= DELAY, "{:?}", started.elapsed());

        drop(engine);
        assert_eq!(client.read(&mut received).await.expect("the end"), 0);
        path.await.expect("the path ends with the engine");
    }

    #[tokio::test]
    async fn bytes_of_the_client_are_not_delayed() {
        const HOUR: Duration = Duration::from_secs(3600);
        let (mut client, accepted) = sockets().await;
        let (mut engine, path) = delayed(accepted, HOUR, Filter::default());
        tokio::spawn(path);
        client.write_all(b"AMQP ask").await.expect("sent");
        let mut received = [0; 8];
        timeout(HOUR / 60, engine.read_exact(&mut received)).await.expect("in time").expect("received");
    }

    #[tokio::test]
    async fn dropped_path_ends_both_sides() {
        let (mut client, accepted) = sockets().await;
        let (mut engine, path) = delayed(accepted, Duration::ZERO, Filter::default());
        drop(path);
        assert_eq!(engine.read(&mut [0]).await.expect("the end"), 0);
        assert_eq!(client.read(&mut [0]).await.expect("the end"), 0);
    }
}
