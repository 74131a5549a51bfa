//! Which changes an instance reports to the others, through the beacon.

use super::*;
use crate::store::beacon::Beacon;

/// Returns a loop that owns the first of three partitions and may own no more. The others have owner `b`, and the
/// group has a beacon.
fn at_its_limit() -> Loop {
    let mut me = Loop::owning(BalancerConfig::default().with_max_partitions(1), 1);
    me.has_beacon = true;
    me.step(Happened::Hub((0..3).map(PartitionId::from).collect()));
    list(&mut me, "mbb");
    me
}

/// Lists these owners, and returns whether this instance reports a change to the others.
fn list(me: &mut Loop, owners: &str) -> bool {
    me.wake_until("list");
    let shown = Beacon { change: 7, version: ETag::new("beacon"), age: Duration::ZERO, received: me.now };
    me.done(Done::BeaconRead(Ok(Some(shown))));
    let mut decided = me.listed(owners);
    if decided.contains("list heartbeats") {
        decided += &me.no_other_heartbeats();
    }
    if decided.contains("light beacon") {
        me.done(Done::BeaconLit(Ok(None)));
    }
    decided.contains("light beacon")
}

#[test]
fn a_partition_that_is_left_to_others_is_reported() {
    let mut me = at_its_limit();
    assert!(!list(&mut me, "mbb"));
    assert!(list(&mut me, "m-b"), "it was released");
    assert!(!list(&mut me, "m-b"), "it was reported");
    assert!(!list(&mut me, "mbb") && list(&mut me, "mb-"));
    assert!(list(&mut me, "m--"));
}

#[test]
fn a_partition_that_is_claimed_is_not_reported() {
    let mut me = Loop::owning(BalancerConfig::default(), 1);
    me.has_beacon = true;
    me.step(Happened::Hub((0..2).map(PartitionId::from).collect()));
    list(&mut me, "mb");
    list(&mut me, "mb");
    assert!(!list(&mut me, "m-"));
}

/// Its processors light no beacon.
#[test]
fn the_first_owner_of_another_sdk_is_reported() {
    let mut me = at_its_limit();
    list(&mut me, "mbb");
    assert!(list(&mut me, "mb?"));
    assert!(!list(&mut me, "mb?"), "it was reported");
    list(&mut me, "mbb");
    me.wake_until("read beacon");
    let changed = Beacon { change: 8, version: ETag::new("beacon"), age: Duration::ZERO, received: me.now };
    me.done(Done::BeaconRead(Ok(Some(changed))));
    me.wake_until("list");
    assert_eq!(me.listed("mb?"), "", "another instance has reported it");
}
