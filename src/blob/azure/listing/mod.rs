//! Parses a page of List Blobs, and logs the blobs that are not usable.
//!
//! Format: <https://learn.microsoft.com/rest/api/storageservices/list-blobs>.

use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, Mutex};

use memchr::memmem::Finder;
use percent_encoding::percent_decode_str;
use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};
use time::OffsetDateTime;

use super::headers::parse_http_date;
use crate::blob::{Blob, BlobContent, ETag, Metadata, ResponseInfo};
use crate::telemetry;
use crate::util::lock;

/// The most blobs that are logged per listing.
const MOST_LOGGED: usize = 10;

/// A blob in a listing of Azure has about this many bytes. A wrong number costs memory or time, nothing else.
const USUAL_BLOB_BYTES: usize = 800;

static END_OF_PROPERTIES: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("</Properties>"));

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
    #[error("the listing has an unknown entity &{0};")]
    Entity(String),
    #[error("the listing ends early")]
    Truncated,
}

/// Parses a page. `response` is the response that carried the page. Properties that are not used are skipped, so they
/// may be invalid.
pub(super) fn parse_page(body: &[u8], detail: Detail, response: ResponseInfo) -> Result<Page, PageError> {
    let mut parser = Parser {
        reader: Reader::from_reader(body),
        text: String::new(),
        detail,
        page: Page { blobs: Vec::with_capacity(body.len() / USUAL_BLOB_BYTES), ..Page::default() },
        response,
    };
    while let Some(root) = parser.next_child()? {
        if root.has_name("EnumerationResults") {
            parser.parse_results(&root)?;
            return Ok(parser.page);
        }
        parser.skip_element(&root)?;
    }
    Err(PageError::Truncated)
}

/// Reads elements from the outermost to the innermost. Elements that it does not know are skipped with their content.
struct Parser<'a> {
    reader: Reader<&'a [u8]>,
    /// The text of the last element whose text was read.
    text: String,
    detail: Detail,
    page: Page,
    response: ResponseInfo,
}

/// The start of an element.
struct Element<'a> {
    start: BytesStart<'a>,
    /// It has no content and no end tag.
    is_empty: bool,
}

impl<'a> Parser<'a> {
    /// Returns the next element in the current one, or `None` at its end.
    fn next_child(&mut self) -> Result<Option<Element<'a>>, PageError> {
        loop {
            match self.reader.read_event()? {
                Event::Start(start) => return Ok(Some(Element { start, is_empty: false })),
                Event::Empty(start) => return Ok(Some(Element { start, is_empty: true })),
                Event::End(_) => return Ok(None),
                Event::Eof => return Err(PageError::Truncated),
                _ => {}
            }
        }
    }

    /// Returns the next element in `parent`, or `None` at its end.
    fn next_in(&mut self, parent: &Element<'a>) -> Result<Option<Element<'a>>, PageError> {
        if parent.is_empty { Ok(None) } else { self.next_child() }
    }

    fn skip_element(&mut self, element: &Element<'a>) -> Result<(), PageError> {
        if !element.is_empty {
            self.reader.read_to_end(element.start.name())?;
        }
        Ok(())
    }

    fn parse_results(&mut self, results: &Element<'a>) -> Result<(), PageError> {
        while let Some(child) = self.next_in(results)? {
            if child.has_name("Blobs") {
                self.parse_blobs(&child)?;
            } else if child.has_name("NextMarker") {
                let marker = self.text_of(&child)?;
                self.page.next_marker = (!marker.is_empty()).then(|| marker.to_owned());
            } else {
                self.skip_element(&child)?;
            }
        }
        Ok(())
    }

    fn parse_blobs(&mut self, blobs: &Element<'a>) -> Result<(), PageError> {
        while let Some(child) = self.next_in(blobs)? {
            if child.has_name("Blob") {
                let draft = self.parse_blob(&child)?;
                self.add_blob(draft);
            } else {
                self.skip_element(&child)?;
            }
        }
        Ok(())
    }

    fn add_blob(&mut self, draft: Draft) {
        if self.detail == Detail::Content {
            self.page.contents.push(BlobContent::new(draft.decode_name(), draft.size, draft.is_leased));
        }
        match draft.into_blob(self.response) {
            Ok(blob) => self.page.blobs.push(blob),
            Err(unusable) => self.page.unusable.push(unusable),
        }
    }

    fn parse_blob(&mut self, blob: &Element<'a>) -> Result<Draft, PageError> {
        let mut draft = Draft::default();
        while let Some(child) = self.next_in(blob)? {
            if child.has_name("Name") {
                // Names with characters that XML cannot represent are percent-encoded.
                let encoded = child.start.try_get_attribute("Encoded").ok().flatten();
                draft.name_is_encoded = encoded.is_some_and(|encoded| encoded.value.eq_ignore_ascii_case("true"));
                draft.name = self.text_of(&child)?.to_owned();
            } else if child.has_name("Properties") {
                self.parse_properties(&child, &mut draft)?;
            } else if child.has_name("Metadata") {
                while let Some(pair) = self.next_in(&child)? {
                    draft.metadata.insert(pair.start.name().as_ref(), self.text_of(&pair)?);
                }
            } else {
                self.skip_element(&child)?;
            }
        }
        Ok(draft)
    }

    fn parse_properties(&mut self, properties: &Element<'a>, draft: &mut Draft) -> Result<(), PageError> {
        while let Some(child) = self.next_in(properties)? {
            draft.set_property(child.start.name().as_ref(), self.text_of(&child)?);
            // Most of a page is properties that are not used.
            if self.detail == Detail::Version && draft.etag.is_some() && draft.last_modified.is_some() {
                let rest = *self.reader.get_ref();
                *self.reader.get_mut() = &rest[END_OF_PROPERTIES.find(rest).ok_or(PageError::Truncated)?..];
            }
        }
        Ok(())
    }

    /// Returns the text of an element. References and sections split it into several events.
    fn text_of(&mut self, element: &Element<'a>) -> Result<&str, PageError> {
        self.text.clear();
        if element.is_empty {
            return Ok(&self.text);
        }
        loop {
            match self.reader.read_event()? {
                Event::Text(text) => self.text.push_str(&text.xml10_content()),
                Event::CData(text) => self.text.push_str(&text.xml10_content()),
                Event::GeneralRef(reference) => self.push_reference(&reference)?,
                Event::Start(start) => {
                    self.reader.read_to_end(start.name())?;
                }
                Event::End(_) => return Ok(&self.text),
                Event::Eof => return Err(PageError::Truncated),
                _ => {}
            }
        }
    }

    fn push_reference(&mut self, reference: &BytesRef<'_>) -> Result<(), PageError> {
        if let Some(character) = reference.resolve_char_ref()? {
            self.text.push(character);
            return Ok(());
        }
        self.text.push_str(resolve_xml_entity(reference).ok_or_else(|| PageError::Entity(reference.to_string()))?);
        Ok(())
    }
}

