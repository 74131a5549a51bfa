//! A group as several looks could find it.

use std::time::Duration;

use eventhubs_checkpoint::OwnerId;
use eventhubs_checkpoint::admin::describe::{GroupDescription, GroupState, OwnershipState, PartitionDescription, Sdk};
use time::OffsetDateTime;
use time::macros::datetime;

use super::super::state::{ScreenSettings, ScreenState};
use super::template::template;
use crate::args::LookIntervals;
use crate::watching::{CountedLook, Look};

/// The time of the first look.
pub const START: OffsetDateTime = datetime!(2026-11-23 10:00 UTC);
const REQUESTS: u64 = 5;

/// What varies between the partitions.
#[derive(Clone, Copy)]
pub struct Sample {
    pub owner: Option<&'static str>,
    pub state: OwnershipState,
    /// How many seconds the lease is valid.
    pub expires_in: u64,
    pub checkpoint: Option<i64>,
    pub last: i64,
    /// How many seconds ago the checkpoint was written.
    pub updated: i64,
}

impl Sample {
    /// Returns a partition that is owned and idle.
    pub fn owned(owner: &'static str, number: i64) -> Self {
        let state = OwnershipState::Owned;
        Self { owner: Some(owner), state, expires_in: 47, checkpoint: Some(number), last: number, updated: 2 }
    }

    fn of(self, template: &GroupDescription, id: u32, now: OffsetDateTime) -> PartitionDescription {
        let mut partition = template.partitions[0].clone();
        partition.id = id.into();
        partition.state = self.state;
        partition.owner = partition.owner.zip(self.owner).map(|(mut owner, id)| {
            owner.id = OwnerId::new(id).unwrap();
            owner.sdk = Sdk::ThisCrate;
            owner.expires_in = Duration::from_secs(self.expires_in);
            owner.renewed = now - Duration::from_secs(60_u64.saturating_sub(self.expires_in));
            owner.since = Some(START - time::Duration::HOUR);
            owner.epoch = Some(7);
            owner
        });
        partition.checkpoint = partition.checkpoint.zip(self.checkpoint).map(|(mut checkpoint, number)| {
            checkpoint.position.sequence_number = Some(number);
            checkpoint.position.offset = Some((number * 100).to_string());
            checkpoint.owner = self.owner.map(|owner| OwnerId::new(owner).unwrap());
            checkpoint.updated = now - time::Duration::seconds(self.updated);
            checkpoint.initial = false;
            checkpoint
        });
        let hub = partition.hub.as_mut().unwrap();
        hub.last = Some(self.last);
        hub.last_offset = Some((self.last * 100).to_string());
        hub.last_enqueued_at = Some(now - time::Duration::seconds(1));
        partition.lag.events = self.checkpoint.map(|number| u64::try_from(self.last - number).unwrap());
        partition
    }
}

/// Returns a group at this time.
pub fn group(template: &GroupDescription, seconds: i64, samples: &[Sample]) -> GroupDescription {
    let now = START + time::Duration::seconds(seconds);
    let mut group = template.clone();
    group.taken_at = now;
    group.partitions = (0..).zip(samples).map(|(id, sample)| sample.of(template, id, now)).collect();
    let mut owners: Vec<_> = samples.iter().filter_map(|sample| sample.owner).collect();
    owners.sort_unstable();
    owners.dedup();
    let member = |owner: &&str| {
        let mut member = template.members[0].clone();
        member.id = OwnerId::new(*owner).unwrap();
        member
    };
    group.members = owners.iter().map(member).collect();
    let unowned = group.partitions.iter().filter(|partition| !partition.state.is_live()).count();
    group.group.members = group.members.len();
    group.group.unowned = unowned;
    group.group.state = if unowned == 0 { GroupState::Stable } else { GroupState::Moving };
    group.group.lag.events = group.partitions.iter().map(|partition| partition.lag.events).sum();
    group
}

pub fn settings() -> ScreenSettings {
    ScreenSettings {
        colors: true,
        intervals: LookIntervals {
            interval: Duration::from_secs(3),
            refresh: Duration::from_secs(60),
            hub_interval: Duration::from_secs(10),
        },
        has_hub: true,
        given: ["--profile", "prod"].map(str::to_owned).to_vec(),
    }
}

/// Adds a look.
pub fn look(state: &mut ScreenState, group: GroupDescription) {
    let look = Ok(Look { group, is_hub_read: true, hub_failure: None, hub_failures: 0, is_hub_stale: false });
    state.on_look(seen(look));
}

/// Returns a look with its cost.
pub fn seen(look: crate::exit::Result<Look>) -> CountedLook {
    CountedLook { look, list_requests: REQUESTS }
}

/// A group of four partitions after 25 minutes: one is fine, one is behind, one renews late, one has no owner.
pub async fn state() -> ScreenState {
    let template = template().await;
    let mut state = ScreenState::new(settings());
    for round in 0..=50 {
        let seconds = round * 30;
        let is_given = round > 40;
        look(
            &mut state,
            group(
                &template,
                seconds,
                &[
                    Sample {
                        last: 1_204_340 + 310 * seconds,
                        ..Sample::owned("orders-7c9-x2", 1_204_331 + 310 * seconds)
                    },
                    Sample {
                        checkpoint: Some(998_120 + 12 * seconds),
                        last: 998_200 + 20 * seconds + (round % 7) * 90,
                        ..Sample::owned("orders-7c9-x2", 0)
                    },
                    Sample {
                        state: if round == 40 { OwnershipState::HandingOver } else { OwnershipState::Owned },
                        expires_in: if round == 50 { 9 } else { 47 },
                        updated: 41,
                        ..Sample::owned(if is_given { "orders-7c9-k8" } else { "orders-7c9-x2" }, 1_300_002)
                    },
                    Sample {
                        owner: (round < 46).then_some("orders-7c9-k8"),
                        state: if round < 46 { OwnershipState::Owned } else { OwnershipState::Released },
                        updated: 300,
                        ..Sample::owned("orders-7c9-k8", 77_000)
                    },
                ],
            ),
        );
    }
    state
}

/// A group of many partitions, after two looks.
pub async fn many(partitions: i64) -> ScreenState {
    let template = template().await;
    let mut state = ScreenState::new(settings());
    for seconds in [0, 30] {
        let sample = |id: i64| Sample {
            last: id * 1000 + (id * 7 % 13) * 10 + seconds * 2,
            ..Sample::owned(if id % 2 == 0 { "worker-1" } else { "worker-2" }, id * 1000 + seconds * (id % 5))
        };
        let samples: Vec<_> = (0..partitions)
            .map(sample)
            .map(|sample| Sample { last: sample.last.max(sample.checkpoint.unwrap_or_default()), ..sample })
            .collect();
        look(&mut state, group(&template, seconds, &samples));
    }
    state
}
