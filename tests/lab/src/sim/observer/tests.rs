//! The observer finds every violation, and reports none for correct behavior.

use std::time::Duration;

use eventhubs_checkpoint::admin::{ResetError, ResetOutcome};
use eventhubs_checkpoint::internal::codec::{encode_checkpoint, encode_heartbeat, encode_ownership};
use eventhubs_checkpoint::processor::{ReleaseReason, StopReason};
use eventhubs_checkpoint::store::protocol::membership::HeartbeatRecord;
use eventhubs_checkpoint::store::{CheckpointRecord, OwnershipRecord};
use eventhubs_checkpoint::testing::memory_hub::MemoryEvent;
use eventhubs_checkpoint::{Identity, Incarnation, LeaseScope, OwnerId, PartitionId, Pause};
use time::OffsetDateTime;
use time::macros::datetime;
use tokio::time::advance;

use super::{NewIncarnation, Observer, Reporter, Request, Slowdown};
use crate::sim::invariant::Invariant;
use crate::sim::{Bounds, Plan, Scale};

/// One partition with a hundred events, and owners that follow a script.
struct Scene {
    observer: Observer,
    plan: Plan,
    incarnations: Vec<Identity>,
}

impl Scene {
    fn new(change: impl FnOnce(&mut Plan)) -> Self {
        let mut plan = Plan::calm(1, &Scale { partitions: 1, ..Scale::default() });
        plan.settings.latest = false;
        change(&mut plan);
        let observer = Observer::new(&plan, true);
        observer.lock().published(0, 100);
        Self { observer, plan, incarnations: Vec::new() }
    }

    /// Registers an instance of this crate; an operator, if `member` is `None`.
    fn register(&mut self, name: &str, member: Option<u32>) -> usize {
        let (owner, bounds) = (OwnerId::new(name).unwrap(), Bounds::of(&self.plan.settings));
        let new = NewIncarnation { member, owner: owner.clone(), crate_processor: true, bounds };
        let incarnation = self.observer.lock().register(new);
        let number = u32::try_from(incarnation).unwrap();
        let identity = Identity::new(owner, Incarnation::new(datetime!(2026-01-01 00:00 UTC), number));
        self.observer.lock().identified(incarnation, &identity);
        self.incarnations.push(identity);
        incarnation
    }

    fn written(&self, incarnation: usize, kind: &str, metadata: &eventhubs_checkpoint::blob::Metadata) {
        self.observer.lock().written(incarnation, &format!("ns/hub/g/{kind}/0"), metadata);
    }

    fn owns(&self, incarnation: usize) {
        self.owns_in_epoch(incarnation, None);
    }

    fn owns_in_epoch(&self, incarnation: usize, epoch: Option<i64>) {
        let Identity { owner, incarnation: id, .. } = self.incarnations[incarnation].clone();
        let mut record = OwnershipRecord::owned_by(owner, Some(id));
        record.epoch = epoch;
        self.written(incarnation, "ownership", &encode_ownership(&record));
    }

    /// An operator takes the partition and resets its checkpoint.
    fn resets(&self, operator: usize, to: i64) {
        self.observer.lock().operates(operator, [(0, to)].into(), true, OffsetDateTime::UNIX_EPOCH);
        self.owns(operator);
    }

    /// The heartbeat of an instance is written, by the instance that declares it dead if any.
    fn beats(&self, incarnation: usize, declared_dead_by: Option<usize>) {
        let Identity { owner, incarnation: id, .. } = self.incarnations[incarnation].clone();
        let mut record = HeartbeatRecord::new(owner, id, self.plan.settings.expiry);
        record.declared_dead_by = declared_dead_by.map(|by| self.incarnations[by].owner.clone());
        self.written(incarnation, "heartbeat", &encode_heartbeat(&record));
    }

    fn releases(&self, incarnation: usize) {
        self.written(incarnation, "ownership", &encode_ownership(&OwnershipRecord::default()));
    }

