//! The current faults between the instances and a service: conditions begin and end, and affect the traffic meanwhile.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use eventhubs_checkpoint::internal::lock::lock;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tokio::sync::watch;

/// A fault of the network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Condition {
    /// Connections break.
    Cut,
    /// Connections stay open, and nothing passes.
    Hang,
    /// This share of the responses is lost.
    LostResponses(f64),
    /// This share of the requests, and of the responses, is late by up to this time.
    Delay(f64, Duration),
    /// This share of the requests is rejected for now.
    Throttle(f64),
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Treatment {
    Pass,
    Cut,
    Hang,
    LoseResponse,
    Delay { request: Duration, response: Duration },
    Refuse,
}

#[derive(Clone, Debug)]
struct Active {
    id: u64,
    /// All instances if there is none.
    instance: Option<u32>,
    condition: Condition,
}

/// The conditions on the way to one service.
#[derive(Debug)]
pub struct NetworkFaults {
    active: watch::Sender<Vec<Active>>,
    next: AtomicU64,
    rng: Mutex<StdRng>,
}

/// Ends a condition.
#[derive(Debug)]
#[must_use = "the condition lasts until this token is passed to `end`"]
pub struct Token(u64);

impl NetworkFaults {
    pub fn new(seed: u64) -> Self {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Self { active: watch::Sender::new(Vec::new()), next: AtomicU64::new(0), rng }
    }

    pub fn begin(&self, instance: Option<u32>, condition: Condition) -> Token {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.active.send_modify(|active| active.push(Active { id, instance, condition }));
        Token(id)
    }

    pub fn end(&self, token: &Token) {
        self.active.send_modify(|active| active.retain(|condition| condition.id != token.0));
    }

    /// Ends all conditions.
    pub fn clear(&self) {
        self.active.send_modify(Vec::clear);
    }

    /// Returns what happens to a request of this instance.
    pub fn treatment(&self, instance: u32) -> Treatment {
        let conditions = conditions(&self.active.borrow(), instance);
        treatment(&conditions, &mut *lock(&self.rng))
    }

    /// Waits until this condition affects the instance.
    pub async fn strikes(&self, instance: u32, condition: Condition) {
        let mut active = self.active.subscribe();
        // The sender is `self`, so it is not dropped.
        let _ = active.wait_for(|active| conditions(active, instance).contains(&condition)).await;
    }

    /// Waits until it does not.
    pub async fn spares(&self, instance: u32, condition: Condition) {
        let mut active = self.active.subscribe();
        let _ = active.wait_for(|active| !conditions(active, instance).contains(&condition)).await;
    }
}

fn conditions(active: &[Active], instance: u32) -> Vec<Condition> {
    let strikes = |active: &&Active| active.instance.is_none_or(|struck| struck == instance);
    active.iter().filter(strikes).map(|active| active.condition).collect()
}

/// The worst condition has precedence.
fn treatment(conditions: &[Condition], rng: &mut impl Rng) -> Treatment {
    if conditions.contains(&Condition::Cut) {
        return Treatment::Cut;
    }
    if conditions.contains(&Condition::Hang) {
        return Treatment::Hang;
    }
    for condition in conditions {
        match *condition {
            Condition::LostResponses(share) if rng.random_bool(share) => return Treatment::LoseResponse,
            Condition::Throttle(share) if rng.random_bool(share) => return Treatment::Refuse,
            Condition::Delay(share, most) => {
                let mut late = || if rng.random_bool(share) { most.mul_f64(rng.random()) } else { Duration::ZERO };
                return Treatment::Delay { request: late(), response: late() };
            }
            _ => {}
        }
    }
    Treatment::Pass
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_affects_its_instance_until_it_ends() {
        let network_faults = NetworkFaults::new(1);
        let token = network_faults.begin(Some(1), Condition::Hang);
        assert_eq!((network_faults.treatment(0), network_faults.treatment(1)), (Treatment::Pass, Treatment::Hang));
        let all = network_faults.begin(None, Condition::Cut);
        assert_eq!((network_faults.treatment(0), network_faults.treatment(1)), (Treatment::Cut, Treatment::Cut));
        network_faults.end(&all);
        network_faults.end(&token);
        assert_eq!((network_faults.treatment(0), network_faults.treatment(1)), (Treatment::Pass, Treatment::Pass));
    }

    #[test]
    fn shares_are_shares() {
        let network_faults = NetworkFaults::new(1);
        let lost = network_faults.begin(None, Condition::LostResponses(0.3));
        let count = |wanted| (0..1000).filter(|_| network_faults.treatment(0) == wanted).count();
        assert!((250..350).contains(&count(Treatment::LoseResponse)));
        network_faults.end(&lost);
        let _throttled = network_faults.begin(None, Condition::Throttle(0.5));
        assert!((420..580).contains(&count(Treatment::Refuse)));
    }

    #[test]
    fn delays_vary_within_their_bound() {
        let network_faults = NetworkFaults::new(1);
        let most = Duration::from_secs(3);
        let _late = network_faults.begin(None, Condition::Delay(0.5, most));
        let drawn: Vec<_> = (0..100).map(|_| network_faults.treatment(0)).collect();
        assert!(drawn.iter().any(|treatment| *treatment != drawn[0]));
        for treatment in drawn {
            let Treatment::Delay { request, response } = treatment else { panic!("{treatment:?}") };
            assert!(request <= most && response <= most);
        }
    }
}
