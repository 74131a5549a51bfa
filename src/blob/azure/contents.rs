//! Reads blobs of other programs.

use async_trait::async_trait;
use azure_core::http::Method;
use azure_core::http::headers::HeaderName;

use super::container::AzureContainer;
use super::listing::Detail;
use super::operation::Verb;
use crate::blob::validation::validate_blob_name;
use crate::blob::{BlobContent, BlobContents};
use crate::error::Result;

const RANGE: HeaderName = HeaderName::from_static("x-ms-range");

#[async_trait]
impl BlobContents for AzureContainer {
    async fn list_contents(&self, prefix: &str) -> Result<Vec<BlobContent>> {
        Ok(self.list_all(prefix, Detail::Content).await?.0.contents)
    }

    async fn read_content(&self, name: &str, limit: u32) -> Result<Vec<u8>> {
        validate_blob_name(name)?;
        let mut request = self.blob_request(Method::Get, name);
        request.insert_header(RANGE, format!("bytes=0-{}", limit.saturating_sub(1)));
        let reply = self.client.read(self.operation(Verb::Get, name), request).await?;
        Ok(reply.body.to_vec())
    }
}
