//! Which faults happen by chance.

use rand::RngExt;
use rand::rngs::StdRng;

use super::fault::{Call, Fault, Target};

/// How probable each fault is. The default plan has none.
///
/// Each request meets at most one fault: of those that chance brings up, the one that was added first. Latencies are
/// apart: they add up, and come on top. A time within a fault is the longest: each time it is drawn between zero and
/// that.
///
/// ```
/// use std::time::Duration;
/// use eventhubs_checkpoint::testing::faulty::{Fault, FaultPlan, Operation, Target};
///
/// let plan = FaultPlan::default()
///     .with(0.5, Fault::Latency(Duration::from_secs(2)))
///     .with(0.05, Fault::ResponseLost)
///     .with_on(0.2, Operation::List, Fault::Hang)
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

/// What happens to one request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Fate {
    pub(super) latencies: Vec<Fault>,
    pub(super) fault: Option<Fault>,
}

impl FaultPlan {
    /// A plan under which this befalls every request that it can befall.
    #[must_use]
    pub fn always(fault: Fault) -> Self {
        Self::default().with(1.0, fault)
    }

    /// Adds a fault for every request that it can befall. The probability is 0.0 (never) to 1.0 (always).
    #[must_use]
    pub fn with(self, probability: f64, fault: Fault) -> Self {
        self.with_on(probability, Target::any(), fault)
    }

    /// Adds a fault for some of the requests that it can befall.
    #[must_use]
    pub fn with_on(mut self, probability: f64, target: impl Into<Target>, fault: Fault) -> Self {
        self.chances.push(Chance { probability, target: target.into(), fault });
        self
    }

    /// Draws what happens to a request. Takes as many numbers for every request, whatever comes of it, so that the
    /// change of one probability leaves the others' luck as it is.
    pub(super) fn draw(&self, call: &Call<'_>, rng: &mut StdRng) -> Fate {
        let mut fate = Fate::default();
        for chance in &self.chances {
            let (luck, share) = (rng.random::<f64>(), rng.random::<f64>());
            let happens = luck < chance.probability && chance.target.matches(call) && chance.fault.can_befall(call);
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
    use crate::blob::Condition;

    fn count(plan: &FaultPlan, call: &Call<'_>) -> usize {
        let mut rng = StdRng::seed_from_u64(1);
        (0..1000).filter(|_| plan.draw(call, &mut rng).fault.is_some()).count()
    }

    #[test]
    fn a_probability_is_kept_and_none_means_never() {
        let write = Call::new(BlobOperation::Write, "a").under(&Condition::Create);
        assert_eq!(count(&FaultPlan::default(), &write), 0);
        assert_eq!(count(&FaultPlan::default().with(0.0, Fault::Hang), &write), 0);
        assert_eq!(count(&FaultPlan::always(Fault::Hang), &write), 1000);
        let some = count(&FaultPlan::default().with(0.3, Fault::Hang), &write);
        assert!((250..350).contains(&some), "{some}");
    }

    #[test]
    fn a_fault_befalls_only_what_it_can_befall() {
        let list = Call::new(BlobOperation::List, "p/");
        let listed = Call { was_listed_before: true, ..list };
        let get = Call::new(BlobOperation::Get, "a");
        let write = Call::new(BlobOperation::Write, "a").under(&Condition::Unconditional);
        let create = write.under(&Condition::Create);
        let delete = Call::new(BlobOperation::Delete, "a").under(&Condition::Unconditional);
        let container = Call::new(BlobOperation::CreateContainer, "");
        let calls = [list, listed, get, write, create, delete, container];
        let second = Duration::from_secs(1);
        for (fault, expected) in [
            (Fault::Hang, [true; 7]),
            (Fault::Throttled { retry_after: None }, [true; 7]),
            (Fault::ResponseLost, [false, false, false, true, true, true, true]),
            (Fault::AppliedLate(second), [false, false, false, true, true, true, false]),
            (Fault::ConcurrentWrite(crate::blob::Metadata::new()), [false, false, false, true, true, false, false]),
            (Fault::Conflict, [false, false, false, false, true, false, false]),
            (Fault::StaleListing(second), [false, true, false, false, false, false, false]),
            (Fault::TruncatedListing, [true, true, false, false, false, false, false]),
        ] {
            let plan = FaultPlan::always(fault.clone());
            let befallen = calls.map(|call| plan.draw(&call, &mut StdRng::seed_from_u64(0)).fault.is_some());
            assert_eq!(befallen, expected, "{fault:?}");
        }
    }

    #[test]
    fn a_target_narrows_by_operation_and_by_name() {
        let call = |name| Call::new(BlobOperation::Get, name);
        let on = |target: Target| FaultPlan::default().with_on(1.0, target, Fault::Hang);
        let named = on(Target::from(BlobOperation::Get).named("/checkpoint/"));
        assert_eq!((count(&named, &call("g/checkpoint/0")), count(&named, &call("g/ownership/0"))), (1000, 0));
        assert_eq!(count(&on(BlobOperation::List.into()), &call("g/checkpoint/0")), 0);
    }

    #[test]
    fn latencies_add_up_and_come_on_top_of_the_first_fault() {
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
    fn another_probability_leaves_the_luck_of_the_others() {
        let hangs = |other: f64| {
            let plan = FaultPlan::default().with(0.3, Fault::Hang).with(other, Fault::RequestLost);
            let mut rng = StdRng::seed_from_u64(5);
            let get = Call::new(BlobOperation::Get, "a");
            (0..100).map(|_| plan.draw(&get, &mut rng).fault == Some(Fault::Hang)).collect::<Vec<_>>()
        };
        assert_eq!(hangs(0.0), hangs(1.0));
    }
}
