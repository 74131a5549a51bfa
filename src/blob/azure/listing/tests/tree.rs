//! A listing read in the simplest way, with which the parser is compared.

use std::sync::LazyLock;

use quick_xml::Reader;
use quick_xml::escape::resolve_xml_entity;
use quick_xml::events::Event;
use time::OffsetDateTime;
use tokio::time::Instant;

use super::{Detail, Draft, PageError, Unusable, parse_page};
use crate::blob::{Blob, ResponseInfo};

static RESPONSE: LazyLock<ResponseInfo> =
    LazyLock::new(|| ResponseInfo { server_time: OffsetDateTime::UNIX_EPOCH, received_at: Instant::now() });

/// Returns what the parser and the tree say about a page that is well-formed, if they do not agree. Any bytes are
/// either parsed or rejected, with each detail.
#[must_use]
pub fn find_difference(body: &[u8]) -> Option<String> {
    let parsed = said_by_parser(body);
    if let Ok(page) = parse_page(body, Detail::Content, *RESPONSE)
        && page.contents.len() != page.blobs.len() + page.unusable.len()
    {
        return Some(format!("{page:?}"));
    }
    let said = said_by_tree(body).filter(|_| !hides_ends(body))?;
    let agree = parsed.as_ref().is_ok_and(|parsed| *parsed == said);
    (!agree).then(|| format!("parser: {parsed:?}\ntree: {said:?}"))
}

/// An element with its own text and its children.
#[derive(Default)]
struct Node {
    name: String,
    encoded: bool,
    text: String,
    children: Vec<Node>,
}

impl Node {
    fn named(&self, name: &'static str) -> impl Iterator<Item = &Node> {
        self.children.iter().filter(move |child| child.name == name)
    }

    fn last(&self, name: &'static str) -> Option<&Node> {
        self.named(name).last()
    }
}

/// Reads a whole document into a tree. `None` if it is not well-formed.
fn tree(body: &[u8]) -> Option<Node> {
    let mut reader = Reader::from_reader(body);
    reader.config_mut().expand_empty_elements = true;
    let mut open = vec![Node::default()];
    loop {
        match reader.read_event().ok()? {
            Event::Start(start) => {
                let encoded = start.try_get_attribute("Encoded").ok().flatten();
                let encoded = encoded.is_some_and(|value| value.value.eq_ignore_ascii_case("true"));
                open.push(Node { name: start.name().as_ref().to_owned(), encoded, ..Node::default() });
            }
            Event::End(_) => {
                let closed = open.pop()?;
                open.last_mut()?.children.push(closed);
            }
            Event::Text(text) => open.last_mut()?.text.push_str(&text.xml10_content()),
            Event::CData(text) => open.last_mut()?.text.push_str(&text.xml10_content()),
            Event::GeneralRef(reference) => {
                let text = &mut open.last_mut()?.text;
                match reference.resolve_char_ref().ok()? {
                    Some(character) => text.push(character),
                    None => text.push_str(resolve_xml_entity(&reference)?),
                }
            }
            Event::Eof => return open.pop().filter(|_| open.is_empty()),
            _ => {}
        }
    }
}

/// What a page says: its blobs, its unusable blobs, and its marker.
pub(super) type Said = (Vec<Blob>, Vec<Unusable>, Option<String>);

pub(super) fn said_by_tree(body: &[u8]) -> Option<Said> {
    let document = tree(body)?;
    let results = document.named("EnumerationResults").next()?;
    let blobs = results.named("Blobs").flat_map(|blobs| blobs.named("Blob"));
    let mut usable = Vec::new();
    let mut unusable = Vec::new();
    for blob in blobs {
        match draft(blob).into_blob(*RESPONSE) {
            Ok(blob) => usable.push(blob),
            Err(blob) => unusable.push(blob),
        }
    }
    let marker = results.last("NextMarker").map(|marker| marker.text.clone());
    Some((usable, unusable, marker.filter(|marker| !marker.is_empty())))
}

fn draft(blob: &Node) -> Draft {
    let mut draft = Draft::default();
    if let Some(name) = blob.last("Name") {
        draft.name.clone_from(&name.text);
        draft.name_is_encoded = name.encoded;
    }
    // The parser reads no more properties once it has both that are used.
    for properties in blob.named("Properties") {
        for property in &properties.children {
            draft.set_property(&property.name, &property.text);
            if draft.etag.is_some() && draft.last_modified.is_some() {
                break;
            }
        }
    }
    for pair in blob.named("Metadata").flat_map(|metadata| &metadata.children) {
        draft.metadata.insert(&pair.name, &pair.text);
    }
    draft
}

pub(super) fn said_by_parser(body: &[u8]) -> Result<Said, PageError> {
    parse_page(body, Detail::Version, *RESPONSE).map(|page| (page.blobs, page.unusable, page.next_marker))
}

/// Returns whether some properties contain a text such as their end tag. The parser ends the properties at that
/// text.
fn hides_ends(body: &[u8]) -> bool {
    let text = String::from_utf8_lossy(body);
    let after_starts = text.split("<Properties").skip(1);
    after_starts.clone().any(|text| !text.contains("</Properties>"))
        || after_starts
            .filter_map(|text| text.split_once("</Properties>"))
            .any(|(inside, _)| inside.contains(['!', '?', '"']))
}