    fn requests_handoff(&self, incarnation: usize, from: usize) {
        let Identity { owner, incarnation: id, .. } = self.incarnations[from].clone();
        let mut record = OwnershipRecord::owned_by(owner, Some(id));
        record.handoff_to = Some(self.incarnations[incarnation].owner.clone());
        self.written(incarnation, "ownership", &encode_ownership(&record));
    }

    fn begins_at(&self, incarnation: usize, number: i64) {
        self.owns(incarnation);
        self.stores(incarnation, number);
        self.reporter(incarnation).started(&0.into(), None);
    }

    fn stores(&self, incarnation: usize, number: i64) {
        let mut record = CheckpointRecord::default();
        (record.sequence_number, record.offset) = (Some(number), Some((number * 10).to_string()));
        self.written(incarnation, "checkpoint", &encode_checkpoint(&record));
    }

    fn reporter(&self, incarnation: usize) -> Reporter {
        Reporter { observer: self.observer.clone(), incarnation }
    }

    /// A newly started handler processes these events.
    fn handles(&self, incarnation: usize, numbers: std::ops::RangeInclusive<i64>) {
        let events: Vec<_> = numbers.map(|number| MemoryEvent::new(number, "0")).collect();
        self.reporter(incarnation).begins(&0.into(), &events).done(&events);
    }

    fn begins(&self, incarnation: usize) {
        self.begins_at(incarnation, -1);
    }

    fn broken(&self) -> Vec<Invariant> {
        let observer = self.observer.lock();
        // The scripts leave out what their rules do not need, such as adoptions, and so are no paths of the
        // exploration.
        let of_rules = observer.violations.iter().filter(|violation| violation.invariant != Invariant::Explored);
        of_rules.map(|violation| violation.invariant).collect()
    }
}

fn nothing() -> [Invariant; 0] {
    []
}

/// It may be taken once it has expired for its owner, or after a handoff was requested.
#[tokio::test(start_paused = true)]
async fn a_live_owner_keeps_what_it_renews() {
    let old = Scene::new(|_| {}).plan.settings.expiry;
    let young = old.mul_f64(0.9);
    for (handoff, age, asked, broken) in [
        (true, young, false, vec![Invariant::LiveOwnerKeeps]),
        (true, old, false, vec![]),
        (true, young, true, vec![]),
        (false, young, false, vec![]),
    ] {
        let mut scene = Scene::new(|plan| plan.settings.handoff = handoff);
        let (one, two) = (scene.register("one", Some(0)), scene.register("two", Some(1)));
        let Identity { owner, incarnation: id, .. } = scene.incarnations[one].clone();
        let mut record = OwnershipRecord::owned_by(owner, Some(id));
        record.cooperative = true;
        record.handoff_to = asked.then(|| scene.incarnations[two].owner.clone());
        scene.written(one, "ownership", &encode_ownership(&record));
        advance(age).await;
        scene.owns(two);
        assert_eq!(scene.broken(), broken, "{handoff}, {age:?}, {asked}");
    }
}

