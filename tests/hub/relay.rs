//! A way to the hub that can lose responses.

use tokio::io::{copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Forwards connections to a hub until it is dropped.
pub struct SilentRelay {
    pub endpoint: String,
    silent: watch::Sender<()>,
    _forwarding: JoinSet<()>,
}

impl SilentRelay {
    pub async fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("amqp://{}", listener.local_addr().unwrap());
        let (silent, mut forwarding) = (watch::Sender::new(()), JoinSet::new());
        let silenced = silent.clone();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let hub = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let mut silenced = silenced.subscribe();
                connections.spawn(async move {
                    let ((mut from_client, mut to_client), (mut from_hub, mut to_hub)) =
                        (client.into_split(), hub.into_split());
                    let delivering = async {
                        tokio::select! {
                            _ = copy(&mut from_hub, &mut to_client) => {}
                            _ = silenced.changed() => drop(copy(&mut from_hub, &mut sink()).await),
                        }
                    };
                    let _ = tokio::join!(copy(&mut from_client, &mut to_hub), delivering);
                });
            }
        });
        Self { endpoint, silent, _forwarding: forwarding }
    }

    /// Drops all later responses of the connections that are open now.
    pub fn silence(&self) {
        self.silent.send_replace(());
    }
}
