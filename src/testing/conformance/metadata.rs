//! Rules about metadata.

use super::{Container, assert_refused, metadata_of, with_value};
use crate::blob::{Condition, Metadata};
use crate::error::{ErrorKind, Result};

/// A write replaces all metadata: a key that the write does not contain is removed.
pub async fn metadata_is_replaced_as_a_whole(container: Container) -> Result<()> {
    let first = metadata_of(&[("one", "1"), ("two", "2")]);
    let second = metadata_of(&[("two", "3"), ("three", "4")]);
    let written = container.write("a", &first, &Condition::Create).await?;
    container.write("a", &second, &Condition::IfMatch(written.etag)).await?;
    assert_eq!(container.get("a").await?.metadata, second);
    Ok(())
}

/// A blob may have no metadata at all.
pub async fn no_metadata_is_kept(container: Container) -> Result<()> {
    let written = container.write("a", &Metadata::new(), &Condition::Create).await?;
    assert_eq!(container.get("a").await?.metadata, Metadata::new());
    let written = container.write("a", &with_value("1"), &Condition::IfMatch(written.etag)).await?;
    container.write("a", &Metadata::new(), &Condition::IfMatch(written.etag)).await?;
    assert_eq!(container.get("a").await?.metadata, Metadata::new());
    assert_eq!(container.list("").await?.blobs[0].metadata, Metadata::new());
    Ok(())
}

/// An empty value is kept as a value, in reads and in listings.
pub async fn an_empty_value_is_kept(container: Container) -> Result<()> {
    let metadata = metadata_of(&[("ownerid", ""), ("ehcclaimedat", "")]);
    let written = container.write("a", &metadata, &Condition::Create).await?;
    assert_eq!(container.get("a").await?.metadata, metadata);
    container.write("a", &metadata, &Condition::IfMatch(written.etag)).await?;
    assert_eq!(container.get("a").await?.metadata, metadata);
    assert_eq!(container.list("").await?.blobs[0].metadata, metadata);
    Ok(())
}

/// Keys are returned in lowercase, in reads and in listings.
pub async fn keys_come_back_in_lower_case(container: Container) -> Result<()> {
    container.write("a", &metadata_of(&[("OwnerId", "Me"), ("SEQ_1", "2")]), &Condition::Create).await?;
    let expected = metadata_of(&[("ownerid", "Me"), ("seq_1", "2")]);
    assert_eq!(container.get("a").await?.metadata, expected);
    assert_eq!(container.list("").await?.blobs[0].metadata, expected);
    Ok(())
}

/// Keys with digits and underscores are signed and kept, whatever their sort order.
pub async fn keys_may_have_digits_and_underscores(container: Container) -> Result<()> {
    let metadata = metadata_of(&[("a1", "1"), ("a_1", "2"), ("ab", "3"), ("a", "4"), ("_a", "5"), ("a10", "6")]);
    container.write("a", &metadata, &Condition::Create).await?;
    assert_eq!(container.get("a").await?.metadata, metadata);
    Ok(())
}

/// All printable ASCII is kept in values, in reads and in listings.
pub async fn printable_ascii_is_kept_in_values(container: Container) -> Result<()> {
    let all: String = (b'!'..=b'~').map(char::from).collect();
    let metadata = metadata_of(&[("all", &all), ("spaces", "a  b c"), ("xml", "<a>&amp;]]></a>"), ("percent", "%41+")]);
    container.write("a", &metadata, &Condition::Create).await?;
    assert_eq!(container.get("a").await?.metadata, metadata);
    assert_eq!(container.list("").await?.blobs[0].metadata, metadata);
    Ok(())
}

/// Metadata that the service would reject or change is rejected, and nothing is written.
pub async fn unfit_metadata_is_rejected(container: Container) -> Result<()> {
    for (key, value) in [
        ("owner-id", "x"),
        ("1st", "x"),
        ("", "x"),
        ("größe", "x"),
        ("k", "é"),
        ("k", "a\r\nb: c"),
        ("k", " x"),
        ("k", "x "),
    ] {
        let outcome = container.write("a", &metadata_of(&[(key, value)]), &Condition::Create).await;
        assert_refused(outcome, ErrorKind::InvalidArgument);
    }
    let too_much = metadata_of(&[("k", &"x".repeat(9 * 1024))]);
    assert_refused(container.write("a", &too_much, &Condition::Create).await, ErrorKind::InvalidArgument);
    assert_refused(container.get("a").await, ErrorKind::NotFound);
    Ok(())
}