/// Until a moment after that, and until the owner has written the ownership again.
#[tokio::test(start_paused = true)]
async fn an_owner_declared_dead_loses_its_partitions() {
    for (renews, later, broken) in [
        (false, Duration::ZERO, vec![]),
        (true, Duration::ZERO, vec![Invariant::LiveOwnerKeeps]),
        (false, Duration::from_secs(3600), vec![Invariant::LiveOwnerKeeps]),
    ] {
        let mut scene = Scene::new(|plan| plan.settings.handoff = true);
        let (one, two) = (scene.register("one", Some(0)), scene.register("two", Some(1)));
        let Identity { owner, incarnation: id, .. } = scene.incarnations[one].clone();
        let mut record = OwnershipRecord::owned_by(owner, Some(id));
        (record.cooperative, record.scope) = (true, LeaseScope::Instance);
        scene.written(one, "ownership", &encode_ownership(&record));
        scene.beats(one, Some(two));
        advance(later).await;
        scene.beats(one, None);
        if renews {
            advance(Duration::from_millis(1)).await;
            scene.written(one, "ownership", &encode_ownership(&record));
        }
        scene.owns(two);
        assert_eq!(scene.broken(), broken, "{renews}, {later:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_blocked_instance_takes_no_partition() {
    for (seconds, broken) in [(50, vec![]), (70, vec![Invariant::BlockedGainsNothing])] {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.observer.lock().blocks(one, true);
        advance(Duration::from_secs(seconds)).await;
        scene.owns(one);
        assert_eq!(scene.broken(), broken, "{seconds}");
    }
}

#[test]
fn a_correct_owner_violates_nothing() {
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.begins(one);
    scene.handles(one, 0..=4);
    scene.stores(one, 4);
    assert_eq!(scene.broken(), nothing());
}

#[test]
fn a_checkpoint_past_unprocessed_events_skips_them() {
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.begins(one);
    scene.handles(one, 0..=4);
    scene.stores(one, 5);
    assert_eq!(scene.broken(), [Invariant::NothingSkipped]);
}

#[test]
fn retention_may_remove_unprocessed_events() {
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.begins(one);
    scene.observer.lock().expired(0, 50);
    scene.stores(one, 49);
    assert_eq!(scene.broken(), nothing());
}

#[test]
fn a_displaced_owner_is_fenced_by_the_next_adoption() {
    let mut scene = Scene::new(|_| {});
    let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
    scene.begins(one);
    scene.handles(one, 0..=4);
    scene.owns(other);
    scene.stores(one, 2);
    assert_eq!(scene.broken(), nothing(), "no owner has adopted yet");
    scene.stores(other, 2);
    scene.stores(one, 4);
    assert_eq!(scene.broken(), [Invariant::Fenced]);
}

#[test]
fn only_an_operator_moves_a_checkpoint_back() {
    let mut scene = Scene::new(|_| {});
    let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
    scene.begins(one);
    scene.handles(one, 0..=9);
    scene.stores(one, 9);
    scene.resets(operator, 3);
    scene.stores(operator, 3);
    assert_eq!(scene.broken(), nothing());
    scene.releases(operator);
    scene.owns(one);
    scene.stores(one, 3);
    scene.stores(one, 9);
    assert_eq!(scene.broken(), [Invariant::NothingSkipped], "what was processed before the reset does not count");
    scene.stores(one, 8);
    assert!(scene.broken().contains(&Invariant::CheckpointMonotonic));
}

#[test]
fn an_operator_writes_the_wanted_position_as_owner() {
    for (owns, to, broken) in
        [(true, 3, vec![]), (true, 4, vec![Invariant::Operator]), (false, 3, vec![Invariant::Fenced])]
    {
        let mut scene = Scene::new(|_| {});
        let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
        scene.begins(one);
        scene.handles(one, 0..=9);
        scene.stores(one, 9);
        scene.observer.lock().operates(operator, [(0, 3)].into(), true, OffsetDateTime::UNIX_EPOCH);
        if owns {
            scene.owns(operator);
        }
        scene.stores(operator, to);
        assert_eq!(scene.broken(), broken, "owns: {owns}, {to}");
    }
}

#[test]
fn an_operator_must_report_the_truth() {
    let lost = || ResetOutcome::NotDone(ResetError::Lost { by: None });
    let unsure = |written| ResetOutcome::Indeterminate { written, error: None };
    // The checkpoints that it writes, whether it releases, and whether these reports are true: done, not done,
    // indeterminate, indeterminate but written.
    let cases: [(&[i64], bool, [bool; 4]); 4] = [
        (&[9], true, [false, true, true, false]),
        (&[9, 3], false, [false, false, true, true]),
        (&[9, 3], true, [true, false, true, true]),
        (&[], true, [false, true, true, false]),
    ];
    for (writes, releases, expected) in cases {
        let reports = [ResetOutcome::Done, lost(), unsure(false), unsure(true)];
        for (report, expected) in reports.into_iter().zip(expected) {
            let mut scene = Scene::new(|_| {});
            let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
            scene.begins(one);
            scene.handles(one, 0..=9);
            scene.stores(one, 9);
            scene.resets(operator, 3);
            for position in writes {
                scene.stores(operator, *position);
            }
            if releases {
                scene.releases(operator);
            }
            scene.observer.lock().reported(operator, 0, &report);
            let broken = if expected { vec![] } else { vec![Invariant::Operator] };
            assert_eq!(scene.broken(), broken, "{writes:?}, released: {releases}: {report:?}");
        }
    }
}

#[test]
fn an_operator_writes_nothing_after_giving_up() {
    let mut scene = Scene::new(|_| {});
    let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
    scene.begins(one);
    scene.resets(operator, 3);
    scene.observer.lock().reported(operator, 0, &ResetOutcome::NotDone(ResetError::Lost { by: None }));
    assert_eq!(scene.broken(), nothing());
    scene.stores(operator, 3);
    assert_eq!(scene.broken(), [Invariant::Operator]);
}

#[test]
fn the_next_owner_starts_at_the_reset_position() {
    for (first, broken) in [(4, vec![]), (3, vec![Invariant::Continuous]), (5, vec![Invariant::Continuous])] {
        let mut scene = Scene::new(|_| {});
        let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
        scene.begins(one);
        scene.resets(operator, 3);
        scene.stores(operator, -1);
        scene.stores(operator, 3);
        scene.releases(operator);
        scene.reporter(one).stopped(&0.into(), &StopReason::OwnershipLost { by: None });
        scene.begins_at(one, 3);
        scene.handles(one, first..=9);
        assert_eq!(scene.broken(), broken, "{first}");
    }
}

#[tokio::test(start_paused = true)]
async fn operators_are_not_stolen_from_or_asked() {
    for (after, requests_handoff, broken) in
        [(0, false, vec![Invariant::Operator]), (60, false, vec![]), (0, true, vec![Invariant::Operator])]
    {
        let mut scene = Scene::new(|plan| plan.settings.expiry = Duration::from_secs(60));
        let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
        scene.resets(operator, 3);
        advance(Duration::from_secs(after)).await;
        if requests_handoff {
            scene.requests_handoff(one, operator);
        } else {
            scene.owns(one);
        }
        assert_eq!(scene.broken(), broken, "after {after} s, requests handoff: {requests_handoff}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reset_in_calm_moves_nothing() {
    for (returns, broken) in [(true, vec![]), (false, vec![Invariant::Sticky])] {
        let mut scene = Scene::new(|plan| plan.settings.expiry = Duration::from_secs(60));
        let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
        let operator = scene.register("operator", None);
        scene.begins(one);
        advance(Duration::from_secs(120)).await;
        scene.resets(operator, 3);
        scene.releases(operator);
        scene.owns(if returns { one } else { other });
        assert_eq!(scene.broken(), broken, "back at its owner: {returns}");
    }
}

#[test]
fn a_member_replaces_a_checkpoint_only_with_a_reason() {
    let mut scene = Scene::new(|_| {});
    let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
    scene.begins(one);
    scene.handles(one, 0..=9);
    scene.stores(one, 9);
    scene.stores(other, 3);
    assert_eq!(scene.broken(), [Invariant::Fenced, Invariant::CheckpointMonotonic]);
}

#[test]
fn a_checkpoint_is_replaced_before_the_handler_starts() {
    for (starts, broken) in [(false, vec![]), (true, vec![Invariant::CheckpointMonotonic])] {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.begins(one);
        scene.handles(one, 0..=9);
        scene.stores(one, 9);
        scene.observer.lock().hub_recreated(1, time::OffsetDateTime::UNIX_EPOCH);
        scene.observer.lock().published(0, 5);
        scene.reporter(one).stopped(&0.into(), &StopReason::Shutdown);
        scene.owns(one);
        scene.stores(one, 9);
        if starts {
            scene.reporter(one).started(&0.into(), None);
        }
        scene.stores(one, -1);
        assert_eq!(scene.broken(), broken, "the handler has started: {starts}");
    }
}

#[test]
fn a_later_ownership_has_the_greater_epoch() {
    for (epochs, broken) in [([5, 7], vec![]), ([7, 5], vec![Invariant::EpochGrows])] {
        let mut scene = Scene::new(|_| {});
        for (member, epoch) in (0..).zip(epochs) {
            let incarnation = scene.register(["one", "other"][member as usize], Some(member));
            scene.owns_in_epoch(incarnation, Some(epoch));
            scene.reporter(incarnation).started(&0.into(), Some(epoch));
        }
        assert_eq!(scene.broken(), broken, "{epochs:?}");
    }
}

#[test]
fn a_start_at_latest_skips_nothing_later() {
    for (start, broken) in [(99, vec![]), (120, vec![Invariant::NothingSkipped])] {
        let mut scene = Scene::new(|plan| plan.settings.latest = true);
        let one = scene.register("one", Some(0));
        scene.owns(one);
        scene.reporter(one).started(&0.into(), None);
        scene.observer.lock().published(0, 150);
        scene.stores(one, start);
        assert_eq!(scene.broken(), broken, "{start}");
    }
}

#[test]
fn a_loss_is_reported_only_if_the_record_changed() {
    let mut scene = Scene::new(|_| {});
    let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
    scene.begins(one);
    scene.owns(other);
    scene.reporter(one).stopped(&0.into(), &StopReason::OwnershipLost { by: None });
    assert_eq!(scene.broken(), nothing());
    scene.begins(other);
    scene.reporter(other).stopped(&0.into(), &StopReason::OwnershipLost { by: None });
    assert_eq!(scene.broken(), [Invariant::NoSpuriousLoss]);
}

#[test]
fn a_partition_claimed_again_may_be_reported_as_lost() {
    for (epoch, broken) in [(7, vec![Invariant::NoSpuriousLoss]), (8, vec![])] {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.owns_in_epoch(one, Some(7));
        scene.reporter(one).started(&0.into(), Some(7));
        scene.owns_in_epoch(one, Some(epoch));
        scene.reporter(one).stopped(&0.into(), &StopReason::OwnershipLost { by: None });
        assert_eq!(scene.broken(), broken, "{epoch}");
    }
}

#[test]
fn an_ownership_names_its_writer_or_no_owner() {
    let mut scene = Scene::new(|_| {});
    let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
    scene.owns(one);
    let released = encode_ownership(&OwnershipRecord::default());
    scene.written(other, "ownership", &released);
    assert_eq!(scene.broken(), [Invariant::OwnRecord], "it was not the owner");
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.written(one, "ownership", &eventhubs_checkpoint::blob::Metadata::new());
    assert_eq!(scene.broken(), [Invariant::OwnRecord], "the key is missing");
}

#[test]
fn a_handoff_request_changes_nothing_else() {
    for (key, broken) in [("ehchandoffto", vec![]), ("ehcload", vec![Invariant::OwnRecord])] {
        let mut scene = Scene::new(|_| {});
        let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
        scene.owns(one);
        let Identity { owner, incarnation: id, .. } = scene.incarnations[one].clone();
        let record = OwnershipRecord::owned_by(owner, Some(id));
        let mut metadata = encode_ownership(&record);
        metadata.insert(key, "other");
        scene.written(other, "ownership", &metadata);
        assert_eq!(scene.broken(), broken, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn crash_leftovers_are_claimed_within_the_bound() {
    for (late, broken) in [(Duration::ZERO, vec![]), (Duration::from_secs(1), vec![Invariant::NoUnownedPartition])] {
        let mut scene = Scene::new(|_| {});
        let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
        scene.begins(one);
        scene.observer.lock().crashes(one);
        advance(Bounds::of(&scene.plan.settings).unowned_time(1, 1, false) + late).await;
        scene.owns(other);
        assert_eq!(scene.broken(), broken);
    }
}

#[tokio::test(start_paused = true)]
async fn released_partitions_are_claimed_sooner() {
    for (late, broken) in [(Duration::ZERO, vec![]), (Duration::from_secs(1), vec![Invariant::NoUnownedPartition])] {
        let mut scene = Scene::new(|_| {});
        let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
        scene.begins(one);
        advance(2 * scene.plan.settings.expiry).await;
        scene.observer.lock().shuts_down(one);
        scene.written(one, "ownership", &encode_ownership(&OwnershipRecord::default()));
        advance(Bounds::of(&scene.plan.settings).free(1, 1) + late).await;
        scene.owns(other);
        assert_eq!(scene.broken(), broken);
    }
}

#[tokio::test(start_paused = true)]
async fn a_strict_lease_is_not_processed_after_expiry() {
    let mut scene = Scene::new(|plan| plan.settings.strict = true);
    let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
    scene.begins(one);
    advance(scene.plan.settings.expiry).await;
    scene.owns(other);
    assert_eq!(scene.broken(), [Invariant::StrictLease]);
}

#[tokio::test(start_paused = true)]
async fn nothing_stops_a_handler_that_blocks_its_thread() {
    let mut scene = Scene::new(|plan| plan.settings.strict = true);
    let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
    scene.begins(one);
    scene.observer.lock().blocks(one, true);
    advance(scene.plan.settings.expiry).await;
    scene.owns(other);
    assert_eq!(scene.broken(), nothing());
}

#[test]
fn one_batch_at_a_time_between_start_and_stop() {
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.begins(one);
    scene.reporter(one).started(&0.into(), None);
    assert_eq!(scene.broken(), [Invariant::OneHandler], "a second start");
    let _first = scene.reporter(one).begins(&0.into(), &[]);
    let _second = scene.reporter(one).begins(&0.into(), &[]);
    assert_eq!(scene.broken().len(), 2, "two batches at once");
}

#[tokio::test(start_paused = true)]
async fn a_partition_is_read_in_proportion_to_the_faults() {
    let twice = Slowdown { factor: 2.0, ..Slowdown::none() };
    let bad_blob = Slowdown { unwritable: [0].into(), ..Slowdown::none() };
    let missed = vec![Invariant::NoUnreadPartition];
    for (slowdown, broken) in
        [(Some(Slowdown::none()), missed), (Some(twice), vec![]), (Some(bad_blob), vec![]), (None, vec![])]
    {
        let mut scene = Scene::new(|_| {});
        scene.register("one", Some(0));
        scene.observer.lock().disrupted(true, slowdown.clone());
        scene.observer.lock().check_unread_time();
        advance(Bounds::of(&scene.plan.settings).convergence(1, 1, false) + Duration::from_secs(1)).await;
        scene.observer.lock().check_unread_time();
        assert_eq!(scene.broken(), broken, "{slowdown:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_gives_the_group_the_time_again() {
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.observer.lock().check_unread_time();
    let bound = Bounds::of(&scene.plan.settings).convergence(1, 1, false);
    advance(bound).await;
    scene.observer.lock().disturbed();
    advance(bound).await;
    scene.observer.lock().check_unread_time();
    assert_eq!(scene.broken(), nothing());
    scene.begins(one);
    scene.observer.lock().check_unread_time();
    advance(bound).await;
    scene.observer.lock().check_unread_time();
    assert_eq!(scene.broken(), nothing(), "it is read");
}

#[tokio::test(start_paused = true)]
async fn no_bound_applies_during_a_fault() {
    for (disrupted, broken) in [(false, vec![Invariant::NoUnownedPartition]), (true, vec![])] {
        let mut scene = Scene::new(|_| {});
        let (one, other) = (scene.register("one", Some(0)), scene.register("other", Some(1)));
        scene.begins(one);
        scene.observer.lock().disrupted(disrupted, None);
        advance(2 * scene.plan.settings.expiry).await;
        scene.observer.lock().shuts_down(one);
        scene.written(one, "ownership", &encode_ownership(&OwnershipRecord::default()));
        advance(Bounds::of(&scene.plan.settings).free(1, 1) + Duration::from_secs(1)).await;
        scene.owns(other);
        assert_eq!(scene.broken(), broken, "{disrupted}");
    }
}

mod continuity {
    use super::*;

    /// Returns the violations of one start of a handler that gets these batches.
    fn broken_by(batches: [std::ops::RangeInclusive<i64>; 2], between: impl FnOnce(&Scene, usize)) -> Vec<Invariant> {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.begins(one);
        let [first, second] = batches;
        scene.handles(one, first);
        between(&scene, one);
        scene.handles(one, second);
        scene.broken()
    }

    #[test]
    fn consecutive_events_are_no_violation() {
        assert_eq!(broken_by([0..=4, 5..=9], |_, _| {}), []);
    }

    #[test]
    fn a_gap_is_a_violation() {
        assert_eq!(broken_by([0..=4, 6..=9], |_, _| {}), [Invariant::Continuous]);
    }

    #[test]
    fn a_repeated_event_is_a_violation() {
        assert_eq!(broken_by([0..=4, 4..=9], |_, _| {}), [Invariant::Continuous]);
    }

    #[test]
    fn retention_may_cause_a_gap() {
        let expires = |scene: &Scene, _| scene.observer.lock().expired(0, 50);
        assert_eq!(broken_by([0..=4, 50..=59], expires), []);
        assert_eq!(broken_by([0..=4, 51..=59], expires), [Invariant::Continuous]);
    }

    #[test]
    fn another_start_may_repeat_events() {
        let restarts = |scene: &Scene, one| {
            scene.reporter(one).stopped(&0.into(), &StopReason::Released { reason: ReleaseReason::HandedOver });
            scene.reporter(one).started(&0.into(), None);
        };
        assert_eq!(broken_by([0..=4, 2..=9], restarts), []);
    }
}

#[tokio::test(start_paused = true)]
async fn no_more_requests_while_they_are_rejected() {
    for (too_many, broken) in [(0, vec![]), (1, vec![Invariant::Restrained])] {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.begins(one);
        scene.observer.lock().refuses(one, true);
        advance(Duration::from_secs(60)).await;
        let usual = Bounds::of(&scene.plan.settings).requests(1, 0, Duration::from_secs(60));
        for _ in 0..usual + too_many {
            scene.reporter(one).requested(Request::Write);
        }
        scene.observer.lock().refuses(one, false);
        assert_eq!(scene.broken(), broken, "{too_many} too many");
    }
}

/// An instance that was frozen has not detected its losses yet and continues with the lost partitions.
#[tokio::test(start_paused = true)]
async fn lost_partitions_cost_until_they_stop() {
    let mut scene = Scene::new(|_| {});
    let [one, two] = [0, 1].map(|member| scene.register(&format!("m{member}"), Some(member)));
    scene.begins(one);
    scene.owns(two);
    scene.observer.lock().refuses(one, true);
    let usual = Bounds::of(&scene.plan.settings).requests(1, 0, Duration::ZERO);
    for _ in 0..usual {
        scene.reporter(one).requested(Request::Write);
    }
    scene.observer.lock().refuses(one, false);
    assert_eq!(scene.broken(), nothing());
}

/// An instance whose checkpoints fail for three minutes releases its four partitions and claims others, five times:
/// seed 288 of `simulate`.
#[test]
fn each_gained_partition_has_quick_attempts() {
    let (scene, lasted) = (Scene::new(|_| {}), Duration::from_secs(174));
    let bounds = Bounds::of(&scene.plan.settings);
    assert_eq!(bounds.requests(4, 20, lasted) - bounds.requests(4, 0, lasted), 20 * (12 + 4));
}

#[test]
fn a_checkpoint_set_back_by_another_sdk_is_excused() {
    for (crate_processor, broken) in
        [(false, vec![]), (true, vec![Invariant::CheckpointMonotonic, Invariant::CaughtUp])]
    {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.begins(one);
        scene.observer.lock().published(0, 10);
        scene.handles(one, 0..=9);
        scene.stores(one, 9);
        let (owner, bounds) = (OwnerId::new("other").unwrap(), Bounds::of(&scene.plan.settings));
        let other = if crate_processor {
            one
        } else {
            scene.observer.lock().register(NewIncarnation { member: Some(1), owner, crate_processor: false, bounds })
        };
        scene.stores(other, 5);
        scene.observer.lock().must_be_checkpointed();
        assert_eq!(scene.broken(), broken, "{crate_processor}");
    }
}

/// Single events of a key run one after another, in order, and again only after a failure.
#[tokio::test(start_paused = true)]
async fn single_events_keep_the_order_of_their_key() {
    let event = |number| MemoryEvent::new(number, "0");
    let partition = PartitionId::from(0);
    for (first, second, broken) in [
        ((3, true), (4, Some(1)), vec![]),
        ((3, false), (3, Some(1)), vec![]),
        ((3, true), (3, Some(1)), vec![Invariant::KeyOrder]),
        ((3, true), (2, Some(1)), vec![Invariant::KeyOrder]),
        ((3, true), (2, Some(2)), vec![]),
        ((3, true), (2, None), vec![]),
    ] {
        let mut scene = Scene::new(|_| {});
        let one = scene.register("one", Some(0));
        scene.begins(one);
        let reporter = scene.reporter(one);
        let running = reporter.begins_event(&partition, &event(first.0), Some(1));
        if first.1 {
            running.done(&event(first.0));
        }
        drop(running);
        drop(reporter.begins_event(&partition, &event(second.0), second.1));
        assert_eq!(scene.broken(), broken, "{first:?}, {second:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_event_begins_beside_another_or_after_a_stop() {
    let mut scene = Scene::new(|_| {});
    let one = scene.register("one", Some(0));
    scene.begins(one);
    let (reporter, partition) = (scene.reporter(one), PartitionId::from(0));
    let running = reporter.begins_event(&partition, &MemoryEvent::new(3, "0"), Some(1));
    drop(reporter.begins_event(&partition, &MemoryEvent::new(4, "0"), Some(1)));
    assert_eq!(scene.broken(), [Invariant::KeyOrder]);
    drop(running);
    reporter.stopped(&partition, &StopReason::Shutdown);
    drop(reporter.begins_event(&partition, &MemoryEvent::new(5, "0"), Some(1)));
    assert_eq!(scene.broken(), [Invariant::KeyOrder; 2]);
}

/// A start in an earlier epoch than the current one was decided before the pause.
#[tokio::test(start_paused = true)]
async fn no_paused_partition_starts() {
    let now = datetime!(2026-01-01 00:00 UTC);
    for (left, epoch, is_broken) in [(60, 2, true), (0, 2, false), (60, 1, false)] {
        let mut scene = Scene::new(|_| {});
        let (one, operator) = (scene.register("one", Some(0)), scene.register("operator", None));
        scene.observer.lock().operates(operator, [(0, -1)].into(), true, now);
        scene.owns_in_epoch(one, Some(2));
        let mut record = CheckpointRecord::default();
        (record.sequence_number, record.offset) = (Some(-1), Some("-1".to_owned()));
        record.paused = Some(Pause::new(now, Some(now + Duration::from_secs(left)), None));
        scene.written(one, "checkpoint", &encode_checkpoint(&record));
        scene.reporter(one).started(&0.into(), Some(epoch));
        assert_eq!(scene.broken().contains(&Invariant::Paused), is_broken, "{left} {epoch}");
    }
}
