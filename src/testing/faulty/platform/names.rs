//! Conversion of blob names by the service.

use std::borrow::Cow;

/// Returns the name under which the service stores a blob: without the dots at the end of each segment. Returns `None`
/// if a segment consists of dots: the behavior of the service is undocumented, and URL libraries interpret such a
/// segment as a relative path.
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
    fn only_trailing_dots_of_segments_are_dropped() {
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
