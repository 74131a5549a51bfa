//! Parses a page of List Blobs.
//!
//! Format: <https://learn.microsoft.com/rest/api/storageservices/list-blobs>.

use percent_encoding::percent_decode_str;
use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};
use quick_xml::name::QName;
use time::OffsetDateTime;

use super::date::parse_http_date;
use super::unusable::Unusable;
use crate::blob::{Blob, BlobContent, ETag, Metadata, ResponseInfo};

const PROPERTIES: &str = "Properties";
const ETAG: &str = "Etag";
const LAST_MODIFIED: &str = "Last-Modified";
const CONTENT_LENGTH: &str = "Content-Length";
const LEASE_STATE: &str = "LeaseState";

/// What is read of the properties of each blob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The version alone.
    Version,
    /// Also the size and the state of the lease.
    Content,
}

/// A page of a listing.
#[derive(Debug, Default)]
pub(super) struct Page {
    pub(super) blobs: Vec<Blob>,
    /// The contents of all blobs, with [`Detail::Content`].
    pub(super) contents: Vec<BlobContent>,
    /// The blobs that are missing in `blobs`.
    pub(super) unusable: Vec<Unusable>,
    /// The start of the next page, if there is one.
    pub(super) next_marker: Option<String>,
}

/// Why a page is unusable. A single unusable blob is not an error: the blob is skipped.
#[derive(Debug, thiserror::Error)]
pub(super) enum PageError {
    #[error("the listing is not XML")]
    Xml(#[from] quick_xml::Error),
    #[error("the listing is not UTF-8")]
    Utf8(#[from] std::str::Utf8Error),
    #[error("the listing has an unknown entity &{0};")]
    Entity(String),
    #[error("the listing ends early")]
    Truncated,
}

/// Parses a page. `response` is the response that carried the page.
pub(super) fn parse_page(body: &[u8], detail: Detail, response: ResponseInfo) -> Result<Page, PageError> {
    let text = std::str::from_utf8(body)?;
    let mut text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut reader = reader_of(text);
    let mut parser = PageParser::new(detail, response);
    loop {
        match reader.read_event()? {
            Event::Start(element) if parser.ignores(element.name()) => {
                reader.read_to_end(element.name())?;
            }
            Event::Start(element) => parser.open(&element),
            Event::End(element) => {
                parser.close(element.name().as_ref());
                if parser.has_all_properties() {
                    text = after_properties(text, reader.buffer_position())?;
                    reader = reader_of(text);
                    parser.close(PROPERTIES);
                }
            }
            Event::Text(text) => parser.text.push_str(&text.xml10_content()),
            Event::CData(text) => parser.text.push_str(&text.xml10_content()),
            Event::GeneralRef(reference) => parser.push_reference(&reference)?,
            Event::Eof => return parser.finish(),
            _ => {}
        }
    }
}

fn reader_of(text: &str) -> Reader<&[u8]> {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    config.expand_empty_elements = true;
    // The reader starts in the middle of the document, after the start tags of elements that end later.
    config.allow_unmatched_ends = true;
    reader
}

/// Returns the text after the end of the properties. Most of a page is unused properties: skipping them as text saves a
/// third of the total time.
fn after_properties(text: &str, position: u64) -> Result<&str, PageError> {
    const END: &str = "</Properties>";
    let rest = usize::try_from(position).ok().and_then(|position| text.get(position..)).unwrap_or_default();
    let end = rest.find(END).ok_or(PageError::Truncated)?;
    Ok(&rest[end + END.len()..])
}

/// The position of the parser in the document. A metadata key may be named like any element, so the position decides.
#[derive(Clone, Copy)]
enum Place {
    Page,
    Blob,
    Properties,
    Metadata,
    MetadataValue,
    /// After the last element.
    End,
}

struct PageParser {
    place: Place,
    /// The text of the innermost element up to now: entities split it into several events.
    text: String,
    detail: Detail,
    draft: Draft,
    page: Page,
    response: ResponseInfo,
}

/// A blob that is not completely read.
#[derive(Default)]
struct Draft {
    name: String,
    name_is_encoded: bool,
    metadata: Metadata,
    etag: Option<ETag>,
    last_modified: Option<OffsetDateTime>,
    size: u64,
    is_leased: bool,
}

impl PageParser {
    fn new(detail: Detail, response: ResponseInfo) -> Self {
        Self {
            place: Place::Page,
            text: String::new(),
            detail,
            draft: Draft::default(),
            page: Page::default(),
            response,
        }
    }

    /// Returns whether the parser ignores this element. Only some of the properties are used.
    fn ignores(&self, element: QName<'_>) -> bool {
        let is_used = match element.as_ref() {
            ETAG | LAST_MODIFIED => true,
            CONTENT_LENGTH | LEASE_STATE => self.detail == Detail::Content,
            _ => false,
        };
        matches!(self.place, Place::Properties) && !is_used
    }

    /// Returns whether all used properties are read. The others are after the version.
    fn has_all_properties(&self) -> bool {
        let has_version = self.draft.etag.is_some() && self.draft.last_modified.is_some();
        matches!(self.place, Place::Properties) && self.detail == Detail::Version && has_version
    }

    fn open(&mut self, element: &BytesStart<'_>) {
        self.text.clear();
        let name = element.name();
        self.place = match (self.place, name.as_ref()) {
            (Place::Page, "Blob") => {
                self.draft = Draft::default();
                Place::Blob
            }
            (Place::Blob, "Name") => {
                self.draft.name_is_encoded = is_encoded(element);
                Place::Blob
            }
            (Place::Blob, PROPERTIES) => Place::Properties,
            (Place::Blob, "Metadata") => Place::Metadata,
            (Place::Metadata, _) => Place::MetadataValue,
            (place, _) => place,
        };
    }

    fn close(&mut self, element: &str) {
        let text = std::mem::take(&mut self.text);
        match (self.place, element) {
            (Place::Blob, "Name") => self.draft.name = text,
            (Place::Blob, "Blob") => self.finish_blob(),
            (Place::Properties, ETAG) => self.draft.etag = (!text.is_empty()).then(|| ETag::new(&text)),
            (Place::Properties, LAST_MODIFIED) => self.draft.last_modified = parse_http_date(&text),
            // A size that cannot be read is too large for every reader.
            (Place::Properties, CONTENT_LENGTH) => self.draft.size = text.trim().parse().unwrap_or(u64::MAX),
            // A lease that is being broken is active until it ends.
            (Place::Properties, LEASE_STATE) => self.draft.is_leased = matches!(text.trim(), "leased" | "breaking"),
            (Place::Properties, PROPERTIES) | (Place::Metadata, _) => self.place = Place::Blob,
            (Place::MetadataValue, key) => {
                self.draft.metadata.insert(key.to_ascii_lowercase(), text);
                self.place = Place::Metadata;
            }
            (Place::Page, "NextMarker") => self.page.next_marker = (!text.is_empty()).then_some(text),
            (Place::Page, "EnumerationResults") => self.place = Place::End,
            _ => {}
        }
    }

    fn push_reference(&mut self, reference: &BytesRef<'_>) -> Result<(), PageError> {
        if let Some(character) = reference.resolve_char_ref()? {
            self.text.push(character);
            return Ok(());
        }
        let replacement = resolve_xml_entity(reference).ok_or_else(|| PageError::Entity(reference.to_string()))?;
        self.text.push_str(replacement);
        Ok(())
    }

    fn finish_blob(&mut self) {
        self.place = Place::Page;
        let draft = std::mem::take(&mut self.draft);
        let name = draft.decoded_name();
        if self.detail == Detail::Content {
            let Draft { size, is_leased, .. } = draft;
            self.page.contents.push(BlobContent::new(name.clone(), size, is_leased));
        }
        let (etag, last_modified) = match (draft.etag, draft.last_modified) {
            (Some(etag), Some(last_modified)) => (etag, last_modified),
            (etag, _) => return self.page.unusable.push(Unusable { name, etag }),
        };
        self.page.blobs.push(Blob { name, metadata: draft.metadata, etag, last_modified, response: self.response });
    }

    fn finish(self) -> Result<Page, PageError> {
        match self.place {
            Place::End => Ok(self.page),
            _ => Err(PageError::Truncated),
        }
    }
}

impl Draft {
    fn decoded_name(&self) -> String {
        if self.name_is_encoded {
            return percent_decode_str(&self.name).decode_utf8_lossy().into_owned();
        }
        self.name.clone()
    }
}

/// Names with characters that XML cannot represent are percent-encoded.
fn is_encoded(element: &BytesStart<'_>) -> bool {
    let attribute = element.try_get_attribute("Encoded").ok().flatten();
    attribute.is_some_and(|attribute| attribute.value.eq_ignore_ascii_case("true"))
}

#[cfg(test)]
mod tests {
    use time::macros::datetime;
    use tokio::time::Instant;

    use super::*;

    fn response() -> ResponseInfo {
        ResponseInfo { server_time: datetime!(2026-11-20 12:00:00 UTC), received_at: Instant::now() }
    }

    fn parse(inside: &str) -> Result<Page, PageError> {
        let text = format!(
            "\u{feff}<?xml version=\"1.0\" encoding=\"utf-8\"?><EnumerationResults ServiceEndpoint=\"https://a/\">{inside}\
             </EnumerationResults>"
        );
        parse_page(text.as_bytes(), Detail::Version, response())
    }

    const PROPERTIES: &str =
        "<Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified><Etag>0x8D1</Etag></Properties>";

    fn blob(inside: &str) -> Blob {
        let page = parse(&format!("<Blobs><Blob>{inside}{PROPERTIES}</Blob></Blobs><NextMarker />")).unwrap();
        page.blobs.into_iter().next().unwrap()
    }

    #[test]
    fn parses_a_page_of_azure() {
        let page = parse(
            "<Prefix>p</Prefix><Blobs><Blob><Name>p/1</Name><Properties><Creation-Time>x</Creation-Time>\
             <Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified><Etag>0x8D1</Etag>\
             <Content-Length>0</Content-Length><Content-MD5 /></Properties><Metadata><OwnerId>me</OwnerId><since/>\
             </Metadata><OrMetadata /></Blob></Blobs><NextMarker>2!88!abc</NextMarker>",
        )
        .unwrap();
        let expected = [("ownerid", "me"), ("since", "")].map(|(key, value)| (key.to_owned(), value.to_owned()));
        let [blob] = page.blobs.as_slice() else { panic!("{page:?}") };
        assert_eq!((blob.name.as_str(), blob.etag.as_str()), ("p/1", "0x8D1"));
        assert_eq!(blob.metadata, Metadata::from(expected));
        assert_eq!(blob.last_modified, datetime!(2026-11-20 11:59:00 UTC));
        assert_eq!(blob.age(), std::time::Duration::from_secs(60));
        assert_eq!(page.next_marker.as_deref(), Some("2!88!abc"));
    }

    #[test]
    fn empty_or_absent_marker_ends_the_listing() {
        for inside in ["<Blobs/><NextMarker/>", "<Blobs></Blobs><NextMarker></NextMarker>", "<Blobs/>"] {
            let page = parse(inside).unwrap();
            assert!(page.blobs.is_empty() && page.next_marker.is_none(), "{inside}");
        }
    }

    #[test]
    fn entities_do_not_split_texts() {
        assert_eq!(blob("<Name>a&amp;b&lt;&gt;&quot;&apos;&#x41;&#66;c</Name>").name, "a&b<>\"'ABc");
        assert_eq!(blob("<Name><![CDATA[a<b]]>&amp;c</Name>").name, "a<b&c");
        let metadata = blob("<Name>n</Name><Metadata><k> x &amp; y </k></Metadata>").metadata;
        assert_eq!(metadata["k"], " x & y ");
        assert!(matches!(parse("<x>&nbsp;</x>"), Err(PageError::Entity(name)) if name == "nbsp"));
    }

    #[test]
    fn only_encoded_names_are_decoded() {
        assert_eq!(blob("<Name Encoded=\"true\">a%EF%BF%BF%25%2F</Name>").name, "a\u{ffff}%/");
        assert_eq!(blob("<Name Encoded=\"false\">a%25</Name>").name, "a%25");
        assert_eq!(blob("<Name>a%25</Name>").name, "a%25");
    }

    #[test]
    fn metadata_keys_may_be_named_like_elements() {
        let blob = blob(
            "<Name>n</Name><Metadata><Name>1</Name><Etag>2</Etag><Metadata>3</Metadata><Blob>4</Blob><NextMarker>5\
             </NextMarker><Properties>6</Properties></Metadata>",
        );
        let keys: Vec<&str> = blob.metadata.keys().map(String::as_str).collect();
        assert_eq!(keys, ["blob", "etag", "metadata", "name", "nextmarker", "properties"]);
        assert_eq!((blob.name.as_str(), blob.etag.as_str()), ("n", "0x8D1"));
    }

    #[test]
    fn unusable_blob_is_skipped() {
        let bad_date = "<Properties><Last-Modified>yesterday</Last-Modified><Etag>1</Etag></Properties>";
        let page = parse(&format!(
            "<Blobs><Blob><Name>1</Name></Blob><Blob><Name>2</Name>{bad_date}</Blob><Blob><Name>3</Name>{PROPERTIES}\
             </Blob></Blobs>"
        ))
        .unwrap();
        let names: Vec<&str> = page.blobs.iter().map(|blob| blob.name.as_str()).collect();
        assert_eq!(names, ["3"]);
    }

    /// The order is that of Azure. A blob without a version has a content, too.
    #[test]
    fn sizes_and_leases_are_read_on_request() {
        let blob = |name: &str, lease: &str| {
            format!(
                "<Blob><Name>{name}</Name><Properties><Last-Modified>Fri, 20 Nov 2026 11:59:00 GMT</Last-Modified>\
                 <Etag>1</Etag><Content-Length>131</Content-Length><LeaseStatus>x</LeaseStatus>{lease}</Properties></Blob>"
            )
        };
        let states = ["leased", "breaking", "available", "expired", "broken"];
        let blobs = states.map(|state| blob(state, &format!("<LeaseState>{state}</LeaseState>"))).concat();
        let text = format!(
            "<EnumerationResults><Blobs><BlobPrefix><Name>p/</Name></BlobPrefix>{blobs}{}<Blob><Name>old</Name></Blob>\
             </Blobs></EnumerationResults>",
            blob("none", "")
        );
        let page = parse_page(text.as_bytes(), Detail::Content, response()).unwrap();
        let leased: Vec<_> =
            page.contents.iter().filter(|blob| blob.is_leased).map(|blob| blob.name.as_str()).collect();
        assert_eq!(leased, ["leased", "breaking"]);
        let names: Vec<_> = page.contents.iter().map(|blob| blob.name.as_str()).collect();
        assert_eq!(names, [&states[..], &["none", "old"]].concat(), "a prefix is no blob");
        assert!(page.contents[..6].iter().all(|blob| blob.size == 131));
        assert!(parse(&format!("<Blobs>{blobs}</Blobs>")).unwrap().contents.is_empty());
    }

    #[test]
    fn truncated_body_is_rejected() {
        let whole =
            format!("<EnumerationResults><Blobs><Blob><Name>1</Name>{PROPERTIES}</Blob></Blobs></EnumerationResults>");
        assert!(parse_page(whole.as_bytes(), Detail::Version, response()).is_ok());
        for length in 0..whole.len() {
            assert!(parse_page(&whole.as_bytes()[..length], Detail::Version, response()).is_err(), "{length}");
        }
    }

    #[test]
    fn other_documents_are_rejected() {
        for body in [b"{}".as_slice(), b"<html></html>", b"\xff\xfe", b"<a><b></a>"] {
            assert!(parse_page(body, Detail::Version, response()).is_err(), "{}", String::from_utf8_lossy(body));
        }
    }
}
