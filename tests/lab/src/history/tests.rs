//! Each rule is broken by the history that it forbids, and by no other history.

use super::*;

const ONE: usize = 1;
const TWO: usize = 2;

/// A hundred events. The first instance has adopted the partition and processed five.
fn begun() -> (Partition<usize>, Moment) {
    let mut partition = Partition::default();
    partition.published(100);
    partition.owned_by(Some(ONE));
    assert_eq!(broken(&partition.checkpointed(&ONE, Purpose::Adoption, -1)), []);
    let since = partition.started();
    assert_eq!(partition.processed(Some(since), 0, 4), 0);
    (partition, since)
}

fn broken(verdicts: &[Verdict]) -> Vec<Rule> {
    verdicts.iter().filter(|verdict| verdict.breach.is_some()).map(|verdict| verdict.rule).collect()
}

fn progress(partition: &mut Partition<usize>, by: usize, position: i64) -> Vec<Rule> {
    let ownership = partition.adoption_of(&by);
    broken(&partition.checkpointed(&by, Purpose::Progress { ownership }, position))
}

fn reset(by_operator: bool) -> Purpose {
    Purpose::Reset { by_operator, may_skip: false }
}

#[test]
fn a_checkpoint_of_processed_events_is_accepted() {
    let (mut partition, _) = begun();
    assert_eq!(progress(&mut partition, ONE, 4), []);
    assert_eq!((partition.stored(), partition.ownership_count(), partition.owner()), (Some(4), 1, Some(&ONE)));
}

#[test]
fn an_earlier_ownership_is_fenced_by_the_adoption() {
    let (mut partition, _) = begun();
    assert_eq!(partition.owned_by(Some(TWO)), OwnerChange { before: Some(ONE), changed: true, begins: true });
    assert_eq!(progress(&mut partition, ONE, 3), [], "the new owner has not adopted it yet");
    assert_eq!(broken(&partition.checkpointed(&TWO, Purpose::Adoption, 3)), []);
    assert_eq!(progress(&mut partition, ONE, 4), [Rule::Fenced]);
}

#[test]
fn an_earlier_ownership_is_fenced_by_progress() {
    let (mut partition, since) = begun();
    partition.owned_by(Some(TWO));
    assert_eq!(broken(&partition.checkpointed(&TWO, Purpose::Progress { ownership: Some(2) }, 3)), []);
    partition.processed(Some(since), 5, 5);
    assert_eq!(progress(&mut partition, ONE, 5), [Rule::Fenced]);
}

#[test]
fn without_ownership_only_an_initial_checkpoint() {
    let (mut partition, _) = begun();
    assert_eq!(broken(&partition.checkpointed(&TWO, Purpose::Adoption, -1)), []);
    assert_eq!(progress(&mut partition, TWO, 4), [Rule::Fenced]);
    assert_eq!(broken(&partition.checkpointed(&TWO, reset(false), 4)), [Rule::Fenced]);
}

#[test]
fn a_renewal_and_a_release_begin_no_ownership() {
    let (mut partition, _) = begun();
    assert_eq!(partition.owned_by(Some(ONE)), OwnerChange { before: Some(ONE), changed: false, begins: false });
    assert!(!partition.owned_by(None).begins);
    assert!(!partition.owned_by(Some(ONE)).begins);
    assert_eq!(partition.ownership_of(&ONE), Some(1));
}

#[test]
fn a_checkpoint_moves_back_only_by_a_reset() {
    let (mut partition, _) = begun();
    assert_eq!(progress(&mut partition, ONE, 4), []);
    assert_eq!(progress(&mut partition, ONE, 3), [Rule::CheckpointMonotonic]);
    assert_eq!(broken(&partition.checkpointed(&ONE, reset(false), 2)), [Rule::CheckpointMonotonic]);
    operated(&mut partition, 1);
}

/// The second instance resets the checkpoint as an operator, and the first one takes the partition again.
fn operated(partition: &mut Partition<usize>, position: i64) {
    partition.owned_by(Some(TWO));
    assert_eq!(broken(&partition.checkpointed(&TWO, reset(true), position)), []);
    partition.owned_by(Some(ONE));
    assert_eq!(broken(&partition.checkpointed(&ONE, Purpose::Adoption, position)), []);
}

