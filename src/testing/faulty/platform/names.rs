//! What the service makes of a blob's name.

use std::borrow::Cow;

/// The name under which the service stores a blob: without the dots at the end of each segment. Nothing, if a segment
/// is all dots: no source says what the service does with it, and URL libraries take it for a step in the path.
pub(super) fn stored(name: &str) -> Option<Cow<'_, str>> {
    let is_all_dots = |segment: &str| !segment.is_empty() && segment.bytes().all(|byte| byte == b'.');
    if name.split('/').any(is_all_dots) {
        return None;
    }
    if !name.split('/').any(|segment| segment.ends_with('.')) {
        return Some(Cow::Borrowed(name));
    }
    let trimmed: Vec<_> = name.split('/').map(|segment| segment.trim_end_matches('.')).collect();
    Some(Cow::Owned(trimmed.join("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_at_the_end_of_a_segment_are_dropped_and_others_are_kept() {
        for (name, expected) in [
            ("a", Some("a")),
            ("a.", Some("a")),
            ("a...", Some("a")),
            ("a./b", Some("a/b")),
            ("a./b../c.", Some("a/b/c")),
            ("a.b/.c", Some("a.b/.c")),
            ("a./", Some("a/")),
            ("a//b.", Some("a//b")),
            ("a%2E", Some("a%2E")),
            (".", None),
            ("...", None),
            ("a/../b", None),
            ("a/.", None),
        ] {
            assert_eq!(stored(name).as_deref(), expected, "{name:?}");
        }
    }
}