impl Element<'_> {
    fn has_name(&self, name: &str) -> bool {
        self.start.name().as_ref() == name
    }
}

/// What was read of a blob.
#[derive(Debug, Default)]
struct Draft {
    name: String,
    /// The name has characters that XML cannot represent, and is percent-encoded.
    name_is_encoded: bool,
    metadata: Metadata,
    etag: Option<ETag>,
    last_modified: Option<OffsetDateTime>,
    size: u64,
    is_leased: bool,
}

impl Draft {
    /// Sets a property, if it is used.
    fn set_property(&mut self, property: &str, text: &str) {
        match property {
            "Etag" => self.etag = (!text.is_empty()).then(|| ETag::new(text)),
            "Last-Modified" => self.last_modified = parse_http_date(text),
            // A size that cannot be read is too large for every reader.
            "Content-Length" => self.size = text.trim().parse().unwrap_or(u64::MAX),
            // A lease that is being broken is active until it ends.
            "LeaseState" => self.is_leased = matches!(text.trim(), "leased" | "breaking"),
            _ => {}
        }
    }

    fn decode_name(&self) -> String {
        if self.name_is_encoded {
            percent_decode_str(&self.name).decode_utf8_lossy().into_owned()
        } else {
            self.name.clone()
        }
    }

    /// Returns the blob. A blob without a version is unusable.
    fn into_blob(self, response: ResponseInfo) -> Result<Blob, Unusable> {
        let name = self.decode_name();
        match (self.etag, self.last_modified) {
            (Some(etag), Some(last_modified)) => {
                Ok(Blob { name, metadata: self.metadata, etag, last_modified, response })
            }
            (etag, _) => Err(Unusable { name, etag }),
        }
    }
}

/// A blob without a usable date, or without an ETag. All versions without an ETag count as one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Unusable {
    pub(super) name: String,
    pub(super) etag: Option<ETag>,
}

/// The blobs that were logged, by the prefix of the listing. The size is bounded: each listing replaces the findings of
/// the previous one with the same prefix, and a listing without unusable blobs removes them.
#[derive(Debug, Default)]
pub(super) struct UnusableLog(Mutex<HashMap<String, HashSet<Unusable>>>);

impl UnusableLog {
    /// Logs the blobs that the last listing with this prefix did not contain.
    pub(super) fn log_new(&self, prefix: &str, found: HashSet<Unusable>) {
        let mut reported = lock(&self.0);
        let last = reported.remove(prefix).unwrap_or_default();
        let new: Vec<_> = found.difference(&last).collect();
        new.iter().take(MOST_LOGGED).for_each(|blob| telemetry::unusable_blob(&blob.name));
        if new.len() > MOST_LOGGED {
            telemetry::unusable_blobs_not_logged(new.len() - MOST_LOGGED);
        }
        if !found.is_empty() {
            reported.insert(prefix.to_owned(), found);
        }
    }
}

#[cfg(feature = "testing")]
#[path = "tests/tree.rs"]
pub(super) mod tree;

#[cfg(test)]
mod tests;
