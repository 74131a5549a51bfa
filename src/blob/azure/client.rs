//! Sends requests: the settings and the pipelines, the wait for a token, the body of the response, and its first check.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use azure_core::http::headers::{CLIENT_REQUEST_ID, ERROR_CODE, Headers, VERSION};
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::response::AsyncResponseBody;
use azure_core::http::{
    AsyncRawResponse, ClientOptions, Context, ExponentialRetryOptions, Method, Pipeline, PipelineOptions,
    PipelineStreamOptions, Request, RetryOptions, StatusCode, Transport, Url,
};
use azure_core::time::Duration;
use azure_core::{Bytes, Uuid};
use futures::StreamExt;
use tokio::time::{Instant, timeout};

use super::credentials::{Credentials, CurrentCredentials, TokenPolicy, add_sas};
use super::endpoint::ContainerUrl;
use super::errors::{ErrorResponse, issuer_timed_out, no_response_error, no_token_error, unusable_response};
use super::headers::{find_header, retry_after, server_time, server_time_of_error};
use super::listing::UnusableLog;
use super::refusals::{CredentialKind, Operation};
use super::shared_key::{SharedKeyPolicy, likely_skew};
use crate::blob::{ResponseInfo, time_left};
use crate::clock::WallClock;
use crate::error::{Error, Result};

/// The responses after which a read is retried. Throttling is not one of them: only the caller knows all requests of
/// this instance, so the caller must see the response and wait.
const RETRIED_STATUS_CODES: [StatusCode; 4] =
    [StatusCode::RequestTimeout, StatusCode::InternalServerError, StatusCode::BadGateway, StatusCode::GatewayTimeout];

/// How long it may take to connect: a packet that is dropped is repeated after a second. Less than the shortest usual
/// time limit of a request, 2 s, so that the error says that nothing was sent.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(1800);

/// How long a response may pause: as long as in `azure_core`'s own client. Of all requests only listings may take
/// longer.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// The most bytes to allocate before they arrive.
const MOST_EXPECTED: usize = 1024 * 1024;

/// The settings of a container and the state that it shares with containers on other runtimes.
pub(super) struct ContainerSettings {
    pub(super) container_url: ContainerUrl,
    pub(super) credentials: CurrentCredentials,
    pub(super) unusable: UnusableLog,
    pub(super) api_version: String,
    pub(super) page_size: Option<u32>,
    pub(super) wall_clock: Arc<dyn WallClock>,
    pub(super) client_options: ClientOptions,
}

impl fmt::Debug for ContainerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ContainerSettings")
            .field("url", &self.container_url.url().as_str())
            .field("credentials", &self.credentials.get().kind())
            .field("api_version", &self.api_version)
            .field("page_size", &self.page_size)
            .finish_non_exhaustive()
    }
}

/// A client with its own connection pool.
#[derive(Debug)]
pub(super) struct Client {
    settings: Arc<ContainerSettings>,
    /// Retries failed reads.
    reads: Pipeline,
    /// Never retries: after a lost response only the caller can determine what a conflict means.
    writes: Pipeline,
}

/// A successful response.
pub(super) struct Reply {
    pub(super) headers: Headers,
    pub(super) body: Bytes,
    pub(super) response: ResponseInfo,
}

/// Any response.
pub(super) enum ResponseOutcome {
    Success(Reply),
    /// The error, and the error code of the service.
    Refused {
        error: Error,
        code: Option<String>,
    },
}

