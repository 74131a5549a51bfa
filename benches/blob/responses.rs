//! Canned responses of Azure.
//!
//! Formats: <https://learn.microsoft.com/rest/api/storageservices/list-blobs>,
//! <https://learn.microsoft.com/rest/api/storageservices/put-blob>,
//! <https://learn.microsoft.com/rest/api/storageservices/set-blob-metadata>.

use std::fmt::Write;

use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper::{Method, Request, Response, StatusCode};

use crate::work::{API_VERSION, CONTAINER, ETAG, METADATA, PARTITIONS, prefix};

const LAST_MODIFIED: &str = "Fri, 20 Nov 2026 11:59:58 GMT";
/// A listing is sent in pieces, without its length.
const PIECE: usize = 16 * 1024;

/// A body that cannot fail.
pub(crate) type Body = BoxBody<Bytes, std::convert::Infallible>;

/// All responses, created once.
pub(crate) struct Responses {
    listing: Bytes,
}

impl Responses {
    pub(crate) fn new() -> Self {
        Self { listing: listing().into() }
    }

    /// Returns the response to a request. The server adds `Date` and the framing of the body.
    pub(crate) fn to<B>(&self, request: &Request<B>) -> hyper::http::Result<Response<Body>> {
        let response = Response::builder()
            .header("server", "Windows-Azure-Blob/1.0 Microsoft-HTTPAPI/2.0")
            .header("x-ms-request-id", "8f3b2c1d-001e-0042-1a2b-3c4d5e000000")
            .header("x-ms-version", API_VERSION);
        if request.method() == Method::GET {
            return response.header("content-type", "application/xml").body(self.listing());
        }
        let response = response
            .header("etag", format!("\"{ETAG}\""))
            .header("last-modified", LAST_MODIFIED)
            .header("x-ms-request-server-encrypted", "true");
        if request.uri().query() == Some("comp=metadata") {
            return response.body(Empty::new().boxed());
        }
        response
            .status(StatusCode::CREATED)
            .header("content-md5", "1B2M2Y8AsgTpgAmY7PhCfg==")
            .header("x-ms-content-crc64", "AAAAAAAAAAA=")
            .body(Empty::new().boxed())
    }

    fn listing(&self) -> Body {
        let pieces = (0..self.listing.len()).step_by(PIECE).map(|start| {
            let end = self.listing.len().min(start + PIECE);
            Ok(Frame::data(self.listing.slice(start..end)))
        });
        StreamBody::new(futures::stream::iter(pieces.collect::<Vec<_>>())).boxed()
    }
}

fn listing() -> String {
    let prefix = prefix();
    let mut xml = format!(
        "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults \
         ServiceEndpoint=\"https://example.blob.core.windows.net/\" ContainerName=\"{CONTAINER}\"><Prefix>{prefix}</Prefix><Blobs>"
    );
    let mut names: Vec<String> = (0..PARTITIONS).map(|partition| format!("{prefix}{partition}")).collect();
    names.sort();
    for name in &names {
        push_blob(&mut xml, name);
    }
    xml.push_str("</Blobs><NextMarker /></EnumerationResults>");
    xml
}

fn push_blob(xml: &mut String, name: &str) {
    let metadata = METADATA.iter().fold(String::new(), |text, (key, value)| text + &format!("<{key}>{value}</{key}>"));
    // Writing to a String cannot fail.
    let _ = write!(
        xml,
        "<Blob><Name>{name}</Name><Properties><Creation-Time>Fri, 20 Nov 2026 11:55:02 GMT</Creation-Time>\
         <Last-Modified>{LAST_MODIFIED}</Last-Modified><Etag>{ETAG}</Etag><Content-Length>0</Content-Length>\
         <Content-Type>application/octet-stream</Content-Type><Content-Encoding /><Content-Language /><Content-CRC64 />\
         <Content-MD5>1B2M2Y8AsgTpgAmY7PhCfg==</Content-MD5><Cache-Control /><Content-Disposition />\
         <BlobType>BlockBlob</BlobType><AccessTier>Hot</AccessTier><AccessTierInferred>true</AccessTierInferred>\
         <LeaseStatus>unlocked</LeaseStatus><LeaseState>available</LeaseState><ServerEncrypted>true</ServerEncrypted>\
         </Properties><Metadata>{metadata}</Metadata><OrMetadata /></Blob>"
    );
}
