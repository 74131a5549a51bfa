//! Sends requests: pipelines, the wait for a token, and the first check of the response.

use std::sync::Arc;

use azure_core::Uuid;
use azure_core::http::headers::{CLIENT_REQUEST_ID, ERROR_CODE, Headers, VERSION};
use azure_core::http::policies::Policy;
use azure_core::http::{
    ClientOptions, Context, ExponentialRetryOptions, Method, Pipeline, PipelineOptions, PipelineStreamOptions, Request,
    RetryOptions, StatusCode, Transport, Url,
};
use azure_core::time::Duration;
use tokio::time::Instant;

use super::body::{BodyPolicy, whole};
use super::credentials::{Credentials, add_sas};
use super::errors::{ErrorResponse, issuer_timed_out, no_response, no_token, unusable_response};
use super::headers::{header, retry_after, server_time, server_time_of_error};
use super::operation::Operation;
use super::refusals::CredentialKind;
use super::settings::Settings;
use super::shared_key::{SharedKeyPolicy, skew};
use super::token_policy::TokenPolicy;
use crate::blob::ResponseInfo;
use crate::blob::deadline::time_left;
use crate::error::{Error, Result};

/// The responses after which a read is retried. Throttling is not one of them: only the caller knows all requests of
/// this instance, so the caller must see the response and wait.
const RETRIED_STATUS_CODES: [StatusCode; 4] =
    [StatusCode::RequestTimeout, StatusCode::InternalServerError, StatusCode::BadGateway, StatusCode::GatewayTimeout];

/// How long it may take to connect: a packet that is dropped is repeated after a second. Less than the shortest usual time
/// limit of a request, 2 s, so that the error says that nothing was sent.
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_millis(1800);

/// How long a response may pause: as long as in `azure_core`'s own client. Of all requests only listings may take longer.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// A client with its own connection pool.
#[derive(Debug)]
pub(super) struct Client {
    settings: Arc<Settings>,
    /// Retries failed reads.
    reads: Pipeline,
    /// Never retries: after a lost response only the caller can determine what a conflict means.
    writes: Pipeline,
}

/// A successful response.
pub(super) struct Reply {
    pub(super) headers: Headers,
    pub(super) body: azure_core::Bytes,
    pub(super) response: ResponseInfo,
}

/// Any response.
pub(super) enum Outcome {
    Success(Reply),
    /// The error, and the error code of the service.
    Refused {
        error: Error,
        code: Option<String>,
    },
}

impl Client {
    pub(super) fn new(settings: Arc<Settings>) -> Result<Self> {
        let options = &settings.client_options;
        let transport = match options.transport.clone() {
            Some(transport) => transport,
            None => Transport::new(Arc::new(http_client()?)),
        };
        let policies = Policies::new(&settings);
        let pipeline =
            |retry| policies.pipeline(ClientOptions { retry, transport: Some(transport.clone()), ..options.clone() });
        let (reads, writes) = (pipeline(read_retries()), pipeline(RetryOptions::none()));
        Ok(Self { settings, reads, writes })
    }

    pub(super) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    pub(super) fn request(&self, method: Method, url: Url) -> Request {
        let mut request = Request::new(url, method);
        request.insert_header(VERSION, self.settings.api_version.clone());
        // The pipeline would add this header too, but it creates an error with a backtrace to detect that the header is
        // missing.
        request.insert_header(CLIENT_REQUEST_ID, Uuid::new_v4().to_string());
        request
    }

    /// Sends a request that changes nothing, with retries.
    pub(super) async fn read(&self, operation: Operation<'_>, request: Request) -> Result<Reply> {
        self.send(&self.reads, operation, request).await?.into_result()
    }

    /// Sends a request once.
    pub(super) async fn write(&self, operation: Operation<'_>, request: Request) -> Result<Reply> {
        self.send_once(operation, request).await?.into_result()
    }

    /// Sends a request once. The caller decides what an error response means.
    pub(super) async fn send_once(&self, operation: Operation<'_>, request: Request) -> Result<Outcome> {
        self.send(&self.writes, operation, request).await
    }

