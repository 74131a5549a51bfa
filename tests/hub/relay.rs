//! A way to the hub that can lose responses, or be cut off.

use tokio::io::{copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Forwards connections to a hub until it is dropped.
pub struct Relay {
    pub endpoint: String,
    silent: watch::Sender<()>,
    cut_off: watch::Sender<bool>,
    _forwarding: JoinSet<()>,
}

impl Relay {
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("amqp://{}", listener.local_addr().unwrap());
        let (silent, cut_off) = (watch::Sender::new(()), watch::Sender::new(false));
        let (silenced, is_cut_off) = (silent.clone(), cut_off.subscribe());
        let mut forwarding = JoinSet::new();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let hub = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (silenced, mut is_cut_off) = (silenced.subscribe(), is_cut_off.clone());
                connections.spawn(async move {
                    tokio::select! {
                        biased;
                        _ = is_cut_off.wait_for(|is_cut_off| *is_cut_off) => {}
                        () = forward(client, hub, silenced) => {}
                    }
                });
            }
        });
        Self { endpoint, silent, cut_off, _forwarding: forwarding }
    }

    /// Drops all later responses of the connections that are open now.
    pub fn silence(&self) {
        self.silent.send_replace(());
    }

    /// Ends all connections, and from now on each new one, until this is called with `false`.
    pub fn set_cut_off(&self, is_cut_off: bool) {
        self.cut_off.send_replace(is_cut_off);
    }
}

async fn forward(client: TcpStream, hub: TcpStream, mut silenced: watch::Receiver<()>) {
    let ((mut from_client, mut to_client), (mut from_hub, mut to_hub)) = (client.into_split(), hub.into_split());
    let delivering = async {
        tokio::select! {
            _ = copy(&mut from_hub, &mut to_client) => {}
            _ = silenced.changed() => drop(copy(&mut from_hub, &mut sink()).await),
        }
    };
    let _ = tokio::join!(copy(&mut from_client, &mut to_hub), delivering);
}
