//! What is notable about a partition: pure.

use std::time::Duration;

use eventhubs_checkpoint::Pause;
use eventhubs_checkpoint::admin::describe::OwnershipState;

use crate::output::Tone;

/// A processor that is this long behind has a problem, or too much work.
const BEHIND: f64 = 60.0;
/// A lease of which less than this part is left should have been renewed: owners renew several times per lease.
const LATE: u32 = 3;

/// What is notable about a partition, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionCondition {
    Ok,
    Expired,
    Unowned,
    Released,
    Operator,
    HandingOver,
    Away,
    RenewalLate,
    /// Its handler failed, and nothing is delivered until it is resumed.
    Parked,
    /// An operator paused it.
    Paused,
    /// It is behind, and its checkpoint does not advance.
    Stuck,
    Behind,
    /// Its checkpoint is after the last event: the event hub was recreated.
    BeyondEnd,
    /// A state that this tool does not know.
    Other,
}

/// What the condition of a partition depends on.
#[derive(Clone, Copy, Debug)]
pub struct ConditionFacts<'a> {
    pub state: OwnershipState,
    /// What is left of the lease, and the whole of it.
    pub lease: Option<(Duration, Duration)>,
    /// How many seconds at least the next event has waited.
    pub behind: Option<f64>,
    /// Events per second by which the checkpoint advances.
    pub processed: Option<f64>,
    pub is_beyond_end: bool,
    pub pause: Option<&'a Pause>,
}

impl PartitionCondition {
    pub fn of(facts: ConditionFacts<'_>) -> Self {
        let is_behind = facts.behind.is_some_and(|seconds| seconds > BEHIND);
        match facts.state {
            OwnershipState::Expired => Self::Expired,
            OwnershipState::Unowned => Self::Unowned,
            OwnershipState::Released => Self::Released,
            OwnershipState::Operator => Self::Operator,
            OwnershipState::HandingOver => Self::HandingOver,
            OwnershipState::Away => Self::Away,
            OwnershipState::Owned if facts.is_beyond_end => Self::BeyondEnd,
            OwnershipState::Owned if facts.lease.is_some_and(|(left, whole)| left < whole / LATE) => Self::RenewalLate,
            OwnershipState::Owned if facts.pause.is_some_and(|pause| pause.parked) => Self::Parked,
            OwnershipState::Owned if facts.pause.is_some() => Self::Paused,
            OwnershipState::Owned if is_behind && facts.processed == Some(0.0) => Self::Stuck,
            OwnershipState::Owned if is_behind => Self::Behind,
            OwnershipState::Owned => Self::Ok,
            _ => Self::Other,
        }
    }

    pub fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Expired => "EXPIRED",
            Self::Unowned => "UNOWNED",
            Self::Released => "RELEASED",
            Self::Operator => "operator",
            Self::HandingOver => "handing over",
            Self::Away => "away",
            Self::RenewalLate => "renewal late",
            Self::Parked => "PARKED",
            Self::Paused => "paused",
            Self::Stuck => "STUCK",
            Self::Behind => "BEHIND",
            Self::BeyondEnd => "BEYOND END",
            Self::Other => "?",
        }
    }

    pub fn tone(self) -> Tone {
        match self {
            Self::Ok | Self::Away | Self::Other => Tone::Plain,
            Self::HandingOver | Self::Operator => Tone::Good,
            Self::Unowned | Self::Released | Self::RenewalLate | Self::Paused | Self::Behind => Tone::Warning,
            Self::Expired | Self::Parked | Self::Stuck | Self::BeyondEnd => Tone::Bad,
        }
    }
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    #[test]
    fn the_owner_counts_before_the_lag() {
        let lease = |left| Some((Duration::from_secs(left), Duration::from_secs(60)));
        let facts = ConditionFacts {
            state: OwnershipState::Owned,
            lease: lease(47),
            behind: None,
            processed: None,
            is_beyond_end: false,
            pause: None,
        };
        let paused = Pause::new(OffsetDateTime::UNIX_EPOCH, None, None);
        let parked = Pause::after_failure(OffsetDateTime::UNIX_EPOCH, "no database");
        let behind = ConditionFacts { behind: Some(61.0), ..facts };
        for (facts, expected) in [
            (facts, PartitionCondition::Ok),
            (ConditionFacts { behind: Some(60.0), ..facts }, PartitionCondition::Ok),
            (behind, PartitionCondition::Behind),
            (ConditionFacts { processed: Some(0.1), ..behind }, PartitionCondition::Behind),
            (ConditionFacts { processed: Some(0.0), ..behind }, PartitionCondition::Stuck),
            (ConditionFacts { pause: Some(&paused), processed: Some(0.0), ..behind }, PartitionCondition::Paused),
            (ConditionFacts { pause: Some(&parked), ..facts }, PartitionCondition::Parked),
            (ConditionFacts { pause: Some(&paused), lease: lease(19), ..facts }, PartitionCondition::RenewalLate),
            (ConditionFacts { lease: lease(19), ..behind }, PartitionCondition::RenewalLate),
            (ConditionFacts { is_beyond_end: true, ..facts }, PartitionCondition::BeyondEnd),
            (ConditionFacts { lease: lease(20), ..facts }, PartitionCondition::Ok),
            (ConditionFacts { state: OwnershipState::Expired, lease: lease(0), ..behind }, PartitionCondition::Expired),
        ] {
            assert_eq!(PartitionCondition::of(facts), expected, "{facts:?}");
        }
    }
}