#[test]
fn a_reset_is_an_ownership_that_fences() {
    let (mut partition, since) = begun();
    assert_eq!(broken(&partition.checkpointed(&TWO, reset(true), 1)), [Rule::Fenced]);
    partition.owned_by(Some(TWO));
    assert_eq!(broken(&partition.checkpointed(&TWO, reset(true), 1)), []);
    partition.processed(Some(since), 5, 9);
    assert!(progress(&mut partition, ONE, 9).contains(&Rule::Fenced));
}

#[test]
fn an_operator_skips_events() {
    let (mut partition, _) = begun();
    operated(&mut partition, 49);
    let since = partition.started();
    partition.processed(Some(since), 50, 99);
    assert_eq!(partition.lost().breach, None);
    partition.checkpointed(&TWO, Purpose::Foreign, 60);
    assert_eq!(partition.lost().breach, None, "another SDK's checkpoint does not bring any of them back");
}

#[test]
fn an_owner_replaces_a_checkpoint_beyond_the_end() {
    let (mut partition, _) = begun();
    partition.checkpointed(&TWO, Purpose::Foreign, 500);
    assert!(partition.is_stale());
    assert_eq!(broken(&partition.checkpointed(&ONE, reset(false), 4)), []);
}

#[test]
fn a_checkpoint_passes_no_unprocessed_event() {
    let (mut partition, since) = begun();
    assert_eq!(progress(&mut partition, ONE, 5), [Rule::NothingSkipped]);
    let (mut gap, _) = begun();
    gap.processed(Some(since), 6, 9);
    assert_eq!(progress(&mut gap, ONE, 9), [Rule::NothingSkipped]);
    gap.processed(Some(since), 5, 5);
    assert_eq!(progress(&mut gap, ONE, 9), []);
}

#[test]
fn retention_removes_unprocessed_events() {
    let (mut partition, _) = begun();
    partition.expired(50);
    assert_eq!(progress(&mut partition, ONE, 49), []);
    assert_eq!(partition.unprocessed(), [(50, 99)]);
}

#[test]
fn a_handler_from_before_a_reset_does_not_count() {
    let (mut partition, since) = begun();
    operated(&mut partition, 1);
    assert_eq!(partition.processed(Some(since), 2, 4), 3);
    assert_eq!(progress(&mut partition, ONE, 4), [Rule::NothingSkipped]);
    let since = partition.started();
    partition.processed(Some(since), 2, 4);
    assert_eq!(progress(&mut partition, ONE, 4), []);
}

#[test]
fn an_owner_of_another_sdk_undoes_a_reset() {
    let (mut partition, _) = begun();
    partition.checkpointed(&TWO, reset(true), 1);
    assert_eq!(broken(&partition.checkpointed(&TWO, Purpose::Foreign, 4)), []);
    assert_eq!(broken(&partition.checkpointed(&ONE, Purpose::Adoption, 4)), []);
}

#[test]
fn every_event_of_the_hub_must_be_processed() {
    let (mut partition, since) = begun();
    assert_eq!(partition.lost().breach.as_deref(), Some("never processed 5 to 99"));
    partition.processed(Some(since), 5, 99);
    assert_eq!(partition.lost().breach, None);
}

#[test]
fn a_recreated_hub_makes_the_checkpoint_stale() {
    let (mut partition, _) = begun();
    progress(&mut partition, ONE, 4);
    partition.recreated();
    partition.published(10);
    assert!(partition.is_stale() && partition.lost().breach.is_some(), "its owner must find that");
    assert_eq!(broken(&partition.checkpointed(&ONE, reset(false), -1)), []);
    assert!(!partition.is_stale() && partition.lost().breach.is_some());
}

#[test]
fn a_loss_requires_another_owner() {
    let (mut partition, since) = begun();
    assert!(partition.lost_by(&ONE, since).breach.is_some());
    partition.owned_by(Some(TWO));
    assert!(partition.lost_by(&ONE, since).breach.is_none());
    partition.owned_by(Some(ONE));
    assert!(partition.lost_by(&ONE, since).breach.is_none(), "it was not its own all the time");
}

#[test]
fn listings_show_no_step_back() {
    let positions = |positions: &[(&str, i64)]| -> Positions {
        positions.iter().map(|(partition, position)| ((*partition).to_owned(), *position)).collect()
    };
    let before = positions(&[("0", 5), ("1", -1)]);
    assert_eq!(broken(&listed(&before, &positions(&[("0", 5), ("1", 2), ("2", 0)]))), []);
    assert_eq!(
        broken(&listed(&before, &positions(&[("0", 4)]))),
        [Rule::CheckpointMonotonic, Rule::CheckpointMonotonic]
    );
}
