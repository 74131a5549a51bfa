//! Reads the blobs that look as Azure and Azurite usually list them: elements without attributes, and texts without
//! references. Hundreds of them are in a page, and to read each tag of them as XML takes several times as long.
//!
//! Everything else is not read here, also what is not well-formed: the parser of XML then reads the same text.

use std::borrow::Cow;

use memchr::memchr3;

use super::draft::{Draft, end_of_properties};
use crate::blob::Metadata;

/// The usual size of the metadata of a record.
const USUAL_METADATA_BYTES: usize = 192;

/// Takes a blob from the start of the text. Returns it and the rest of the text.
pub(super) fn take_blob(text: &[u8]) -> Option<(Draft<'_>, &[u8])> {
    let mut rest = Text(text);
    let mut draft = Draft::default();
    rest.expect(b"<Blob>")?;
    while !rest.take(b"</Blob>") {
        if rest.take(b"<Properties>") {
            rest.properties(&mut draft)?;
        } else if rest.take(b"<Metadata>") {
            rest.metadata(&mut draft)?;
        } else {
            let (name, text) = rest.element()?;
            if name == b"Name" {
                draft.name = Cow::Borrowed(utf8(text)?);
            }
        }
    }
    Some((draft, rest.0))
}

/// The text that is not read yet.
struct Text<'a>(&'a [u8]);

impl<'a> Text<'a> {
    /// Reads the properties up to those that are used, and skips the others.
    fn properties(&mut self, draft: &mut Draft<'a>) -> Option<()> {
        while !self.take(b"</Properties>") {
            let (name, text) = self.element()?;
            draft.set_property(utf8(name)?, utf8(text)?);
            if draft.has_version() {
                self.0 = end_of_properties(self.0)?;
            }
        }
        Some(())
    }

    fn metadata(&mut self, draft: &mut Draft<'a>) -> Option<()> {
        if draft.metadata.is_empty() {
            draft.metadata = Metadata::with_capacity(USUAL_METADATA_BYTES);
        }
        while !self.take(b"</Metadata>") {
            let (key, value) = self.element()?;
            draft.add_metadata(utf8(key)?, utf8(value)?);
        }
        Some(())
    }

    /// Takes an element. Returns its name and its text.
    fn element(&mut self) -> Option<(&'a [u8], &'a [u8])> {
        self.expect(b"<")?;
        let name = self.up_to(self.0.iter().position(|byte| !is_of_name(*byte))?);
        if name.is_empty() {
            return None;
        }
        if self.take(b" />") || self.take(b"/>") {
            return Some((name, b""));
        }
        self.expect(b">")?;
        let text = self.up_to(memchr3(b'<', b'&', b'\r', self.0)?);
        self.expect(b"</")?;
        self.expect(name)?;
        self.expect(b">")?;
        Some((name, text))
    }

    fn up_to(&mut self, end: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(end);
        self.0 = rest;
        taken
    }

    fn take(&mut self, prefix: &[u8]) -> bool {
        self.expect(prefix).is_some()
    }

    fn expect(&mut self, prefix: &[u8]) -> Option<()> {
        self.0 = self.0.strip_prefix(prefix)?;
        Some(())
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn utf8(text: &[u8]) -> Option<&str> {
    std::str::from_utf8(text).ok()
}
