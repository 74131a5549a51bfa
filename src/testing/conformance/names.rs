//! Rules about blob names.

use super::{Container, assert_holds, assert_refused, create_all, listed_names, metadata_for, sorted, with_value};
use crate::blob::{Condition, ETag};
use crate::error::{ErrorKind, Result};
use crate::testing::Overwrite;

/// Names of consumer groups, and names with special characters of URLs, XML or shells.
const NAMES: [&str; 12] = [
    "ns.servicebus.windows.net/hub/$Default/ownership/0",
    "with space/and  two",
    "plus+plus",
    "percent%41%2F%",
    "query?a=b&c=d#fragment",
    "quotes'\"`",
    "<xml>&amp;</xml>]]>",
    "unicode/größe/日本語/🦀",
    "brackets[]{}()|^",
    "a//b",
    "semi;colon:comma,at@equals=",
    "tilde~minus-dot.under_star*bang!",
];

/// Names that some clients convert to other names, with the converted names.
const SLIPPERY_NAMES: [(&str, &str); 8] = [
    ("a/../b", "a/b"),
    ("c/./d", "c/d"),
    ("ends/with/slash/", "ends/with/slash"),
    ("leads/up/..", "leads/up"),
    ("stays/.", "stays"),
    ("../begins", "begins"),
    ("/root", "root"),
    ("dots/...", "dots"),
];

/// Names with dots at the end of a segment, and the names under which Azure stores them.
const DOTTED_NAMES: [(&str, &str); 3] = [("a.", "a"), ("b/c..", "b/c"), ("d./e", "d/e")];

/// Every name arrives unchanged, and is listed unchanged.
pub async fn names_may_have_any_characters(container: Container) -> Result<()> {
    create_all(&container, &NAMES).await?;
    assert_eq!(listed_names(&container, "").await?, sorted(&NAMES));
    for name in NAMES {
        assert_eq!(container.get(name).await?.metadata, metadata_for(name), "{name:?}");
    }
    Ok(())
}

/// Every name works with every condition.
pub async fn any_name_can_be_written_and_deleted(container: Container) -> Result<()> {
    for name in NAMES {
        let written = container.write(name, &with_value("1"), &Condition::Create).await?;
        let written = container.write(name, &with_value("2"), &Condition::IfMatch(written.etag)).await?;
        container.delete(name, &written.etag).await?;
        assert_refused(container.get(name).await, ErrorKind::NotFound);
    }
    Ok(())
}

/// A name with a segment of only dots, or with a slash at an end, arrives unchanged. A backend whose client cannot
/// carry it rejects it in every call. It never addresses another blob.
pub async fn slippery_names_arrive_or_are_rejected(container: Container) -> Result<()> {
    for (name, other) in SLIPPERY_NAMES {
        container.overwrite(other, &with_value("other")).await?;
        match container.write(name, &metadata_for(name), &Condition::Create).await {
            Ok(_) => {
                assert_eq!(container.get(name).await?.metadata, metadata_for(name), "{name:?}");
                assert!(listed_names(&container, "").await?.iter().any(|listed| listed == name), "{name:?}");
                container.remove(name).await?;
            }
            Err(error) => {
                let kind = error.kind();
                assert!(is_rejection(kind), "{name:?}: {error:?}");
                assert_refused(container.get(name).await, kind);
                assert_refused(container.delete(name, &ETag::new("0x0")).await, kind);
            }
        }
        assert_eq!(container.get(other).await?.metadata, with_value("other"), "{name:?}");
    }
    Ok(())
}

/// A backend treats dots at the end of a segment the same way in every call. It keeps them, or it rejects the name, or
/// it drops them, as Azure does. If it drops them, the name addresses the blob without them, and a listing shows the
/// name without them.
pub async fn dots_at_the_end_of_a_segment_are_kept_rejected_or_dropped(container: Container) -> Result<()> {
    for (name, trimmed) in DOTTED_NAMES {
        let first = container.write(trimmed, &with_value("trimmed"), &Condition::Create).await?;
        match container.write(name, &metadata_for(name), &Condition::Create).await.map_err(|error| error.kind()) {
            Ok(_) => assert_two_blobs(&container, name, trimmed).await?,
            Err(ErrorKind::Conflict) => assert_one_blob(&container, name, trimmed, first.etag).await?,
            Err(kind) => {
                assert!(is_rejection(kind), "{name:?}: {kind:?}");
                assert_refused(container.get(name).await, kind);
                assert_refused(container.delete(name, &ETag::new("0x0")).await, kind);
                assert_eq!(container.get(trimmed).await?.metadata, with_value("trimmed"), "{name:?}");
            }
        }
    }
    Ok(())
}

/// Returns whether the backend rejected the name before it sent anything, or the server rejected it.
fn is_rejection(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::InvalidArgument | ErrorKind::Rejected)
}

async fn assert_two_blobs(container: &Container, name: &str, trimmed: &str) -> Result<()> {
    let listed = listed_names(container, "").await?;
    assert!([name, trimmed].iter().all(|name| listed.iter().any(|listed| listed == name)), "{name:?}: {listed:?}");
    assert_eq!(container.get(name).await?.metadata, metadata_for(name), "{name:?}");
    container.remove(name).await?;
    assert_eq!(container.get(trimmed).await?.metadata, with_value("trimmed"), "{name:?}");
    Ok(())
}

async fn assert_one_blob(container: &Container, name: &str, trimmed: &str, etag: ETag) -> Result<()> {
    assert_eq!(container.get(name).await?.etag, etag, "{name:?}");
    let second = container.write(name, &metadata_for(name), &Condition::IfMatch(etag)).await?;
    assert_holds(container, trimmed, &metadata_for(name), &second.etag).await?;
    let listed = listed_names(container, "").await?;
    assert!(listed.iter().any(|listed| listed == trimmed) && !listed.iter().any(|listed| listed == name), "{listed:?}");
    container.delete(name, &second.etag).await?;
    assert_refused(container.get(trimmed).await, ErrorKind::NotFound);
    Ok(())
}

/// Names that differ only in case are different.
pub async fn names_differ_by_case(container: Container) -> Result<()> {
    create_all(&container, &["hub/a", "HUB/a"]).await?;
    assert_eq!(container.get("hub/a").await?.metadata, metadata_for("hub/a"));
    assert_eq!(container.get("HUB/a").await?.metadata, metadata_for("HUB/a"));
    assert_refused(container.get("Hub/a").await, ErrorKind::NotFound);
    Ok(())
}

/// A name that would address the container, or nothing, is rejected.
pub async fn unfit_names_are_rejected(container: Container) -> Result<()> {
    for name in ["", ".", "..", &"x".repeat(1025)] {
        assert_refused(container.get(name).await, ErrorKind::InvalidArgument);
        assert_refused(container.write(name, &with_value("1"), &Condition::Create).await, ErrorKind::InvalidArgument);
        assert_refused(container.delete(name, &ETag::new("0x0")).await, ErrorKind::InvalidArgument);
    }
    container.list("").await.map(drop)
}
