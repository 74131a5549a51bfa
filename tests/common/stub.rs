//! An HTTP server that responds as scripted, byte by byte, or not at all. It runs on its own thread, so that no runtime
//! of a test delays it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

/// What happens after a request.
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends these bytes; the connection stays open.
    Send(String),
    /// Sends these bytes, and then nothing more on the open connection.
    SendAndHang(String),
    /// Sends these bytes, one by one with a pause before each.
    Drip(String, Duration),
    /// Sends these bytes, and then resets the connection.
    SendAndReset(String),
}

impl Act {
    pub fn hang() -> Self {
        Self::SendAndHang(String::new())
    }

    pub fn reset() -> Self {
        Self::SendAndReset(String::new())
    }
}

#[derive(Clone)]
pub struct Stub {
    pub address: SocketAddr,
    /// The first lines of the requests until now.
    requests: Arc<Mutex<Vec<String>>>,
}

impl Stub {
    /// Acts in this order, and then repeats the last act.
    pub fn start(script: impl IntoIterator<Item = Act>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let stub = Self { address: listener.local_addr().unwrap(), requests: Arc::default() };
        let (requests, script) = (stub.requests.clone(), Arc::new(Mutex::new(script.into_iter().collect())));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    tokio::spawn(serve(stream, requests.clone(), script.clone()));
                }
            });
        });
        stub
    }

    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(mut stream: TcpStream, requests: Arc<Mutex<Vec<String>>>, script: Arc<Mutex<VecDeque<Act>>>) {
    while let Some(head) = read_head(&mut stream).await {
        requests.lock().unwrap().push(head.lines().next().unwrap_or_default().to_owned());
        let act = {
            let mut script = script.lock().unwrap();
            let next = script.front().cloned().expect("the script is not empty");
            if script.len() > 1 {
                script.pop_front();
            }
            next
        };
        // The client may have gone: the test decides whether that is correct.
        match act {
            Act::Send(text) => drop(stream.write_all(text.as_bytes()).await),
            Act::SendAndHang(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                std::future::pending::<()>().await;
            }
            Act::Drip(text, pause) => {
                for byte in text.bytes() {
                    sleep(pause).await;
                    let _ = stream.write_all(&[byte]).await;
                }
            }
            Act::SendAndReset(text) => {
                let _ = stream.write_all(text.as_bytes()).await;
                stream.set_zero_linger().unwrap();
                return;
            }
        }
    }
}

/// The requests have no bodies.
async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    String::from_utf8(head).ok()
}
