//! `docs/protocol.md` describes the wire format that the source defines, and stays one page.

use std::fs;
use std::path::Path;

/// 14.5 kB.
const LONGEST: usize = 14 * 1024 + 512;

fn file(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
}

/// Returns the texts of the wire format: its metadata keys, and the values that have a fixed text.
fn texts(keys: &str) -> Vec<&str> {
    let constants = keys.lines().filter(|line| line.starts_with("const "));
    constants.filter_map(|line| line.split_once(": &str = \"")?.1.strip_suffix("\";")).collect()
}

#[test]
fn every_key_of_the_wire_format_is_documented() {
    let keys = file("src/codec/mod.rs");
    let page = file("docs/protocol.md");
    let texts = texts(&keys);
    assert!(texts.len() > 12 && texts.contains(&"ownerid"), "the keys have moved: {texts:?}");
    for text in texts {
        assert!(page.contains(&format!("`{text}`")), "docs/protocol.md does not explain {text:?} of src/codec/mod.rs");
    }
}

#[test]
fn the_protocol_page_is_one_page() {
    let length = file("docs/protocol.md").len();
    assert!(length <= LONGEST, "docs/protocol.md has {length} bytes; the limit is {LONGEST}");
}
