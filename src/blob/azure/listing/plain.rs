//! Reads the blobs that look as Azure and Azurite usually list them: elements without attributes, texts without
//! references, keys in lower case. Hundreds of them are in a page, and to read each tag of them as XML takes several
//! times as long.
//!
//! Everything else is not read here, also what is not well-formed: the parser of XML then reads the same text.

use std::borrow::Cow;

use memchr::memchr3;
use smallvec::SmallVec;

use super::draft::{Draft, end_of_properties};
use crate::blob::Metadata;

/// The bytes of the names that are read here.
const NAME_BYTES: [bool; 256] = {
    let mut bytes = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        bytes[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        byte += 1;
    }
    bytes
};

/// Takes a blob from the start of the text. Returns it and the rest of the text.
pub(super) fn take_blob(text: &str) -> Option<(Draft<'_>, &str)> {
    let mut rest = Text(text);
    let mut draft = Draft::default();
    rest.expect(b"<Blob>")?;
    while !rest.take(b"</Blob>") {
        if rest.take(b"<Name>") {
            draft.name = Cow::Borrowed(rest.text(b"</Name>")?);
        } else if rest.take(b"<Properties>") {
            rest.properties(&mut draft)?;
        } else if rest.take(b"<Metadata>") {
            rest.metadata(&mut draft)?;
        } else if rest.element()?.0 == "Name" {
            return None;
        }
    }
    Some((draft, rest.0))
}

/// The text that is not read yet.
struct Text<'a>(&'a str);

impl<'a> Text<'a> {
    /// Reads the properties up to those that are used, and skips the others.
    fn properties(&mut self, draft: &mut Draft<'a>) -> Option<()> {
        while !self.take(b"</Properties>") {
            if self.take(b"<Last-Modified>") {
                draft.set_last_modified(self.text(b"</Last-Modified>")?);
            } else if self.take(b"<Etag>") {
                draft.set_etag(self.text(b"</Etag>")?);
            } else {
                let (name, text) = self.element()?;
                draft.set_property(name, text);
            }
            if draft.has_version() {
                self.0 = &self.0[end_of_properties(self.0.as_bytes())?..];
            }
        }
        Some(())
    }

    fn metadata(&mut self, draft: &mut Draft<'a>) -> Option<()> {
        let mut pairs = SmallVec::<[(&str, &str); 8]>::new();
        while !self.take(b"</Metadata>") {
            let (key, value) = self.element()?;
            if key.bytes().any(|byte| byte.is_ascii_uppercase()) {
                return None;
            }
            pairs.push((key, value));
        }
        if draft.metadata.is_empty() {
            draft.metadata = Metadata::of(&mut pairs);
        } else {
            draft.metadata.extend(pairs);
        }
        Some(())
    }

    /// Takes an element. Returns its name and its text.
    fn element(&mut self) -> Option<(&'a str, &'a str)> {
        self.expect(b"<")?;
        let end = self.0.bytes().position(|byte| !NAME_BYTES[usize::from(byte)]).filter(|end| *end > 0)?;
        let name = self.up_to(end);
        if self.take(b" />") || self.take(b"/>") {
            return Some((name, ""));
        }
        self.expect(b">")?;
        let text = self.text(b"</")?;
        self.0 = self.0.strip_prefix(name)?;
        self.expect(b">")?;
        Some((name, text))
    }

    /// Takes a text and what follows it.
    #[inline]
    fn text<const N: usize>(&mut self, end: &[u8; N]) -> Option<&'a str> {
        let text = self.up_to(memchr3(b'<', b'&', b'\r', self.0.as_bytes())?);
        self.expect(end)?;
        Some(text)
    }

    #[inline]
    fn up_to(&mut self, end: usize) -> &'a str {
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    /// The length is known when this is compiled, so that the comparison needs no call.
    #[inline]
    fn take<const N: usize>(&mut self, prefix: &[u8; N]) -> bool {
        let found = self.0.as_bytes().first_chunk() == Some(prefix);
        if found {
            self.0 = &self.0[N..];
        }
        found
    }

    #[inline]
    fn expect<const N: usize>(&mut self, prefix: &[u8; N]) -> Option<()> {
        self.take(prefix).then_some(())
    }
}