impl Client {
    pub(super) fn new(settings: Arc<ContainerSettings>) -> Result<Self> {
        let transport = if let Some(transport) = settings.client_options.transport.clone() {
            transport
        } else {
            // Like the client of `azure_core`, which waits 20 s for a connection.
            let client = reqwest::Client::builder()
                .connect_timeout(CONNECT_TIMEOUT)
                .read_timeout(READ_TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
                .build()
                .map_err(|error| {
                    Error::config("the HTTP client cannot be created; see the cause").with_source(error)
                })?;
            Transport::new(Arc::new(client))
        };
        // Each policy of credentials acts only if the call has credentials of its kind.
        let policies: [Arc<dyn Policy>; 3] = [
            Arc::new(SharedKeyPolicy::new(settings.wall_clock.clone())),
            Arc::new(TokenPolicy),
            Arc::new(BodyPolicy::default()),
        ];
        let options = ClientOptions { transport: Some(transport), ..settings.client_options.clone() };
        Ok(Self {
            settings,
            reads: build_pipeline(&policies, ClientOptions { retry: read_retries(), ..options.clone() }),
            writes: build_pipeline(&policies, ClientOptions { retry: RetryOptions::none(), ..options }),
        })
    }

    pub(super) fn settings(&self) -> &Arc<ContainerSettings> {
        &self.settings
    }

    pub(super) fn new_request(&self, method: Method, url: Url) -> Request {
        let mut request = Request::new(url, method);
        request.insert_header(VERSION, self.settings.api_version.clone());
        // The pipeline would add this header too, but it creates an error with a backtrace to detect that the header is
        // missing.
        request.insert_header(CLIENT_REQUEST_ID, Uuid::new_v4().to_string());
        request
    }

    /// Sends a request that changes nothing, with retries.
    pub(super) async fn read_with_retries(&self, operation: Operation<'_>, request: Request) -> Result<Reply> {
        self.send_through(&self.reads, operation, request).await?.into_result()
    }

    /// Sends a request once.
    pub(super) async fn write_once(&self, operation: Operation<'_>, request: Request) -> Result<Reply> {
        self.send_once(operation, request).await?.into_result()
    }

    /// Sends a request once. The caller decides what an error response means.
    pub(super) async fn send_once(&self, operation: Operation<'_>, request: Request) -> Result<ResponseOutcome> {
        self.send_through(&self.writes, operation, request).await
    }

    async fn send_through(
        &self,
        pipeline: &Pipeline,
        operation: Operation<'_>,
        mut request: Request,
    ) -> Result<ResponseOutcome> {
        let credentials = self.settings.credentials.get();
        if let Credentials::Sas(sas) = &*credentials {
            add_sas(&mut request, sas);
        }
        let context = call_context(operation, &credentials).await?;
        let options = PipelineStreamOptions { skip_checks: true, ..PipelineStreamOptions::default() };
        let sent: azure_core::Result<_> = async {
            let (status, headers, body) = pipeline.stream(&context, &mut request, Some(options)).await?.deconstruct();
            Ok((status, headers, read_whole_body(body, 0).await?))
        }
        .await;
        let received_at = Instant::now();
        let (status, headers, body) =
            sent.map_err(|error| no_response_error(&error, operation, &self.settings.container_url.host()))?;
        if !status.is_success() {
            return Ok(self.refusal_outcome(operation, credentials.kind(), status.into(), &headers));
        }
        let server_time = server_time(&headers).ok_or_else(|| {
            unusable_response(operation, "it has no date of the service; is this the address of a blob service?")
        })?;
        Ok(ResponseOutcome::Success(Reply { headers, body, response: ResponseInfo { server_time, received_at } }))
    }

    fn refusal_outcome(
        &self,
        operation: Operation<'_>,
        kind: CredentialKind,
        status: u16,
        headers: &Headers,
    ) -> ResponseOutcome {
        let code = find_header(headers, &ERROR_CODE);
        let server_time = server_time_of_error(headers);
        let clock_skew = server_time
            .filter(|_| kind == CredentialKind::AccountKey)
            .and_then(|time| likely_skew(self.settings.wall_clock.now(), time));
        ResponseOutcome::Refused {
            error: ErrorResponse { status, code, retry_after: retry_after(headers), server_time, clock_skew }
                .into_error(operation, Some(kind)),
            code: code.map(str::to_owned),
        }
    }
}

/// Returns what the policies need for this call: the credentials, and the token, if they have one. The wait for the
/// token ends before the time of the request does, so that the error names the issuer, and no request is sent only to
/// be abandoned.
async fn call_context(operation: Operation<'_>, credentials: &Arc<Credentials>) -> Result<Context<'static>> {
    let context = Context::new().with_value(Arc::clone(credentials));
    let Credentials::Token(tokens) = &**credentials else {
        return Ok(context);
    };
    let token = match time_left() {
        Some(left) => {
            let wait = left.saturating_sub(left / 5);
            timeout(wait, tokens.valid_token())
                .await
                .map_err(|_| issuer_timed_out(operation, wait, tokens.last_error().as_deref()))?
        }
        None => tokens.valid_token().await,
    };
    Ok(context.with_value(token.map_err(|error| no_token_error(&error, operation))?))
}

impl ResponseOutcome {
    fn into_result(self) -> Result<Reply> {
        match self {
            Self::Success(reply) => Ok(reply),
            Self::Refused { error, .. } => Err(error),
        }
    }
}

/// The delays are so short that a third retry fits into the shortest usual time limit, 2 s, even if an attempt is slow.
fn read_retries() -> RetryOptions {
    RetryOptions::exponential(ExponentialRetryOptions {
        initial_delay: Duration::milliseconds(100),
        max_retries: 3,
        max_total_elapsed: Duration::seconds(1),
        max_delay: Duration::seconds(1),
    })
}

/// Builds a pipeline whose policies act on each attempt.
fn build_pipeline(policies: &[Arc<dyn Policy>], options: ClientOptions) -> Pipeline {
    Pipeline::new(
        Some(env!("CARGO_PKG_NAME")),
        Some(env!("CARGO_PKG_VERSION")),
        options,
        Vec::new(),
        policies.to_vec(),
        Some(PipelineOptions { retry_status_codes: RETRIED_STATUS_CODES.to_vec(), ..PipelineOptions::default() }),
    )
}

/// Reads the body within each attempt, so that a body that breaks off is a failed attempt, which is retried.
///
/// `Pipeline::send` does the same, but copies the body twice into buffers that grow. This policy copies it once, into a
/// buffer of the size of the largest body so far: most bodies in several pieces are listings, which have about the same
/// size.
#[derive(Debug, Default)]
struct BodyPolicy {
    largest: AtomicUsize,
}

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait]
impl Policy for BodyPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let (status, headers, body) = next[0].send(ctx, request, &next[1..]).await?.deconstruct();
        let body = read_whole_body(body, self.largest.load(Ordering::Relaxed)).await?;
        self.largest.fetch_max(body.len(), Ordering::Relaxed);
        Ok(AsyncRawResponse::from_bytes(status, headers, body))
    }
}

/// Returns the body in one piece. A body that arrives in one piece is not copied.
async fn read_whole_body(mut body: AsyncResponseBody, expected: usize) -> azure_core::Result<Bytes> {
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

#[cfg(test)]
mod tests {
    use azure_core::error::ErrorKind;
    use futures::stream;

    use super::*;

    async fn read(pieces: Vec<azure_core::Result<Bytes>>) -> azure_core::Result<Bytes> {
        let response = AsyncRawResponse::new(StatusCode::Ok, Headers::new(), Box::pin(stream::iter(pieces)));
        read_whole_body(response.into_body(), 1).await
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
