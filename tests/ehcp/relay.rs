//! A way to the storage that can be cut.

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::support::azurite;

/// Forwards connections to Azurite until it is dropped, which cuts them.
pub struct Relay {
    pub connection_string: String,
    _forwarding: JoinSet<()>,
}

impl Relay {
    pub async fn start() -> Self {
        let direct = azurite::shared().await.unwrap().connection_string();
        let (_, address) = direct.split_once("BlobEndpoint=http://").unwrap();
        let address = address.split('/').next().unwrap().to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let connection_string = direct.replace(&address, &listener.local_addr().unwrap().to_string());
        let mut forwarding = JoinSet::new();
        forwarding.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut here, _)) = listener.accept().await {
                let mut there = TcpStream::connect(&address).await.unwrap();
                connections.spawn(async move { drop(copy_bidirectional(&mut here, &mut there).await) });
            }
        });
        Self { connection_string, _forwarding: forwarding }
    }
}
