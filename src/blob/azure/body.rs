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
/// buffer of the size of the largest body so far: most bodies in several pieces are listings, which have about the same
/// size.
#[derive(Debug, Default)]
pub(super) struct BodyPolicy {
    largest: AtomicUsize,
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
        let body = whole(body, self.largest.load(Ordering::Relaxed)).await?;
        self.largest.fetch_max(body.len(), Ordering::Relaxed);
        Ok(AsyncRawResponse::from_bytes(status, headers, body))
    }
}

#[cfg(test)]
mod tests {
    use azure_core::error::ErrorKind;
    use azure_core::http::StatusCode;
    use azure_core::http::headers::Headers;
    use futures::stream;

    use super::*;

    async fn read(pieces: Vec<azure_core::Result<Bytes>>) -> azure_core::Result<Bytes> {
        let response = AsyncRawResponse::new(StatusCode::Ok, Headers::new(), Box::pin(stream::iter(pieces)));
        whole(response.into_body(), 1).await
    }

    #[tokio::test]
    async fn pieces_are_joined_in_their_order() {
        assert_eq!(read(Vec::new()).await.unwrap(), "");
        for pieces in [&["abc"][..], &["a", "bc"], &["a", "", "b", "c"]] {
            assert_eq!(
                read(pieces.iter().map(|piece| Ok(Bytes::from_static(piece.as_bytes()))).collect()).await.unwrap(),
                "abc"
            );
        }
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let piece = Bytes::from_static(b"abc");
        assert_eq!(read(vec![Ok(piece.clone())]).await.unwrap().as_ptr(), piece.as_ptr());
    }

    #[tokio::test]
    async fn a_broken_body_is_an_error() {
        let broken = || Err(azure_core::Error::with_message(ErrorKind::Io, "broken"));
        for pieces in [vec![broken()], vec![Ok(Bytes::from_static(b"a")), broken()]] {
            assert!(read(pieces).await.is_err());
        }
    }
}
