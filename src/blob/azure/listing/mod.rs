//! Parses a page of List Blobs.
//!
//! Format: <https://learn.microsoft.com/rest/api/storageservices/list-blobs>.

mod draft;
#[cfg(test)]
mod tests;

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::{BytesRef, BytesStart, Event};

use self::draft::{Draft, end_of_properties};
use super::unusable::Unusable;
use crate::blob::{Blob, BlobContent, ResponseInfo};

/// A blob in a listing of Azure has about this many bytes. A wrong number costs memory or time, nothing else.
const USUAL_BLOB_BYTES: usize = 800;

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
    let blobs = Vec::with_capacity(body.len() / USUAL_BLOB_BYTES);
    let page = Page { blobs, ..Page::default() };
    let mut parser = Parser { reader: Reader::from_reader(body), text: String::new(), detail, page, response };
    while let Some(root) = parser.next_child()? {
        if root.is("EnumerationResults") {
            parser.results(&root)?;
            return Ok(parser.page);
        }
        parser.skip(&root)?;
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

    fn skip(&mut self, element: &Element<'a>) -> Result<(), PageError> {
        if !element.is_empty {
            self.reader.read_to_end(element.start.name())?;
        }
        Ok(())
    }

    fn results(&mut self, results: &Element<'a>) -> Result<(), PageError> {
        while let Some(child) = self.next_in(results)? {
            if child.is("Blobs") {
                self.blobs(&child)?;
            } else if child.is("NextMarker") {
                let marker = self.text_of(&child)?;
                self.page.next_marker = (!marker.is_empty()).then(|| marker.to_owned());
            } else {
                self.skip(&child)?;
            }
        }
        Ok(())
    }

    fn blobs(&mut self, blobs: &Element<'a>) -> Result<(), PageError> {
        while let Some(child) = self.next_in(blobs)? {
            if child.is("Blob") {
                let draft = self.blob(&child)?;
                self.add(draft);
            } else {
                self.skip(&child)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, draft: Draft) {
        if self.detail == Detail::Content {
            self.page.contents.push(draft.content());
        }
        match draft.finish(self.response) {
            Ok(blob) => self.page.blobs.push(blob),
            Err(unusable) => self.page.unusable.push(unusable),
        }
    }

    fn blob(&mut self, blob: &Element<'a>) -> Result<Draft, PageError> {
        let mut draft = Draft::default();
        while let Some(child) = self.next_in(blob)? {
            if child.is("Name") {
                draft.name_is_encoded = child.is_encoded();
                draft.name = self.text_of(&child)?.to_owned();
            } else if child.is("Properties") {
                self.properties(&child, &mut draft)?;
            } else if child.is("Metadata") {
                self.metadata(&child, &mut draft)?;
            } else {
                self.skip(&child)?;
            }
        }
        Ok(draft)
    }

    fn properties(&mut self, properties: &Element<'a>, draft: &mut Draft) -> Result<(), PageError> {
        while let Some(child) = self.next_in(properties)? {
            draft.set_property(child.start.name().as_ref(), self.text_of(&child)?);
            if self.detail == Detail::Version && draft.has_version() {
                let rest = *self.reader.get_ref();
                *self.reader.get_mut() = &rest[end_of_properties(rest).ok_or(PageError::Truncated)?..];
            }
        }
        Ok(())
    }

    fn metadata(&mut self, metadata: &Element<'a>, draft: &mut Draft) -> Result<(), PageError> {
        while let Some(child) = self.next_in(metadata)? {
            draft.metadata.insert(child.start.name().as_ref(), self.text_of(&child)?);
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
        let replacement = resolve_xml_entity(reference).ok_or_else(|| PageError::Entity(reference.to_string()))?;
        self.text.push_str(replacement);
        Ok(())
    }
}

impl Element<'_> {
    fn is(&self, name: &str) -> bool {
        self.start.name().as_ref() == name
    }

    /// Names with characters that XML cannot represent are percent-encoded.
    fn is_encoded(&self) -> bool {
        let attribute = self.start.try_get_attribute("Encoded").ok().flatten();
        attribute.is_some_and(|attribute| attribute.value.eq_ignore_ascii_case("true"))
    }
}
