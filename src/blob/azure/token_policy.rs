//! The token in the requests of a container.

use std::sync::Arc;

use azure_core::Error;
use azure_core::error::ErrorKind;
use azure_core::http::headers::AUTHORIZATION;
use azure_core::http::policies::{Policy, PolicyResult};
use azure_core::http::{Context, Request, StatusCode};

use super::credentials::{self, Credentials};
use super::refresh::Token;

/// Adds the token in the context to each attempt of a request, over https only. A token is replaced if the response is
/// 401. The response is returned to the caller, as by the policy of `azure_core` (neither supports challenges).
#[derive(Debug)]
pub(super) struct TokenPolicy;

#[expect(elided_lifetimes_in_paths, reason = "spelled out, the lifetime does not match the trait's declaration")]
#[async_trait::async_trait]
impl Policy for TokenPolicy {
    async fn send(&self, ctx: &Context, request: &mut Request, next: &[Arc<dyn Policy>]) -> PolicyResult {
        let Credentials::Token(source) = credentials::of_call(ctx)? else {
            return next[0].send(ctx, request, &next[1..]).await;
        };
        if request.url().scheme() != "https" {
            return Err(Error::with_message(ErrorKind::Other, "a token is only sent over https"));
        }
        let token = ctx.value::<Arc<Token>>().ok_or_else(|| credentials::removed("the token"))?;
        request.insert_header(AUTHORIZATION, format!("Bearer {}", token.secret.secret()));
        let response = next[0].send(ctx, request, &next[1..]).await?;
        if response.status() == StatusCode::Unauthorized {
            source.rejected(token);
        }
        Ok(response)
    }
}
