//! Rules about listings.

use super::{Container, create_all, listed_names, metadata_for, metadata_of, sorted, with_value};
use crate::error::Result;
use crate::testing::Overwrite;

/// A listing contains all blobs with the prefix, at any depth, and no others.
pub async fn a_listing_has_the_blobs_with_the_prefix(container: Container) -> Result<()> {
    create_all(&container, &["p/1", "p/2", "p/23", "p/24/3", "p0", "P/1", "q/p/1"]).await?;
    assert_eq!(listed_names(&container, "p/").await?, ["p/1", "p/2", "p/23", "p/24/3"]);
    assert_eq!(listed_names(&container, "p/2").await?, ["p/2", "p/23", "p/24/3"]);
    assert_eq!(listed_names(&container, "").await?.len(), 7);
    assert!(listed_names(&container, "nothing/").await?.is_empty());
    Ok(())
}

/// A prefix is used literally, even if it contains characters with a meaning in a URL.
pub async fn a_prefix_may_have_any_characters(container: Container) -> Result<()> {
    create_all(&container, &["ns/$Default/a b&c/1", "ns/$Default/a+b/1", "ns/ü%2F?#='\"/1"]).await?;
    for (prefix, name) in [
        ("ns/$Default/a b&c/", "ns/$Default/a b&c/1"),
        ("ns/$Default/a+b/", "ns/$Default/a+b/1"),
        ("ns/ü%2F?#='\"/", "ns/ü%2F?#='\"/1"),
    ] {
        assert_eq!(listed_names(&container, prefix).await?, [name]);
    }
    Ok(())
}

/// A listing is ordered by the bytes of the names.
pub async fn a_listing_is_ordered_by_name(container: Container) -> Result<()> {
    let names = ["b", "a", "B", "a/2", "a/10", "a-", "ä", "10", "9"];
    create_all(&container, &names).await?;
    assert_eq!(listed_names(&container, "").await?, sorted(&names));
    Ok(())
}

/// A listing shows the same data of a blob as a read.
pub async fn a_listing_shows_what_reading_shows(container: Container) -> Result<()> {
    create_all(&container, &["a", "b"]).await?;
    for listed in container.list("").await?.blobs {
        let read = container.get(&listed.name).await?;
        assert_eq!((&listed.metadata, &listed.etag), (&read.metadata, &read.etag));
        assert_eq!((&listed.metadata, listed.last_modified), (&metadata_for(&listed.name), read.last_modified));
    }
    Ok(())
}

/// A listing shows every write and deletion whose response arrived before the listing was requested.
pub async fn a_listing_shows_the_latest_state(container: Container) -> Result<()> {
    create_all(&container, &["a", "b"]).await?;
    let written = container.overwrite("a", &with_value("2")).await?;
    container.remove("b").await?;
    let blobs = container.list("").await?.blobs;
    assert_eq!(blobs.len(), 1);
    assert_eq!((&blobs[0].etag, &blobs[0].metadata), (&written.etag, &with_value("2")));
    Ok(())
}

/// A listing of several pages is complete: no blob is missing or occurs twice, the order is kept, and each blob has the
/// response of its page.
pub async fn a_listing_of_several_pages_is_whole(container: Container) -> Result<()> {
    let names: Vec<String> = (0..23).map(|index| format!("p/{index}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    create_all(&container, &names).await?;
    create_all(&container, &["o", "q"]).await?;
    let list = container.list("p/").await?;
    let listed: Vec<&str> = list.blobs.iter().map(|blob| blob.name.as_str()).collect();
    assert_eq!(listed, sorted(&names));
    assert!(list.blobs.iter().all(|blob| blob.response.received_at <= list.response.received_at));
    Ok(())
}

/// In addition to blobs, a listing may show their directories, as accounts with a hierarchical namespace do: entries
/// without a trailing slash, with `hdi_isfolder=true` as their only metadata.
pub async fn a_listing_has_nothing_else_but_directories(container: Container) -> Result<()> {
    let names = ["p/q/r/1", "p/2", "o", "s/t"];
    create_all(&container, &names).await?;
    for prefix in ["", "p/", "p", "p/q/r/", "nothing"] {
        for entry in container.list(prefix).await?.blobs {
            assert!(entry.name.starts_with(prefix), "{entry:?} is not in the listing of {prefix:?}");
            if names.contains(&entry.name.as_str()) {
                continue;
            }
            let inside = format!("{}/", entry.name);
            assert!(names.iter().any(|name| name.starts_with(&inside)), "{entry:?} is neither blob nor directory");
            assert_eq!(entry.metadata, metadata_of(&[("hdi_isfolder", "true")]), "{entry:?}");
        }
    }
    Ok(())
}
