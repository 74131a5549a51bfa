//! The groups as metrics of Prometheus.
//!
//! Each text is made from the latest looks alone, so that the series of what is gone vanish.

#![expect(clippy::cast_precision_loss, reason = "values of Prometheus are floating-point numbers")]

use std::collections::BTreeMap;
use std::sync::Arc;

use eventhubs_checkpoint::ConsumerGroup;
use eventhubs_checkpoint::admin::describe::PartitionDescription;
use metrics::{Label, counter, describe_counter, describe_gauge, gauge, with_local_recorder};
use metrics_exporter_prometheus::PrometheusBuilder;

use super::group::{WatchState, WatchedGroup};
use crate::pauses::pause_name;
use crate::watching::GroupHistory;

const LAG: &str = "eventhubs_checkpoint_lag_events";
const LAST: &str = "eventhubs_checkpoint_last_enqueued_sequence_number";
const CHECKPOINT: &str = "eventhubs_checkpoint_checkpoint_sequence_number";
const SECONDS_BEHIND: &str = "eventhubs_checkpoint_seconds_behind";
const OWNER: &str = "eventhubs_checkpoint_owner_info";
const PAUSED: &str = "eventhubs_checkpoint_partition_paused";
const PARTITIONS: &str = "eventhubs_checkpoint_group_partitions";
const MEMBERS: &str = "eventhubs_checkpoint_group_members";
const LOOKED: &str = "eventhubs_checkpoint_watcher_last_refresh_timestamp_seconds";
const REQUESTS: &str = "eventhubs_checkpoint_watcher_storage_requests_total";
const FAILURES: &str = "eventhubs_checkpoint_watcher_failures_total";

/// Returns the metrics of these groups, in the text format.
pub fn render_metrics(groups: &[Arc<WatchedGroup>]) -> String {
    let recorder = PrometheusBuilder::new().build_recorder();
    with_local_recorder(&recorder, || {
        describe_metrics();
        for group in groups {
            group.read_state(|state| record_group(&group.group, state));
        }
    });
    recorder.handle().render()
}

fn describe_metrics() {
    describe_gauge!(LAG, "Events after the checkpoint, of owned and unowned partitions.");
    describe_gauge!(LAST, "The sequence number of the last event in the partition.");
    describe_gauge!(CHECKPOINT, "The sequence number of the checkpoint.");
    describe_gauge!(SECONDS_BEHIND, "How long ago the event after the checkpoint was enqueued; 0 if no event waits.");
    describe_gauge!(OWNER, "1 for the live owner of the partition.");
    describe_gauge!(PAUSED, "1 for a partition that an operator paused, or that was parked after a failure.");
    describe_gauge!(PARTITIONS, "Partitions, by the state of their ownership.");
    describe_gauge!(MEMBERS, "Live members of the group.");
    describe_gauge!(LOOKED, "When the records were read last, by the clock of the storage.");
    describe_counter!(REQUESTS, "Requests of the watcher to the storage, by operation and outcome.");
    describe_counter!(FAILURES, "Failed refreshes, and failed reads of the event hub.");
}

fn record_group(group: &ConsumerGroup, WatchState { history, watching }: &WatchState) {
    let labels = [
        Label::new("namespace", group.namespace().to_owned()),
        Label::new("event_hub", group.event_hub().to_owned()),
        Label::new("consumer_group", group.name().to_owned()),
    ];
    counter!(FAILURES, labels.to_vec()).absolute(watching.failures + watching.hub_failures);
    for (operation, outcome, requests) in watching.requests() {
        let labels = with_label(&with_label(&labels, "operation", operation), "outcome", outcome);
        counter!(REQUESTS, labels).absolute(requests);
    }
    let Some(look) = history.last_look() else { return };
    gauge!(LOOKED, labels.to_vec()).set(look.taken_at.unix_timestamp_nanos() as f64 / 1e9);
    gauge!(MEMBERS, labels.to_vec()).set(look.members.len() as f64);
    let mut states = BTreeMap::<_, u32>::new();
    for partition in &look.partitions {
        *states.entry(partition.state.as_str()).or_default() += 1;
        let labels = with_label(&labels, "partition", partition.id.as_str());
        record_partition(&labels, partition, history, watching.is_hub_stale);
    }
    for (state, partitions) in states {
        gauge!(PARTITIONS, with_label(&labels, "state", state)).set(f64::from(partitions));
    }
}

/// Leaves out what is not known: the lag if the event hub was not read for long, or was recreated.
fn record_partition(labels: &[Label], partition: &PartitionDescription, history: &GroupHistory, is_hub_stale: bool) {
    let rates = history.rates(partition);
    let is_known = !is_hub_stale && !rates.is_beyond_end;
    let checkpoint = partition.checkpoint.as_ref().and_then(|checkpoint| checkpoint.position.sequence_number);
    for (name, value) in [
        (LAG, partition.lag.events.filter(|_| is_known).map(|events| events as f64)),
        (LAST, partition.hub.as_ref().filter(|_| !is_hub_stale).and_then(|hub| hub.last).map(|last| last as f64)),
        (CHECKPOINT, checkpoint.map(|number| number as f64)),
        (SECONDS_BEHIND, rates.behind_s.filter(|_| is_known)),
    ] {
        if let Some(value) = value {
            gauge!(name, labels.to_vec()).set(value);
        }
    }
    if let Some(owner) = partition.owner.as_ref().filter(|_| partition.state.is_live()) {
        gauge!(OWNER, with_label(labels, "owner_id", owner.id.as_str())).set(1.0);
    }
    if let Some(pause) = partition.active_pause() {
        gauge!(PAUSED, with_label(labels, "state", pause_name(pause))).set(1.0);
    }
}

fn with_label(labels: &[Label], name: &'static str, value: &str) -> Vec<Label> {
    labels.iter().cloned().chain([Label::new(name, value.to_owned())]).collect()
}