    async fn send(&self, pipeline: &Pipeline, operation: Operation<'_>, mut request: Request) -> Result<Outcome> {
        let credentials = self.settings.credentials.get();
        if let Credentials::Sas(sas) = &*credentials {
            add_sas(&mut request, sas);
        }
        let context = context(operation, &credentials).await?;
        let options = PipelineStreamOptions { skip_checks: true, ..PipelineStreamOptions::default() };
        let sending = async {
            let (status, headers, body) = pipeline.stream(&context, &mut request, Some(options)).await?.deconstruct();
            Ok((status, headers, whole(body, 0).await?))
        };
        let sent: azure_core::Result<_> = sending.await;
        let received = Instant::now();
        let (status, headers, body) =
            sent.map_err(|error| no_response(&error, operation, &self.settings.container_url.host()))?;
        if !status.is_success() {
            return Ok(self.refused(operation, credentials.kind(), status.into(), &headers));
        }
        let server_time = server_time(&headers).ok_or_else(|| {
            unusable_response(operation, "it has no date of the service; is this the address of a blob service?")
        })?;
        let response = ResponseInfo { server_time, received_at: received };
        Ok(Outcome::Success(Reply { headers, body, response }))
    }

    fn refused(&self, operation: Operation<'_>, kind: CredentialKind, status: u16, headers: &Headers) -> Outcome {
        let code = header(headers, &ERROR_CODE);
        let server_time = server_time_of_error(headers);
        let clock_skew = server_time.filter(|_| kind == CredentialKind::AccountKey);
        let clock_skew = clock_skew.and_then(|time| skew(self.settings.wall_clock.now(), time));
        let refusal = ErrorResponse { status, code, retry_after: retry_after(headers), server_time, clock_skew };
        let error = refusal.into_error(operation, Some(kind));
        Outcome::Refused { error, code: code.map(str::to_owned) }
    }
}

/// Returns what the policies need for this call: the credentials, and the token, if they have one. The wait for the token
/// ends before the time of the request does, so that the error names the issuer, and no request is sent only to be
/// abandoned.
async fn context(operation: Operation<'_>, credentials: &Arc<Credentials>) -> Result<Context<'static>> {
    let context = Context::new().with_value(Arc::clone(credentials));
    let Credentials::Token(tokens) = &**credentials else {
        return Ok(context);
    };
    let token = match time_left() {
        Some(left) => {
            let wait = left.saturating_sub(left / 5);
            let token = tokio::time::timeout(wait, tokens.token()).await;
            token.map_err(|_| issuer_timed_out(operation, wait, tokens.last_error().as_deref()))?
        }
        None => tokens.token().await,
    };
    let token = token.map_err(|error| no_token(&error, operation))?;
    Ok(context.with_value(token))
}

impl Outcome {
    fn into_result(self) -> Result<Reply> {
        match self {
            Self::Success(reply) => Ok(reply),
            Self::Refused { error, .. } => Err(error),
        }
    }
}

/// Creates an HTTP client like that of `azure_core`, which waits 20 s for a connection.
fn http_client() -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder().connect_timeout(CONNECT_TIMEOUT).read_timeout(READ_TIMEOUT);
    let client = builder.redirect(reqwest::redirect::Policy::none()).build();
    client.map_err(|error| Error::config("the HTTP client cannot be created; see the cause").with_source(error))
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

/// The policies that add credentials to each attempt. Each acts only if the call has credentials of its kind.
struct Policies(Vec<Arc<dyn Policy>>);

impl Policies {
    fn new(settings: &Settings) -> Self {
        Self(vec![
            Arc::new(SharedKeyPolicy::new(settings.wall_clock.clone())),
            Arc::new(TokenPolicy),
            Arc::new(BodyPolicy::default()),
        ])
    }

    fn pipeline(&self, options: ClientOptions) -> Pipeline {
        let pipeline_options =
            PipelineOptions { retry_status_codes: RETRIED_STATUS_CODES.to_vec(), ..PipelineOptions::default() };
        Pipeline::new(
            Some(env!("CARGO_PKG_NAME")),
            Some(env!("CARGO_PKG_VERSION")),
            options,
            Vec::new(),
            self.0.clone(),
            Some(pipeline_options),
        )
    }
}
