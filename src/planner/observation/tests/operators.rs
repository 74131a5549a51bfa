//! Partitions that an operator owns, has requested or has released.

use super::*;

fn operated(owner: &str, to: &str, age: u64) -> PartitionView {
    let operator = Some(OwnerId::new("operator").unwrap());
    let seen = seen(owner, Some(incarnation(0)), age);
    let record = OwnershipRecord { operator, ..with_handoff_request(seen.clone(), to).record };
    look(&[Ownership { record, ..seen }], false, None, 100).partitions.remove(0)
}

fn counts_for(entry: &PartitionView) -> Option<String> {
    entry.counts_for(&OwnerId::new("me").unwrap()).map(ToString::to_string)
}

#[test]
fn a_partition_it_owns_counts_for_the_previous_owner() {
    let entry = operated("operator", "previous", 0);
    assert!(entry.is_owned_by_operator());
    assert_eq!(counts_for(&entry).as_deref(), Some("previous"), "although it does not appear alive");
    assert!(!operated("operator", "previous", 62).is_owned_by_operator(), "it has expired");
}

#[test]
fn a_partition_it_requested_counts_for_its_owner() {
    let entry = operated("b", "operator", 0);
    assert_eq!(entry.handoff_to, Some(OwnerId::new("operator").unwrap()), "although it does not appear alive");
    assert_eq!(counts_for(&entry).as_deref(), Some("b"));
}

/// Neither the operator nor the previous owner need appear alive.
#[test]
fn a_returned_partition_is_reserved_as_recorded() {
    assert_eq!(counts_for(&operated("", "previous", 61)).as_deref(), Some("previous"));
    assert_eq!(operated("", "previous", 62).handoff_to, None);
    let for_itself = operated("", "operator", 61);
    assert!(for_itself.handoff_to.is_some() && counts_for(&for_itself).is_none());
    assert_eq!(operated("", "operator", 62).handoff_to, None);
}
