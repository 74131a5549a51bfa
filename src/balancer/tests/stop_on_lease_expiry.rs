//! `OnLeaseExpiry::Stop`.

use super::*;

#[test]
fn leases_end_before_the_lease_duration() {
    let mut me = Loop::owning(BalancerConfig::default().with_on_lease_expiry(OnLeaseExpiry::Stop), 1);
    assert!(me.after(30).contains("renew 0"));
    let failed = Done::Renewed { partition: 0.into(), epoch: 1, outcome: ClaimOutcome::Indeterminate(unavailable()) };
    assert_eq!(me.done(failed), "Indeterminate");
    assert!(!me.after(15).contains("LeaseExpired"));
    assert!(me.after(1).contains("LeaseExpired 0"), "60 s less 2 s of grace and 10 s to stop");
    assert_eq!(me.snapshot.owner(&0.into()), Some(&PartitionOwner::Reclaimable));
}
