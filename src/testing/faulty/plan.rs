//! Faults that happen with a probability.

use rand::RngExt;
use rand::rngs::StdRng;

use super::fault::{Call, Fault, Target};

/// The probability of each fault. The default plan has none.
///
/// At most one fault affects a request: of those drawn, the one that was added first. Latencies are separate: they add
/// up, and apply in addition. The duration of a fault is a maximum: each time it is drawn between zero and that
/// maximum.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::testing::faulty::{BlobOperation, Fault, FaultPlan, Target};
///
/// let plan = FaultPlan::default()
///     .with(0.5, Fault::Latency(Duration::from_secs(2)))
///     .with(0.05, Fault::ResponseLost)
///     .with_on(0.2, BlobOperation::List, Fault::Hang)
///     .with_on(1.0, Target::any().named("/checkpoint/"), Fault::Conflict);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultPlan {
    chances: Vec<Chance>,
}

#[derive(Clone, Debug, PartialEq)]
struct Chance {
    probability: f64,
    target: Target,
    fault: Fault,
}

/// The faults of one request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fate {
    pub(super) latencies: Vec<Fault>,
    pub(super) fault: Option<Fault>,
}

impl FaultPlan {
    /// Creates a plan in which this fault affects every request that it can affect.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self::default().with(1.0, fault)
    }

    /// Adds a fault for every request that it can affect. The probability is between 0.0 (never) and 1.0 (always).
    #[must_use]
    pub fn with(self, probability: f64, fault: Fault) -> Self {
        self.with_on(probability, Target::any(), fault)
    }

    /// Adds a fault for the matching requests that it can affect.
    #[must_use]
    pub fn with_on(mut self, probability: f64, target: impl Into<Target>, fault: Fault) -> Self {
        self.chances.push(Chance { probability, target: target.into(), fault });
        self
    }

    /// Draws the faults of a request. Uses the same number of random values for every request, so that a change of one
    /// probability does not affect the draws of the others.
    pub(super) fn draw(&self, call: &Call<'_>, rng: &mut StdRng) -> Fate {
        let mut fate = Fate::default();
        for chance in &self.chances {
            let (drawn, share) = (rng.random::<f64>(), rng.random::<f64>());
            let happens = drawn < chance.probability && chance.target.matches(call) && chance.fault.applies_to(call);
            match &chance.fault {
                _ if !happens => {}
                latency @ Fault::Latency(_) => fate.latencies.push(latency.scaled(share)),
                fault if fate.fault.is_none() => fate.fault = Some(fault.scaled(share)),
                _ => {}
            }
        }
        fate
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::SeedableRng;

    use super::super::fault::BlobOperation;
    use super::*;

    fn count(plan: &FaultPlan, call: &Call<'_>) -> usize {
        let mut rng = StdRng::seed_from_u64(1);
        (0..1000).filter(|_| plan.draw(call, &mut rng).fault.is_some()).count()
    }

    #[test]
    fn faults_follow_their_probability() {
        let write = Call::new(BlobOperation::Write, "a");
        assert_eq!(count(&FaultPlan::default(), &write), 0);
        assert_eq!(count(&FaultPlan::default().with(0.0, Fault::Hang), &write), 0);
        assert_eq!(count(&FaultPlan::always(Fault::Hang), &write), 1000);
        let some = count(&FaultPlan::default().with(0.3, Fault::Hang), &write);
        assert!((250..350).contains(&some), "{some}");
    }

    #[test]
    fn faults_affect_only_applicable_requests() {
        let list = Call::new(BlobOperation::List, "p/");
        let listed = Call { was_listed_before: true, ..list };
        let get = Call::new(BlobOperation::Get, "a");
        let write = Call::new(BlobOperation::Write, "a");
        let delete = Call::new(BlobOperation::Delete, "a");
        let container = Call::new(BlobOperation::CreateContainer, "");
        let calls = [list, listed, get, write, delete, container];
        let second = Duration::from_secs(1);
        for (fault, expected) in [
            (Fault::Hang, [true; 6]),
            (Fault::Throttled { retry_after: None }, [true; 6]),
            (Fault::Unauthorized, [true; 6]),
            (Fault::ResponseLost, [false, false, false, true, true, true]),
            (Fault::AppliedLate(second), [false, false, false, true, true, false]),
            (Fault::ConcurrentWrite(crate::blob::Metadata::new()), [false, false, false, true, false, false]),
            (Fault::Conflict, [false, false, false, true, true, false]),
            (Fault::StaleListing(second), [false, true, false, false, false, false]),
            (Fault::TruncatedListing, [true, true, false, false, false, false]),
        ] {
            let plan = FaultPlan::always(fault.clone());
            let affected = calls.map(|call| plan.draw(&call, &mut StdRng::seed_from_u64(0)).fault.is_some());
            assert_eq!(affected, expected, "{fault:?}");
        }
    }

    #[test]
    fn target_limits_operation_and_name() {
        let call = |name| Call::new(BlobOperation::Get, name);
        let on = |target: Target| FaultPlan::default().with_on(1.0, target, Fault::Hang);
        let named = on(Target::from(BlobOperation::Get).named("/checkpoint/"));
        assert_eq!((count(&named, &call("g/checkpoint/0")), count(&named, &call("g/ownership/0"))), (1000, 0));
        assert_eq!(count(&on(BlobOperation::List.into()), &call("g/checkpoint/0")), 0);
        let one = on(Target::any().ending("/checkpoint/1"));
        assert_eq!((count(&one, &call("g/checkpoint/1")), count(&one, &call("g/checkpoint/10"))), (1000, 0));
    }

    #[test]
    fn latencies_add_up_with_the_first_fault() {
        let second = Duration::from_secs(1);
        let plan = FaultPlan::always(Fault::Latency(second))
            .with(1.0, Fault::Hang)
            .with(1.0, Fault::Latency(second))
            .with(1.0, Fault::RequestLost);
        let fate = plan.draw(&Call::new(BlobOperation::Get, "a"), &mut StdRng::seed_from_u64(3));
        assert_eq!((fate.latencies.len(), fate.fault), (2, Some(Fault::Hang)));
        assert!(fate.latencies.iter().all(|fault| matches!(fault, Fault::Latency(time) if *time < second)));
    }

    #[test]
    fn another_probability_does_not_affect_other_draws() {
        let hangs = |other: f64| {
            let plan = FaultPlan::default().with(0.3, Fault::Hang).with(other, Fault::RequestLost);
            let mut rng = StdRng::seed_from_u64(5);
            let get = Call::new(BlobOperation::Get, "a");
            (0..100).map(|_| plan.draw(&get, &mut rng).fault == Some(Fault::Hang)).collect::<Vec<_>>()
        };
        assert_eq!(hangs(0.0), hangs(1.0));
    }
}
