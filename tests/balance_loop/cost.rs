//! What a group at rest costs.

use std::time::Duration;

use eventhubs_checkpoint::Operation;
use eventhubs_checkpoint::testing::sim::Simulation;

use super::group::group;

fn requests(group: &Simulation, owners: &[&str]) -> u64 {
    let counts = owners.iter().map(|owner| group.store(owner).unwrap().requests());
    counts.flat_map(|counts| Operation::ALL.map(|operation| counts.total(operation))).sum()
}

#[tokio::test(start_paused = true)]
async fn a_group_at_rest_sends_no_more_requests_than_the_cadences_ask_for() {
    let owners = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for (partitions, instances) in [(32, 4), (64, 8)] {
        let owners = &owners[..instances];
        let group = group(8, partitions, owners).await;
        let before = requests(&group, owners);
        group.run_for(Duration::from_secs(3600)).await;
        let sent = requests(&group, owners) - before;
        let expected = u64::from(partitions) * 120 + owners.len() as u64 * 240;
        assert!(sent * 100 <= expected * 105, "{sent} requests, expected {expected}");
        assert!(sent >= u64::from(partitions) * 120, "{sent} requests cannot have renewed everything");
    }
}
