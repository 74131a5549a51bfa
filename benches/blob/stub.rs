//! A blob service that returns canned responses, at once or after a fixed delay.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::Result;
use crate::responses::Responses;

/// Prints the address and serves until the process is killed.
pub(crate) fn run(delay: Duration) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(delay))
}

async fn serve(delay: Duration) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let responses = Arc::new(Responses::new());
    loop {
        let (connection, _) = listener.accept().await?;
        connection.set_nodelay(true)?;
        tokio::spawn(serve_connection(connection, responses.clone(), delay));
    }
}

async fn serve_connection(connection: TcpStream, responses: Arc<Responses>, delay: Duration) {
    let service = service_fn(async |request| {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        responses.to(&request)
    });
    // Fails when a client disconnects, which is how clients end.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
}
