//! A blob service that gives canned answers, at once or after a fixed delay.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

use crate::Result;
use crate::answers::Answers;

/// Prints its address and serves until it is killed.
pub(crate) fn run(delay: Duration) -> Result<()> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(delay))
}

async fn serve(delay: Duration) -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    std::io::stdout().flush()?;
    let answers = Arc::new(Answers::new());
    loop {
        let (connection, _) = listener.accept().await?;
        connection.set_nodelay(true)?;
        tokio::spawn(answer(connection, answers.clone(), delay));
    }
}

async fn answer(connection: TcpStream, answers: Arc<Answers>, delay: Duration) {
    let service = service_fn(async |request| {
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        answers.to(&request)
    });
    // It fails when a client leaves, and that is how clients leave.
    let _ = http1::Builder::new().serve_connection(TokioIo::new(connection), service).await;
}
