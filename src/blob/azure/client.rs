//! Sends requests: pipelines, timeout, and the first check of the response.

use std::sync::Arc;

use azure_core::Uuid;
use azure_core::http::headers::{CLIENT_REQUEST_ID, ERROR_CODE, Headers, VERSION};
use azure_core::http::policies::Policy;
use azure_core::http::{
    ClientOptions, Context, ExponentialRetryOptions, Method, Pipeline, PipelineOptions, PipelineStreamOptions, Request,
    RetryOptions, StatusCode, Transport, Url, new_http_client,
};
use azure_core::time::Duration;
use tokio::time::Instant;

use super::body::{BodyPolicy, whole};
use super::credentials::{CredentialKind, Credentials, SasPolicy};
use super::errors::{ErrorResponse, Operation, issuer_timed_out, no_response, no_token, timed_out, unusable_response};
use super::headers::{header, retry_after, server_time};
use super::settings::Settings;
use super::shared_key::{SharedKeyPolicy, skew};
use super::token::TokenPolicy;
use crate::blob::ResponseInfo;
use crate::error::{Error, Result};

/// The responses after which a read is retried. Throttling is not one of them: only the caller knows all requests of
/// this instance, so the caller must see the response and wait.
const RETRIED_STATUS_CODES: [StatusCode; 4] =
    [StatusCode::RequestTimeout, StatusCode::InternalServerError, StatusCode::BadGateway, StatusCode::GatewayTimeout];

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
    pub(super) fn new(settings: Arc<Settings>) -> Self {
        let options = &settings.client_options;
        let transport = options.transport.clone().unwrap_or_else(|| Transport::new(new_http_client(None)));
        let policies = Policies::new(&settings);
        let pipeline =
            |retry| policies.pipeline(ClientOptions { retry, transport: Some(transport.clone()), ..options.clone() });
        let (reads, writes) = (pipeline(read_retries(settings.request_timeout)), pipeline(RetryOptions::none()));
        Self { settings, reads, writes }
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
        let (began, limit) = (Instant::now(), self.settings.request_timeout);
        let context = self.context(operation).await?;
        let options = PipelineStreamOptions { skip_checks: true, ..PipelineStreamOptions::default() };
        let rest = limit.saturating_sub(began.elapsed());
        let sending = async {
            let (status, headers, body) = pipeline.stream(&context, &mut request, Some(options)).await?.deconstruct();
            Ok((status, headers, whole(body, 0).await?))
        };
        let sent = tokio::time::timeout(rest, sending).await;
        let received = Instant::now();
        let host = || self.settings.container_url.host();
        let (status, headers, body) = sent
            .map_err(|_| timed_out(operation, limit, &host()))?
            .map_err(|error: azure_core::Error| no_response(&error, operation, &host()))?;
        if !status.is_success() {
            return Ok(self.refused(operation, status.into(), &headers));
        }
        let server_time =
            server_time(&headers).ok_or_else(|| unusable_response(operation, "it has no readable date"))?;
        let response = ResponseInfo { server_time, received_at: received };
        Ok(Outcome::Success(Reply { headers, body, response }))
    }

    /// Returns what the policies need for this request: the token, if the credentials require one. The wait for the
    /// token leaves time for the request itself, so that no request is sent only to be abandoned.
    async fn context(&self, operation: Operation<'_>) -> Result<Context<'static>> {
        let Some(tokens) = &self.settings.tokens else {
            return Ok(Context::new());
        };
        let limit = self.settings.request_timeout;
        let wait = limit.saturating_sub(limit / 5);
        let token = tokio::time::timeout(wait, tokens.token()).await;
        let token = token.map_err(|_| issuer_timed_out(operation, wait, tokens.last_error().as_deref()))?;
        let token = token.map_err(|error| no_token(&error, operation))?;
        Ok(Context::new().with_value(token))
    }

    fn refused(&self, operation: Operation<'_>, status: u16, headers: &Headers) -> Outcome {
        let code = header(headers, &ERROR_CODE);
        let (kind, server_time) = (self.settings.credentials.kind(), server_time(headers));
        let clock_skew = server_time.filter(|_| kind == CredentialKind::AccountKey);
        let clock_skew = clock_skew.and_then(|time| skew(self.settings.wall_clock.now(), time));
        let refusal = ErrorResponse { status, code, retry_after: retry_after(headers), server_time, clock_skew };
        let error = refusal.into_error(operation, Some(kind));
        Outcome::Refused { error, code: code.map(str::to_owned) }
    }
}

impl Outcome {
    fn into_result(self) -> Result<Reply> {
        match self {
            Self::Success(reply) => Ok(reply),
            Self::Refused { error, .. } => Err(error),
        }
    }
}

/// The delays are so short that a third retry fits into the timeout even if an attempt is slow.
fn read_retries(request_timeout: std::time::Duration) -> RetryOptions {
    RetryOptions::exponential(ExponentialRetryOptions {
        initial_delay: Duration::milliseconds(100),
        max_retries: 3,
        max_total_elapsed: (request_timeout / 2).try_into().unwrap_or(Duration::MAX),
        max_delay: Duration::seconds(1),
    })
}

/// The policies that add credentials to a request.
struct Policies {
    per_call: Vec<Arc<dyn Policy>>,
    per_try: Vec<Arc<dyn Policy>>,
}

impl Policies {
    fn new(settings: &Settings) -> Self {
        let mut policies = Self { per_call: Vec::new(), per_try: Vec::new() };
        match settings.credentials.clone() {
            Credentials::AccountKey { account, key } => {
                policies.per_try.push(Arc::new(SharedKeyPolicy::new(account, key, settings.wall_clock.clone())));
            }
            Credentials::Sas(sas) => policies.per_call.push(Arc::new(SasPolicy::new(sas))),
            Credentials::Token(_) => {}
        }
        if let Some(tokens) = &settings.tokens {
            policies.per_try.push(Arc::new(TokenPolicy::new(Arc::clone(tokens))));
        }
        policies.per_try.push(Arc::new(BodyPolicy::default()));
        policies
    }

    fn pipeline(&self, options: ClientOptions) -> Pipeline {
        let pipeline_options =
            PipelineOptions { retry_status_codes: RETRIED_STATUS_CODES.to_vec(), ..PipelineOptions::default() };
        Pipeline::new(
            Some(env!("CARGO_PKG_NAME")),
            Some(env!("CARGO_PKG_VERSION")),
            options,
            self.per_call.clone(),
            self.per_try.clone(),
            Some(pipeline_options),
        )
    }
}
