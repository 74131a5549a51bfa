//! Reads the body of each response.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use azure_core::Bytes;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::response::AsyncResponseBody;
use azure_core::http::{AsyncRawResponse, Context, Request};
use futures::StreamExt;

/// The most bytes to allocate before they arrive.
const MOST_EXPECTED: usize = 1024 * 1024;

/// Reads the body within each attempt, so that a body that breaks off is a failed attempt, which is retried.
///
/// `Pipeline::send` does the same, but copies the body twice into buffers that grow. This policy copies it once, into a
/// buffer of the size of the last body: the listings of a group have about the same size.
#[derive(Debug, Default)]
pub(super) struct BodyPolicy {
    last_size: AtomicUsize,
}

/// Returns the body in one piece. A body that arrives in one piece is not copied.
pub(super) async fn whole(mut body: AsyncResponseBody, expected: usize) -> azure_core::Result<Bytes> {
    let first = body.next().await.transpose()?.unwrap_or_default();
    let Some(second) = body.next().await.transpose()? else { return Ok(first) };
    let mut all = Vec::with_capacity(expected.min(MOST_EXPECTED).max(first.len() + second.len()));
    all.extend_from_slice(&first);
    all.extend_from_slice(&second);
    while let Some(piece) = body.next().await.transpose()? {
        all.extend_from_slice(&piece);
    }
    Ok(all.into())
}

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait]
impl Policy for BodyPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let (status, headers, body) = next[0].send(ctx, request, &next[1..]).await?.deconstruct();
        let body = whole(body, self.last_size.load(Ordering::Relaxed)).await?;
        self.last_size.store(body.len(), Ordering::Relaxed);
        Ok(AsyncRawResponse::from_bytes(status, headers, body))
    }
}
