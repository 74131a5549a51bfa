//! The consumer groups in a container.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::blob::{BlobContainer, within};
use crate::error::Result;
use crate::model::ConsumerGroup;

/// Lists the groups that have records in a container, below a prefix of their names. Their names are written as those of
/// their blobs are: use [`BlobNameCase::Verbatim`](crate::store::BlobNameCase::Verbatim) to connect to them. Blobs that are no
/// records are ignored. The listing may take as long as the timeout; one of a container with many blobs has many pages.
///
/// # Errors
///
/// The error of the storage.
pub async fn list_groups(container: &dyn BlobContainer, prefix: &str, timeout: Duration) -> Result<Vec<ConsumerGroup>> {
    let listing = within(timeout, "list", container.list(prefix)).await?;
    let groups = listing.blobs.iter().filter_map(|blob| group_of(&blob.name));
    Ok(groups
        .collect::<BTreeSet<_>>()
        .into_iter()
        .filter_map(|(namespace, event_hub, name)| ConsumerGroup::new(namespace, event_hub, name).ok())
        .collect())
}

/// Returns the names of the group that a blob belongs to.
fn group_of(blob: &str) -> Option<(&str, &str, &str)> {
    let mut segments = blob.split('/');
    let (namespace, event_hub, name) = (segments.next()?, segments.next()?, segments.next()?);
    let (kind, id) = (segments.next()?, segments.next()?);
    let is_record = ["ownership", "checkpoint", "heartbeat"].contains(&kind) && !id.is_empty();
    (is_record && segments.next().is_none()).then_some((namespace, event_hub, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_records_name_a_group() {
        assert_eq!(group_of("ns/hub/$default/ownership/0"), Some(("ns", "hub", "$default")));
        assert_eq!(group_of("ns/Hub/$Default/heartbeat/a"), Some(("ns", "Hub", "$Default")));
        for other in ["", "ns/hub/$default/0", "ns/hub/g/checkpoint/", "ns/hub/g/checkpoint/0/x", "ns/hub/g/verify/a"] {
            assert_eq!(group_of(other), None, "{other}");
        }
    }
}
